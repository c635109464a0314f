"""Stream tokens: what they open, for how long, and that they never reach further than their key."""

import os
import stat
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.live.rig import EventSource
from tests.serving import Client, Reply, ServerProcess, serving
from topics import testing
from topics.model.settings import Settings

KEYS = "full,tenant:read:a:|b:,writer:write"
EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), api_keys=KEYS) as server:
        server.key = "full"
        for name in ("a:1", "a:12", "b:1", "c:1"):
            server.client().append(name, name)
        yield server


def made(client: Client, *topics: str, **fields: Any) -> str:
    reply = client.post("/v0/stream-tokens", {"topics": list(topics), **fields})
    assert reply.status == 200, reply
    return reply.json["token"]


def refused(server: ServerProcess, topic: str, token: str, path: str = "stream") -> Reply:
    target = f"/v0/topics/{topic}/{path}?token={token}"
    stream = EventSource(server.port, target)
    stream.close()
    # A stream that opens all the same would never be read to its end.
    assert stream.status != 200
    return server.stranger().get(target, headers=EVENTS)


def opened(server: ServerProcess, topic: str, token: str) -> str:
    """The payload of the first record."""
    stream = EventSource(server.port, f"/v0/topics/{topic}/stream?token={token}")
    assert stream.status == 200
    assert stream.event().event == "id"
    data = stream.event().data["data"]
    stream.close()
    return data


def test_a_token_opens_the_streams_of_its_topics_and_no_others(server: ServerProcess) -> None:
    token = made(server.client(), "a:1", "b:1", "a:1")
    assert (opened(server, "a:1", token), opened(server, "b:1", token)) == ("a:1", "b:1")
    for topic in ("a:12", "c:1", "a"):
        reply = refused(server, topic, token)
        assert (reply.status, reply.code) == (403, "forbidden")
    header = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
    stream = EventSource(server.port, "/v0/topics/a:1/stream", header)
    assert stream.status == 200
    stream.close()


def test_the_answer_says_how_long_it_lasts(server: ServerProcess) -> None:
    hour = server.client().post("/v0/stream-tokens", {"topics": ["a:1", "a:1"]}).json
    day = server.client().post("/v0/stream-tokens", {"topics": ["a:1"], "ttl_ms": 86_400_000}).json
    assert set(hour) == {"token", "topics", "expires_ms", "performance"}
    assert hour["topics"] == ["a:1"]
    assert day["expires_ms"] - hour["expires_ms"] == pytest.approx(82_800_000, abs=60_000)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "topics"),
        ({"topics": []}, "topics"),
        ({"topics": "a:1"}, "topics"),
        ({"topics": ["a b"]}, "topics[0]"),
        ({"topics": [f"t{number}" for number in range(101)]}, "topics"),
        ({"topics": [f"{number:0255}" for number in range(20)]}, "topics"),
        ({"topics": ["a:1"], "ttl_ms": 0}, "ttl_ms"),
        ({"topics": ["a:1"], "ttl_ms": 86_400_001}, "ttl_ms"),
        ({"topics": ["a:1"], "ttl_ms": None}, "ttl_ms"),
        ({"topics": ["a:1"], "ttl_ms": 1.5}, "ttl_ms"),
    ],
)
def test_a_wish_that_cannot_be_met_is_400(server: ServerProcess, body: Any, field: str) -> None:
    reply = server.client().post("/v0/stream-tokens", body)
    assert (reply.status, reply.code, reply.detail["field"]) == (400, "invalid_request", field)


def test_no_token_reaches_further_than_its_key(server: ServerProcess) -> None:
    tenant = server.client("tenant")
    assert opened(server, "a:1", made(tenant, "a:1", "b:1")) == "a:1"
    reply = tenant.post("/v0/stream-tokens", {"topics": ["a:1", "c:1"]})
    assert (reply.status, reply.code, reply.detail["field"]) == (403, "forbidden", "topics[1]")
    assert server.client("writer").post("/v0/stream-tokens", {"topics": ["a:1"]}).status == 403
    assert server.stranger().post("/v0/stream-tokens", {"topics": ["a:1"]}).status == 401


