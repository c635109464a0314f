"""Reading: cursors, limits, budgets, filters and views."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.engine.conftest import COLD, OpenRig
from tests.engine.rig import Rig
from topics.model.errors import InvalidRequest, TopicNotFound


def seqs_of(diff: Any) -> list[int]:
    return [record["$seq"] for record in msgspec.json.decode(b"[%b]" % diff.records())]


@pytest.fixture(params=["memory", "mixed", "cold"])
def filled(request: pytest.FixtureRequest, open_rig: OpenRig) -> Rig:
    """Ten records: odd ones by node n1, even ones by n2, the seventh without a node; in memory, on disk, or both."""
    rig = open_rig() if request.param == "memory" else open_rig(**COLD)
    for seq in range(1, 11):
        record: dict[str, Any] = {"data": seq, "tag": f"t{seq % 3}", "node": "n1" if seq % 2 else "n2"}
        if seq == 7:
            del record["node"], record["tag"]
        if request.param == "mixed" and seq == 8:
            rig.checkpoint()
        rig.append("a", record)
    if request.param == "cold":
        rig.checkpoint()
    return rig


# --- cursor and limit ---


def test_reading_never_creates(rig: Rig) -> None:
    with pytest.raises(TopicNotFound):
        rig.diff("a")
    assert rig.engine.list().topics == []


def test_an_empty_topic_is_caught_up(rig: Rig) -> None:
    rig.configure("a")
    diff = rig.diff("a")
    assert (diff.count, diff.next_from_seq, diff.head_seq, diff.earliest_seq) == (0, 0, 0, 1)
    assert (diff.caught_up, diff.lag, diff.tombstone) == (True, 0, None)


@pytest.mark.parametrize("from_seq", range(11))
@pytest.mark.parametrize("limit", [1, 2, 3, 10, 11])
def test_a_read_starts_after_its_cursor_and_stops_at_its_limit(filled: Rig, from_seq: int, limit: int) -> None:
    diff = filled.diff("a", from_seq, limit=limit)
    last = min(10, from_seq + limit)
    assert seqs_of(diff) == list(range(from_seq + 1, last + 1))
    assert (diff.next_from_seq, diff.head_seq, diff.earliest_seq) == (last, 10, 1)
    assert (diff.caught_up, diff.lag, diff.tombstone) == (last == 10, 10 - last, None)


def test_the_default_limit_is_256_and_zero_means_default(rig: Rig) -> None:
    rig.append("a", *range(300))
    assert rig.diff("a").count == 256
    assert rig.diff("a", limit=0).count == 256


def test_a_limit_is_clamped_to_its_setting(open_rig: OpenRig) -> None:
    rig = open_rig(max_limit=5)
    rig.append("a", *range(9))
    assert rig.diff("a").count == 5
    assert rig.diff("a", limit=6).count == 5
    assert rig.diff("a", limit=10**30).count == 5
    assert rig.diff("a", limit=4).count == 4


def test_a_thousand_records_are_the_most_by_default(rig: Rig) -> None:
    rig.append("a", *range(1001))
    assert rig.diff("a", limit=5000).count == 1000


@pytest.mark.parametrize(
    "fields",
    [
        {"from_seq": -1},
        {"from_seq": "0"},
        {"from_seq": None},
        {"from_seq": 1.5},
        {"from_seq": 2**64},
        {"limit": -1},
        {"limit": "x"},
        {"limit": None},
        {"node": 5},
        {"node": [5]},
        {"include_tags": "yes"},
        {"include_meta": 1},
        {"wait_ms": -1},
        {"max_batch_bytes": -1},
        {"from_ts": -1},
        {"from_ts": "now"},
    ],
)
def test_a_wrong_type_is_refused(rig: Rig, fields: dict[str, Any]) -> None:
    rig.append("a", 1)
    with pytest.raises(InvalidRequest):
        rig.diff("a", **fields)


# --- bytes ---


def test_a_read_is_bounded_by_bytes_but_gives_at_least_one_record(filled: Rig) -> None:
    one = len(filled.diff("a", limit=1).records()) + 1
    assert seqs_of(filled.diff("a", max_batch_bytes=1)) == [1]
    assert seqs_of(filled.diff("a", max_batch_bytes=one)) == [1]
    assert seqs_of(filled.diff("a", max_batch_bytes=3 * one)) == [1, 2, 3]
    assert seqs_of(filled.diff("a", max_batch_bytes=3 * one - 1)) == [1, 2]


def test_reading_by_bytes_makes_progress_over_filtered_records(filled: Rig) -> None:
    found: list[int] = []
    cursor = 0
    for _ in range(30):
        diff = filled.diff("a", cursor, max_batch_bytes=1, node="n1")
        found += seqs_of(diff)
        cursor = diff.next_from_seq
        if diff.caught_up:
            break
    assert found == [2, 4, 6, 7, 8, 10]


def test_a_mebibyte_is_the_default_budget_and_eight_the_most(rig: Rig) -> None:
    for _ in range(20):
        rig.append("a", "x" * 500_000)
    assert rig.diff("a").count == 2
    assert rig.diff("a", max_batch_bytes=10**12).count == 16


def test_a_record_over_the_budget_is_given_alone(rig: Rig) -> None:
    rig.append("a", 1, "x" * 900_000, "y" * 900_000, 4)
    assert [rig.diff("a", cursor, max_batch_bytes=1000).next_from_seq for cursor in (0, 1, 2, 3)] == [1, 2, 3, 4]


# --- nodes ---


@pytest.mark.parametrize(
    ("node", "seqs"),
    [
        ("n1", [2, 4, 6, 7, 8, 10]),
        ("n2", [1, 3, 5, 7, 9]),
        (["n1"], [2, 4, 6, 7, 8, 10]),
        (["n1", "n2"], [7]),
        (["n1", "n2", "n1"], [7]),
        ([], list(range(1, 11))),
        (None, list(range(1, 11))),
        ("n", list(range(1, 11))),
        ("N1", list(range(1, 11))),
        ("", list(range(1, 11))),
    ],
)
def test_a_node_does_not_get_back_what_it_wrote(filled: Rig, node: Any, seqs: list[int]) -> None:
    diff = filled.diff("a", node=node)
    assert seqs_of(diff) == seqs
    assert (diff.next_from_seq, diff.caught_up, diff.tombstone) == (10, True, None)


def test_filtered_records_advance_the_cursor(filled: Rig) -> None:
    diff = filled.diff("a", 7, limit=1, node=["n1", "n2"])
    assert (diff.count, diff.next_from_seq, diff.caught_up, diff.lag) == (0, 10, True, 0)


def test_the_cursor_stands_at_the_last_examined_record(filled: Rig) -> None:
    diff = filled.diff("a", limit=2, node="n2")
    assert seqs_of(diff) == [1, 3]
    assert diff.next_from_seq in (3, 4), "a filtered record after the last returned one may be examined or not"
    assert seqs_of(filled.diff("a", diff.next_from_seq, limit=2, node="n2")) == [5, 7]


def test_every_step_of_a_filtered_read_moves_on_and_nothing_is_missed(filled: Rig) -> None:
    for limit in (1, 2, 3, 7):
        for node, wanted in (("n1", [2, 4, 6, 7, 8, 10]), (["n1", "n2"], [7]), (None, list(range(1, 11)))):
            assert filled.seqs("a", limit=limit, node=node) == wanted


def test_a_topic_may_opt_out_of_filtering(rig: Rig) -> None:
    rig.configure("a", dedupe_node=False)
    rig.append("a", 1, node="n1")
    assert rig.seqs("a", node="n1") == [1]
    rig.configure("a")
    assert rig.seqs("a", node="n1") == []


def test_a_node_that_needs_escaping_is_matched_exactly(rig: Rig) -> None:
    rig.append("a", {"data": 1, "node": 'q"\\\n'}, {"data": 2, "node": "é"})
    assert rig.seqs("a", node='q"\\\n') == [2]
    assert rig.seqs("a", node="é") == [1]
    assert [record["$node"] for record in rig.records("a")] == ['q"\\\n', "é"]


# --- views ---


def test_tags_are_shown_only_to_those_who_ask(filled: Rig) -> None:
    assert all("$tag" not in record for record in filled.records("a"))
    tags = [record.get("$tag") for record in filled.records("a", include_tags=True)]
    assert tags == ["t1", "t2", "t0", "t1", "t2", "t0", None, "t2", "t0", "t1"]


def test_meta_is_shown_unless_asked_not_to(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    rig.append("a", {"data": 1, "meta": {"k": 1}}, {"data": 2}, {"data": 3, "meta": {"k": 3}, "tag": "t", "node": "n"})
    for _ in range(2):
        assert [record.get("meta") for record in rig.records("a")] == [{"k": 1}, None, {"k": 3}]
        assert all("meta" not in record for record in rig.records("a", include_meta=False))
        last = rig.records("a", include_tags=True, include_meta=False)[2]
        assert (last["$tag"], last["$node"], last["data"]) == ("t", "n", 3)
        assert set(rig.records("a", include_tags=True)[2]) == {"$seq", "$ts", "$node", "$tag", "data", "meta"}
        rig.checkpoint()


def test_records_scanned_counts_the_filtered_ones(filled: Rig) -> None:
    assert filled.diff("a").scanned == 10
    assert filled.diff("a", node=["n1", "n2"]).scanned == 10
    assert filled.diff("a", 4, limit=3).scanned == 3


def test_reading_is_remembered_as_the_last_read(rig: Rig) -> None:
    rig.append("a", 1)
    rig.clock.advance(77)
    rig.diff("a")
    assert rig.look("a").last_read_ts == rig.clock.now_ms()


# --- by time ---


@pytest.fixture(params=["memory", "cold"])
def timed(request: pytest.FixtureRequest, open_rig: OpenRig) -> Rig:
    """Records 1, 2 at 0 ms, 3 at 100, 4 at 200, 5 at 300."""
    rig = open_rig() if request.param == "memory" else open_rig(**COLD)
    rig.append("a", 1, 2)
    for value in (3, 4, 5):
        rig.clock.advance(100)
        rig.append("a", value)
    if request.param == "cold":
        rig.checkpoint()
    return rig


@pytest.mark.parametrize(("at", "first"), [(-1, 1), (0, 1), (1, 3), (100, 3), (101, 4), (300, 5), (301, 6)])
def test_a_read_by_time_starts_at_the_first_record_at_or_after_it(timed: Rig, at: int, first: int) -> None:
    start = timed.clock.now_ms() - 300
    diff = timed.diff("a", from_ts=start + at)
    assert seqs_of(diff) == list(range(first, 6))
    assert (diff.next_from_seq, diff.tombstone) == (5, None)


def test_a_cursor_further_on_wins_over_a_time(timed: Rig) -> None:
    assert seqs_of(timed.diff("a", 4, from_ts=0)) == [5]


def test_a_time_before_what_was_evicted_is_no_loss_to_speak_of_a_second_time(timed: Rig) -> None:
    timed.configure("a", cap_records=2)
    assert seqs_of(timed.diff("a", from_ts=0)) == [4, 5]


def test_a_read_by_time_skips_deleted_records(timed: Rig) -> None:
    timed.delete("a", before_seq=4)
    assert seqs_of(timed.diff("a", from_ts=timed.clock.now_ms() - 200)) == [4, 5]


def test_a_read_by_time_of_an_empty_topic_is_caught_up(rig: Rig) -> None:
    rig.configure("a")
    assert rig.diff("a", from_ts=5).caught_up


# --- deleted records ---


def test_deleted_records_advance_the_cursor_in_silence(filled: Rig) -> None:
    filled.delete("a", match=["tag", "Glob", "t*"])
    diff = filled.diff("a", limit=1)
    assert seqs_of(diff) == [7]
    diff = filled.diff("a", 7)
    assert (diff.count, diff.next_from_seq, diff.caught_up, diff.tombstone) == (0, 10, True, None)


def test_many_dead_records_are_passed_in_one_read(open_rig: OpenRig) -> None:
    rig = open_rig()
    rig.append("a", *range(5000))
    rig.append("a", {"data": "end", "tag": "end"})
    rig.append("a", *range(5000))
    rig.delete("a", before_seq=5001)
    assert seqs_of(rig.diff("a", limit=1)) == [5001]
