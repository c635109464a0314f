"""Many threads on one database: one order of events, no lost wake-up, and a close that blocks no thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import topics
from tests.embedded.conftest import OpenDatabase
from tests.faults import FaultyDisk
from tests.patience import PATIENCE_S
from topics.engine.opening import store as store_module
from topics.model.clock import ManualClock
from topics.model.errors import DamagedData, ReadOnly, ShuttingDown, TopicNotFound, TopicsError
from topics.model.settings import Settings

WAIT_S = PATIENCE_S


class Threads:
    """Runs functions in threads and raises what they raised."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def start(self, work: Callable[[], Any]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except BaseException as error:  # noqa: BLE001 - raised again by join
                self.errors.append(error)

        self.threads.append(threading.Thread(target=run, daemon=True))
        self.threads[-1].start()
        return self.threads[-1]

    def join(self) -> None:
        for thread in self.threads:
            thread.join(WAIT_S)
            assert not thread.is_alive(), "a thread hangs"
        if self.errors:
            raise self.errors[0]


@contextmanager
def threads() -> Iterator[Threads]:
    running = Threads()
    yield running
    running.join()


@pytest.fixture
def faulty(monkeypatch: pytest.MonkeyPatch) -> FaultyDisk:
    """The disk of every database opened in this test."""
    disk = FaultyDisk()
    monkeypatch.setattr(store_module, "Disk", lambda: disk)
    return disk


def test_concurrent_writers_share_one_sequence_without_gaps(open_db: OpenDatabase) -> None:
    db = open_db(segment_max_events=50, checkpoint_ms=5, hot_retain_segments=1, hot_retain_bytes=10_000)
    acknowledged: list[tuple[str, int, int, str]] = []

    def write(topic: str, name: str) -> None:
        for number in range(60):
            done = db.append_many(topic, [f"{name}.{number}.{index}" for index in range(1 + number % 3)])
            acknowledged.append((topic, done.first_seq, done.last_seq, f"{name}.{number}"))

    with threads() as running:
        for topic, durability in (("d", "disk"), ("f", "fsync"), ("m", "memory")):
            db.configure(topic, durability=durability)
            for writer in range(3):
                running.start(lambda topic=topic, writer=writer: write(topic, f"w{writer}"))
    for topic in "dfm":
        found = {}
        cursor = 0
        while True:
            diff = db.diff(topic, cursor, limit=1000)
            found |= {record.seq: record.data for record in diff.records}
            cursor = diff.next_from_seq
            if diff.caught_up:
                break
        assert sorted(found) == list(range(1, db.state(topic).head_seq + 1))
        for where, first, last, prefix in acknowledged:
            if where == topic:
                assert [found[seq] for seq in range(first, last + 1)] == [
                    f"{prefix}.{index}" for index in range(last - first + 1)
                ]


def test_everything_at_once_keeps_its_promises(open_db: OpenDatabase) -> None:
    db = open_db(segment_max_events=20, checkpoint_ms=5, hot_retain_segments=0, hot_retain_bytes=0)
    db.configure("a")
    stop = threading.Event()
    tailed: list[int] = []

    def write() -> None:
        for number in range(400):
            db.append("a", number, tag=f"t{number % 10}")
        stop.set()

    def read() -> None:
        last = 0
        while not stop.is_set():
            diff = db.diff("a", last, limit=50)
            seqs = [record.seq for record in diff.records]
            assert seqs == sorted(seqs)
            assert all(record.data == record.seq - 1 for record in diff.records)
            assert diff.tombstone is None
            last = 0 if diff.caught_up else diff.next_from_seq

    def delete() -> None:
        while not stop.is_set():
            db.delete("a", match="t3", before_seq=max(1, db.state("a").head_seq - 50))

    def tail() -> None:
        for record in db.tail("a", 0):
            assert isinstance(record, topics.Record)
            tailed.append(record.seq)
            if record.seq == 400:
                return

    with threads() as running:
        running.start(tail)
        for _ in range(2):
            running.start(read)
        running.start(delete)
        running.start(write)
    assert tailed == sorted(set(tailed))
    assert {seq for seq in range(1, 401) if (seq - 1) % 10 != 3} <= set(tailed)
    assert db.state("a").head_seq == 400