def test_a_token_is_good_for_streams_and_for_nothing_else(server: ServerProcess) -> None:
    token = made(server.client(), "a:1")
    bearer = server.client(token)
    assert bearer.get("/v0/topics/a:1").status == 401
    assert bearer.append("a:1", 1).status == 401
    assert bearer.post("/v0/stream-tokens", {"topics": ["a:1"]}).status == 401
    assert bearer.post("/v0/watch", {"topics": {"a:1": {}}}).status == 401
    assert refused(server, "a:1", token, "work").status == 401
    assert refused(server, "a:1", token, "export").status == 401


def test_a_token_that_was_touched_is_401(server: ServerProcess) -> None:
    token = made(server.client("tenant"), "a:1")
    payload, _, signature = token.removeprefix("st_").partition(".")
    raw = urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
    other = urlsafe_b64encode(raw.replace(b"a:1", b"c:1")).decode().rstrip("=")
    later = urlsafe_b64encode(b"\xff" * 7 + raw[7:]).decode().rstrip("=")
    made_up = (
        *(
            f"st_{other}.{signature}",
            f"st_{later}.{signature}",
            f"st_{payload}.",
            f"st_{payload}",
            "st_",
            "st_.",
            "st_é",
        ),
        *(f"st_{payload}.{signature[:-4]}AAAA", f"st_.{signature}", token + "A", token.removeprefix("st_")),
    )
    for token in made_up:
        reply = refused(server, "a:1", token.replace("é", "%C3%A9"))
        assert (reply.status, reply.code) == (401, "unauthorized"), token


def test_streams_count_for_the_key_of_the_token(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="k,l", max_sse_connections_per_key=1) as server:
        client = server.client("k")
        client.append("t", 1)
        first = EventSource(server.port, f"/v0/topics/t/stream?token={made(client, 't')}")
        assert first.status == 200
        reply = refused(server, "t", made(client, "t"))
        assert (reply.status, reply.detail["limit"]) == (429, "max_sse_connections_per_key")
        assert opened(server, "t", made(server.client("l"), "t")) == 1
        first.close()


def test_a_token_outlives_restarts_but_not_its_key_nor_what_its_key_may(tmp_path: Path) -> None:
    with serving(tmp_path, api_keys="k,l") as server:
        server.client("k").append("t", 1)
        token = made(server.client("k"), "t")
        kept = tmp_path / "stream.key"
        assert stat.S_IMODE(os.stat(kept).st_mode) == 0o600
        assert len(kept.read_bytes()) == 32
        server.terminate()
    with serving(tmp_path, api_keys="l,k:read") as server:
        assert opened(server, "t", token) == 1
    with serving(tmp_path, api_keys="l,k:read:x") as server:
        assert refused(server, "t", token).status == 403
    with serving(tmp_path, api_keys="l,k:write") as server:
        assert refused(server, "t", token).status == 403
    with serving(tmp_path, api_keys="l") as server:
        assert refused(server, "t", token).status == 401
    kept.write_bytes(b"short")
    with serving(tmp_path, api_keys="k,l") as server:
        assert refused(server, "t", token).status == 401
        assert opened(server, "t", made(server.client("k"), "t")) == 1
        assert stat.S_IMODE(os.stat(kept).st_mode) == 0o600


def test_without_keys_a_page_asks_for_a_token_as_it_would_elsewhere(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        server.client().append("t", 1)
        token = made(server.client(), "t")
        assert opened(server, "t", token) == opened(server, "t", "st_anything") == 1
        assert not (tmp_path / "stream.key").exists()
    with serving(tmp_path, api_keys="k") as server:
        assert refused(server, "t", token).status == 401


def test_an_open_stream_ends_with_its_token() -> None:
    with testing.engine(settings=Settings(api_keys=("k",))) as engine:
        engine.client("k").append("t", 1)
        json_body = [(b"Authorization", b"Bearer k"), (b"Content-Type", b"application/json")]
        exchange, _ = engine.begin("POST", b"/v0/stream-tokens", json_body, b'{"topics":["t"],"ttl_ms":10000}')
        token = exchange.take().split(b'"')[3]
        accept = [(b"Accept", b"text/event-stream")]
        stream, _ = engine.begin("GET", b"/v0/topics/t/stream?token=" + token, accept, b"")
        assert (stream.status, stream.take().count(b"data: ")) == (200, 1)
        engine.advance(9_000)
        assert not stream.ended
        engine.advance(1_500)
        assert stream.ended
        assert b'event: error\ndata: {"code":401,' in stream.take()
        again, _ = engine.begin("GET", b"/v0/topics/t/stream?token=" + token, accept, b"")
        assert again.status == 401
        assert b"expired" in again.take()
