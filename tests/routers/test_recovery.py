"""What of a router survives a kill, a stop, a checkpoint and the loss of its source, and what the journal pays."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from tests.routers.conftest import OpenRoutedRig
from tests.routers.rig import RoutedRig

WAYS = ["crash", "reopen", "checkpoint and crash"]
CLASSES = ["memory", "disk", "fsync"]


def restart(rig: RoutedRig, way: str) -> None:
    if way.startswith("checkpoint"):
        rig.checkpoint()
    getattr(rig, way.rsplit(maxsplit=1)[-1])()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("source", CLASSES)
@pytest.mark.parametrize("dest", CLASSES)
def test_copies_come_back_with_the_seqs_and_times_readers_saw(rig: RoutedRig, way: str, source: str, dest: str) -> None:
    rig.configure("a", durability=source)
    rig.configure("b", durability=dest)
    rig.route("a->b", "a", "b")
    for number in range(6):
        rig.append("a", number, {"data": number, "node": "n", "tag": "t", "meta": {"m": number}})
        rig.clock.advance(7)
        rig.forward()
        if number == 2:
            rig.append("b", "direct")
    before = rig.records("b", include_tags=True)
    assert len(before) == 13
    restart(rig, way)
    assert rig.records("b", include_tags=True) == before
    rig.append("a", "more")
    assert rig.copies("b")[-1] == "more"
    assert len(rig.records("b")) == 14


@pytest.mark.parametrize("way", WAYS)
def test_what_was_not_forwarded_yet_is_forwarded_after_a_restart(rig: RoutedRig, way: str) -> None:
    rig.route("a->b", "a", "b")
    rig.append("a", 1)
    rig.forward()
    rig.append("a", 2, 3)
    restart(rig, way)
    assert rig.router("a->b").lag == 2
    assert rig.copies("b") == [1, 2, 3]


@pytest.mark.parametrize("way", ["crash", "checkpoint and crash"])
def test_seqs_that_a_source_skips_after_a_crash_are_no_lag(rig: RoutedRig, way: str) -> None:
    rig.configure("a", durability="ephemeral")
    rig.route("a->b", "a", "b")
    rig.append("a", 1, 2)
    assert rig.copies("b") == [1, 2]
    restart(rig, way)
    assert rig.look("a").head_seq > 2
    assert rig.router("a->b").lag == 0
    rig.append("a", 3)
    assert rig.router("a->b").lag > 0
    assert rig.copies("b") == [1, 2, 3]
    assert rig.router("a->b").lag == 0


@pytest.mark.parametrize("way", WAYS)
def test_the_router_and_its_counter_survive(rig: RoutedRig, way: str) -> None:
    fields = {"preserve_node": False, "filter": ["tag", "Glob", "p*"], "guarantee": "exactly_once"}
    rig.route("a->b", "a", "b", **fields)
    rig.append("a", {"data": 1, "tag": "p"}, 2)
    rig.forward()
    before = rig.router("a->b")
    assert before.forwarded_total == 1
    restart(rig, way)
    assert rig.router("a->b") == before


@pytest.mark.parametrize("way", WAYS)
def test_a_dropped_router_stays_dropped_and_its_copies_stay(rig: RoutedRig, way: str) -> None:
    rig.route("a->b", "a", "b")
    rig.append("a", 1)
    rig.forward()
    assert rig.unroute("a->b")
    restart(rig, way)
    rig.append("a", 2)
    assert rig.copies("b") == [1]
    assert not rig.unroute("a->b")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("loss", ["delete", "cap", "ttl", "drop"])
def test_copies_outlive_whatever_happens_to_their_source(open_rig: OpenRoutedRig, way: str, loss: str) -> None:
    rig = open_rig(segment_max_events=4)
    rig.route("a->b", "a", "b")
    rig.route("b->c", "b", "c")
    for number in range(10):
        rig.append("a", number)
        rig.forward()
    match loss:
        case "delete":
            rig.delete("a", before_seq=99)
        case "cap":
            rig.configure("a", cap_records=1)
        case "ttl":
            rig.configure("a", ttl_ms=10)
            rig.clock.advance(1_000)
            assert rig.look("a").count == 0
        case _:
            rig.drop("a")
    rig.delete("b", before_seq=99)
    restart(rig, way)
    assert rig.copies("c") == list(range(10))
    restart(rig, "crash")
    assert rig.copies("c") == list(range(10))


def test_a_source_that_loses_records_during_a_checkpoint_still_feeds_the_replay(open_rig: OpenRoutedRig) -> None:
    """Marks after the checkpoint's position need blocks that are gone when the source is captured."""
    rig = open_rig(segment_max_events=4)
    rig.configure("a", ttl_ms=10)
    rig.route("a->b", "a", "b")
    rig.append("a", *range(3))
    rig.forward()
    rig.append("a", *range(3, 9))
    steps = fixed_position(rig)
    rig.forward()
    source = rig.store.state.by_name["a"]
    rig.clock.advance(1_000)
    rig.store.state.expire(source, rig.clock.now_ms(), None)
    assert not source.blocks
    finish(rig, steps)
    assert list((rig.path / "shard-00" / "snapshots").iterdir())
    before = rig.records("b")
    assert len(before) == 9
    rig.crash()
    assert rig.records("b") == before


