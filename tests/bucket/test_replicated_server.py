"""Durability `replicated` over HTTP: refusals, a bucket that is away, and servers that are killed or shut out."""

from __future__ import annotations

import contextlib
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.bucket.test_lost_machine import everything, health, settings, until_shipped
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving
from topics.client import NotReplicated

REPLICATED = {"durability": "replicated"}


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    path = tmp_path / "bucket"
    path.mkdir()
    return path


class Later(threading.Thread):
    """An append whose reply comes later."""

    def __init__(self, port: int, topic: str, value: Any, **fields: Any) -> None:
        super().__init__(daemon=True)
        self._client = Client(port)
        self._body = {"records": [{"data": value}], **fields}
        self._topic = topic
        self.reply: Any = None
        self.start()

    def run(self) -> None:
        with contextlib.closing(self._client), contextlib.suppress(ConnectionError):
            self.reply = self._client.post(f"/v0/topics/{self._topic}", self._body)

    def result(self) -> Any:
        self.join(PATIENCE_S)
        assert self.reply is not None
        return self.reply


def test_a_server_without_a_bucket_refuses_the_class(server: ServerProcess) -> None:
    client = server.client()
    for refused in (
        client.put("/v0/topics/replicated-1", REPLICATED),
        client.post("/v0/topics/replicated-1", {"records": [{"data": 1}], "config": REPLICATED}),
        client.post("/v0/append", {"topics": {"replicated-1": {"records": [{"data": 1}], "config": REPLICATED}}}),
    ):
        assert (refused.status, refused.code) == (400, "invalid_request")
        assert "TOPICS_BUCKET" in refused.json["error"]["message"]
        assert refused.json["error"]["detail"]["setting"] == "bucket"
    assert client.get("/v0/topics/replicated-1").status == 404


@pytest.mark.slow
def test_a_start_without_the_bucket_is_refused(tmp_path: Path, bucket: Path) -> None:
    with serving(tmp_path / "a", **settings(bucket)) as server:
        client = server.client()
        state = client.put("/v0/topics/r", REPLICATED).json
        assert state["config"]["durability"] == "replicated"
        assert state["config"]["durable"] is False
        assert client.append("r", 1).status == 200
        assert everything(client, "r") == [1]
    refused = ServerProcess(tmp_path / "a")
    assert refused.exit_code() == 2
    assert "durability replicated (r)" in refused.lines[-1]
    assert "set TOPICS_BUCKET" in refused.lines[-1]
    with serving(tmp_path / "a", **settings(bucket)) as server:
        assert everything(server.client(), "r") == [1]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_while_the_bucket_is_away_writers_are_told_so(tmp_path: Path, bucket: Path) -> None:
    with serving(tmp_path / "a", **settings(bucket)) as server:
        client = server.client()
        client.put("/v0/topics/r", REPLICATED)
        until_shipped(client)
        bucket.rename(tmp_path / "gone")
        first = Later(server.port, "r", "first", idempotency_key="k")
        server.wait_for_log("the bucket does not answer")
        assert client.append("d", "other classes go on").status == 201
        assert everything(client, "r") == []
        refused = first.result()
        assert (refused.status, refused.code) == (503, "not_replicated")
        assert refused.headers["retry-after"] == "1"
        assert refused.json["error"]["detail"]["written"] is True
        retried = Later(server.port, "r", "first", idempotency_key="k")
        assert health(client)["state"] == "away"
        with topics.Client(f"http://127.0.0.1:{server.port}", retries_max=0) as python, pytest.raises(NotReplicated):
            python.append("r", "second")
        retried.result()
        (tmp_path / "gone").rename(bucket)
        until_shipped(client)
        again = client.post("/v0/topics/r", {"records": [{"data": "first"}], "idempotency_key": "k"})
        assert (again.status, again.json["deduped"], again.json["first_seq"]) == (200, True, 1)
        assert everything(client, "r") == ["first", "second"]


@pytest.mark.slow
def test_a_server_that_slept_past_its_lease_acknowledges_nothing_that_waits(tmp_path: Path, bucket: Path) -> None:
    first = ServerProcess(tmp_path / "a", **settings(bucket)).ready()
    try:
        client = first.client()
        client.put("/v0/topics/r", REPLICATED)
        assert client.append("r", "before").status == 200
        first.process.send_signal(signal.SIGSTOP)
        # They arrive, and are read when it wakes up.
        waiting = [Later(first.port, "r", number) for number in range(5)]
        with serving(tmp_path / "b", **settings(bucket)) as second:
            assert everything(second.client(), "r") == ["before"]
            assert second.client().append("r", "elsewhere").json["first_seq"] == 2
            first.process.send_signal(signal.SIGCONT)
            first.wait_for_log("starting again as a standby")
            for later in waiting:
                later.join(PATIENCE_S)
            # One that was not read before the server started again has no answer, which is no acknowledgement either.
            assert {later.reply.code for later in waiting if later.reply is not None} <= {"not_primary"}
            assert everything(second.client(), "r") == ["before", "elsewhere"]
    finally:
        first.kill()
