"""Groups on a disk that fails or must be waited for, on a server that stops, and without leftovers in memory."""

from __future__ import annotations

import errno
import gc
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contract.test_faults import ServerThread, SlowDisk
from tests.faults import FaultyDisk
from tests.groups.consumers import SECRET, Consumer, token
from tests.serving import Client, serving
from topics.api.call import Call
from topics.api.groups.tokens import Tokens
from topics.engine.core.pending import PendingChange
from topics.engine.groups.consume import Reading
from topics.engine.groups.verbs import Portion
from topics.model.settings import Settings

Start = Callable[..., ServerThread]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[ServerThread] = []

    def start_one(disk: FaultyDisk | None = None, **settings: Any) -> ServerThread:
        chosen = Settings(port=0, data_dir=str(tmp_path / f"data{len(started)}"), jwt_secret=SECRET, **settings)
        started.append(ServerThread(chosen, disk or FaultyDisk()))
        return started[-1]

    yield start_one
    for server in started:
        server.stop()


@pytest.fixture
def connect() -> Iterator[Callable[[ServerThread], Consumer]]:
    clients: list[Client] = []

    def connect_one(server: ServerThread) -> Consumer:
        clients.append(Client(server.server.port, token()))
        return Consumer(clients[-1], "t")

    yield connect_one
    for client in clients:
        client.close()


@pytest.mark.parametrize(
    ("error", "status", "code"), [(errno.EIO, 500, "INTERNAL_ERROR"), (errno.ENOSPC, 507, "STORAGE_FULL")]
)
def test_a_claim_that_was_not_written_is_not_answered_and_not_taken(
    start: Start, connect: Callable[[ServerThread], Consumer], error: int, status: int, code: str
) -> None:
    server = start()
    server.client.append("t", 0, 1, 2)
    consumer = connect(server)
    server.disk.fail("pwritev", path=".log", error=error)
    reply = consumer.ask()
    assert (reply.status, reply.json["code"]) == (status, code)
    assert consumer.offsets() == [0, 1, 2]
    server.disk.fail("pwritev", path=".log", error=error)
    request = {"topic_id": "t", "group_id": "workers", "upto_offset": 2}
    assert consumer.client.post("/v1/api/topics/ack", request).status == status
    assert consumer.standing()["committed_offset"] is None
    consumer.ack(2)
    assert consumer.standing()["committed_offset"] == 2


@pytest.mark.parametrize("partition", [0, "all"])
def test_a_first_latest_that_was_not_written_is_not_answered(
    start: Start, connect: Callable[[ServerThread], Consumer], partition: Any
) -> None:
    server = start()
    for name in ("t", "t:p1"):
        server.client.append(name, 0)
    consumer = connect(server)
    server.disk.fail("pwritev", path=".log", error=errno.ENOSPC)
    assert consumer.ask(start="Latest", partition_id=partition).status == 507
    server.client.append("t", 1)
    assert consumer.batch(start="Latest", partition_id=partition)["next_offset"] == 2
    server.client.append("t", 2)
    assert consumer.offsets(start="Latest", partition_id=partition) == [2]


def test_after_a_failed_sync_groups_are_refused_and_plain_reads_go_on(
    start: Start, connect: Callable[[ServerThread], Consumer]
) -> None:
    server = start()
    server.client.put("/v0/topics/t", {"durable": True})
    server.client.append("t", 0, 1)
    consumer = connect(server)
    assert consumer.offsets() == [0, 1]
    server.disk.fail("fdatasync", path=".log", error=errno.EIO)
    request = {"topic_id": "t", "group_id": "workers", "upto_offset": 1}
    reply = consumer.client.post("/v1/api/topics/ack", request)
    assert (reply.status, reply.json["code"]) == (503, "READ_ONLY")
    assert consumer.ask(group_id="another").status == 503
    assert consumer.offsets(group_id=None) == [0, 1]


def test_records_on_disk_are_waited_for(start: Start, connect: Callable[[ServerThread], Consumer]) -> None:
    server = start(SlowDisk(), segment_max_events=10, hot_retain_segments=0, hot_retain_bytes=0)
    for first in range(0, 100, 10):
        server.client.append("t", *range(first, first + 10))
    assert server.on_loop(server.server.store.checkpoint)
    consumer = connect(server)
    seen: list[int] = []
    while offsets := consumer.offsets(limit=25):
        seen += offsets
        consumer.ack(offsets[-1])
    assert seen == list(range(100))


def test_consuming_leaves_no_cycles_behind(start: Start, connect: Callable[[ServerThread], Consumer]) -> None:
    def left() -> list[Any]:
        return [thing for thing in gc.get_objects() if isinstance(thing, Call | Reading | Portion | PendingChange)]

    server = start()
    server.client.append("t", *range(50))
    server.client.append("t:p1", *range(50))
    consumer = connect(server)
    assert not gc.isenabled()
    for _ in range(5):
        consumer.batch(limit=2)
        consumer.ack(10**6)
        consumer.batch(timeout_seconds=0.02)
        consumer.batch(partition_id="all", limit=2)
        consumer.batch(group_id=None)
        consumer.ask(topic_id="absent")
        consumer.ask(limit="x")
        consumer.client.get("/v1/api/topics/groups")
        request = {"start": "Latest", "timeout_seconds": 5, "group_id": "w"}
        waiting = threading.Thread(target=consumer.batch, kwargs=request)
        waiting.start()
        while waiting.is_alive():
            server.client.append("t", 1)
    assert server.on_loop(left) == []


def test_a_server_that_stops_answers_those_who_wait(tmp_path: Path) -> None:
    with serving(tmp_path / "data", jwt_secret=SECRET) as server:
        server.stranger().append("t", 0)
        consumer = Consumer(server.client(token()), "t")
        consumer.begin(start="Latest", timeout_seconds=25)
        server.settle()
        # It waits for up to 20 s otherwise; connections that are open after 10 s are closed without an answer.
        server.process.send_signal(signal.SIGTERM)
        reply = consumer.client.end()
        assert server.exit_code() == 0
    assert (reply.status, reply.json["messages"]) == (200, [])


def test_a_bug_before_a_route_is_chosen_is_told_in_the_form_of_the_path(
    start: Start, connect: Callable[[ServerThread], Consumer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def boom(*_: object) -> None:
        raise ZeroDivisionError("boom")

    consumer = connect(start())
    monkeypatch.setattr(Tokens, "authenticate", boom)
    reply = consumer.ask()
    assert (reply.status, reply.json["code"]) == (500, "INTERNAL_ERROR")
    assert "boom" not in reply.body.decode()
