"""Claims, acks and expiry in the engine, with a clock that the test moves."""

from __future__ import annotations

import json

import pytest

from tests.engine.conftest import COLD, OpenRig
from tests.engine.rig import Rig
from tests.groups.consumers import Partition
from topics.api.groups.messages import Marked, render
from topics.engine.core.pending import Busy
from topics.engine.groups.ops import GroupAcked, GroupClaimed, GroupPlaced, GroupReset
from topics.engine.groups.part import groups_of
from topics.engine.log.seq_ranges import SeqRange
from topics.engine.opening.composition import OPS
from topics.model.errors import Throttled, TopicNotFound
from topics.model.requests.groups import partition_for, partition_name, split_partition

VISIBLE_MS = 60_000


@pytest.fixture
def partition(rig: Rig) -> Partition:
    rig.append("t", *range(10))
    return Partition(rig, "t", VISIBLE_MS)


def test_a_claim_ends_when_its_time_is_up_and_not_before(rig: Rig, partition: Partition) -> None:
    assert partition.consume(limit=4) == [0, 1, 2, 3]
    rig.clock.advance(VISIBLE_MS - 1)
    assert partition.consume(limit=2) == [4, 5]
    rig.clock.advance(1)
    assert partition.consume(limit=3) == [0, 1, 2]
    assert partition.consume() == [3]
    assert partition.consume() == [6, 7, 8, 9]


def test_a_slow_consumers_late_ack_does_not_cover_what_a_dead_one_left(rig: Rig, partition: Partition) -> None:
    assert partition.consume(limit=3) == [0, 1, 2]
    assert partition.consume(limit=3) == [3, 4, 5]
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume(limit=6) == [0, 1, 2, 3, 4, 5]
    partition.ack(5, since=3)
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume(limit=3) == [0, 1, 2]


def test_an_ack_of_a_range_that_is_repeated_covers_nothing_new(rig: Rig, partition: Partition) -> None:
    partition.consume(limit=3)
    partition.consume(limit=3)
    for _ in range(2):
        partition.ack(5, since=3)
        rig.clock.advance(VISIBLE_MS)
        assert partition.consume() == [0, 1, 2]
        rig.clock.advance(VISIBLE_MS)


def test_a_redelivered_range_goes_on_with_new_records(rig: Rig, partition: Partition) -> None:
    partition.consume(limit=4)
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume() == list(range(10))


def test_an_ack_after_the_claim_ran_out_still_counts(rig: Rig, partition: Partition) -> None:
    partition.consume(limit=4)
    rig.clock.advance(VISIBLE_MS)
    partition.ack(3)
    assert partition.consume() == [4, 5, 6, 7, 8, 9]


def test_an_ack_for_what_is_with_another_by_now_counts_once(rig: Rig, partition: Partition) -> None:
    partition.consume(limit=4)
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume(limit=4) == [0, 1, 2, 3]
    partition.ack(3)
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume() == [4, 5, 6, 7, 8, 9]


def test_nothing_acked_is_ever_redelivered(rig: Rig, partition: Partition) -> None:
    partition.consume(limit=6)
    partition.ack(2)
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume(limit=3) == [3, 4, 5]


def test_the_rest_of_a_partly_acked_claim_stays_with_its_consumer(rig: Rig, partition: Partition) -> None:
    partition.consume(limit=6)
    partition.ack(2)
    assert partition.consume() == [6, 7, 8, 9]


def test_a_later_consumers_ack_does_not_lose_an_earlier_ones_open_claim(rig: Rig, partition: Partition) -> None:
    assert partition.consume(limit=3) == [0, 1, 2]
    assert partition.consume(limit=3) == [3, 4, 5]
    acked = partition.ack(5, since=3)
    assert [(seqs.from_seq - 1, seqs.to_seq - 1) for seqs in acked.held_back] == [(0, 2)]
    assert partition.committed() is None
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume(limit=3) == [0, 1, 2]
    partition.ack(2)
    assert partition.committed() == 5
    assert partition.consume() == [6, 7, 8, 9]