def test_one_key_used_by_many_threads_is_written_once(db: topics.Database) -> None:
    db.configure("f", durability="fsync")
    outcomes: list[topics.Appended] = []
    barrier = threading.Barrier(8)

    def write() -> None:
        barrier.wait()
        outcomes.append(db.append("f", "once", idempotency_key="k"))

    with threads() as running:
        for _ in range(8):
            running.start(write)
    assert [done.first_seq for done in outcomes] == [1] * 8
    assert sum(not done.deduped for done in outcomes) == 1
    assert db.state("f").head_seq == 1


def test_many_threads_creating_one_topic_make_one(db: topics.Database) -> None:
    barrier = threading.Barrier(8)
    outcomes: list[topics.Appended] = []

    def write() -> None:
        barrier.wait()
        outcomes.append(db.append("new", 1, config={"durability": "fsync"}))

    with threads() as running:
        for _ in range(8):
            running.start(write)
    assert sum(done.created for done in outcomes) == 1
    assert sorted(done.first_seq for done in outcomes) == list(range(1, 9))


# --- tail ---


def test_a_tail_starts_now_or_after_its_cursor(db: topics.Database) -> None:
    db.append_many("a", [1, 2, 3])
    assert [record.data for record in db.tail("a", 1, idle_s=0.01) if isinstance(record, topics.Record)] == [2, 3]
    assert list(db.tail("a", idle_s=0.01)) == []


def test_a_tail_is_woken_by_each_append(db: topics.Database) -> None:
    db.configure("a")
    heard: list[Any] = []
    waiting = threading.Event()

    def listen() -> None:
        waiting.set()
        for record in db.tail("a", 0, idle_s=WAIT_S):
            assert isinstance(record, topics.Record)
            heard.append(record.data)
            if record.data == "end":
                return

    with threads() as running:
        running.start(listen)
        waiting.wait(WAIT_S)
        for number in range(50):
            db.append("a", number)
            while len(heard) <= number:
                time.sleep(0.0002)
        db.append("a", "end")
    assert heard == [*range(50), "end"]


def test_a_tail_hears_of_fsync_records(db: topics.Database) -> None:
    db.configure("f", durability="fsync")
    with threads() as running:
        running.start(lambda: [db.append("f", number) for number in range(10)])
        heard = []
        for record in db.tail("f", 0, idle_s=WAIT_S):
            heard.append(record)
            if len(heard) == 10:
                break


def test_a_tail_skips_its_own_node_and_keeps_waiting(db: topics.Database) -> None:
    db.append("a", 1, node="me")
    with threads() as running:
        running.start(lambda: [db.append("a", number, node="me" if number % 2 else "you") for number in range(6)])
        heard = []
        for record in db.tail("a", 0, node="me", idle_s=WAIT_S):
            assert isinstance(record, topics.Record)
            heard.append(record.data)
            if len(heard) == 3:
                break
    assert heard == [0, 2, 4]


def test_a_tail_tells_what_it_missed(db: topics.Database) -> None:
    db.configure("a", cap_records=2)
    db.append_many("a", range(5))
    heard = list(db.tail("a", 0, idle_s=0.01))
    assert isinstance(heard[0], topics.Tombstone)
    assert [record.seq for record in heard[1:] if isinstance(record, topics.Record)] == [4, 5]


def test_a_tail_ends_when_nothing_comes(db: topics.Database, monkeypatch: pytest.MonkeyPatch) -> None:
    db.configure("a")
    wait_until, waits_s = db._host.wait_until, []

    def waited(is_over: Callable[[], bool], timeout_s: float) -> bool:
        waits_s.append(timeout_s)
        return wait_until(is_over, timeout_s)

    monkeypatch.setattr(db._host, "wait_until", waited)
    assert list(db.tail("a", idle_s=0.05)) == []
    assert waits_s == [0.05]


