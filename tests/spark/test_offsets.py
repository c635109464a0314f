"""Offsets and shares: every seq is read once, whatever the limits are."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from topics_spark.source import offsets
from topics_spark.source.offsets import Head, Position
from topics_spark.source.ranges import RANGES_MAX, Range, Share, shares

NAMES = st.sampled_from(["a", "b", "c", "d"])
HEADS = st.dictionaries(NAMES, st.integers(0, 500).map(lambda head: Head(1, head, 1)))


def ranges_of(parts: list[Any]) -> list[Range]:
    return [each for part in parts if isinstance(part, Share) for each in part.ranges]


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.integers(0, 1000)), max_size=6),
    st.integers(1, 40),
    st.integers(1, 400),
)
def test_shares_hold_every_seq_once_and_keep_the_limits(
    bounds: list[tuple[int, int]], partitions_min: int, records_max: int
) -> None:
    ranges = [Range(f"t{i}", 1, low, high) for i, (low, high) in enumerate(bounds)]
    parts = shares(ranges, partitions_min, records_max)
    seqs = [(each.topic, seq) for each in ranges_of(parts) for seq in range(each.from_seq + 1, each.to_seq + 1)]
    assert seqs == [(each.topic, seq) for each in ranges for seq in range(each.from_seq + 1, each.to_seq + 1)]
    sizes = [sum(each.seqs for each in part.ranges) for part in parts if isinstance(part, Share)]
    assert all(0 < size <= records_max for size in sizes)
    wanted = min(partitions_min, len(seqs))
    # Shares of equal size: rounding up can make fewer than asked, never so few that one could be split evenly again.
    assert len(parts) >= -(-len(seqs) // -(-len(seqs) // wanted)) if wanted else not parts


def test_a_thousand_small_topics_are_not_for_one_task() -> None:
    ranges = [Range(f"t{number}", 1, 0, 1) for number in range(1_000)]
    parts = shares(ranges, 1, 100_000)
    assert ranges_of(parts) == ranges
    assert {len(part.ranges) for part in parts if isinstance(part, Share)} == {RANGES_MAX}


@given(st.dictionaries(NAMES, st.integers(0, 500)), st.integers(1, 600))
def test_a_ration_is_used_up_and_no_topic_gets_more_than_it_has(available: dict[str, int], limit: int) -> None:
    granted = offsets.rationed(available, limit)
    assert sum(granted.values()) == min(limit, sum(available.values()))
    assert all(granted[name] <= available[name] for name in available)


@given(st.lists(HEADS, min_size=1, max_size=6), st.integers(1, 300))
def test_batches_read_every_seq_of_topics_that_grow_and_appear(steps: list[dict[str, Head]], limit: int) -> None:
    """Offsets go through JSON between batches, as they do in a checkpoint."""
    known: dict[str, Head] = {}
    at: dict[str, Any] = {offsets.MARKER: "new"}
    read: dict[str, list[int]] = {}
    for heads in steps:
        for name, head in heads.items():
            known[name] = max(head, known.get(name, head))
        while True:
            before = offsets.decoded(at)
            begins = dict.fromkeys(known, 0) if offsets.is_marker(at) else None
            step = offsets.step_from(before, known, begins)
            assert not step.losses
            if not step.changed and not step.total:
                break
            end = json.loads(json.dumps(offsets.encoded(step.end(limit))))
            for each in offsets.between(before, offsets.decoded(end)):
                read.setdefault(each.topic, []).extend(range(each.from_seq + 1, each.to_seq + 1))
            at = end
    assert {name: seqs for name, seqs in read.items() if seqs} == {
        name: list(range(1, head.head_seq + 1)) for name, head in known.items() if head.head_seq
    }


def test_an_offset_that_says_the_same_is_the_same_text() -> None:
    one = offsets.encoded({"b": Position(1, 2), "a": Position(3, 4, 0)})
    other = offsets.encoded({"a": Position(3, 4, 0), "b": Position(1, 2)})
    assert json.dumps(one) == json.dumps(other)
    assert offsets.encoded(offsets.decoded(one)) == one


def test_a_topic_made_anew_is_read_from_its_beginning_and_counts_as_loss() -> None:
    step = offsets.step_from({"a": Position(1, 9)}, {"a": Head(2, 3, 1)}, None)
    assert [str(loss) for loss in step.losses]
    assert "created again" in step.losses[0].what
    assert offsets.encoded(step.end(None)) == {"a": {"epoch": 2, "from": 0, "seq": 3}}


def test_a_deleted_topic_leaves_the_offsets_and_counts_as_loss() -> None:
    step = offsets.step_from({"a": Position(1, 9), "b": Position(1, 1)}, {"b": Head(1, 1, 1)}, None)
    assert "deleted" in step.losses[0].what
    assert step.changed
    assert offsets.encoded(step.end(None)) == {"b": {"epoch": 1, "seq": 1}}


def test_a_head_below_the_offset_counts_as_loss_and_nothing_is_read_twice() -> None:
    before = {"a": Position(1, 9)}
    step = offsets.step_from(before, {"a": Head(1, 4, 1)}, None)
    assert "before offset 9" in step.losses[0].what
    end = step.end(None)
    assert end["a"].seq == 4
    assert sum(each.seqs for each in offsets.between(before, end)) == 0