def test_a_claim_that_ran_out_is_not_lost_by_a_later_ack_either(rig: Rig, partition: Partition) -> None:
    partition.consume(limit=3)
    rig.clock.advance(VISIBLE_MS // 2)
    partition.consume(limit=3)
    rig.clock.advance(VISIBLE_MS // 2)
    partition.ack(5, since=3)
    assert partition.consume(limit=3) == [0, 1, 2]


def test_an_ack_ahead_joins_the_rest_in_any_order(rig: Rig, partition: Partition) -> None:
    for _ in range(5):
        partition.consume(limit=2)
    for offset in (9, 5, 3, 7):
        partition.ack(offset, since=offset - 1)
        assert partition.committed() is None
    partition.ack(1, since=0)
    assert partition.committed() == 9
    group = groups_of(partition.consuming.topic("t"))["g"]
    assert (group.claims, group.acked) == ([], [])


def test_an_ack_covers_what_nobody_was_handed(rig: Rig, partition: Partition) -> None:
    """A group that began at the end is not taken back to the beginning by its first ack."""
    assert partition.consume(start={"Offset": 8}) == [8, 9]
    partition.ack(9)
    assert partition.committed() == 9
    assert partition.consume(start="Earliest") == []


def test_what_ran_out_before_the_first_ack_is_redelivered_whatever_start_says(rig: Rig, partition: Partition) -> None:
    assert partition.consume(start={"Offset": 4}, limit=2) == [4, 5]
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume(start="Latest") == [4, 5]


def test_a_claim_over_records_that_died_does_not_hold_the_group_back(rig: Rig, partition: Partition) -> None:
    partition.consume(limit=3)
    rig.clock.advance(VISIBLE_MS // 2)
    partition.consume(limit=3)
    rig.clock.advance(VISIBLE_MS // 2)
    rig.delete("t", before_seq=4)
    assert partition.consume(limit=2) == [6, 7]
    partition.ack(5)
    assert partition.committed() == 5


def test_dead_records_within_a_claim_are_passed_over_when_redelivered(rig: Rig, partition: Partition) -> None:
    partition.consume(limit=4)
    rig.delete("t", before_seq=3)
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume(limit=2) == [2, 3]
    partition.ack(3)
    assert partition.committed() == 3


def test_a_dead_end_of_a_claim_does_not_hold_the_group_back(rig: Rig) -> None:
    rig.append("t", *({"data": number, "tag": f"n{number}"} for number in range(4)))
    partition = Partition(rig, "t", VISIBLE_MS)
    partition.consume()
    rig.delete("t", match=["tag", "Eq", "n3"])
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume() == [0, 1, 2]
    partition.ack(2)
    assert partition.committed() == 3


def test_evicted_records_are_passed_over(open_rig: OpenRig) -> None:
    rig = open_rig()
    rig.configure("t", cap_records=3)
    partition = Partition(rig, "t")
    rig.append("t", *range(4))
    partition.consume(limit=1)
    rig.append("t", *range(6))
    assert partition.consume() == [7, 8, 9]


def test_two_consumers_of_one_tick_never_get_the_same_records(rig: Rig, partition: Partition) -> None:
    topic = partition.consuming.topic("t")
    portion = partition.consuming.look(topic, "g", 1, 3, 1 << 20)
    claim = partition.consuming.claim(portion, "g")
    assert claim is not None
    with pytest.raises(Busy):
        partition.consuming.look(topic, "g", 1, 3, 1 << 20)
    assert partition.consuming.look(topic, "other", 1, 3, 1 << 20).count == 3
    rig.finish(claim)
    assert partition.consume(limit=3) == [3, 4, 5]


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_groups_work_in_every_class(open_rig: OpenRig, durability: str) -> None:
    rig = open_rig()
    rig.configure("t", durability=durability)
    rig.append("t", *range(4))
    partition = Partition(rig, "t")
    assert partition.consume(limit=2) == [0, 1]
    partition.ack(1)
    assert partition.consume() == [2, 3]


def test_a_batch_keeps_to_its_bytes_but_holds_one_record_at_least(rig: Rig) -> None:
    rig.append("t", *("x" * 1000 for _ in range(5)))
    consuming = Partition(rig, "t").consuming
    topic = consuming.topic("t")
    portion = consuming.look(topic, "g", 1, 100, 2500)
    assert (portion.count, portion.cut) == (2, True)
    assert consuming.look(topic, "g", 1, 100, 1).count == 1


def test_cold_records_are_handed_out_like_hot_ones(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    for number in range(9):
        rig.append("t", number)
    rig.checkpoint()
    partition = Partition(rig, "t")
    seen: list[int] = []
    while offsets := partition.consume(limit=4):
        seen += offsets
        partition.ack(offsets[-1])
    assert seen == list(range(9))


class ShallowDecoder:
    """Stands for one that meets a meta nested deeper than it can go; version 0.1 took such records."""

    def decode(self, meta: bytes) -> Marked:
        if b"[[" in meta:
            raise RecursionError("maximum recursion depth exceeded")
        return Marked(**json.loads(meta))


def test_a_record_that_no_parser_can_take_is_delivered_with_the_others(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    metas = {"op": "Update"}, {"op": [[]]}, {"op": "Delete"}
    rig.append("t", *({"data": 1, "meta": meta} for meta in metas))
    monkeypatch.setattr("topics.api.groups.messages._marked", ShallowDecoder())
    consuming = Partition(rig, "t").consuming
    portion = consuming.look(consuming.topic("t"), None, 1, 10, 1 << 20)
    messages = [json.loads(message) for message in render("t", 0, portion.runs)]
    assert [(message["offset"], message["op"]) for message in messages] == [(0, "Update"), (1, "Insert"), (2, "Delete")]


# --- a clock that is put wrong ---


@pytest.mark.parametrize("restart", [None, Rig.reopen, Rig.crash])
def test_a_claim_ends_on_time_after_the_clock_jumped_ahead_and_back(rig: Rig, partition: Partition, restart) -> None:
    rig.clock.step(3_600_000)
    rig.append("t", "its time holds up that of later records")
    rig.clock.step(-3_600_000)
    assert partition.consume(limit=4) == [0, 1, 2, 3]
    if restart is not None:
        restart(rig)
        partition.opened()
    rig.clock.advance(VISIBLE_MS - 1)
    assert partition.consume(limit=2) == [4, 5]
    rig.clock.advance(1)
    assert partition.consume(limit=4) == [0, 1, 2, 3]


@pytest.mark.parametrize("step_ms", [3_600_000, -3_600_000])
def test_a_step_of_the_clock_neither_ends_a_claim_nor_prolongs_it(rig: Rig, partition: Partition, step_ms: int) -> None:
    assert partition.consume(limit=4) == [0, 1, 2, 3]
    rig.clock.step(step_ms)
    assert partition.consume(limit=2) == [4, 5]
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume(limit=4) == [0, 1, 2, 3]


# --- what survives ---


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("restart", [Rig.reopen, Rig.crash])
def test_offsets_and_open_claims_survive_a_restart(rig: Rig, partition: Partition, restart, checkpoint: bool) -> None:
    partition.consume(limit=3)
    partition.consume(limit=3)
    partition.ack(5, since=3)
    partition.consume(group="other", limit=1)
    partition.ack(0, group="other")
    if checkpoint:
        rig.checkpoint()
    restart(rig)
    partition.opened()
    assert partition.committed("other") == 0
    assert partition.consume(limit=2) == [6, 7]
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume(limit=3) == [0, 1, 2]
    partition.ack(2)
    assert partition.committed() == 5


@pytest.mark.parametrize("restart", [Rig.reopen, Rig.crash])
def test_a_reset_and_a_forgotten_group_survive_a_restart(rig: Rig, partition: Partition, restart) -> None:
    for group in ("g", "gone"):
        partition.consume(group=group)
        partition.ack(9, group=group)
    assert partition.reset({"Offset": 7}) == 7
    rig.finish(partition.consuming.forget(partition.consuming.topic("t"), "gone"))
    restart(rig)
    partition.opened()
    assert partition.consume() == [7, 8, 9]
    assert partition.consume(group="gone", start={"Offset": 9}) == [9]


def test_groups_are_gone_with_the_epoch(rig: Rig, partition: Partition) -> None:
    partition.consume()
    partition.ack(9)
    rig.drop("t")
    with pytest.raises(TopicNotFound):
        partition.consume()
    rig.append("t", "new")
    rig.crash()
    partition.opened()
    assert partition.consume() == [0]


# --- limits and bytes ---


def test_a_group_may_not_hold_claims_without_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.engine.groups.verbs.CLAIMS_PER_GROUP_MAX", 3)
    rig.append("t", *range(5))
    partition = Partition(rig, "t")
    for _ in range(3):
        partition.consume(limit=1)
    with pytest.raises(Throttled):
        partition.consume(limit=1)
    rig.clock.advance(VISIBLE_MS)
    assert partition.consume(limit=1) == [0], "what ran out is handed out again all the same"
    partition.ack(0)
    for offset in (1, 2, 3):
        assert partition.consume(limit=1) == [offset]
    with pytest.raises(Throttled):
        partition.consume(limit=1)


def test_what_ran_out_is_not_cut_into_claims_without_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.engine.groups.verbs.CLAIMS_PER_GROUP_MAX", 3)
    rig.append("t", *range(9))
    partition = Partition(rig, "t")
    partition.consume()
    rig.clock.advance(VISIBLE_MS)
    assert [partition.consume(limit=1) for _ in range(2)] == [[0], [1]]
    with pytest.raises(Throttled):
        partition.consume(limit=1)
    assert partition.consume() == [2, 3, 4, 5, 6, 7, 8]


def test_a_group_may_not_ack_ranges_without_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.engine.groups.verbs.ACKED_AHEAD_MAX", 2)
    rig.append("t", *range(9))
    partition = Partition(rig, "t")
    partition.consume()
    for offset in (3, 5):
        partition.ack(offset, since=offset)
    with pytest.raises(Throttled):
        partition.ack(7, since=7)
    partition.ack(2, since=0)
    assert partition.committed() == 3
    partition.ack(7, since=7)


def test_a_topic_may_not_have_groups_without_end(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.engine.groups.verbs.GROUPS_PER_TOPIC_MAX", 2)
    rig.append("t", *range(5))
    partition = Partition(rig, "t")
    for group in ("a", "b"):
        partition.consume(group=group, limit=1)
    with pytest.raises(Throttled):
        partition.ack(0, group="c")
    assert partition.consume(group="a", limit=1) == [1]


@pytest.mark.parametrize(
    "op",
    [
        GroupClaimed(7, "grüppe", 1, 2**63, 1_700_000_000_000),
        GroupAcked(7, "g", [SeqRange(1, 5), SeqRange(9, 9)]),
        GroupAcked(7, "g" * 256, []),
        GroupReset(7, "g", 2**63),
        GroupPlaced(7, "grüppe", 2**63),
    ],
)
def test_an_op_comes_back_from_its_bytes(op) -> None:
    assert OPS.decode(op.encode()) == op


def test_a_partition_is_a_topic_by_name() -> None:
    assert [partition_name("t", number) for number in (0, 1, 12)] == ["t", "t:p1", "t:p12"]
    for name in ("t", "t:p1", "t:p12", "a:p1:p2", "t:p0", "t:p01", "t:px", "t:p"):
        assert partition_name(*split_partition(name)) == name
    assert split_partition("t:p0") == ("t:p0", 0)


def test_a_tag_always_belongs_to_the_same_partition() -> None:
    assert [partition_for(tag, 8) for tag in ("a", "b", "order-1", "ü", "")] == [7, 5, 5, 7, 4]
    spread = {partition_for(f"key-{number}", 8) for number in range(100)}
    assert spread == set(range(8))
