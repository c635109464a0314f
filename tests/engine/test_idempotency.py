"""Idempotency keys: a retried write finds the first one, within its window, whatever happened in between."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig
from tests.faults import FaultyDisk
from topics.model.errors import TopicFull, TopicsError
from topics.model.requests.records import AppendRequest, append_decoder, decode_body


def request(*payloads: Any, **fields: Any) -> AppendRequest:
    body = msgspec.json.encode({"records": [{"data": payload} for payload in payloads], **fields})
    return decode_body(append_decoder, body)


def test_a_retry_gets_the_original_seqs_and_appends_nothing(rig: Rig) -> None:
    rig.append("a", 0)
    first = rig.append("a", 1, 2, idempotency_key="k")
    rig.append("a", 3)
    again = rig.append("a", 1, 2, idempotency_key="k")
    assert (first.deduped, again.deduped) == (False, True)
    assert (again.first_seq, again.last_seq, again.count, again.head_seq) == (2, 3, 2, 4)
    assert rig.seqs("a") == [1, 2, 3, 4]


def test_a_key_answers_for_its_first_body_whatever_the_second_says(rig: Rig) -> None:
    rig.append("a", 1, idempotency_key="k")
    again = rig.append("a", "other", "body", idempotency_key="k")
    assert (again.deduped, again.first_seq, again.count) == (True, 1, 1)


def test_a_key_belongs_to_its_topic(rig: Rig) -> None:
    rig.append("a", 1, idempotency_key="k")
    assert not rig.append("b", 1, idempotency_key="k").deduped


def test_a_key_holds_for_exactly_its_window(rig: Rig) -> None:
    rig.configure("a", idempotency_window_ms=1000)
    rig.append("a", 1, idempotency_key="k")
    rig.clock.advance(1000)
    assert rig.append("a", 1, idempotency_key="k").deduped
    rig.clock.advance(1)
    again = rig.append("a", 1, idempotency_key="k")
    assert (again.deduped, again.first_seq) == (False, 2)


def test_a_retry_does_not_prolong_the_window(rig: Rig) -> None:
    rig.configure("a", idempotency_window_ms=1000)
    rig.append("a", 1, idempotency_key="k")
    rig.clock.advance(501)
    assert rig.append("a", 1, idempotency_key="k").deduped
    rig.clock.advance(500)
    assert not rig.append("a", 1, idempotency_key="k").deduped


def test_a_key_used_again_after_its_window_stands_for_the_new_write(rig: Rig) -> None:
    rig.configure("a", idempotency_window_ms=1000)
    rig.append("a", 1, idempotency_key="k")
    rig.clock.advance(1001)
    rig.append("a", 2, idempotency_key="k")
    rig.clock.advance(1000)
    again = rig.append("a", 3, idempotency_key="k")
    assert (again.deduped, again.first_seq) == (True, 2)


def test_every_key_of_a_window_is_remembered_and_no_older_one(rig: Rig) -> None:
    rig.configure("a", idempotency_window_ms=80)
    written: dict[str, tuple[int, int]] = {}
    for number in range(300):
        key = f"k{number}"
        written[key] = rig.append("a", 1, idempotency_key=key).first_seq, rig.clock.now_ms()
        rig.clock.advance(1)
    topic = rig.store.state.by_name["a"]
    assert topic.keys is not None
    assert len(topic.keys) < 120, "old buckets are dropped"
    for key, (seq, at) in list(written.items())[-80:]:
        again = rig.append("a", 1, idempotency_key=key)
        assert (again.deduped, again.first_seq) == (True, seq), (key, rig.clock.now_ms() - at)


def test_the_default_window_is_two_minutes(rig: Rig) -> None:
    rig.append("a", 1, idempotency_key="k")
    rig.clock.advance(120_000)
    assert rig.append("a", 1, idempotency_key="k").deduped
    rig.clock.advance(1)
    assert not rig.append("a", 1, idempotency_key="k").deduped


def test_a_window_of_zero_is_off(rig: Rig) -> None:
    rig.configure("a", idempotency_window_ms=0)
    rig.append("a", 1, idempotency_key="k")
    assert not rig.append("a", 1, idempotency_key="k").deduped
    rig.append("b", 1, idempotency_key="k", config={"idempotency_window_ms": 0})
    assert not rig.append("b", 1, idempotency_key="k").deduped


def test_a_clock_that_steps_back_does_not_break_the_window(rig: Rig) -> None:
    rig.append("a", 1, idempotency_key="k")
    rig.clock.advance(-500_000)
    assert rig.append("a", 1, idempotency_key="k").deduped


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
@pytest.mark.parametrize("way", ["reopen", "crash", "checkpoint and crash"])
def test_keys_survive_a_restart(rig: Rig, durability: str, way: str) -> None:
    rig.append("a", 1, 2, idempotency_key="first batch", config={"durability": durability})
    rig.append("a", 3, 4, idempotency_key="k")
    rig.clock.advance(60_000)
    if way.startswith("checkpoint"):
        rig.checkpoint()
    getattr(rig, way.rsplit(maxsplit=1)[-1])()
    again = rig.append("a", 9, idempotency_key="k")
    assert (again.deduped, again.first_seq, again.count) == (True, 3, 2)
    assert rig.append("a", 9, idempotency_key="first batch").deduped
    rig.clock.advance(60_001)
    assert not rig.append("a", 9, idempotency_key="k").deduped


def test_keys_survive_one_restart_after_the_other(rig: Rig) -> None:
    rig.append("a", 1, idempotency_key="k")
    for _ in range(3):
        rig.reopen()
        rig.crash()
    assert rig.append("a", 1, idempotency_key="k").deduped


@pytest.mark.parametrize("way", ["reopen", "crash"])
def test_an_ephemeral_topic_forgets_its_keys_with_its_records(rig: Rig, way: str) -> None:
    rig.append("a", 1, idempotency_key="k", config={"durability": "ephemeral"})
    assert rig.append("a", 1, idempotency_key="k").deduped
    getattr(rig, way)()
    assert not rig.append("a", 1, idempotency_key="k").deduped


def test_a_full_topic_never_blocks_a_hit(rig: Rig) -> None:
    rig.configure("a", cap_records=1, discard="reject")
    rig.append("a", 1, idempotency_key="k")
    assert rig.append("a", 1, idempotency_key="k").deduped
    with pytest.raises(TopicFull):
        rig.append("a", 1, idempotency_key="other")


def test_a_quota_never_blocks_a_hit(open_rig: OpenRig) -> None:
    rig = open_rig(max_total_bytes=60)
    rig.append("a", 1, idempotency_key="k")
    assert rig.append("a", 1, idempotency_key="k").deduped


def test_a_read_only_engine_still_answers_a_hit(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.append("a", 1, idempotency_key="k")
    disk.fail("fdatasync", times=-1, path=".log")
    with pytest.raises(TopicsError):
        rig.append("b", 1, config={"durable": True})
    assert rig.append("a", 1, idempotency_key="k").deduped


def test_a_key_survives_the_eviction_and_the_deletion_of_its_records(rig: Rig) -> None:
    rig.configure("a", cap_records=1)
    rig.append("a", 1, idempotency_key="k")
    rig.append("a", 2)
    rig.delete("a", before_seq=9)
    assert rig.append("a", 1, idempotency_key="k").deduped


def test_a_key_whose_write_waits_for_its_sync_waits_with_it(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("a", durability="fsync")
    gate = disk.hold("fdatasync", path=".log")
    first = rig.engine.append("a", request(1, 2, idempotency_key="k"))
    rig.store.commit_log.flush()
    echo = rig.engine.append("a", request("other", idempotency_key="k"))
    rig.store.commit_log.flush()
    rig.store.settle()
    assert not first.done
    assert not echo.done
    gate.open()
    rig.finish(echo)
    assert (echo.deduped, echo.first_seq, echo.count, first.done) == (True, 1, 2, True)
    assert rig.seqs("a") == [1, 2]


def test_a_key_whose_write_failed_may_be_used_again(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.append("a", 0)
    disk.fail("pwritev", path=".log")
    first = rig.engine.append("a", request(1, idempotency_key="k"))
    echo = rig.engine.append("a", request(1, idempotency_key="k"))
    rig.store.commit_log.flush()
    assert first.error is not None
    assert echo.error is not None
    again = rig.append("a", 1, idempotency_key="k")
    assert (again.deduped, again.first_seq) == (False, 2)


def test_keys_that_differ_in_one_character_differ(rig: Rig) -> None:
    rig.append("a", 1, idempotency_key="k")
    for key in ("K", "k ", "kk", "k\0"):
        assert not rig.append("a", 1, idempotency_key=key).deduped


def test_a_smaller_window_counts_at_once_and_a_larger_one_too(rig: Rig) -> None:
    rig.configure("a", idempotency_window_ms=1000)
    rig.append("a", 1, idempotency_key="k")
    rig.clock.advance(500)
    rig.configure("a", idempotency_window_ms=100)
    assert not rig.append("a", 1, idempotency_key="k").deduped
    rig.configure("a", idempotency_window_ms=10_000)
    rig.clock.advance(5_000)
    assert rig.append("a", 1, idempotency_key="k").deduped
