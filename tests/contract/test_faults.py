"""What a client sees when the disk fails or is slow, or a handler has a bug: the server here, on a disk that obeys."""

import asyncio
import errno
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop

from tests.faults import FaultyDisk, Kind
from tests.serving import START_S_MAX, Client
from topics.api.auth import authenticator_of
from topics.api.call import Call
from topics.model.settings import Settings
from topics.server import Server

T = TypeVar("T")


class ServerThread:
    """The whole server, on a loop in a thread of its own."""

    def __init__(self, settings: Settings, disk: FaultyDisk) -> None:
        self.disk = disk
        self._settings = settings
        self._started: Future[Server] = Future()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        self.server = self._started.result(timeout=START_S_MAX)
        self.client = Client(self.server.port)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        server = Server(self._settings, authenticator_of(self._settings), self._loop, self.disk)
        await server.listen()
        await server.open()
        server.start()
        self._started.set_result(server)
        await server.stopped()
        await server.close()

    def on_loop(self, action: Callable[[], T]) -> T:
        """Run something where the server runs."""
        done: Future[T] = Future()
        self._loop.call_soon_threadsafe(lambda: done.set_result(action()))
        return done.result(timeout=START_S_MAX)

    def stop(self) -> None:
        self.client.close()
        self._loop.call_soon_threadsafe(self.server.stop)
        self._thread.join(timeout=START_S_MAX)
        # The server had switched it off. What it froze stays so, or every look for garbage would pass over all tests.
        gc.enable()


class SlowDisk(FaultyDisk):
    """Nothing can be read without waiting for it."""

    def pread_nowait(self, fd: int, length: int, offset: int) -> bytes | None:
        return None


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[ServerThread]:
    """Topic `c` has 300 records in segments of 10, all of them on disk only."""
    settings = Settings(
        port=0, data_dir=str(tmp_path / "data"), segment_max_events=10, hot_retain_segments=0, hot_retain_bytes=0
    )
    server = ServerThread(settings, SlowDisk())
    for first in range(0, 300, 10):
        records = [{"data": number, "tag": f"t{number % 3}"} for number in range(first, first + 10)]
        assert server.client.post("/v0/topics/c", {"records": records}).status in (200, 201)
    assert server.on_loop(server.server.store.checkpoint)
    yield server
    server.stop()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerThread]:
    server = ServerThread(Settings(port=0, data_dir=str(tmp_path / "data")), FaultyDisk())
    yield server
    server.stop()


@pytest.fixture
def client(server: ServerThread) -> Client:
    return server.client


def test_a_refused_write_is_a_500_and_leaves_nothing(server: ServerThread, client: Client) -> None:
    client.append("a", 1)
    server.disk.fail("pwritev", path=".log", error=errno.EIO)
    reply = client.append("a", 2)
    assert (reply.status, reply.code) == (500, "internal")
    assert client.payloads("a") == [1]
    assert client.append("a", 3).json["seqs"] == [2]


def test_a_full_disk_is_507_while_reads_go_on_and_writing_resumes(server: ServerThread, client: Client) -> None:
    client.append("a", 1)
    server.disk.fail("pwritev", path=".log", error=errno.ENOSPC)
    reply = client.append("a", 2)
    assert (reply.status, reply.code) == (507, "storage_full")
    assert int(reply.headers["retry-after"]) >= 1
    assert client.payloads("a") == [1]
    assert client.append("a", 2).status == 200
    assert client.payloads("a") == [1, 2]


def test_after_a_failed_sync_the_server_is_read_only_and_says_so(
    server: ServerThread, client: Client, tmp_path: Path
) -> None:
    client.put("/v0/topics/f", {"durable": True})
    client.append("f", 1)
    server.disk.fail("fdatasync", path=".log", error=errno.EIO)
    reply = client.append("f", 2)
    assert (reply.status, reply.code) == (503, "read_only")
    assert int(reply.headers["retry-after"]) >= 1
    assert client.append("other", 1).code == "read_only"
    assert client.put("/v0/topics/f", {"cap_records": 5}).code == "read_only"
    assert client.payloads("f") == [1]
    ready = client.get("/v0/ready")
    assert (ready.status, ready.code) == (503, "read_only")
    assert str(tmp_path).encode() not in ready.body + reply.body
    assert client.get("/v0/health").status == 200
    metrics = client.get("/v0/metrics", headers={"Accept": "application/json"}).json
    assert (metrics["topics_wal_read_only"], metrics["topics_ready"]) == (1, 0)


