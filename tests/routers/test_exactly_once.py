"""`exactly_once`: the stamp that a copy carries, and that only the engine's own evidence suppresses a copy."""

from __future__ import annotations

from typing import Any

import pytest

from tests.routers.rig import RoutedRig
from topics.engine.routers.part import routing_of


def put(rig: RoutedRig, **fields: Any) -> bool:
    return rig.route("a->b", "a", "b", guarantee="exactly_once", **fields)


def test_a_copy_says_where_it_comes_from(rig: RoutedRig) -> None:
    put(rig)
    rig.append("a", 1, {"data": 2, "meta": {"k": [1]}}, {"data": 3, "meta": {}})
    rig.forward()
    source = rig.store.state.by_name["a"]
    copies = rig.records("b")
    for seq, copy in enumerate(copies, 1):
        stamp = copy["meta"].pop("_topics_router")
        key = stamp.pop("key")
        assert stamp == {
            "router": "a->b",
            "source": "a",
            "source_topic_id": source.id,
            "source_epoch": source.epoch,
            "source_seq": seq,
        }
        assert str(seq) in key
    assert [copy["meta"] for copy in copies] == [{}, {"k": [1]}, {}]
    assert [copy["data"] for copy in copies] == [1, 2, 3]


def test_at_least_once_copies_are_not_stamped(rig: RoutedRig) -> None:
    rig.route("a->b", "a", "b")
    rig.append("a", 1)
    rig.forward()
    assert "meta" not in rig.records("b")[0]


@pytest.mark.parametrize("meta", [b'{"_topics_router":1,"x":2}', rb'{"\u005ftopics_router":1,"x":2}', b'{ "x" : 2 }'])
def test_the_stamps_name_is_reserved(rig: RoutedRig, meta: bytes) -> None:
    put(rig)
    rig.append_body("a", b'{"records":[{"data":1,"meta":%b}]}' % meta)
    rig.forward()
    [copy] = rig.records("b")
    assert copy["meta"]["_topics_router"]["source_seq"] == 1
    assert copy["meta"]["x"] == 2
    raw = rig.diff("b").records()
    assert bytes(raw).count(b"topics_router") == 1


def test_a_chain_of_exactly_once_routers_stamps_the_last_hop(rig: RoutedRig) -> None:
    put(rig)
    rig.route("b->c", "b", "c", guarantee="exactly_once")
    rig.append("b", "direct")
    rig.append("a", 1)
    rig.forward()
    assert [record["meta"]["_topics_router"]["source_seq"] for record in rig.records("c")] == [1, 2]
    assert {record["meta"]["_topics_router"]["router"] for record in rig.records("c")} == {"b->c"}


@pytest.mark.parametrize("way", ["", "crash", "reopen"])
def test_a_router_made_anew_suppresses_what_is_still_there(rig: RoutedRig, way: str) -> None:
    put(rig)
    rig.append("a", 1, 2, 3)
    rig.forward()
    rig.unroute("a->b")
    if way:
        getattr(rig, way)()
    rig.append("a", 4)
    put(rig, backfill=True)
    assert rig.copies("b") == [1, 2, 3, 4]
    assert rig.router("a->b").lag == 0


def test_a_deleted_copy_is_no_evidence(rig: RoutedRig) -> None:
    put(rig)
    rig.append("a", *({"data": number, "tag": f"t{number}"} for number in range(6)))
    rig.forward()
    rig.delete("b", match="t2")
    rig.delete("b", before_seq=2)
    for _ in range(3):
        rig.unroute("a->b")
        rig.crash()
        put(rig, backfill=True)
        assert sorted(rig.copies("b")) == [0, 1, 2, 3, 4, 5]


def test_an_evicted_copy_is_no_evidence(rig: RoutedRig) -> None:
    rig.configure("b", cap_records=2)
    put(rig)
    rig.append("a", 1, 2, 3)
    rig.forward()
    rig.unroute("a->b")
    put(rig, backfill=True)
    assert rig.copies("b") == [3, 1]


def test_a_stamp_written_by_a_client_suppresses_nothing(rig: RoutedRig) -> None:
    put(rig)
    rig.append("a", 1)
    rig.forward()
    [copy] = rig.records("b")
    rig.delete("b", before_seq=2)
    rig.append("b", {"data": "forged", "meta": copy["meta"]})
    rig.unroute("a->b")
    put(rig, backfill=True)
    assert rig.copies("b") == ["forged", 1]


def test_another_router_has_evidence_of_its_own(rig: RoutedRig) -> None:
    put(rig)
    rig.append("a", 1)
    rig.forward()
    rig.unroute("a->b")
    rig.route("other", "a", "b", guarantee="exactly_once", backfill=True)
    assert rig.copies("b") == [1, 1]


def test_evidence_stays_small_where_nobody_else_writes(rig: RoutedRig) -> None:
    put(rig)
    for number in range(300):
        rig.append("a", number)
        rig.forward()
    evidence = routing_of(rig.store.state.by_name["b"]).evidence  # pyright: ignore[reportOptionalMemberAccess]
    assert evidence is not None
    [found] = evidence.values()
    assert len(found.counts) == 1
    assert found.last_source_seq == 300