def fixed_position(rig: RoutedRig) -> Iterator[bool]:
    """A checkpoint that has its position and has captured nothing yet; nothing, if nothing has changed."""
    state = rig.store.state
    steps = rig.store._checkpointer.steps()
    number = state.checkpoint
    for _ in steps:
        rig.store.settle()
        if state.checkpoint != number:
            break
    return steps


def finish(rig: RoutedRig, steps: Iterator[bool]) -> None:
    for _ in steps:
        rig.store.settle()


@pytest.mark.parametrize("seed", range(6))
def test_any_course_of_events_gives_the_same_copies_after_every_crash(open_rig: OpenRoutedRig, seed: int) -> None:
    """Appends, deletes, eviction, checkpoints half-way and kills in any order: readers see what they saw before."""
    chance = random.Random(seed)
    rig = open_rig(segment_max_events=chance.choice([3, 10, 1000]), hot_retain_segments=1)
    rig.configure("a", ttl_ms=chance.choice([0, 50]), cap_records=chance.choice([0, 8]))
    rig.configure("b", durability=chance.choice(CLASSES))
    rig.route("a->b", "a", "b", guarantee=chance.choice(["at_least_once", "exactly_once"]))
    rig.route("b->c", "b", "c", preserve_node=False)
    rig.route("a->d", "a", "d", filter=["tag", "Glob", "t1*"])
    steps: Iterator[bool] | None = None
    for number in range(120):
        rig.clock.advance(chance.choice([0, 1, 20]))
        match chance.randrange(12):
            case 0:
                rig.delete("a", match=f"t{chance.randrange(3)}")
            case 1:
                rig.delete("b", before_seq=max(0, rig.look("b").head_seq - 3))
            case 2:
                rig.append("b", "direct")
            case 3 if steps is None:
                steps = fixed_position(rig)
            case 4 if steps is not None:
                finish(rig, steps)
                steps = None
            case 5:
                rig.forward()
                before = {name: rig.records(name, include_tags=True) for name in ("b", "c", "d")}
                counted = {name: rig.router(name).forwarded_total for name in ("a->b", "b->c", "a->d")}
                rig.crash()
                steps = None
                assert {name: rig.records(name, include_tags=True) for name in before} == before
                assert {name: rig.router(name).forwarded_total for name in counted} == counted
            case _:
                records = [
                    {"data": [number, index], "tag": f"t{chance.randrange(3)}", "node": f"n{chance.randrange(3)}"}
                    for index in range(chance.randrange(1, 5))
                ]
                rig.append("a", *records)
                if chance.random() < 0.7:
                    rig.forward()
    direct = [data for data in rig.copies("c") if data != "direct"]
    assert direct == sorted(direct)
    assert len(direct) == len({tuple(data) for data in direct})


@pytest.mark.parametrize("way", WAYS)
def test_a_lasting_destination_of_an_ephemeral_source_is_journaled_in_full(rig: RoutedRig, way: str) -> None:
    rig.configure("a", durability="ephemeral")
    rig.route("a->b", "a", "b")
    rig.route("a->c", "a", "c", filter="t", guarantee="exactly_once")
    rig.append("a", 1, {"data": 2, "node": "n", "tag": "t"})
    rig.forward()
    before = rig.records("b", include_tags=True), rig.records("c", include_tags=True)
    restart(rig, way)
    assert (rig.records("b", include_tags=True), rig.records("c", include_tags=True)) == before
    assert rig.router("a->b").forwarded_total == 2
    assert rig.look("a").count == 0