def test_a_bug_is_a_500_with_a_trace_id_that_the_log_has_too(
    server: ServerThread, client: Client, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def boom(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("boom")

    monkeypatch.setattr(server.server.store.engine, "look", boom)
    with caplog.at_level(logging.ERROR):
        reply = client.get("/v0/topics/a")
    assert (reply.status, reply.code) == (500, "internal")
    assert reply.detail["trace_id"] in caplog.text
    assert "boom" not in reply.body.decode()
    assert client.get("/v0/health").status == 200, "the connection lives on"


def test_a_bug_in_an_answer_does_not_harm_the_writes_beside_it(
    server: ServerThread, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def boom(*_: Any, **__: Any) -> bytes:
        raise ZeroDivisionError("boom")

    with monkeypatch.context() as patched:
        patched.setattr("topics.api.v0.records.appended", boom)
        assert client.append("a", 1).status == 500
    assert client.append("a", 2).json["seqs"] == [2]


def test_requests_leave_no_cycles_behind(server: ServerThread, client: Client) -> None:
    def calls_alive() -> int:
        return sum(isinstance(thing, Call) for thing in gc.get_objects())

    client.put("/v0/topics/a", {})
    assert not gc.isenabled()
    for _ in range(20):
        client.append("a", 1)
        client.append("a", 1, idempotency_key="k")
        client.diff("a")
        client.diff("a", from_seq=10**6, wait_ms=1)
        client.diff("a", from_seq=client.state("a")["head_seq"], wait_ms=6)
        client.post("/v0/topics/a/delete", {"before_seq": 1})
        client.get("/v0/topics/absent")
        client.post("/v0/topics/a", {"records": []})
        client.get("/v0/metrics")
        client.get("/v0/topics")
    assert server.on_loop(calls_alive) == 0


# --- cold reads ---


def test_a_cold_read_waits_for_the_disk_and_tells_how_many_segments_it_touched(cold: ServerThread) -> None:
    seen: list[int] = []
    cursor = touched = 0
    while True:
        diff = cold.client.diff("c", from_seq=cursor, limit=1000)
        seen += [record["data"] for record in diff["records"]]
        touched += diff["performance"].get("cold_segments_read", 0)
        cursor = diff["next_from_seq"]
        if diff["caught_up"]:
            break
    assert seen == list(range(300))
    assert touched > 0


def test_a_delete_by_tag_looks_into_cold_segments(cold: ServerThread) -> None:
    reply = cold.client.post("/v0/topics/c/delete", {"match": "t0"})
    assert (reply.status, reply.json["deleted"]) == (200, 100)
    assert cold.client.state("c")["count"] == 200


def test_a_hot_read_tells_of_no_cold_segments(server: ServerThread, client: Client) -> None:
    client.append("a", 1)
    assert "cold_segments_read" not in client.diff("a")["performance"]


def test_a_damaged_segment_is_a_500_that_names_the_range_and_never_wrong_data(
    cold: ServerThread, tmp_path: Path
) -> None:
    (pack, *_) = sorted((tmp_path / "data" / "shard-00" / "packs").iterdir())
    content = bytearray(pack.read_bytes())
    for at in range(200, len(content), 50):
        content[at] ^= 1
    pack.write_bytes(content)
    reply = cold.client.post("/v0/topics/c/diff", {})
    assert (reply.status, reply.code) == (500, "internal")
    assert reply.detail["from_seq"] == 1
    assert reply.detail["to_seq"] >= 1
    assert cold.client.append("c", "still writable").status == 200


@pytest.mark.parametrize("kind", ["allocate", "open"])
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_write_that_needs_a_file_which_cannot_be_made_does_not_name_its_path(
    tmp_path: Path, kind: Kind, error: int
) -> None:
    server = ServerThread(Settings(port=0, data_dir=str(tmp_path / "data"), wal_file_bytes=1 << 20), FaultyDisk())
    try:
        server.disk.fail(kind, error=error, times=1_000)
        replies = [server.client.append("a", *["x" * 1000] * 900) for _ in range(8)]
    finally:
        server.stop()
    refused = [reply for reply in replies if reply.status >= 500]
    assert refused
    assert not [reply.body for reply in refused if str(tmp_path).encode() in reply.body]


def test_a_pack_that_is_missing_is_named_without_its_directory(cold: ServerThread, tmp_path: Path) -> None:
    for pack in (tmp_path / "data" / "shard-00" / "packs").glob("*.pack"):
        pack.unlink()
    cold.on_loop(cold.server.store.packs._open.close)
    reply = cold.client.post("/v0/topics/c/diff", {})
    assert (reply.status, reply.code) == (500, "internal")
    assert ".pack is missing" in reply.json["error"]["message"]
    assert str(tmp_path).encode() not in reply.body
