"""What a topic loses by caps, by time and by failures, and how this is reported to its readers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.engine.conftest import COLD, OpenRig
from tests.engine.rig import Rig
from topics.engine.log.retention import Tombstone


def true_bytes(rig: Rig, topic: str) -> int:
    """What the live records of a topic really take."""
    found, cursor = 0, 0
    while True:
        diff = rig.diff(topic, cursor)
        found += len(diff.records()) + 1 if diff.count else 0
        if diff.caught_up:
            return found
        cursor = diff.next_from_seq


# --- tombstones ---


def test_a_reader_below_the_floor_gets_a_tombstone_and_resumes_at_the_earliest_record(rig: Rig) -> None:
    rig.configure("a", cap_records=3)
    rig.append("a", *range(10))
    diff = rig.diff("a", 2, limit=2)
    assert diff.tombstone == Tombstone(3, 7, "cap", 5, 8, 10)
    assert [record["$seq"] for record in msgspec.json.decode(b"[%b]" % diff.records())] == [8, 9]
    assert (diff.next_from_seq, diff.earliest_seq, diff.head_seq, diff.caught_up, diff.lag) == (9, 8, 10, False, 1)
    assert rig.diff("a", 9).tombstone is None


def test_the_floor_is_exact(rig: Rig) -> None:
    rig.configure("a", cap_records=3)
    rig.append("a", *range(10))
    assert rig.diff("a", 6).tombstone == Tombstone(7, 7, "cap", 1, 8, 10)
    assert rig.diff("a", 7).tombstone is None


def test_reading_from_zero_tells_of_what_was_lost_before_the_first_read(rig: Rig) -> None:
    rig.append("a", 1, 2)
    assert rig.diff("a", 0).tombstone is None
    rig.configure("a", cap_records=1)
    assert rig.diff("a", 0).tombstone == Tombstone(1, 1, "cap", 1, 2, 2)


def test_a_topic_that_lost_everything_still_says_so(rig: Rig) -> None:
    rig.append("a", 1, 2, config={"ttl_ms": 10})
    rig.clock.advance(11)
    diff = rig.diff("a")
    assert diff.tombstone == Tombstone(1, 2, "ttl", 2, 3, 2)
    assert (diff.count, diff.next_from_seq, diff.caught_up, diff.earliest_seq) == (0, 2, True, 3)


def test_expiry_is_exact_to_the_millisecond(rig: Rig) -> None:
    rig.append("a", 1, config={"ttl_ms": 10})
    rig.clock.advance(5)
    rig.append("a", 2)
    rig.clock.advance(5)
    assert rig.seqs("a") == [1, 2]
    rig.clock.advance(1)
    assert rig.seqs("a") == [2]
    rig.clock.advance(5)
    assert rig.seqs("a") == []


def test_a_gap_of_both_kinds_is_mixed(rig: Rig) -> None:
    rig.configure("a", cap_records=3, ttl_ms=100)
    rig.append("a", *range(5))
    rig.clock.advance(101)
    rig.append("a", 6)
    tombstone = rig.diff("a", 0).tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to, tombstone.reason) == (1, 5, "mixed")
    assert tombstone.missed_estimate == 5


def test_the_reason_is_that_of_the_part_the_reader_missed(rig: Rig) -> None:
    rig.configure("a", cap_records=4, ttl_ms=100)
    rig.append("a", *range(6))
    rig.clock.advance(101)
    assert rig.seqs("a") == []
    reasons = {cursor: getattr(rig.diff("a", cursor).tombstone, "reason", None) for cursor in (0, 1, 2, 5, 6)}
    assert reasons == {0: "mixed", 1: "mixed", 2: "ttl", 5: "ttl", 6: None}


def test_deletes_never_make_a_tombstone(rig: Rig) -> None:
    rig.append("a", *range(10))
    rig.delete("a", before_seq=6)
    diff = rig.diff("a", 0)
    assert (diff.tombstone, diff.earliest_seq) == (None, 6)
    rig.delete("a", before_seq=11)
    diff = rig.diff("a", 0)
    assert (diff.tombstone, diff.count, diff.next_from_seq, diff.caught_up) == (None, 0, 10, True)


def test_a_gap_ends_at_the_earliest_record_even_if_deletes_made_part_of_it(rig: Rig) -> None:
    rig.configure("a", cap_records=7)
    rig.append("a", *range(10))
    rig.delete("a", before_seq=6)
    tombstone = rig.diff("a", 0).tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to, tombstone.earliest_seq) == (1, 5, 6)
    assert tombstone.missed_estimate == 3, "deleted records were not lost"
    assert rig.diff("a", 3).tombstone is None, "at the floor: what follows was deleted, in silence"


def test_evicting_records_after_deleted_ones_counts_only_what_was_lost(rig: Rig) -> None:
    rig.append("a", *range(10))
    rig.delete("a", before_seq=5)
    rig.configure("a", cap_records=4)
    tombstone = rig.diff("a", 4).tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to, tombstone.missed_estimate) == (5, 6, 2)


def test_a_cursor_beyond_the_head_is_told_of_a_recreation_and_reads_from_the_earliest_record(rig: Rig) -> None:
    rig.append("a", 1, 2, 3)
    diff = rig.diff("a", 99)
    assert diff.tombstone == Tombstone(1, 3, "recreated", 3, 1, 3)
    assert (diff.count, diff.next_from_seq, diff.caught_up, diff.lag) == (3, 3, True, 0)


def test_a_cursor_beyond_the_head_of_an_empty_topic_goes_back_to_its_end(rig: Rig) -> None:
    rig.configure("a")
    diff = rig.diff("a", 5)
    assert diff.tombstone is not None
    assert diff.tombstone.reason == "recreated"
    assert (diff.next_from_seq, diff.caught_up, diff.lag) == (0, True, 0)
    rig.append("a", 1)
    assert rig.seqs("a", diff.next_from_seq) == [1]


def test_a_largest_cursor_is_still_a_cursor(rig: Rig) -> None:
    rig.append("a", 1)
    assert rig.diff("a", 2**64 - 1).next_from_seq == 1


def test_many_small_losses_stay_one_gap(rig: Rig) -> None:
    rig.configure("a", cap_records=2, ttl_ms=1000)
    for number in range(200):
        rig.append("a", number)
        if number % 3 == 0:
            rig.clock.advance(1001)
            rig.diff("a")
    tombstone = rig.diff("a", 0).tombstone
    assert tombstone is not None
    earliest = rig.look("a").earliest_seq
    assert (tombstone.gap_from, tombstone.gap_to, tombstone.reason) == (1, earliest - 1, "mixed")
    assert tombstone.missed_estimate == earliest - 1
    assert len(rig.store.state.by_name["a"].losses) < 100


@pytest.mark.parametrize("way", ["reopen", "crash"])
def test_tombstones_survive_restarts(rig: Rig, way: str) -> None:
    rig.configure("a", cap_records=3)
    rig.append("a", *range(10))
    rig.append("b", *range(4), config={"ttl_ms": 10})
    rig.clock.advance(11)
    before = [rig.diff(name, 1).tombstone for name in ("a", "b")]
    getattr(rig, way)()
    assert [rig.diff(name, 1).tombstone for name in ("a", "b")] == before


# --- expiry between ops ---


def test_what_expired_stays_gone_when_the_ttl_is_lifted(rig: Rig) -> None:
    rig.append("a", 1, 2, config={"ttl_ms": 10})
    rig.clock.advance(11)
    assert rig.seqs("a") == []
    rig.configure("a", ttl_ms=0)
    assert rig.seqs("a") == []
    assert rig.append("a", 3).first_seq == 3


def test_what_expired_stays_gone_when_the_ttl_is_lifted_and_the_process_dies(rig: Rig) -> None:
    rig.append("a", 1, 2, 3, config={"ttl_ms": 10})
    rig.clock.advance(11)
    before = rig.diff("a", 0).tombstone
    rig.configure("a", ttl_ms=0)
    rig.crash()
    assert rig.seqs("a") == []
    assert rig.look("a").earliest_seq == 4
    assert rig.diff("a", 0).tombstone == before


def test_what_expired_before_a_cap_was_set_is_evicted_alike_after_a_crash(rig: Rig) -> None:
    rig.configure("a", ttl_ms=10)
    rig.append("a", 1, 2, 3)
    rig.clock.advance(11)
    rig.append("a", 4, 5, 6)
    assert rig.seqs("a") == [4, 5, 6]
    rig.configure("a", cap_records=2)
    assert rig.seqs("a") == [5, 6]
    rig.crash()
    assert rig.seqs("a") == [5, 6]


def test_a_topic_that_is_only_written_gives_back_what_expired(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    rig.configure("a", ttl_ms=50)
    for _ in range(30):
        rig.append("a", "x" * 100)
        rig.clock.advance(100)
        rig.checkpoint()
    assert rig.store.state.count <= 4
    assert len(rig.store.packs.numbers()) <= 6


def test_a_list_is_exact_under_a_ttl(open_rig: OpenRig) -> None:
    rig = open_rig(segment_max_events=100, hot_retain_segments=0, hot_retain_bytes=0)
    rig.configure("a", ttl_ms=50)
    rig.append("a", 1, 2, 3)
    rig.clock.advance(40)
    rig.append("a", 4, 5)
    rig.clock.advance(20)
    (listed,) = rig.engine.list().topics
    assert (listed.count, listed.earliest_seq) == (2, 4)


# --- bytes ---


@pytest.mark.parametrize("settings", [{}, COLD])
def test_bytes_are_exact_through_caps_deletes_and_restarts(open_rig: OpenRig, settings: dict[str, int]) -> None:
    rig = open_rig(**settings)
    rig.configure("a", cap_bytes=3000)
    for number, size in enumerate((1500, 10, 10, 10, 700, 1000, 5, 900)):
        rig.append("a", {"data": "x" * size, "tag": f"t{number}"})
        if number % 3 == 0:
            rig.checkpoint()
        assert rig.look("a").bytes == true_bytes(rig, "a") <= 3000
    rig.delete("a", match="t6")
    assert rig.look("a").bytes == true_bytes(rig, "a")
    before = rig.seqs("a")
    rig.crash()
    assert rig.seqs("a") == before
    assert rig.look("a").bytes == true_bytes(rig, "a")


def test_a_cap_by_bytes_evicts_the_same_records_again_after_a_crash(rig: Rig) -> None:
    rig.configure("a", cap_bytes=3000)
    for size in (1500, 10, 10, 10, 700):
        rig.append("a", "x" * size)
    rig.checkpoint()
    rig.append("a", "y" * 1000)
    rig.append("a", "y" * 1200)
    before = rig.seqs("a"), rig.look("a").bytes
    rig.crash()
    assert (rig.seqs("a"), rig.look("a").bytes) == before


def test_an_empty_topic_holds_no_bytes_however_it_was_emptied(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    rig.append("a", "x" * 1000)
    rig.append("a", 1)
    rig.append("a", 1)
    rig.checkpoint()
    rig.configure("a", cap_records=2)
    assert rig.seqs("a") == [2, 3]
    rig.delete("a", before_seq=99)
    assert (rig.look("a").count, rig.look("a").bytes, rig.store.state.bytes) == (0, 0, 0)


def test_a_delete_over_old_and_new_blocks_gives_back_the_same_bytes_after_a_crash(rig: Rig) -> None:
    for _ in range(3):
        rig.append("a", {"data": "x" * 100, "tag": "t"})
    rig.append("a", {"data": "kept"})
    rig.append("a", {"data": "x" * 400, "tag": "t"})
    rig.checkpoint()
    rig.append("a", {"data": "y" * 700, "tag": "t"}, {"data": "y", "tag": "t"})
    rig.delete("a", match="t")
    before = rig.seqs("a"), rig.look("a").count, rig.look("a").bytes
    rig.crash()
    assert (rig.seqs("a"), rig.look("a").count, rig.look("a").bytes) == before


@pytest.mark.parametrize("way", ["cap set later", "cap from the start", "bytes", "ttl"])
@pytest.mark.parametrize("delete", [{"before_seq": 99}, {"match": "t"}])
def test_what_was_evicted_stays_gone_when_the_rest_is_deleted_and_the_process_dies(
    rig: Rig, way: str, delete: dict[str, object]
) -> None:
    record = {"data": 1, "tag": "t"}
    match way:
        case "cap set later":
            rig.append("a", *[record] * 4)
            rig.configure("a", cap_records=3)
        case "cap from the start":
            rig.configure("a", cap_records=3)
            rig.append("a", *[record] * 4)
        case "bytes":
            rig.configure("a", cap_bytes=130)
            rig.append("a", *[record] * 4)
        case _:
            rig.configure("a", ttl_ms=10)
            rig.append("a", record)
            rig.clock.advance(11)
            rig.append("a", *[record] * 3)
    assert rig.seqs("a") == [2, 3, 4]
    rig.delete("a", **delete)
    before = rig.diff("a", 0).tombstone
    rig.clock.advance(-11)
    rig.crash()
    assert rig.seqs("a") == []
    assert rig.look("a").earliest_seq == 5
    assert rig.diff("a", 0).tombstone == before


@pytest.mark.parametrize(
    "change",
    [{"cap_records": 37}, {"cap_bytes": 3_000}, {"ttl_ms": 55}, {"cap_records": 50, "ttl_ms": 90, "cap_bytes": 9_000}],
)
@pytest.mark.parametrize("settings", [{}, COLD])
def test_a_dry_run_of_a_change_counts_what_the_change_then_takes(
    open_rig: OpenRig, settings: dict[str, int], change: dict[str, Any]
) -> None:
    rig = open_rig(**settings)
    for number in range(100):
        rig.append("a", {"data": "x" * (number % 7), "tag": f"t{number % 3}"})
        rig.clock.advance(1)
    rig.delete("a", match="t1")
    rig.checkpoint()
    kept = rig.look("a").count
    dry = rig.edit("a", dry_run=True, **change)
    assert 0 < dry.evicts < kept
    assert rig.look("a").count == kept
    assert rig.edit("a", **change).evicts == dry.evicts
    assert rig.look("a").count == kept - dry.evicts
