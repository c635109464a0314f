"""A head that a connection repeats is judged once; what may change meanwhile is looked at each time."""

import asyncio
import json
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import jwt
import pytest

from tests.http.pipe import Pipe
from tests.http.wire import PATIENCE_S
from topics.api.app import Api
from topics.api.auth import Headers, authenticator_of
from topics.api.groups.tokens import ISSUER, Tokens, TokenUser
from topics.http.http1.connection import Http1Connection
from topics.http.http1.known_heads import KnownHead
from topics.model.settings import Settings
from topics.server import Server
from topics.storage.disk import Disk

SECRET = "a secret of more than thirty-two characters"


class Exchange:
    """A server, and one connection to it without a socket."""

    def __init__(self, server: Server, judged: list[str]) -> None:
        self.server = server
        self.judged = judged
        self.pipe = Pipe()
        self.connection = Http1Connection(server._listener._service)
        self.connection.connection_made(self.pipe)

    async def ask(self, path: str, body: Any, key: str | None = None) -> int:
        """The status of the reply."""
        self.pipe.written.clear()
        text = json.dumps(body).encode()
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"Content-Length: {len(text)}", *([f"Authorization: Bearer {key}"] if key else [])]
        self.connection.data_received("\r\n".join(lines).encode() + b"\r\n\r\n" + text)
        async with asyncio.timeout(PATIENCE_S):
            while not self.pipe.written:  # noqa: ASYNC110 - the reply is written by the end of a tick
                await asyncio.sleep(0)
        return int(self.pipe.written[9:12])


def exchanging(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    talk: Callable[[Exchange], Coroutine[Any, Any, None]],
    **changes: Any,
) -> None:
    judged: list[str] = []
    usual = Api._judge

    def judge(self: Api, request: Any, headers: Any) -> Any:
        judged.append(request.raw_path.decode())
        return usual(self, request, headers)

    monkeypatch.setattr(Api, "_judge", judge)

    async def run() -> None:
        settings = Settings(data_dir=str(tmp_path / "data"), port=0, **changes)
        authenticator = authenticator_of(settings)
        server = Server(settings, authenticator, asyncio.get_running_loop(), Disk(), Tokens(settings, authenticator))
        await server.listen()
        assert await server.open()
        server.take_requests()
        try:
            await talk(Exchange(server, judged))
        finally:
            server._listener.close()
            server.put_away()

    asyncio.run(run())


def kept_heads(exchange: Exchange) -> list[KnownHead]:
    reader: Any = exchange.connection._reader
    return reader._known._heads


RECORD = {"records": [{"data": 1}]}


def test_a_repeated_head_is_judged_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(exchange: Exchange) -> None:
        statuses = [await exchange.ask("/v0/topics/t", RECORD, "key") for _ in range(10)]
        assert statuses == [201] + [200] * 9
        assert len(exchange.judged) < 5

    exchanging(tmp_path, monkeypatch, talk, api_keys=("key",))


def test_another_key_of_the_same_length_is_not_taken_for_the_known_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def talk(exchange: Exchange) -> None:
        for _ in range(6):
            await exchange.ask("/v0/topics/t", RECORD, "key1")
        assert await exchange.ask("/v0/topics/t", RECORD, "key2") == 401
        assert await exchange.ask("/v0/topics/t", RECORD, "only") == 403
        assert await exchange.ask("/v0/topics/t", RECORD) == 401
        assert await exchange.ask("/v0/topics/t", RECORD, "key1") == 200

    exchanging(tmp_path, monkeypatch, talk, api_keys=("key1", "only:r"))


def test_the_cap_of_a_key_holds_for_a_known_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(exchange: Exchange) -> None:
        for _ in range(6):
            await exchange.ask("/v0/topics/t", RECORD, "key")
        asked = len(exchange.judged)
        (principal,) = exchange.server._authenticator.keys  # type: ignore[union-attr]
        principal.inflight = principal.inflight_max
        assert await exchange.ask("/v0/topics/t", RECORD, "key") == 429
        principal.inflight = 0
        assert await exchange.ask("/v0/topics/t", RECORD, "key") == 200
        assert len(exchange.judged) == asked

    exchanging(tmp_path, monkeypatch, talk, api_keys=("key",), max_inflight_per_key=2)


def test_a_server_that_goes_down_refuses_a_known_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(exchange: Exchange) -> None:
        for _ in range(6):
            await exchange.ask("/v0/topics/t", RECORD)
        exchange.server._lifecycle.drain()
        assert await exchange.ask("/v0/topics/t", RECORD) == 503

    exchanging(tmp_path, monkeypatch, talk)


def test_a_token_is_looked_at_each_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bearers: list[TokenUser] = []
    usual = Tokens.authenticate

    def authenticate(self: Tokens, headers: Headers) -> TokenUser:
        bearers.append(usual(self, headers))
        return bearers[-1]

    monkeypatch.setattr(Tokens, "authenticate", authenticate)

    async def talk(exchange: Exchange) -> None:
        token = jwt.encode({"sub": "ada", "iss": ISSUER, "role": "dba", "exp": time.time() + 3600}, SECRET, "HS256")
        await exchange.ask("/v0/topics/t", RECORD)
        for _ in range(8):
            assert await exchange.ask("/v1/api/topics/consume", {"topic_id": "t", "group_id": "g"}, token) == 200
        assert [bearer.subject for bearer in bearers] == ["ada"] * 8
        assert kept_heads(exchange)

    exchanging(tmp_path, monkeypatch, talk, jwt_secret=SECRET)


def test_a_key_in_the_query_is_kept_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def talk(exchange: Exchange) -> None:
        for _ in range(6):
            await exchange.ask("/v0/topics/t?token=key", RECORD, "key")
        assert kept_heads(exchange) == []

    exchanging(tmp_path, monkeypatch, talk, api_keys=("key",))
