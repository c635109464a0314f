"""Caps over all topics: how many there may be, and how many bytes they may hold."""

from __future__ import annotations

import pytest

from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig
from tests.engine.test_append import request
from topics.model.errors import Throttled, TopicFull
from topics.model.requests.config import ConfigRequest

SIZE = len(b'{"$seq":1,"$ts":1700000000000,"data":1},')


def refused(rig: Rig, topic: str, *payloads: object, **fields: object) -> dict[str, object]:
    with pytest.raises(Throttled) as caught:
        rig.append(topic, *payloads, **fields)
    return caught.value.detail


def test_topics_beyond_the_limit_are_refused(open_rig: OpenRig) -> None:
    rig = open_rig(max_topics=2)
    rig.configure("a")
    rig.append("b", 1)
    with pytest.raises(Throttled) as caught:
        rig.configure("c")
    assert caught.value.detail == {"limit": "max_topics", "max": 2}
    assert refused(rig, "c", 1) == {"limit": "max_topics", "max": 2}
    assert [state.topic for state in rig.engine.list().topics] == ["a", "b"]


def test_at_the_cap_what_exists_is_still_written_and_configured(open_rig: OpenRig) -> None:
    rig = open_rig(max_topics=1)
    rig.configure("a")
    rig.configure("a", ttl_ms=5)
    rig.append("a", 1)


def test_a_dropped_topic_makes_room_for_another(open_rig: OpenRig) -> None:
    rig = open_rig(max_topics=1)
    rig.configure("a")
    rig.drop("a")
    rig.configure("b")


def test_topics_on_their_way_count(open_rig: OpenRig) -> None:
    rig = open_rig(max_topics=2)
    rig.engine.configure("a", ConfigRequest())
    rig.engine.configure("b", ConfigRequest())
    with pytest.raises(Throttled):
        rig.engine.configure("c", ConfigRequest())


def test_no_cap_means_no_cap(open_rig: OpenRig) -> None:
    rig = open_rig(max_topics=0, max_total_bytes=0)
    for number in range(20):
        rig.append(f"t{number}", "x" * 1000)
    assert len(rig.engine.list().topics) == 20


def test_the_bytes_of_all_topics_have_a_limit(open_rig: OpenRig) -> None:
    rig = open_rig(max_total_bytes=3 * SIZE)
    rig.append("a", 1)
    rig.append("b", 1)
    assert refused(rig, "a", 1, 1) == {"limit": "max_total_bytes", "max": 3 * SIZE}
    rig.append("a", 1)
    assert refused(rig, "b", 1)["limit"] == "max_total_bytes"
    rig.delete("a", before_seq=2)
    rig.append("b", 1)


def test_a_write_that_creates_its_topic_is_counted_too(open_rig: OpenRig) -> None:
    rig = open_rig(max_total_bytes=2 * SIZE)
    rig.append("a", 1, 1)
    assert refused(rig, "b", 1)["limit"] == "max_total_bytes"
    assert [state.topic for state in rig.engine.list().topics] == ["a"]


def test_what_is_on_its_way_is_counted(open_rig: OpenRig) -> None:
    rig = open_rig(max_total_bytes=3 * SIZE)
    rig.configure("a", durability="fsync")
    rig.engine.append("a", request(1, 1))
    with pytest.raises(Throttled):
        rig.engine.append("a", request(1, 1))


def test_what_a_write_pushes_out_of_its_own_topic_is_not_counted(open_rig: OpenRig) -> None:
    rig = open_rig(max_total_bytes=3 * SIZE)
    rig.configure("a", cap_records=2)
    rig.configure("b", cap_bytes=SIZE)
    rig.append("a", 1, 1)
    rig.append("b", 1)
    for _ in range(3):
        rig.append("a", 1, 1)
        rig.append("b", 1)
    assert rig.store.state.bytes == 3 * SIZE


def test_expired_records_of_the_topic_itself_make_room(open_rig: OpenRig) -> None:
    rig = open_rig(max_total_bytes=2 * SIZE)
    rig.configure("a", ttl_ms=10)
    rig.append("a", 1, 1)
    rig.clock.advance(11)
    assert rig.append("a", 1, 1).first_seq == 3


def test_a_dropped_topic_gives_its_bytes_back(open_rig: OpenRig) -> None:
    rig = open_rig(max_total_bytes=SIZE)
    rig.append("a", 1)
    rig.drop("a")
    rig.append("b", 1)


@pytest.mark.parametrize("way", ["reopen", "crash"])
def test_a_quota_is_known_again_after_a_restart(open_rig: OpenRig, way: str) -> None:
    rig = open_rig(max_total_bytes=2 * SIZE)
    rig.append("a", 1, 1)
    getattr(rig, way)()
    assert refused(rig, "a", 1)["limit"] == "max_total_bytes"


def test_a_cap_over_all_topics_is_told_before_a_full_topic(open_rig: OpenRig) -> None:
    rig = open_rig(max_total_bytes=2 * SIZE, max_topics=1)
    rig.append("a", 1, config={"cap_records": 1, "discard": "reject"})
    assert refused(rig, "a", 1, 1)["limit"] == "max_total_bytes"
    with pytest.raises(TopicFull):
        rig.append("a", 1)
    assert refused(rig, "b", 1, 1, config={"cap_records": 1, "discard": "reject"})["limit"] == "max_topics"
