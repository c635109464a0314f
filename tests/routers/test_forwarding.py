"""What a router does with records: which are copied, what a copy carries, and what the destination makes of it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.routers.conftest import OpenRoutedRig
from tests.routers.rig import RoutedRig
from topics.engine.log.topic import Topic


def topic(rig: RoutedRig, name: str) -> Topic:
    return rig.store.state.by_name[name]


def test_every_record_appended_to_the_source_is_appended_to_the_destination(rig: RoutedRig) -> None:
    rig.route("a->b", "a", "b")
    rig.append("a", 1, 2)
    rig.append("a", 3)
    assert rig.copies("b") == [1, 2, 3]
    assert rig.records("a") == rig.records("b")


def test_a_new_router_starts_at_the_head_of_its_source(rig: RoutedRig) -> None:
    rig.append("a", 1, 2)
    rig.route("a->b", "a", "b")
    rig.append("a", 3)
    assert rig.copies("b") == [3]


def test_backfill_starts_at_the_earliest_record(rig: RoutedRig) -> None:
    rig.append("a", *range(10))
    rig.delete("a", before_seq=4)
    rig.route("a->b", "a", "b", backfill=True)
    assert rig.copies("b") == [*range(3, 10)]
    assert rig.diff("b").tombstone is None


def test_backfill_does_not_lament_what_the_source_lost_before(rig: RoutedRig) -> None:
    rig.configure("a", cap_records=3)
    rig.append("a", *range(10))
    rig.route("a->b", "a", "b", backfill=True)
    assert rig.copies("b") == [7, 8, 9]
    assert rig.seqs("b") == [1, 2, 3]
    assert rig.diff("b").tombstone is None


def test_a_source_append_is_acknowledged_before_anything_is_forwarded(rig: RoutedRig) -> None:
    rig.route("a->b", "a", "b")
    assert rig.append("a", 1).done
    assert rig.look("b").count == 0
    assert rig.router("a->b").lag == 1
    assert rig.copies("b") == [1]
    assert rig.router("a->b").lag == 0


def test_a_copy_has_a_seq_and_a_time_of_its_own(rig: RoutedRig) -> None:
    rig.append("b", "direct", "direct")
    rig.route("a->b", "a", "b")
    rig.append("a", 1)
    rig.clock.advance(5_000)
    rig.forward()
    [original], copy = rig.records("a"), rig.records("b")[-1]
    assert (original["$seq"], copy["$seq"]) == (1, 3)
    assert copy["$ts"] == original["$ts"] + 5_000


def test_node_tag_meta_and_data_are_carried_verbatim(rig: RoutedRig) -> None:
    rig.route("a->b", "a", "b")
    records: list[dict[str, Any]] = [
        {"data": {"x": [1, 2]}, "node": "eu-1", "tag": "t:1", "meta": {"k": "v"}},
        {"data": 'says ,"data":', "node": 'q"uote', "tag": ""},
        {"data": None},
        {"data": 12345678901234567890, "node": "eu-1", "meta": {}},
    ]
    rig.append("a", *records)
    rig.append("a", b'{"big":1E+2, "ws": [ 1 ] }')
    rig.forward()
    assert rig.diff("b", include_tags=True).records() == rig.diff("a", include_tags=True).records()
    assert rig.seqs("b", node="eu-1") == rig.seqs("a", node="eu-1") == [2, 3, 5]
    assert rig.delete("b", match="t:1") == 1
    assert rig.seqs("a") == [1, 2, 3, 4, 5]


def test_preserve_node_false_clears_the_node(rig: RoutedRig) -> None:
    rig.route("a->b", "a", "b", preserve_node=False)
    rig.append("a", {"data": 1, "node": 'n,"data":9'}, {"data": 2, "tag": "t", "meta": {"m": 1}})
    rig.forward()
    assert rig.records("b", node="n", include_tags=True) == [
        {"$seq": 1, "$ts": 1_700_000_000_000, "data": 1},
        {"$seq": 2, "$ts": 1_700_000_000_000, "$tag": "t", "data": 2, "meta": {"m": 1}},
    ]


def test_preserve_tag_false_leaves_the_tag_behind(rig: RoutedRig) -> None:
    rig.route("a->b", "a", "b", preserve_tag=False)
    rig.append("a", {"data": 1, "tag": "t", "node": "n"})
    rig.forward()
    assert rig.records("b", include_tags=True) == [{"$seq": 1, "$ts": 1_700_000_000_000, "$node": "n", "data": 1}]
    assert rig.delete("b", match="t") == 0


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [(["tag", "Glob", "public:*"], [1, 3]), (["tag", "Eq", "public:"], [3]), ("private", [2]), ("none", [])],
)
def test_a_filter_forwards_only_what_matches(rig: RoutedRig, wanted: Any, expected: list[int]) -> None:
    rig.route("a->b", "a", "b", filter=wanted)
    rig.append("a", {"data": 1, "tag": "public:x"}, {"data": 2, "tag": "private"}, {"data": 3, "tag": "public:"}, 4)
    rig.append("a", 5)
    assert rig.copies("b") == expected
    assert rig.router("a->b").lag == 0
    assert rig.router("a->b").forwarded_total == len(expected)
    rig.crash()
    assert rig.copies("b") == expected


def test_per_source_order_is_kept_among_direct_writes(rig: RoutedRig) -> None:
    rig.route("a->b", "a", "b")
    for number in range(50):
        rig.append("a", number)
        if number % 3 == 0:
            rig.append("b", "direct")
        if number % 5 == 0:
            rig.forward()
    copies = [data for data in rig.copies("b") if data != "direct"]
    assert copies == list(range(50))
    assert rig.seqs("b") == list(range(1, 68))


def test_chains_pass_records_on(rig: RoutedRig) -> None:
    rig.route("a->b", "a", "b")
    rig.route("b->c", "b", "c")
    rig.route("c->d", "c", "d")
    rig.append("b", "direct")
    rig.append("a", 1, 2)
    assert rig.copies("d") == ["direct", 1, 2]
    rig.crash()
    rig.append("a", 3)
    assert rig.copies("d") == ["direct", 1, 2, 3]


def test_a_wide_fan_out_reaches_every_destination(rig: RoutedRig) -> None:
    for number in range(20):
        rig.route(f"r{number}", "a", f"dest{number}")
    rig.append("a", 1, 2, 3)
    rig.append("dest7", "direct")
    rig.append("a", 4)
    rig.forward()
    for number in range(20):
        copies = rig.copies(f"dest{number}")
        assert [data for data in copies if data != "direct"] == [1, 2, 3, 4]


def test_a_delete_at_the_source_takes_back_no_copy(rig: RoutedRig) -> None:
    rig.route("a->b", "a", "b")
    rig.append("a", 1, 2)
    rig.forward()
    rig.delete("a", before_seq=99)
    assert rig.copies("b") == [1, 2]
    rig.crash()
    assert rig.copies("b") == [1, 2]


def test_what_was_deleted_before_it_was_forwarded_is_skipped_in_silence(rig: RoutedRig) -> None:
    rig.route("a->b", "a", "b")
    rig.append("a", *({"data": number, "tag": "even" if number % 2 == 0 else "odd"} for number in range(10)))
    rig.delete("a", match="even")
    assert rig.copies("b") == [1, 3, 5, 7, 9]
    assert rig.seqs("b") == [1, 2, 3, 4, 5]
    assert rig.diff("b").tombstone is None
    rig.crash()
    assert rig.copies("b") == [1, 3, 5, 7, 9]


def test_what_the_source_evicted_before_it_was_forwarded_is_a_source_trim(rig: RoutedRig) -> None:
    rig.configure("a", cap_records=3)
    rig.route("a->b", "a", "b")
    rig.append("a", 0)
    rig.forward()
    rig.append("a", *range(1, 10))
    assert rig.copies("b") == [0, 7, 8, 9]
    assert rig.seqs("b") == [1, 8, 9, 10]
    diff = rig.diff("b", 1)
    assert diff.tombstone is not None
    assert (diff.tombstone.reason, diff.tombstone.gap_from, diff.tombstone.gap_to) == ("source_trim", 2, 7)
    assert diff.tombstone.missed_estimate == 6
    assert [tuple(hole) for hole in topic(rig, "b").holes] == [(2, 7, "source_trim", 6)]
    rig.crash()
    assert rig.diff("b", 1).tombstone == diff.tombstone
    rig.reopen()
    assert rig.diff("b", 1).tombstone == diff.tombstone
    assert rig.seqs("b") == [1, 8, 9, 10]


def test_a_source_trim_at_the_very_start_raises_the_floor(rig: RoutedRig) -> None:
    rig.configure("a", cap_records=1)
    rig.route("a->b", "a", "b")
    rig.append("a", 1, 2, 3)
    assert rig.copies("b") == [3]
    found = rig.diff("b").tombstone
    assert found is not None
    assert (found.reason, found.missed_estimate, found.gap_to) == ("source_trim", 2, 2)


def test_a_source_trim_goes_down_a_chain(rig: RoutedRig) -> None:
    rig.configure("a", cap_records=1)
    rig.route("a->b", "a", "b")
    rig.route("b->c", "b", "c")
    rig.append("a", 0)
    rig.forward()
    rig.append("a", 1, 2, 3)
    assert rig.copies("c") == [0, 3]
    found = rig.diff("c", 1).tombstone
    assert found is not None
    assert found.reason == "source_trim"


def test_expired_records_are_not_forwarded(rig: RoutedRig) -> None:
    rig.configure("a", ttl_ms=1_000)
    rig.route("a->b", "a", "b")
    rig.append("a", 1)
    rig.clock.advance(5_000)
    rig.append("a", 2)
    assert rig.copies("b") == [2]
    found = rig.diff("b").tombstone
    assert found is not None
    assert found.reason == "source_trim"


def test_the_destinations_ttl_counts_from_the_time_of_forwarding(rig: RoutedRig) -> None:
    rig.configure("b", ttl_ms=1_000)
    rig.route("a->b", "a", "b")
    rig.append("a", 1)
    rig.clock.advance(900)
    rig.forward()
    rig.clock.advance(900)
    assert rig.copies("b") == [1]
    rig.clock.advance(200)
    assert rig.copies("b") == []
    assert rig.copies("a") == [1]


def test_the_destinations_caps_evict(rig: RoutedRig) -> None:
    rig.configure("b", cap_records=2)
    rig.route("a->b", "a", "b")
    rig.append("a", 1, 2, 3)
    assert rig.copies("b") == [2, 3]
    rig.crash()
    assert rig.copies("b") == [2, 3]


@pytest.mark.parametrize("cap", [{"cap_records": 2}, {"cap_bytes": 90}])
def test_a_full_reject_destination_holds_the_cursor_until_there_is_room(rig: RoutedRig, cap: dict[str, int]) -> None:
    rig.configure("b", discard="reject", **cap)
    rig.route("a->b", "a", "b")
    rig.append("a", 1, 2, 3, 4, 5)
    assert rig.copies("b") == [1, 2]
    state = rig.router("a->b")
    assert state.lag == 3
    assert state.last_error is not None
    assert state.last_error.startswith("topic_full")
    assert rig.store.forwarder.retry_in_ms
    assert rig.append("a", 6).done
    rig.delete("b", before_seq=2)
    rig.clock.advance(1_000)
    assert rig.copies("b") == [2, 3]
    rig.delete("b", before_seq=99)
    rig.clock.advance(1_000)
    assert rig.copies("b") == [4, 5]
    rig.delete("b", before_seq=99)
    rig.clock.advance(1_000)
    assert rig.copies("b") == [6]
    state = rig.router("a->b")
    assert (state.lag, state.last_error, state.forwarded_total) == (0, None, 6)


def test_a_blocked_router_tries_less_and_less_often(rig: RoutedRig) -> None:
    rig.configure("b", discard="reject", cap_records=1)
    rig.route("a->b", "a", "b")
    rig.append("a", 1, 2)
    waits: list[float] = []
    for _ in range(8):
        rig.forward()
        wait = rig.store.forwarder.retry_in_ms
        assert wait is not None
        waits.append(wait)
        rig.clock.advance(int(wait))
    assert waits == sorted(waits)
    assert waits[0] < waits[4] <= 500


def test_the_quota_of_all_topics_holds_a_router_back(open_rig: OpenRoutedRig) -> None:
    rig = open_rig(max_total_bytes=400)
    rig.route("a->b", "a", "b")
    rig.append("a", "x" * 250)
    rig.forward()
    assert rig.look("b").count == 0
    assert rig.router("a->b").last_error is not None
    rig.delete("a", before_seq=1)
    rig.append("a", "y")
    rig.delete("a", before_seq=2)
    rig.clock.advance(1_000)
    assert rig.copies("b") == ["y"]


def test_a_queue_as_destination_gets_jobs(rig: RoutedRig) -> None:
    rig.configure("b", type="queue")
    rig.route("a->b", "a", "b")
    rig.append("a", 1, 2)
    rig.forward()
    assert rig.look("b").count == 2


def test_a_queue_as_source_forwards_its_jobs(rig: RoutedRig) -> None:
    rig.configure("a", type="queue")
    rig.route("a->b", "a", "b")
    rig.append("a", 1, 2)
    assert rig.copies("b") == [1, 2]


def test_cold_sources_are_read_back(open_rig: OpenRoutedRig) -> None:
    rig = open_rig(segment_max_events=2, hot_retain_segments=0, hot_retain_bytes=0)
    rig.append("a", *range(3))
    for number in range(3, 40):
        rig.append("a", number)
    rig.checkpoint()
    assert any(block.body is None for block in topic(rig, "a").blocks)
    rig.route("a->b", "a", "b", backfill=True)
    assert rig.copies("b") == list(range(40))
    rig.crash()
    assert rig.copies("b") == list(range(40))


def test_a_backlog_of_many_blocks_goes_through_in_slices(rig: RoutedRig) -> None:
    payload = "x" * 500
    for number in range(0, 3_000, 100):
        rig.append("a", *({"data": [number + index, payload]} for index in range(100)))
    rig.route("a->b", "a", "b", backfill=True)
    rig.route("a->c", "a", "c", backfill=True)
    assert [data[0] for data in rig.copies("b")] == list(range(3_000))
    assert rig.records("b") == rig.records("c") == rig.records("a")


def test_seqs_and_times_of_any_width_are_cut_right(rig: RoutedRig) -> None:
    rig.clock.advance(10**13 - 1 - rig.clock.now_ms())
    rig.route("a->b", "a", "b")
    rig.append("b", "direct")
    for number in range(8):
        rig.append("a", number)
    rig.clock.advance(1)
    for number in range(8, 105):
        rig.append("a", {"data": number, "node": "n", "tag": "t", "meta": {"n": number}})
    assert rig.copies("b") == ["direct", *range(105)]
    strip = {"$seq", "$ts"}
    stripped = [
        [{key: value for key, value in record.items() if key not in strip} for record in rig.records(name, from_seq)]
        for name, from_seq in (("a", 0), ("b", 1))
    ]
    assert stripped[0] == stripped[1]


def test_many_nodes_keep_their_names(rig: RoutedRig) -> None:
    rig.route("a->b", "a", "b")
    for number in range(30):
        rig.append("a", {"data": number, "node": f"n{number % 7}"}, number)
        if number % 4 == 0:
            rig.forward()
    rig.forward()
    assert rig.records("b") == rig.records("a")
    for number in range(7):
        assert rig.seqs("b", node=f"n{number}") == rig.seqs("a", node=f"n{number}")