@pytest.mark.parametrize("way", WAYS)
def test_records_from_a_source_that_was_ephemeral_are_journaled_in_full(rig: RoutedRig, way: str) -> None:
    rig.configure("a", durability="ephemeral")
    rig.append("a", 1, 2)
    rig.configure("a", durability="disk")
    rig.append("a", 3)
    rig.route("a->b", "a", "b", backfill=True)
    assert rig.copies("b") == [1, 2, 3]
    restart(rig, way)
    assert rig.copies("b") == [1, 2, 3]


@pytest.mark.parametrize("way", WAYS)
def test_an_ephemeral_destination_loses_its_copies_and_keeps_the_cursor(rig: RoutedRig, way: str) -> None:
    rig.configure("b", durability="ephemeral")
    rig.route("a->b", "a", "b")
    rig.append("a", 1, 2)
    assert rig.copies("b") == [1, 2]
    restart(rig, way)
    assert rig.copies("b") == []
    assert rig.router("a->b").forwarded_total == 2
    rig.append("a", 3)
    assert rig.copies("b") == [3]
    assert rig.seqs("b")[0] > 2


def test_an_fsync_destination_shows_a_copy_only_when_it_is_durable(rig: RoutedRig) -> None:
    rig.configure("b", durability="fsync")
    rig.route("a->b", "a", "b")
    rig.append("a", 1)
    syncs_before = rig.store.wal.stats.fsyncs_total
    rig.store.forwarder.step()
    assert rig.look("b").count == 0
    assert rig.copies("b") == [1]
    assert rig.store.wal.stats.fsyncs_total > syncs_before


@pytest.mark.parametrize("routers", [0, 1, 50])
def test_the_journal_grows_by_the_source_and_a_small_mark_per_router_and_tick(
    open_rig: OpenRoutedRig, routers: int
) -> None:
    rig = open_rig(wal_file_bytes=16 << 20)
    rig.append("a", "first")
    for number in range(routers):
        rig.route(f"r{number}", "a", f"dest{number}")
    payload = "PAYLOAD-" + "x" * 2_000
    ticks, records = 10, 20
    before = rig.journal_bytes()
    alone = 0
    for _ in range(ticks):
        start = rig.journal_bytes()
        rig.append("a", *[payload] * records)
        alone += rig.journal_bytes() - start
        rig.forward()
    grown = rig.journal_bytes() - before
    assert alone <= ticks * records * (len(payload) + 120)
    assert grown - alone <= ticks * routers * 160
    for number in range(routers):
        assert len(rig.copies(f"dest{number}")) == ticks * records
    logs = b"".join(path.read_bytes() for path in rig.path.rglob("*.log"))
    assert logs.count(b"PAYLOAD-") == ticks * records


def test_a_damaged_source_stops_the_router_and_says_so(open_rig: OpenRoutedRig) -> None:
    rig = open_rig(segment_max_events=2, hot_retain_segments=0, hot_retain_bytes=0)
    rig.append("a", *range(6))
    rig.route("a->b", "a", "b")
    rig.unroute("a->b")
    rig.close()
    [pack] = (rig.path / "shard-00" / "packs").glob("*.pack")
    data = bytearray(pack.read_bytes())
    data[120] ^= 1
    pack.write_bytes(bytes(data))
    rig.open()
    rig.route("a->c", "a", "c", backfill=True)
    rig.forward()
    state = rig.router("a->c")
    assert state.lag == 6
    assert state.last_error is not None


def test_a_failed_write_leaves_the_cursor_where_it_was(rig: RoutedRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.route("a->b", "a", "b")
    rig.append("a", 1)
    flush, failures = rig.store.wal.flush, [OSError(5, "injected")]

    def failing() -> int:
        if failures:
            rig.store.wal.drop()
            raise failures.pop()
        return flush()

    monkeypatch.setattr(rig.store.wal, "flush", failing)
    rig.store.forwarder.step()
    assert rig.look("b").count == 0
    assert rig.router("a->b").lag == 1
    assert rig.router("a->b").last_error is not None
    rig.clock.advance(1_000)
    assert rig.copies("b") == [1]
    assert rig.router("a->b").last_error is None
