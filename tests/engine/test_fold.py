"""What the ops of topics and records do to a state that is folded from the log: every count, block and border."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.folding import Folding, batch_of
from topics.engine.core.appended import Appended
from topics.engine.core.ops import (
    Configured,
    Created,
    Deleted,
    Dropped,
    Floored,
    KeyNoted,
    MultiAppended,
    Reserved,
    Resumed,
    Skipped,
    Timed,
)
from topics.engine.core.state import TailRoom
from topics.engine.log.block import BLOCK_BYTES, Block
from topics.engine.log.deletion import Run
from topics.engine.log.part import TopicPart
from topics.engine.log.retention import Hole, Loss
from topics.engine.log.topic import SEQ_CHUNK, STAGING, Topic
from topics.engine.queues.part import queue_of
from topics.engine.queues.queue import Queue
from topics.engine.routers.part import routing_of
from topics.model.clock import Moment
from topics.model.requests.batch import Batch
from topics.model.requests.config import Durability, TopicConfig
from topics.storage.pack import Extent
from topics.storage.remote.remote_pack import RemotePack

T, U = 1, 2
KEY = b"k" * 16


@pytest.fixture
def log(tmp_path: Path) -> Folding:
    folding = Folding(tmp_path / "packs", segment_max_events=5, hot_retain_segments=1)
    folding.create(T, "t")
    return folding


def topic(log: Folding, topic_id: int = T) -> Topic:
    return log.state.by_id[topic_id]


def queue(log: Folding, topic_id: int) -> Queue:
    found = queue_of(topic(log, topic_id))
    assert found is not None
    return found


def spans(log: Folding, topic_id: int = T) -> list[tuple[int, int, int]]:
    """First and last seq of each block, and its segment."""
    return [(block.first_seq, block.last_seq, block.segment) for block in topic(log, topic_id).blocks]


def totals(log: Folding) -> tuple[int, int]:
    return log.state.count, log.state.bytes


def held(log: Folding) -> tuple[int, int]:
    """What the topics hold, which the totals must be."""
    counted = [found for found in log.state.by_id.values() if found.counted]
    for found in log.state.by_id.values():
        assert found.count == sum(block.live for block in found.blocks)
        assert found.bytes == sum(block.live_bytes for block in found.blocks)
    return sum(found.count for found in counted), sum(found.bytes for found in counted)


def in_blocks(log: Folding, *counts: int, topic_id: int = T) -> None:
    """A closed block with so many records, each."""
    for count in counts:
        log.append(topic_id, *range(count))
        topic(log, topic_id).close_tail()


def unload(block: Block) -> None:
    block.body = None


def test_a_state_begins_with_nothing(tmp_path: Path) -> None:
    state = Folding(tmp_path).state
    assert (state.count, state.bytes, state.unpacked_bytes, state.cooling) == (0, 0, 0, 0)
    assert (state.appended_total, state.read_total, state.next_id) == (0, 0, 1)
    assert (state.noted, state.behind_mark, state.checkpoint) == (None, False, 0)


def test_an_append_counts_in_its_topic_and_in_all(log: Folding) -> None:
    log.append(T, 1, 2, ts=7)
    log.append(T, 3, ts=9)
    found, state = topic(log), log.state
    size = batch_of(1, 1, 2, ts=7).size + batch_of(3, 3, ts=9).size
    assert (found.head_seq, found.count, found.bytes) == (3, 3, size)
    assert (found.segment, found.segment_events, found.segment_bytes, found.segment_ts) == (0, 3, size, 7)
    assert (found.clock_ms, found.last_write_ts, found.holes, found.losses) == (9, 9, [], [])
    assert (totals(log), state.unpacked_bytes, state.appended_total) == ((3, size), size, 3)
    log.append(T, 4, ts=8)
    assert (found.clock_ms, found.last_write_ts) == (9, 8), "the time of a topic does not go back"


def test_a_staged_record_counts_once_it_is_moved_to_its_topic(log: Folding) -> None:
    log.create(U, STAGING + "1")
    log.append(U, *range(5), skipping=3)
    log.append(U, *range(5))
    assert (totals(log), log.state.appended_total) == ((0, 0), 10)
    log.append(T, 0)
    log.state.splice(topic(log, U), topic(log), 4, 2)
    found = topic(log)
    assert totals(log) == held(log)
    assert (found.count, found.head_seq) == (10, 13)
    assert (found.losses, found.holes) == ([Loss(1, 1, 1, "cap")], [Hole(2, 3, "lost", 2)])
    assert U not in log.state.by_id
    assert log.state.hidden == {}
    assert (found.segment, log.state.cooling) == (2, 1), "the third segment is one too many"


def test_a_topic_without_records_gets_staged_ones_without_a_loss(log: Folding) -> None:
    log.append(T, 1, 2)
    log.fold(Deleted(T, 1, [Run(1, 2, 0)]))
    log.create(U, STAGING + "1")
    log.append(U, 3, skipping=2)
    log.state.splice(topic(log, U), topic(log), 3, 1)
    assert (topic(log).losses, topic(log).count, totals(log)) == ([], 1, held(log))


def test_records_that_were_staged_are_jobs_of_their_queue(log: Folding) -> None:
    log.create(3, "q", type="queue")
    log.create(U, STAGING + "1")
    log.append(3, 0)
    log.append(U, 1, 2, skipping=1)
    log.state.splice(topic(log, U), topic(log, 3), 2, 1)
    assert (queue(log, 3).fresh, topic(log, 3).head_seq, topic(log, 3).losses) == (3, 3, [])
    assert (topic(log, 3).holes, log.state.cooling) == ([], 0)


def test_a_staged_topic_that_is_dropped_changes_no_total(log: Folding) -> None:
    log.create(U, STAGING + "1")
    log.append(T, 1)
    log.append(U, 2)
    log.fold(Dropped(U))
    assert totals(log) == held(log)


def test_a_batch_with_a_key_is_found_by_it(log: Folding) -> None:
    log.fold(Appended(T, 0, KEY, batch_of(1, 1, 2)), KeyNoted(T, 5, b"m" * 16, [9, 4, 7]))
    keys = topic(log).keys
    assert keys is not None
    first, noted = keys.find(KEY, 1, 1000), keys.find(b"m" * 16, 5, 1000)
    assert first is not None
    assert noted is not None
    assert (first.first_seq, first.records, noted.seqs) == (1, 2, [9, 4, 7])


def test_seqs_between_the_head_and_a_batch_are_a_hole(log: Folding) -> None:
    log.append(T, 1)
    log.append(T, 2, skipping=3)
    assert (topic(log).holes, topic(log).head_seq) == ([Hole(2, 4, "lost", 3)], 5)
    assert spans(log) == [(1, 1, 0), (5, 5, 0)]


# --- blocks and segments ---


@pytest.mark.parametrize(("second", "segments"), [(2, 1), (3, 2)])
def test_a_segment_ends_where_it_would_have_too_many_records(log: Folding, second: int, segments: int) -> None:
    log.append(T, *range(3))
    log.append(T, *range(second))
    assert len(spans(log)) == segments
    assert topic(log).segment == segments - 1
    assert topic(log).segment_events == (5 if segments == 1 else second)


@pytest.mark.parametrize(("less", "segments"), [(0, 1), (1, 2)])
def test_a_segment_ends_where_it_would_have_too_many_bytes(tmp_path: Path, less: int, segments: int) -> None:
    size = batch_of(1, 1).size
    log = Folding(tmp_path, segment_max_bytes=3 * size - less)
    log.create(T, "t")
    for number in range(3):
        log.append(T, number)
    assert topic(log).segment == segments - 1
    assert topic(log).segment_bytes == (3 * size if segments == 1 else size)


def test_a_segment_ends_at_its_age(tmp_path: Path) -> None:
    log = Folding(tmp_path, segment_max_age_ms=1000, hot_retain_segments=1)
    log.create(T, "t")
    for ts in (100, 1099, 1100, 2099, 2100):
        log.append(T, 0, ts=ts)
    assert spans(log) == [(1, 2, 0), (3, 4, 1), (5, 5, 2)]
    assert topic(log).segment_ts == 2100
    assert log.state.cooling == 1, "one segment too many is hot"


def test_a_block_ends_where_it_would_be_too_large(tmp_path: Path) -> None:
    for more in (0, 1):
        log = Folding(tmp_path)
        log.create(T, "t")
        log.append(T, 1)
        rest = BLOCK_BYTES - topic(log).bytes - batch_of(2, "").size + more
        log.append(T, "x" * rest)
        assert topic(log).bytes == BLOCK_BYTES + more
        assert spans(log) == ([(1, 2, 0)] if not more else [(1, 1, 0), (2, 2, 0)])


@pytest.mark.parametrize("whole", [False, True])
def test_a_batch_that_is_large_enough_is_a_block_by_itself(log: Folding, whole: bool) -> None:
    log.append(T, 1)
    batch = batch_of(2, "x" * 50)
    log.state.append(Appended(T, 0, b"", batch), batch.size + (not whole))
    assert spans(log) == ([(1, 1, 0), (2, 2, 0)] if whole else [(1, 2, 0)])
    assert (topic(log).tail is None) is whole
    log.append(T, 3)
    assert len(spans(log)) == (3 if whole else 1)
    assert held(log) == totals(log)


def test_a_block_that_grows_after_it_was_packed_is_packed_again_as_a_whole(log: Folding) -> None:
    log.append(T, 1, 2)
    block, state = topic(log).blocks[0], log.state
    size, more = topic(log).bytes, batch_of(3, 3).size
    state.unpacked_bytes = 0
    block.packed = 1
    log.append(T, 3)
    assert state.unpacked_bytes == more, "the rest of it is counted already"
    block.packed, state.unpacked_bytes = 3, 0
    log.append(T, 4)
    assert state.unpacked_bytes == size + more + more


def test_there_is_room_in_a_block_up_to_the_first_limit(tmp_path: Path) -> None:
    log = Folding(tmp_path, segment_max_events=50, segment_max_age_ms=1000, segment_max_bytes=2 * BLOCK_BYTES)
    log.create(T, "t")
    assert log.state.room_in_tail(topic(log)) is None
    log.append(T, 1, ts=7)
    used = topic(log).bytes
    assert log.state.room_in_tail(topic(log)) == TailRoom(49, BLOCK_BYTES - used, 1007)
    topic(log).segment_bytes = 2 * BLOCK_BYTES - 3
    assert log.state.room_in_tail(topic(log)) == TailRoom(49, 3, 1007)


# --- deletes ---


def delete(log: Folding, *runs: Run, topic_id: int = T) -> tuple[int, int]:
    before = topic(log, topic_id).bytes
    found: tuple[int, int] = log.fold(Deleted(topic_id, 1, list(runs)))
    assert found[1] == before - topic(log, topic_id).bytes
    assert totals(log) == held(log)
    return found


def alive(log: Folding, topic_id: int = T) -> list[int]:
    return [
        block.seq_at(number)
        for block in topic(log, topic_id).blocks
        for first, stop in block.alive_runs(0, block.count)
        for number in range(first, stop)
    ]


@pytest.mark.parametrize(
    ("runs", "left", "blocks"),
    [
        ([Run(2, 1, 0)], [1, 3, 4, 5, 6, 7, 8], 4),
        ([Run(1, 2, 0), Run(4, 1, 0)], [3, 5, 6, 7, 8], 4),
        ([Run(3, 1, 0)], [1, 2, 4, 5, 6, 7, 8], 4),
        ([Run(1, 1, 0), Run(3, 1, 0), Run(6, 1, 0)], [2, 4, 5, 7, 8], 3),
        ([Run(4, 2, 0)], [1, 2, 3, 6, 7, 8], 3),
        ([Run(6, 1, 0)], [1, 2, 3, 4, 5, 7, 8], 3),
        ([Run(2, 3, 0)], [1, 5, 6, 7, 8], 4),
        ([Run(3, 5, 0)], [1, 2, 8], 2),
        ([Run(1, 8, 0)], [], 0),
        ([Run(7, 1, 0), Run(8, 1, 0)], [1, 2, 3, 4, 5, 6], 3),
        ([Run(1, 3, 0), Run(1, 4, 0)], [5, 6, 7, 8], 3),
        ([Run(7, 2, 0), Run(7, 2, 0), Run(8, 1, 0)], [1, 2, 3, 4, 5, 6], 3),
        ([Run(6, 3, 0)], [1, 2, 3, 4, 5], 2),
        ([Run(5, 2, 0)], [1, 2, 3, 4, 7, 8], 3),
        ([Run(8, 1, 0), Run(1, 1, 0)], [2, 3, 4, 5, 6, 7], 4),
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_a_run_may_be_anywhere_in_one_block_or_several(
    log: Folding, runs: list[Run], left: list[int], blocks: int, sparse: bool
) -> None:
    log.create(U, "q", type="queue")
    seqs = [*range(1, 9)]
    if sparse:
        # Twice as many records, of which every other one is left: nothing follows from the first seq of a block.
        seqs = [*range(2, 17, 2)]
        for topic_id in (T, U):
            in_blocks(log, 6, 4, 2, 4, topic_id=topic_id)
            delete(log, *[Run(seq - 1, 1, 0) for seq in seqs], topic_id=topic_id)
            for block in topic(log, topic_id).blocks:
                log.state.shrink_block(block)
        runs = [Run(2 * run.from_seq, 2 * run.seqs - 1, 0) for run in runs]
        left = [2 * seq for seq in left]
    else:
        for topic_id in (T, U):
            in_blocks(log, 3, 2, 1, 2, topic_id=topic_id)
    for topic_id in (T, U):
        assert alive(log, topic_id) == seqs
        assert delete(log, *runs, topic_id=topic_id)[0] == 8 - len(left)
        assert alive(log, topic_id) == left
        assert len(spans(log, topic_id)) == blocks
    assert queue(log, U).fresh == len(left)


def test_neighbours_of_a_run_in_a_sparse_block_stay(log: Folding) -> None:
    in_blocks(log, 5, 3)
    delete(log, Run(2, 1, 0))
    log.state.shrink_block(topic(log).blocks[0])
    delete(log, Run(4, 1, 0))
    assert alive(log) == [1, 3, 5, 6, 7, 8]
    delete(log, Run(5, 2, 0))
    assert alive(log) == [1, 3, 7, 8]


def test_blocks_that_know_how_much_they_free_leave_the_rest_to_those_that_do_not(log: Folding) -> None:
    in_blocks(log, 3, 3)
    first, second = topic(log).blocks
    each = first.live_bytes // 3
    unload(first)
    assert delete(log, Run(3, 2, each + 7)) == (2, each + 7)
    assert (first.live_bytes, second.live_bytes) == (3 * each - 7, 2 * each)
    unload(second)
    assert delete(log, Run(2, 4, 9)) == (2, 9), "the first takes all of it"
    assert (first.live_bytes, second.live_bytes) == (3 * each - 16, 2 * each)


def test_a_run_whose_size_is_used_up_frees_nothing_more(log: Folding) -> None:
    in_blocks(log, 3, 3, 3)
    first, second, third = topic(log).blocks
    for block in (first, third):
        unload(block)
    second_bytes = second.live_bytes
    assert delete(log, Run(3, 5, second_bytes - 1)) == (5, second_bytes)
    assert (first.live, second.live, third.live) == (2, 0, 2)
    assert first.live_bytes == third.live_bytes == second_bytes


def test_a_block_that_is_only_on_disk_frees_what_the_run_says(log: Folding) -> None:
    in_blocks(log, 3)
    unload(topic(log).blocks[0])
    assert delete(log, Run(2, 1, 5)) == (1, 5)


# --- the floor ---


@pytest.mark.parametrize(
    ("floor", "left", "blocks", "lost"), [(2, 6, 3, 1), (4, 4, 2, 3), (5, 3, 2, 4), (7, 1, 1, 6), (8, 0, 0, 7)]
)
@pytest.mark.parametrize("ttl_ms", [0, 50])
def test_all_below_the_floor_is_lost(log: Folding, floor: int, left: int, blocks: int, lost: int, ttl_ms: int) -> None:
    log.create(U, "q", type="queue", ttl_ms=ttl_ms)
    in_blocks(log, 3, 3, 1, topic_id=U)
    log.fold(Floored(U, floor))
    found = topic(log, U)
    assert (found.count, len(found.blocks), queue(log, U).fresh) == (left, blocks, left)
    assert found.losses == [Loss(1, floor - 1, lost, "ttl" if ttl_ms else "cap")]
    assert (found.evict_floor, found.logged_floor) == (floor, floor)
    assert totals(log) == held(log)
    log.fold(Floored(U, floor - 1), Floored(U, floor))
    assert len(found.losses) == 1
    assert found.logged_floor == floor


def test_an_append_brings_the_floor_of_its_time(log: Folding) -> None:
    log.append(T, 1, 2)
    log.append(T, 3, floor=2)
    assert (topic(log).logged_floor, topic(log).count) == (2, 2)
    assert topic(log).losses == [Loss(1, 1, 1, "cap")]


def test_what_is_deleted_is_not_lost_when_the_floor_passes(log: Folding) -> None:
    in_blocks(log, 3)
    log.fold(Deleted(T, 1, [Run(2, 1, 0)]), Floored(T, 4))
    assert topic(log).losses == [Loss(1, 3, 2, "cap")]


# --- retention between ops ---


@pytest.mark.parametrize("cap", [{"cap_records": 2}, {"cap_bytes": 70}])
def test_caps_lower_the_totals_and_the_topic_is_part_of_the_next_checkpoint(log: Folding, cap: Any) -> None:
    log.create(U, "u", **cap)
    in_blocks(log, 4, topic_id=U)
    log.state.dirty.clear()
    log.state.enforce_caps(topic(log, U), lambda _: None)
    assert 0 < topic(log, U).count < 4
    assert totals(log) == held(log)
    assert topic(log, U) in log.state.dirty


def test_a_topic_that_loses_nothing_is_not_touched(log: Folding) -> None:
    log.create(U, "u", cap_records=4, ttl_ms=1000)
    in_blocks(log, 4, topic_id=U)
    log.state.dirty.clear()
    log.state.enforce_caps(topic(log, U), lambda _: None)
    log.state.expire(topic(log, U), 500, None)
    assert log.state.dirty == set()


def test_expired_records_lower_the_totals(log: Folding) -> None:
    log.create(U, "u", ttl_ms=1000)
    log.append(U, 1, 2, ts=10)
    log.append(U, 3, ts=500)
    log.state.dirty.clear()
    log.state.expire(topic(log, U), 1200, None)
    assert (topic(log, U).count, totals(log)) == (1, held(log))
    assert topic(log, U) in log.state.dirty
    log.state.expire(topic(log), 10**6, None)
    log.state.expire(topic(log, U), 10**6, None)
    log.state.expire(topic(log, U), 10**6, None)
    assert totals(log) == (0, 0)


@pytest.mark.parametrize("remote", [False, True])
def test_a_block_that_expires_in_part_is_loaded_unless_only_the_bucket_has_it(
    log: Folding, monkeypatch: pytest.MonkeyPatch, remote: bool
) -> None:
    log.create(U, "u", ttl_ms=1000)
    log.append(U, 1, ts=10)
    log.append(U, 2, ts=500)
    (block,) = topic(log, U).blocks
    topic(log, U).close_tail()
    body, block.body, block.extent = block.body, None, Extent(1, 64, 10)
    monkeypatch.setattr(log.state.cold.packs, "remote", lambda number: RemotePack(number, 64, "") if remote else None)
    log.state.expire(topic(log, U), 1200, lambda found: setattr(found, "body", body))
    assert topic(log, U).count == (2 if remote else 1)
    log.state.expire(topic(log), 1200, lambda _: pytest.fail("it has no records"))


@pytest.mark.parametrize("shrink", [False, True])
def test_a_block_that_leaves_or_is_rewritten_gives_back_its_place(
    log: Folding, shrink: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    released: list[Extent] = []
    monkeypatch.setattr(log.state, "_packs", type("P", (), {"release": lambda _, extent: released.append(extent)})())
    extent = Extent(1, 64, 10)
    in_blocks(log, 3, 3)
    for block, place in zip([*topic(log).blocks], (extent, None), strict=True):
        block.extent = place
        log.fold(Deleted(T, 1, [Run(block.first_seq, 2, 0)]))
        if shrink:
            log.state.shrink_block(block)
            assert (block.count, block.gone) == (1, False)
        else:
            log.fold(Deleted(T, 1, [Run(block.last_seq, 1, 0)]))
            assert block.gone
    assert released == [extent]


# --- topics ---


def test_a_topic_is_found_until_it_is_dropped(log: Folding) -> None:
    log.fold(Created(U, 5 << 11, 9, 77, "a", TopicConfig(ttl_ms=5)))
    found, state = topic(log, U), log.state
    assert (found.clock_ms, found.ceiling, found.created_ms, state.next_id) == (9, 77, 5, 3)
    assert (state.names, state.by_name["a"], state.expiring) == (["a", "t"], found, {found})
    assert found in state.dirty
    log.append(U, 1)
    blocks = [*found.blocks]
    assert log.fold(Dropped(U)) == []
    assert (state.names, [*state.by_name], [*state.by_id], state.expiring) == (["t"], ["t"], [T], set())
    assert found not in state.dirty
    assert "a" in state.dropped
    assert "t" not in state.dropped
    assert all(block.gone for block in blocks)
    assert totals(log) == (0, 0)
    assert log.fold(Dropped(7)) == []
    assert state.next_id == 8, "an id is not given out twice"
    assert (state.new_id(), state.new_id(), state.next_id) == (8, 9, 10)


def test_a_topic_from_a_snapshot_counts_in_the_totals(log: Folding) -> None:
    for name in ("u", STAGING + "1"):
        found = Topic(U, name, 1, TopicConfig(), 0)
        found.count, found.bytes = 3, 40
        log.state.add(found)
        assert totals(log) == (3, 40)


def test_an_op_of_a_topic_that_is_gone_changes_nothing(log: Folding) -> None:
    log.create(U, "u")
    log.fold(Dropped(U))
    before = log.state.next_id
    assert log.fold(Appended(U, 0, b"", batch_of(1, 1)), Deleted(U, 1, [Run(1, 1, 0)])) is None
    assert (totals(log), log.state.next_id) == ((0, 0), before)
    # Nothing waits for a reservation: it may follow a drop of which an old snapshot does not know.
    log.fold(Reserved(U, 9), Reserved(before, 9))
    with pytest.raises(KeyError):
        log.fold(Deleted(before, 1, []))


def test_the_next_id_is_in_a_snapshot_and_never_goes_back(tmp_path: Path) -> None:
    one, other = Folding(tmp_path), Folding(tmp_path)
    one.create(300, "t")
    assert one.state.encode_next_id() == b"\0NEXT_ID" + (301).to_bytes(8, "little")
    other.state.restore_next_id(one.state.encode_next_id())
    assert other.state.next_id == 301
    other.create(400, "t")
    other.state.restore_next_id(one.state.encode_next_id())
    assert other.state.next_id == 401


def test_a_hidden_topic_makes_room_for_one_that_has_its_id(log: Folding) -> None:
    for adopt in (False, True):
        hidden = log.create(U, "!hidden")
        assert (log.state.hidden, [*log.state.by_name]) == ({"!hidden": hidden}, ["t"])
        log.append(U, 1)
        if adopt:
            log.state.adopt(Topic(U, "u", 1, TopicConfig(), 0))
        else:
            log.create(U, "u")
        assert (log.state.hidden, log.state.names) == ({}, ["t", "u"])
        assert (totals(log), hidden.blocks) == ((0, 0), [])
        assert log.fold(Dropped(U)) == []


def test_a_configuration_takes_effect_with_head_ceiling_and_floor(log: Folding) -> None:
    log.append(T, 1, 2)
    log.fold(Configured(T, 5, 99, 2, TopicConfig(ttl_ms=9)))
    found = topic(log)
    assert (found.head_seq, found.ceiling, found.evict_floor) == (5, 99, 2)
    assert (found.holes, log.state.expiring) == ([Hole(3, 5, "lost", 3)], {found})
    assert found.config.ttl_ms == 9
    log.fold(Configured(T, 5, 50, 2, TopicConfig()))
    assert (found.head_seq, found.ceiling, log.state.expiring) == (5, 99, set())
    assert found.holes == [Hole(3, 5, "lost", 3)]


def test_a_topic_that_becomes_ephemeral_and_lasts_again_knows_which_records_do(log: Folding) -> None:
    found = topic(log)
    log.append(T, 1, 2)
    steps: list[tuple[Durability, int, int, bool]] = [
        ("memory", 0, 0, True),
        ("ephemeral", 2, 0, False),
        ("ephemeral", 2, 3, True),
        ("disk", 2, 4, True),
        ("disk", 2, 4, True),
    ]
    for durability, lasting_to, volatile_to, growing in steps:
        log.fold(Configured(T, found.head_seq, 0, 1, TopicConfig(durability=durability)))
        assert (found.lasting_to, found.volatile_to) == (lasting_to, volatile_to), durability
        assert (found.tail is not None) is growing
        if found.head_seq < 4 and durability == "ephemeral":
            log.append(T, 3)
    assert found.head_seq == 4


def test_seqs_are_numbered_on_after_a_crash(log: Folding) -> None:
    found = topic(log)
    log.append(T, 1)
    found.chunk = 1
    log.fold(Skipped(T, 4, 20))
    assert (found.head_seq, found.ceiling, found.chunk, found.tail) == (4, 20, SEQ_CHUNK, None)
    log.fold(Resumed(T, 9, 10, 2))
    assert (found.head_seq, found.ceiling) == (9, 20)
    assert found.holes == [Hole(2, 4, "lost", 3), Hole(5, 9, "lost", 2)]
    found.chunk = 1
    log.append(T, 1)
    log.fold(Skipped(T, 10, 30), Reserved(T, 25))
    assert (found.head_seq, found.ceiling, found.chunk, len(found.holes)) == (10, 30, SEQ_CHUNK, 2)
    assert found.tail is not None, "nothing was skipped"
    log.fold(Reserved(T, 35))
    assert found.ceiling == 35


def test_the_time_is_noted(log: Folding) -> None:
    log.fold(Timed(Moment(5, 2**45)))
    assert log.state.noted == Moment(5, 2**45)


# --- beside a running checkpoint ---


def begin_checkpoint(log: Folding, number: int = 1) -> list[Topic]:
    """At the position of the last op; what is captured before it changes."""
    captured: list[Topic] = []

    def capture(found: Topic) -> None:
        captured.append(found)
        found.captured = number

    state = log.state
    state.checkpoint, state.capture_from = number, log.position
    state.capture = capture
    state.dirty.clear()
    return captured


def test_a_topic_is_captured_once_before_an_op_after_the_position_changes_it(log: Folding) -> None:
    log.create(U, "u")
    captured = begin_checkpoint(log)
    assert log.state.awaits_capture(topic(log))
    log.position -= 1
    log.append(T, 1)
    assert (captured, log.state.dirty, log.state.behind_mark) == ([], {topic(log)}, False)
    log.append(T, 2)
    log.append(T, 3)
    assert (captured, log.state.dirty, log.state.behind_mark) == ([topic(log)], {topic(log)}, True)
    assert not log.state.awaits_capture(topic(log))
    assert log.state.awaits_capture(topic(log, U))


def test_no_topic_awaits_a_checkpoint_that_does_not_run(log: Folding) -> None:
    log.state.checkpoint = 1
    assert not log.state.awaits_capture(topic(log))


def test_a_topic_that_is_made_after_the_position_is_not_part_of_the_checkpoint(log: Folding) -> None:
    captured = begin_checkpoint(log)
    log.position -= 1
    log.create(U, "at the position")
    log.create(3, "after it")
    log.fold(MultiAppended([Created(4, 1, 0, 0, "with others", TopicConfig()), Appended(4, 0, b"", batch_of(1, 1))]))
    log.state.adopt(Topic(5, "adopted", 1, TopicConfig(), 0))
    log.fold(Dropped(5), Dropped(9))
    assert [topic(log, number).captured for number in (U, 3, 4)] == [0, 1, 1]
    assert [found.name for found in captured] == []
    log.append(T, 1)
    assert topic(log).captured == 1


def test_every_topic_of_an_op_is_captured_before_it_changes(log: Folding) -> None:
    log.create(U, "u")
    log.create(3, "!hidden")
    captured = begin_checkpoint(log)
    log.fold(
        MultiAppended(
            [
                Appended(T, 0, b"", batch_of(1, 1)),
                KeyNoted(U, 5, KEY, [1]),
                Appended(99, 0, b"", batch_of(1, 1)),
                Created(3, 1, 0, 0, "in its place", TopicConfig()),
            ]
        )
    )
    assert [found.name for found in captured] == ["t", "u", "!hidden"]
    assert (topic(log).count, topic(log, U).keys is not None) == (1, True)
    assert {topic(log), topic(log, U)} <= log.state.dirty


def test_an_op_that_is_folded_ahead_needs_no_capture(log: Folding) -> None:
    captured = begin_checkpoint(log)
    log.state.fold_ahead(Reserved(T, 9))
    assert (topic(log).ceiling, captured) == (9, [])


def test_a_part_that_builds_on_records_gets_them(log: Folding) -> None:
    got: list[tuple[int, int]] = []

    class Part(TopicPart):
        def appended(self, topic: Topic, batch: Batch) -> None:
            got.append((topic.id, batch.count))

        def grown(self, topic: Topic, records: int) -> None:
            got.append((topic.id, records))

    found = topic(log)
    found.routing = found.content = Part()
    log.append(T, 1, 2)
    assert got == [(T, 2), (T, 2)]
    assert routing_of(found) is None
    found.content = None
    log.create(U, STAGING + "1")
    log.append(U, 1, skipping=2)
    log.state.splice(topic(log, U), found, 3, 1)
    assert got[2:] == [(T, 1)]
