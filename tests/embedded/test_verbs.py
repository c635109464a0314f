"""What only a database in a program has: threads that wait in it, closing under them, and being killed with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.embedded.conftest import OpenDatabase
from tests.patience import PATIENCE_S
from topics.client import Json
from topics.model.clock import ManualClock

WAIT_S = PATIENCE_S


def until(happened: Callable[[], bool]) -> None:
    """Polls the state of the database: it says by itself when a thread has begun to wait."""
    end_s = time.monotonic() + WAIT_S
    while not happened():
        assert time.monotonic() < end_s, "it never happened"
        time.sleep(0.001)


WAITS: dict[str, Callable[[topics.Database], Any]] = {
    "claim": lambda db: db.claim("q", wait_ms=30_000),
    "diff": lambda db: db.diff("a", 1, wait_ms=30_000).records,
    "consume": lambda db: db.consume("a", "g", timeout_s=30).messages,
    "watch": lambda db: [event for event in db.watch("a", tail=True) if event.records],
    "work": lambda db: list(db.work("q", "w")),
    "tail": lambda db: list(db.tail("a")),
}


def waiting_in(db: topics.Database, name: str) -> int:
    host = db._host
    by_name = host.store.state.by_name
    with host.lock:
        if name in ("claim", "work"):
            return sum(map(len, host.store.claims._by_topic.values()))
        if name == "watch":
            # A subscription that has caught up waits from then on.
            feeds = host.live._feeds.values()
            return sum(subscription.caught_up for feed in feeds for subscription in feed.subscriptions)
        return len(by_name["a"].waiters or ())


@pytest.mark.parametrize("name", WAITS)
def test_closing_ends_whatever_waits(open_db: OpenDatabase, name: str) -> None:
    db = open_db()
    db.append("a", 1)
    db.create("q", type="queue")
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(WAITS[name], db) for _ in range(4)]
        until(lambda: waiting_in(db, name) == 4)
        db.close()
        assert [future.result(WAIT_S) for future in waiting] == [[]] * 4


def test_a_slow_machine_makes_closing_no_error(open_db: OpenDatabase) -> None:
    """A turn of the engine takes a few milliseconds, and the calls that end may need more."""
    db = open_db()
    db.create("q", type="queue")
    # An hour passes between any two looks at the clock that limits a turn.
    hours = count(0, 3600)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(db.claim, "q", wait_ms=30_000) for _ in range(4)]
        until(lambda: waiting_in(db, "claim") == 4)
        with db._host.lock:
            db._host.runner.clock_s = lambda: time.perf_counter() + next(hours)
        db.close()
        assert [future.result(WAIT_S) for future in waiting] == [[]] * 4


def test_closing_gives_back_what_a_worker_holds(open_db: OpenDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    db = open_db()
    queues, closed = db._host.store.queues, list[bool]()
    end = queues.close_stream

    def ending(*given: Any) -> None:
        closed.append(db._host.closed)
        end(*given)

    monkeypatch.setattr(queues, "close_stream", ending)
    db.create("q", type="queue", leases_durable=True, lease_ms=600_000)
    db.append("q", 1)
    work = db.work("q", "w")
    assert next(work).data == 1
    db.close()
    with pytest.raises(StopIteration):
        next(work)
    work.close()
    # While the log was still open, and not again: its files may be another's by now.
    assert closed == [False]
    assert [job.data for job in open_db().claim("q", "other")] == [1]


def test_everything_outlives_a_restart(open_db: OpenDatabase) -> None:
    with open_db() as db:
        db.create("q", type="queue", leases_durable=True, lease_ms=600_000)
        db.append_many("q", [1, 2])
        (job,) = db.claim("q", "w")
        db.append_many("a", range(4))
        db.commit("a", "g", 1)
        db.stage("app", 7, "s", 0, [1], "b")
        db.route("a->c", "a", "c")
    db = open_db()
    assert db.ack("q", job, "w").acked == 1
    assert [message.offset for message in db.consume("a", "g").messages] == [2, 3]
    assert db.commit_txn("app", 7, ["s"]).topics["b"].records == 1
    db.append("a", "routed")
    assert next(db.tail("c", 0, idle_s=WAIT_S)).data == "routed"  # type: ignore[union-attr]


KILLED = """
import os, sys, topics
db = topics.open(sys.argv[1])
db.create("q", type="queue", durability="fsync", leases_durable=True, lease_ms=600_000)
db.append_many("q", [1, 2, 3])
done, held = db.claim("q", "w", 2)
db.ack("q", done, "w")
db.create("a", durability="fsync")
db.append_many("a", range(5))
db.consume("a", "g", start="Earliest", limit=3)
db.commit("a", "g", 2)
db.append_all({"a": [5], "b": [1]})
db.stage("app", 1, "s", 0, [1, 2], "t")
db.commit_txn("app", 1, ["s"])
print(held.seq, held.lease_id, flush=True)
sys.stdin.read()
"""


def test_what_was_answered_outlives_a_killed_program(tmp_path: Path) -> None:
    path = str(tmp_path / "data")
    program = subprocess.Popen(
        [sys.executable, "-c", KILLED, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    assert program.stdin is not None
    told = program.stdout.readline().split()
    with pytest.raises(topics.TopicsError):
        topics.open(path)
    os.kill(program.pid, signal.SIGKILL)
    program.wait(WAIT_S)
    program.stdout.close()
    program.stdin.close()
    with topics.open(path) as db:
        (lease,) = db.leases("q")
        assert [str(lease.seq), lease.lease_id] == told
        assert [job.data for job in db.claim("q", "other", 5)] == [3]
        assert [message.offset for message in db.consume("a", "g", start="Earliest").messages] == [3, 4, 5]
        assert db.commit_txn("app", 1, ["s"]).deduped
        assert [record.data for record in db.diff("t").records] == [1, 2]
        assert db.state("b").count == 1


def test_leases_and_waits_follow_the_clock_that_was_passed_in(tmp_path: Path) -> None:
    clock = ManualClock()
    with ThreadPoolExecutor(1) as pool, topics.open(str(tmp_path), clock=clock) as db:
        db.create("q", type="queue")
        db.append("q", 1)
        assert len(db.claim("q", "one", lease_ms=20_000)) == 1
        waiting = pool.submit(db.claim, "q", "two", wait_ms=30_000)
        until(lambda: bool(db._host.store.state.by_name["q"].waiters))
        clock.advance(19_000)
        assert not waiting.done()
        clock.advance(1_020)
        assert [job.deliveries for job in waiting.result(WAIT_S)] == [2]
        poll = pool.submit(db.diff, "q", 1, wait_ms=30_000)
        until(lambda: bool(db._host.store.state.by_name["q"].waiters))
        clock.advance(30_020)
        assert poll.result(WAIT_S).records == []


def test_workers_in_threads_share_a_queue_without_doubling_a_job(db: topics.Database) -> None:
    db.create("q", type="queue")
    count = 300

    def work(number: int) -> list[int]:
        done: list[int] = []
        while jobs := db.claim("q", f"w{number}", 3, wait_ms=500):
            db.ack("q", jobs, f"w{number}")
            done += [job.data for job in jobs]
        return done

    with ThreadPoolExecutor(6) as pool:
        workers = [pool.submit(work, number) for number in range(4)]
        for start in range(0, count, 10):
            db.append_many("q", range(start, start + 10))
        done = [job for worker in workers for job in worker.result(WAIT_S)]
    done += [job.data for job in db.claim("q", "rest", 1_000)]
    assert sorted(done) == list(range(count))


def test_consumers_in_threads_share_a_group_without_doubling_a_message(db: topics.Database) -> None:
    count = 300
    db.append_many("a", range(count))

    def consume() -> list[int]:
        seen: list[int] = []
        while (batch := db.consume("a", "g", start="Earliest", limit=7)).messages:
            db.commit_batch("a", "g", batch)
            seen += [message.data for message in batch.messages]
        return seen

    with ThreadPoolExecutor(4) as pool:
        seen = [number for found in [pool.submit(consume) for _ in range(4)] for number in found.result(WAIT_S)]
    assert sorted(seen) == list(range(count))
    assert db.groups("a", "g")[0].committed_offset == count - 1


def test_a_node_given_once_is_everyones(tmp_path: Path) -> None:
    with topics.open(str(tmp_path), node="me") as db:
        db.append("a", 1)
        db.append("a", 2, node="you")
        assert [record.node for record in db.diff("a").records] == ["me", "you"]
        db.create("q", type="queue")
        db.append("q", 1)
        db.claim("q")
        assert [lease.node for lease in db.leases("q")] == ["me"]


def test_ready_made_json_is_checked_wherever_it_stands(db: topics.Database) -> None:
    """Bytes of the caller are stored as they are, so nothing but JSON may get there."""
    for data in (Json(b"{"), {"deep": [Json(b"1,2]")]}):
        with pytest.raises(topics.InvalidRequest):
            db.append("a", data)
    with pytest.raises(topics.InvalidRequest):
        db.append_many("a", b'[{"data":1}],"create":false,"x":[1]')
    assert list(db.topics()) == []


def test_a_reader_that_does_not_iterate_holds_little(db: topics.Database) -> None:
    for _ in range(50):
        db.append_many("a", ["x" * 1_000] * 100)
    watch = db.watch("a", limit=10)
    next(watch)
    reader = watch._reader
    assert reader is not None
    until(lambda: len(reader._events) >= 16)
    db.append("b", 1)
    assert len(reader._events) <= 17
    seen = 10
    while seen < 5_000:
        seen += len(next(watch).records)
    watch.close()


def test_old_and_new_names_mean_the_same(db: topics.Database) -> None:
    db.configure("a", cap_records=5)
    assert not db.create("a", cap_records=5).created
    db.append("a", json.loads('{"x":1}'), tag="t")
    (record,) = db.diff("a").records
    assert (record.json, record.meta_json, record.raw) == (b'{"x":1}', None, b'{"x":1}')
    assert [state.topic for state in db.topics()] == [item.topic for item in db.list()] == ["a"]
    router = db.route("r", "a", "b")
    assert (router.name, router.config.source, db.router("r").config.dest) == ("r", "a", "b")
