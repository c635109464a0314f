"""Repair: what cannot be read is given up record by record, named, and a gap for readers; all else stays."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.folding import Folding, batch_of
from tests.engine.rig import Rig
from topics.engine.core.appended import Appended
from topics.engine.core.ops import Created, Deleted
from topics.engine.groups.ops import GroupReset
from topics.engine.log.deletion import Run
from topics.engine.log.retention import Hole, Loss
from topics.engine.log.topic import STAGING, Topic
from topics.engine.opening.repair import (
    apply_what_fits,
    damaged_blocks,
    drop_damaged,
    gap_lines,
    may_come_back,
    packed_bytes,
)
from topics.engine.queues.part import queue_of
from topics.engine.routers.ops import Forwarded, RouterPut
from topics.model.requests.config import TopicConfig
from topics.model.requests.routers import RouterConfig
from topics.storage.wal.replay import LogGap

# Records are so large that each has checksums of its own.
LARGE = 3000


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    """Two closed blocks of four records, in packs only."""
    with Rig(tmp_path / "data", segment_max_events=4, hot_retain_segments=0, hot_retain_bytes=0) as rig:
        rig.configure("t", type="queue")
        for number in range(8):
            rig.append("t", f"{number}" * LARGE)
        rig.append("t", "the last")
        rig.checkpoint()
        rig.checkpoint()
        assert [block.extent is not None for block in topic(rig).blocks[:2]] == [True, True]
        yield rig


def topic(rig: Rig) -> Topic:
    return rig.store.state.by_name["t"]


def pack_of(rig: Rig, number: int) -> Path:
    extent = topic(rig).blocks[number].extent
    assert extent is not None
    (found,) = (rig.path / "shard-00" / "packs").glob(f"{extent.pack:020}.pack")
    return found


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def damage(rig: Rig, *records: int) -> None:
    """A byte of these payloads."""
    for number in records:
        path = pack_of(rig, 0 if number < 4 else 1)
        flip(path, path.read_bytes().index(f"{number}".encode() * LARGE) + LARGE // 2)


def consistent(rig: Rig) -> bool:
    state, found = rig.store.state, topic(rig)
    queue = queue_of(found)
    assert queue is not None
    assert found.count == sum(block.live for block in found.blocks) == queue.fresh
    assert found.bytes == sum(block.live_bytes for block in found.blocks)
    return (state.count, state.bytes) == (found.count, found.bytes)


def examined(rig: Rig) -> list[str]:
    return [line for found in damaged_blocks(rig.store.state, rig.store.packs) for line in found.lines()]


def test_packs_in_order_have_no_damage_and_all_are_looked_at(rig: Rig) -> None:
    read: list[int] = []
    assert damaged_blocks(rig.store.state, rig.store.packs, read.append) == []
    extents = [block.extent for block in topic(rig).blocks if block.extent is not None and block.packed == block.count]
    assert read == [extent.length for extent in extents]
    assert packed_bytes(rig.store.state) == sum(read) > 8 * LARGE
    topic(rig).blocks[0].packed -= 1
    assert packed_bytes(rig.store.state) == sum(read[1:]), "a block that has grown since is packed again"
    assert drop_damaged(rig.store.state, rig.store.packs) == []


def test_single_records_are_given_up_and_their_neighbours_stay(rig: Rig) -> None:
    damage(rig, 0, 1, 3, 6)
    lines = examined(rig)
    assert [line.partition(": pack ")[0] for line in lines] == [
        "topic t: seqs 1 to 2",
        "topic t: seqs 4 to 4",
        "topic t: seqs 7 to 7",
    ]
    before = topic(rig).bytes
    rig.store.state.dirty.clear()
    assert drop_damaged(rig.store.state, rig.store.packs) == lines
    assert consistent(rig)
    assert 4 * LARGE < before - topic(rig).bytes < 5 * LARGE
    assert topic(rig) in rig.store.state.dirty
    assert rig.seqs("t") == [3, 5, 6, 8, 9]
    assert [record["data"][:1] for record in rig.records("t")] == ["2", "4", "5", "7", "t"]
    assert topic(rig).holes == [Hole(1, 2, "lost", 2), Hole(4, 4, "lost", 1), Hole(7, 7, "lost", 1)]
    rig.checkpoint()
    assert examined(rig) == []
    rig.crash()
    assert rig.seqs("t") == [3, 5, 6, 8, 9]


def test_records_that_were_dead_are_not_lost(rig: Rig) -> None:
    rig.delete("t", before_seq=2)
    rig.store.state.delete(Deleted(topic(rig).id, 1, [Run(3, 1, 1000)]))
    damage(rig, 0, 1, 2, 3)
    assert [line.partition(": pack ")[0] for line in examined(rig)] == ["topic t: seqs 2 to 2", "topic t: seqs 4 to 4"]
    drop_damaged(rig.store.state, rig.store.packs)
    assert (consistent(rig), rig.seqs("t")) == (True, [5, 6, 7, 8, 9])


def test_a_block_of_which_nothing_is_left_goes(rig: Rig) -> None:
    gone = topic(rig).blocks[1]
    damage(rig, 4, 5, 6, 7)
    assert len(drop_damaged(rig.store.state, rig.store.packs)) == 1
    assert (gone.gone, gone in topic(rig).blocks, consistent(rig)) == (True, False, True)
    assert topic(rig).holes == [Hole(5, 8, "lost", 4)]


def test_a_pack_that_is_missing_takes_all_its_records(rig: Rig) -> None:
    path = pack_of(rig, 0)
    blocks = [at for at in range(2) if pack_of(rig, at) == path]
    rig.store.packs.close()
    path.unlink()
    found = damaged_blocks(rig.store.state, rig.store.packs)
    assert [one.block for one in found][: len(blocks)] == [topic(rig).blocks[at] for at in blocks]
    assert all(one.salvaged is None and one.lost_runs() == [(0, one.block.count)] for one in found)
    assert found[0].reason == f"{path} is missing"


def test_a_damaged_directory_of_a_pack_is_reported_and_costs_no_record(rig: Rig) -> None:
    path = pack_of(rig, 0)
    rig.store.packs.close()
    flip(path, path.stat().st_size - 20)
    found = damaged_blocks(rig.store.state, rig.store.packs)
    assert str(path.name) in found[0].reason
    assert [one.lines() for one in found] == [[]] * len(found)
    assert drop_damaged(rig.store.state, rig.store.packs) == []
    assert topic(rig).blocks[0].extent is None, "the next checkpoint packs it again"
    assert (consistent(rig), rig.seqs("t")) == (True, [*range(1, 10)])


def test_checksums_that_are_damaged_are_reported_and_cost_no_record(rig: Rig) -> None:
    extent = topic(rig).blocks[0].extent
    assert extent is not None
    flip(pack_of(rig, 0), extent.offset + extent.length - 3)
    (found,) = damaged_blocks(rig.store.state, rig.store.packs)
    assert found.reason.startswith(f"pack {extent.pack} at offset {extent.offset}: the checksums of single records")
    assert found.lost_runs() == []


def test_a_staged_record_that_is_given_up_changes_no_total(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    before = rig.store.state.count, rig.store.state.bytes
    damage(rig, 2)
    monkeypatch.setattr(topic(rig), "counted", False)
    drop_damaged(rig.store.state, rig.store.packs)
    assert (rig.store.state.count, rig.store.state.bytes) == before


def test_packs_that_are_only_in_the_bucket_are_not_looked_at(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    damage(rig, 0, 5)
    places = iter([object(), None])
    monkeypatch.setattr(rig.store.packs, "remote", lambda _number: next(places, None))
    assert [line.partition(": pack ")[0] for line in examined(rig)] == ["topic t: seqs 6 to 6"]


# --- the log ---


def gap(from_position: int, to_position: int) -> LogGap:
    return LogGap("1.log", 70, from_position, to_position, "its checksum fails")


def test_a_gap_is_named_by_file_and_offset() -> None:
    assert gap_lines([gap(1, 2)]) == ["1.log at offset 70: its checksum fails"]


def test_ops_of_topics_that_are_not_there_are_skipped(tmp_path: Path) -> None:
    log = Folding(tmp_path)
    assert apply_what_fits(log.state, Appended(5, 0, b"", batch_of(1, 1)), 1) == []
    assert apply_what_fits(log.state, Created(1, 1, 0, 0, "t", TopicConfig()), 2) == []
    assert apply_what_fits(log.state, Appended(1, 0, b"", batch_of(1, 1)), 3) == []
    assert [*log.state.by_id] == [1]
    assert log.state.by_id[1].count == 1


def test_copies_that_cannot_be_cut_again_are_a_gap(tmp_path: Path) -> None:
    log = Folding(tmp_path)
    for number, name in ((1, "s"), (2, "d")):
        log.create(number, name)
    log.fold(RouterPut(2, 1, 0, "r", RouterConfig("s", "d")))
    op = Forwarded(2, 1, 0, 0, batch_of(3, 1, 2), from_seq=0, to_seq=9, lost=0, runs=[(1, 2)], derived=False)
    (line,) = apply_what_fits(log.state, op, 9)
    assert line.startswith("seq 1 of topic s was copied by a router and can no longer be read")
    assert (log.state.by_id[2].head_seq, log.state.by_id[2].losses) == (4, [Loss(1, 4, 4, "lost")])


def test_a_log_with_gaps_says_what_may_come_back(tmp_path: Path) -> None:
    log = Folding(tmp_path)
    log.create(1, "t")
    assert may_come_back(log.state, []) == []
    assert may_come_back(log.state, [gap(5, 25), gap(30, 31)]) == [
        "records that were deleted in the lost part of the log (21 bytes)",
        "topics and routers that were deleted in it, and configurations that were changed in it",
    ]
    log.create(2, STAGING + "1")
    log.create(3, "q", type="queue")
    log.fold(GroupReset(1, "g", 0))
    assert may_come_back(log.state, [gap(5, 25)])[1:3] == [
        "jobs that were acked in it, and are delivered again: queue q",
        "records whose offsets a consumer group committed in it: topic t",
    ]
    for number in range(9):
        log.create(10 + number, f"q{8 - number}", type="queue")
    lines = may_come_back(log.state, [gap(5, 25)])
    assert lines[1].endswith(": queues q, q0, q1, q2, q3, q4, q5, q6, q7, q8")
    log.create(30, "p", type="queue")
    log.create(31, "q9", type="queue")
    assert may_come_back(log.state, [gap(5, 25)])[1].endswith(
        ": queues p, q, q0, q1, q2, q3, q4, q5, q6, q7 and 2 more"
    )