def test_a_tail_of_a_topic_that_is_dropped_says_so(db: topics.Database) -> None:
    db.append("a", 1)
    tail = db.tail("a", 0)
    next(tail)
    with threads() as running:
        running.start(lambda: db.drop("a"))
        with pytest.raises(TopicNotFound):
            next(tail)


def test_a_tail_over_a_recreated_topic_starts_again(db: topics.Database) -> None:
    db.append_many("a", [1, 2])
    tail = db.tail("a", 0, idle_s=0.05)
    assert [next(tail), next(tail)]
    db.drop("a")
    db.append_many("a", ["new 1", "new 2"])
    heard = list(tail)
    assert isinstance(heard[0], topics.Tombstone)
    assert heard[0].reason == "recreated"
    assert [record.data for record in heard[1:] if isinstance(record, topics.Record)] == ["new 1", "new 2"]


def test_a_tail_of_nothing_finds_no_topic(db: topics.Database) -> None:
    with pytest.raises(TopicNotFound):
        next(db.tail("a"))


# --- closing ---


def test_closing_ends_every_tail(open_db: OpenDatabase) -> None:
    db = open_db()
    db.append("a", 1)
    ended: list[int] = []

    def listen() -> None:
        ended.append(sum(1 for _ in db.tail("a", 0)))

    with threads() as running:
        for _ in range(4):
            running.start(listen)
        while len(db._host.store.state.by_name["a"].waiters or ()) < 4:
            time.sleep(0.001)
        db.close()
    assert ended == [1] * 4


def test_closing_while_writers_wait_for_their_sync_hangs_nobody(open_db: OpenDatabase, faulty: FaultyDisk) -> None:
    db = open_db()
    db.configure("f", durability="fsync")
    gate = faulty.hold("fdatasync", path=".log")
    outcomes: list[Any] = []

    def write(number: int) -> None:
        try:
            outcomes.append(db.append("f", number).first_seq)
        except ShuttingDown as error:
            outcomes.append(error)

    with threads() as running:
        for number in range(3):
            running.start(lambda number=number: write(number))
        assert gate.reached.wait(WAIT_S)
        running.start(db.close)
        while not db._host.closed:
            time.sleep(0.001)
        gate.open()
    assert len(outcomes) == 3
    acknowledged = [seq for seq in outcomes if isinstance(seq, int)]
    head = open_db().state("f").head_seq
    assert head >= len(acknowledged)
    assert all(seq <= head for seq in acknowledged)


def test_closing_while_everything_is_busy_loses_nothing_acknowledged(open_db: OpenDatabase) -> None:
    db = open_db(segment_max_events=10, checkpoint_ms=5)
    acknowledged: list[int] = []

    def write() -> None:
        try:
            while True:
                acknowledged.append(db.append("a", 1).first_seq)
        except ShuttingDown:
            return

    def read() -> None:
        try:
            while True:
                db.diff("a")
        except (ShuttingDown, TopicNotFound):
            return

    with threads() as running:
        for _ in range(3):
            running.start(write)
        db.append("a", 0)
        running.start(read)
        while len(acknowledged) < 200:
            time.sleep(0.001)
        db.close()
    again = open_db()
    assert again.state("a").count >= max(acknowledged)


def test_a_delete_that_reads_from_disk_while_the_database_closes_changes_nothing(
    open_db: OpenDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"segment_max_events": 1, "hot_retain_segments": 0, "hot_retain_bytes": 0}
    with open_db(**settings) as db:
        for _ in range(3):
            db.append("a", 1, tag="t")
    db = open_db(**settings)
    read = db._host.store.packs.read

    def read_after_close(extent: Any) -> bytes:
        data = read(extent)
        db.close()
        return data

    monkeypatch.setattr(db._host.store.packs, "read", read_after_close)
    with pytest.raises(ShuttingDown):
        db.delete("a", match="t")
    assert open_db(**settings).state("a").count == 3


