"""Deletes of many records that lie apart: several changes, others between them, one answer."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig
from tests.faults import FaultyDisk
from topics.engine.core import pending
from topics.engine.core.engine import DELETE_STEP_MS
from topics.engine.core.pending import CHANGES_UNPUBLISHED_MAX, PendingChange
from topics.engine.core.waiting.runner import Steps
from topics.engine.log import deletion
from topics.engine.log.block import Block
from topics.model.errors import StorageError, TopicNotFound
from topics.model.requests.config import ConfigRequest
from topics.model.requests.records import DeleteRequest


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "RUNS_PER_CHANGE", 10)
    monkeypatch.setattr(deletion, "RECORDS_PER_STEP", 10)


def fill(rig: Rig, records: int, tags: str = "ab") -> None:
    rig.append("t", *({"data": n, "tag": tags[n % len(tags)]} for n in range(records)))


def begin(rig: Rig, **fields: Any) -> Steps[PendingChange]:
    return rig.engine.delete("t", DeleteRequest(**fields))


def end(rig: Rig, steps: Steps[PendingChange]) -> PendingChange:
    while True:
        try:
            wait = next(steps)
        except StopIteration as over:
            rig.finish(over.value)
            return over.value
        if isinstance(wait, PendingChange):
            rig.finish(wait)


def test_no_change_removes_more_than_a_few_runs_and_others_have_their_turn(rig: Rig) -> None:
    fill(rig, 200)
    steps = begin(rig, match="a")
    pauses = appended = 0
    while True:
        try:
            assert next(steps) is None
        except StopIteration as over:
            change = over.value
            break
        rig.store.flush()
        pauses += 1
        if pauses == 3:
            appended = rig.append("t", {"data": "new", "tag": "a"}).first_seq
    assert pauses == 10
    assert change.result[0] == 100
    assert rig.seqs("t") == [*range(2, 201, 2), appended], "what came after the delete began stays"


def test_the_pieces_survive_a_crash(rig: Rig) -> None:
    fill(rig, 95)
    assert rig.delete("t", match="a") == 48
    rig.crash()
    assert rig.seqs("t") == list(range(2, 96, 2))


def test_a_topic_dropped_between_two_pieces_ends_the_delete(rig: Rig) -> None:
    fill(rig, 200)
    steps = begin(rig, match="a")
    next(steps)
    rig.drop("t")
    with pytest.raises(TopicNotFound):
        list(steps)


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_a_checkpoint_that_rewrites_the_block_between_two_pieces_costs_no_other_record(rig: Rig, kept: int) -> None:
    """The block's records get other numbers: the delete remembers seqs."""
    fill(rig, 400, "abcdabcdabcdabcdabcz")
    rig.store.state.by_name["t"].close_tail()
    steps = begin(rig, match=["tag", "Glob", "a*"])
    for _ in range(3):
        next(steps)
        rig.store.flush()
    # Most of the rest goes, so that the block is rewritten without its dead records.
    for tag in "bcd":
        rig.delete("t", match=tag, before_seq=400 - 8 * kept)
    # What the delete is about to look for is gone, and what is left has taken its numbers.
    rig.delete("t", match="a", before_seq=240)
    assert rig.store.checkpoint()
    block = rig.store.state.by_name["t"].blocks[0]
    assert block.seqs is not None, "the checkpoint has rewritten the block"
    end(rig, steps)
    left = [seq for seq in range(1, 401) if seq % 4 != 1 and (seq % 20 == 0 or seq >= 400 - 8 * kept)]
    assert rig.seqs("t") == left
    rig.crash()
    assert rig.seqs("t") == left


def test_a_record_deleted_by_another_request_between_two_pieces_is_counted_there(rig: Rig) -> None:
    fill(rig, 100)
    steps = begin(rig, match="a")
    next(steps)
    rig.store.flush()
    assert rig.delete("t", before_seq=60) == 59 - 10
    assert end(rig, steps).result[0] == 10 + 20
    assert rig.seqs("t") == list(range(60, 101, 2))


def test_a_search_that_finds_nothing_gives_way_by_the_clock(open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each block takes half of a step here: every second one is followed by a pause."""
    rig = open_rig(segment_max_events=2)
    for number in range(20):
        rig.append("t", {"data": number, "tag": "a"}, {"data": number, "tag": "b"})
    look = Block.may_hold
    monkeypatch.setattr(Block, "may_hold", lambda *of: (rig.clock.advance(int(DELETE_STEP_MS) // 2), look(*of))[1])
    steps = begin(rig, match="c")
    assert len(rig.store.state.by_name["t"].blocks) == 20
    assert list(steps) == [None] * 10


def test_only_a_few_changes_wait_for_the_same_sync(open_rig: OpenRig) -> None:
    """They are applied together when it has happened."""
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("t", durability="fsync")
    fill(rig, 200)
    gate = disk.hold("fdatasync", path=".log")
    steps = begin(rig, match="a")
    waits = [next(steps) for _ in range(CHANGES_UNPUBLISHED_MAX)]
    rig.store.flush()
    assert waits[:-1] == [None] * (CHANGES_UNPUBLISHED_MAX - 1)
    assert isinstance(waits[-1], PendingChange)
    assert not waits[-1].done
    gate.open()
    rig.finish(waits[-1])
    assert end(rig, steps).result[0] == 100


def test_one_change_takes_few_jobs_whatever_their_runs(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job is taken out of the queue by itself."""
    monkeypatch.setattr(pending, "JOBS_PER_CHANGE", 15)
    rig.finish(rig.engine.configure("t", ConfigRequest(type="queue")))
    for _ in range(6):
        rig.append("t", *({"data": n, "delay_ms": 60_000} for n in range(10)))
        rig.store.state.by_name["t"].close_tail()
    assert list(begin(rig, before_seq=61)) == [None, None, None]


@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_topic_that_is_being_dropped_gets_no_further_pieces(open_rig: OpenRig, durability: str) -> None:
    """In the log they would follow the drop, and a start would look for their topic."""
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("t", durability=durability)
    fill(rig, 200)
    gate = disk.hold("fdatasync", path=".log")
    steps = begin(rig, match="a")
    next(steps)
    drop = rig.engine.drop("t")
    assert next(steps) is drop
    gate.open()
    rig.finish(drop)
    with pytest.raises(TopicNotFound):
        end(rig, steps)
    rig.crash()
    assert not rig.store.state.by_name


def test_a_drop_that_fails_lets_a_delete_go_on(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    fill(rig, 200)
    steps = begin(rig, match="a")
    next(steps)
    rig.store.flush()
    disk.fail("pwritev", path=".log")
    drop = rig.engine.drop("t")
    assert next(steps) is drop
    rig.store.flush()
    assert drop.error is not None
    disk.heal()
    assert end(rig, steps).result[0] == 100


def test_a_piece_that_fails_fails_the_delete(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    fill(rig, 200)
    steps = begin(rig, match="a")
    next(steps)
    disk.fail("pwritev", path=".log")
    rig.store.flush()
    with pytest.raises(StorageError):
        end(rig, steps)
    assert rig.delete("t", match="a") == 100