def test_a_read_whose_pack_went_meanwhile_looks_again(open_db: OpenDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"segment_max_events": 1, "hot_retain_segments": 0, "hot_retain_bytes": 0}
    with open_db(**settings) as db:
        for number in range(3):
            db.append("a", number)
    db = open_db(**settings)
    read = db._host.store.packs.read
    disturbed: list[int] = []

    def read_late(extent: Any) -> bytes:
        if not disturbed:
            disturbed.append(1)
            db.delete("a", before_seq=4)
            for number in range(3):
                db.append("b", number)
                db.checkpoint()
        return read(extent)

    monkeypatch.setattr(db._host.store.packs, "read", read_late)
    diff = db.diff("a")
    assert (diff.records, diff.caught_up, diff.tombstone) == ([], True, None)


# --- when the disk fails ---


def test_after_a_failed_sync_readers_continue_and_writers_get_an_error(
    open_db: OpenDatabase, faulty: FaultyDisk
) -> None:
    db = open_db()
    db.append("a", 1)
    db.configure("f", durability="fsync")
    faulty.fail("fdatasync", path=".log")
    with threads() as running:
        for _ in range(3):

            def write() -> None:
                with pytest.raises(ReadOnly):
                    db.append("f", 1)

            running.start(write)
    with pytest.raises(ReadOnly):
        db.append("a", 2)
    assert [record.data for record in db.diff("a").records] == [1]
    assert list(db.tail("a", 0, idle_s=0.01))
    db.close()
    faulty.heal()
    again = open_db()
    assert again.append("a", 2).first_seq == 2


def test_a_write_that_fails_is_an_error_of_that_call_alone(open_db: OpenDatabase, faulty: FaultyDisk) -> None:
    db = open_db()
    db.append("a", 1)
    faulty.fail("pwritev", path=".log")
    with pytest.raises(TopicsError):
        db.append("a", "failed")
    assert db.append("a", 2).first_seq == 2
    assert [record.data for record in db.diff("a").records] == [1, 2]


def test_a_damaged_pack_does_not_stop_the_house(open_db: OpenDatabase, tmp_path: Any) -> None:
    settings: dict[str, Any] = {"segment_max_events": 1, "hot_retain_segments": 0, "hot_retain_bytes": 0}
    # Time stands still, so that there is one checkpoint only: that of the close.
    with topics.open(str(tmp_path / "data"), Settings(**settings, wal_file_bytes=1 << 20), clock=ManualClock()) as db:
        for number in range(10):
            db.append("a", "x" * 200, tag=f"t{number}")
    (pack,) = (tmp_path / "data").rglob("*.pack")
    db = open_db(**settings)
    for number in range(1, 10):
        db.delete("a", match=f"t{number}")
    db._host.store.packs._open.close()
    pack.write_bytes(pack.read_bytes()[:70])
    for _ in range(3):
        db.append("b", 1)
        db.checkpoint()
    with pytest.raises(DamagedData):
        db.diff("a")
    db.configure("f", durability="fsync")
    assert db.append("f", 1).first_seq == 1


def test_waiting_costs_no_processor_time(open_db: OpenDatabase, monkeypatch: pytest.MonkeyPatch) -> None:
    db = open_db()
    db.configure("a")
    host = db._host
    wait_until, looks = host.wait_until, []
    rest, rang = host._news.wait, []

    def waited(is_over: Callable[[], bool], timeout_s: float | None) -> bool:
        def looked() -> bool:
            looks.append(1)
            return is_over()

        return wait_until(looked, timeout_s)

    def rested(timeout_s: float) -> bool:
        rang.append(rest(timeout_s))
        return rang[-1]

    monkeypatch.setattr(host, "wait_until", waited)
    monkeypatch.setattr(host._news, "wait", rested)
    with threads() as running:
        for _ in range(4):
            running.start(lambda: list(db.tail("a")))
        while len(host.store.state.by_name["a"].waiters or ()) < 4:
            time.sleep(0.001)
        # Housekeeping comes to rest: it turns by its timer, and nothing rings.
        while rang[-3:] != [False] * 3:
            time.sleep(0.001)
        looks_before, turns_before = len(looks), len(rang)
        while len(rang) < turns_before + 3:
            time.sleep(0.001)
        looks_after = len(looks)
        assert looks_after - looks_before <= 4 * (len(rang) - turns_before + 1)
        db.close()
