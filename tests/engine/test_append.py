"""Appending: atomic, contiguous, within limits, and what happens when a topic is full."""

from __future__ import annotations

import errno
import threading
from typing import Any

import msgspec
import pytest

from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig
from tests.faults import FaultyDisk
from topics.engine.core.pending import Busy, PendingChange
from topics.model.errors import (
    BatchTooLarge,
    InvalidRequest,
    RecordTooLarge,
    StorageError,
    StorageFull,
    TopicFull,
    TopicNotFound,
)
from topics.model.requests import batch as batch_module
from topics.model.requests.batch import Batch
from topics.model.requests.records import AppendRequest, append_decoder, decode_body


def request(*payloads: Any, **fields: Any) -> AppendRequest:
    body = msgspec.json.encode({"records": [{"data": payload} for payload in payloads], **fields})
    return decode_body(append_decoder, body)


# --- large batches ---


def large_request(**fields: Any) -> AppendRequest:
    return request(*[{"number": number, "text": "z" * 1_000} for number in range(5_000)], **fields)


@pytest.mark.parametrize("durability", ["disk", "ephemeral"])
def test_the_owner_thread_does_not_join_a_large_batch(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, durability: str
) -> None:
    joined_by: list[str] = []
    join = Batch.join

    def noting(batch: Batch) -> bytes:
        joined_by.append(threading.current_thread().name)
        return join(batch)

    monkeypatch.setattr(Batch, "join", noting)
    rig.append("a", 0, config={"durability": durability})
    staged = rig.engine.append("a", large_request())
    assert rig.store.state.by_name["a"].pending_bytes > batch_module.DEFERRED_BYTES_MIN
    rig.append("a", 1)
    assert (staged.done, staged.first_seq, staged.last_seq) == (True, 2, 5_001)
    assert joined_by == ["topics-commit"]
    assert rig.store.state.by_name["a"].pending_bytes == 0


def test_a_large_ephemeral_batch_that_the_log_has_no_room_for_is_there_all_the_same(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig.append("a", 0, config={"durability": "ephemeral"})

    def full(*_: object, **__: object) -> int:
        raise StorageFull("no room")

    with monkeypatch.context() as patch:
        patch.setattr(rig.store.wal, "append", full)
        staged = rig.engine.append("a", large_request())
    rig.append("a", 1)
    assert staged.error is None
    assert [record["data"] for record in rig.records("a")][5_000] == {"number": 4_999, "text": "z" * 1_000}


@pytest.mark.parametrize("fields", [{}, {"node": "eu"}])
@pytest.mark.parametrize("durability", ["fsync", "disk", "ephemeral"])
def test_a_large_batch_is_what_it_was_after_a_crash_and_a_checkpoint(
    open_rig: OpenRig, durability: str, fields: dict[str, Any]
) -> None:
    rig = open_rig()
    rig.append("a", 0, config={"durability": durability})
    sent = [{"number": number, "text": "z" * 1_000} for number in range(5_000)]
    records = [{"data": data, "tag": f"t{data['number'] % 7}", "meta": {"m": 1}} for data in sent[::2]]
    rig.append("a", *sent, **fields)
    rig.append("a", *records, *records, **fields)
    rig.append("a", 1)
    before = rig.records("a", include_tags=True)
    assert [record["data"] for record in before] == [0, *sent, *sent[::2], *sent[::2], 1]
    if durability == "ephemeral":
        return
    rig.crash()
    assert rig.records("a", include_tags=True) == before
    rig.checkpoint()
    rig.crash()
    assert rig.records("a", include_tags=True) == before


def test_a_large_batch_that_cannot_be_written_has_not_happened(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.append("a", 0)
    disk.fail("pwritev", path=".log", keep_bytes=5_000, error=errno.EIO)
    with pytest.raises(StorageError):
        rig.finish(rig.engine.append("a", large_request()))
    topic = rig.store.state.by_name["a"]
    assert (topic.pending_count, topic.pending_bytes, rig.store.commit_log.pending_bytes) == (0, 0, 0)
    assert rig.append("a", 1).first_seq == 2
    rig.crash()
    assert [record["data"] for record in rig.records("a")] == [0, 1]


# --- seqs ---


def test_a_batch_gets_contiguous_seqs_in_the_order_of_its_records(rig: Rig) -> None:
    first = rig.append("a", "x", "y", "z")
    assert (first.first_seq, first.last_seq, first.count, first.head_seq, first.created) == (1, 3, 3, 3, True)
    second = rig.append("a", "u")
    assert (second.first_seq, second.last_seq, second.head_seq, second.created) == (4, 4, 4, False)
    assert [(record["$seq"], record["data"]) for record in rig.records("a")] == [(1, "x"), (2, "y"), (3, "z"), (4, "u")]


def test_batches_of_one_tick_are_numbered_in_the_order_they_came(rig: Rig) -> None:
    rig.append("a", 0)
    change = [rig.engine.append("a", request(*range(size))) for size in (2, 1, 3)]
    rig.store.commit_log.flush()
    assert [(one.first_seq, one.last_seq, one.done) for one in change] == [(2, 3, True), (4, 4, True), (5, 7, True)]
    assert change[0].head_seq == 3, "the head as it was when this batch was published"


def test_nothing_is_visible_before_it_is_written(rig: Rig) -> None:
    rig.append("a", 1)
    rig.engine.append("a", request(2))
    assert rig.seqs("a") == [1]
    assert rig.look("a").head_seq == 1
    rig.store.commit_log.flush()
    assert rig.seqs("a") == [1, 2]


def test_all_records_of_a_batch_have_one_time(rig: Rig) -> None:
    rig.append("a", *range(3))
    assert {record["$ts"] for record in rig.records("a")} == {rig.clock.now_ms()}


def test_a_write_that_waits_for_the_first_batch_continues_after_it(rig: Rig) -> None:
    rig.engine.append("a", request("first"))
    with pytest.raises(Busy) as busy:
        rig.engine.append("a", request("second"))
    retried: list[PendingChange] = []
    busy.value.change.then(lambda _: retried.append(rig.engine.append("a", request("second"))))
    rig.store.commit_log.flush()
    rig.finish(retried[0])
    assert [record["data"] for record in rig.records("a")] == ["first", "second"]


def test_a_key_that_repeats_the_first_batch_of_a_topic_waits_for_it(rig: Rig) -> None:
    rig.engine.append("a", request("once", idempotency_key="k"))
    with pytest.raises(Busy) as busy:
        rig.engine.append("a", request("once", idempotency_key="k"))
    retried: list[PendingChange] = []
    busy.value.change.then(lambda _: retried.append(rig.engine.append("a", request("once", idempotency_key="k"))))
    rig.store.commit_log.flush()
    assert rig.finish(retried[0]).deduped
    assert rig.seqs("a") == [1]


def test_a_first_batch_that_is_half_durable_is_not_numbered_twice(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk, wal_file_bytes=4096)
    rig.append("filler", "x" * 3_700)
    gate = disk.hold("fdatasync", nth=2, path=".log")
    first = rig.engine.append("a", request("x" * 200, idempotency_key="k", config={"durability": "fsync"}))
    rig.store.commit_log.flush()
    second: PendingChange | None = None
    for _ in range(1000):
        rig.store.settle()
        try:
            second = rig.engine.append("a", request("y", idempotency_key="other"))
            break
        except Busy:
            if gate.reached.is_set():
                break
    gate.open()
    rig.finish(first)
    if second is None:
        second = rig.append("a", "y", idempotency_key="other")
    assert (first.first_seq, rig.finish(second).first_seq) == (1, 2)


def test_the_first_batch_is_covered_by_the_seqs_reserved_for_it(open_rig: OpenRig) -> None:
    rig = open_rig(max_batch_records=100_000)
    rig.append("a", *[0] * 70_000)
    assert rig.store.state.by_name["a"].ceiling >= 70_000


def test_reserved_seqs_never_run_out_under_a_fast_writer(open_rig: OpenRig) -> None:
    rig = open_rig(max_batch_records=100_000)
    head = 0
    for size in (40_000, 40_000, 1, 100_000, 100_000):
        change = rig.append("a", *[0] * size)
        assert change.first_seq == head + 1
        head = change.last_seq
        topic = rig.store.state.by_name["a"]
        assert topic.ceiling >= topic.head_seq == head


# --- fields ---


def test_a_batch_level_node_is_the_default_that_a_record_overrides(rig: Rig) -> None:
    rig.append("a", {"data": 1}, {"data": 2, "node": "own"}, {"data": 3, "tag": "t"}, node="batch")
    assert [record["$node"] for record in rig.records("a")] == ["batch", "own", "batch"]


def test_absent_fields_are_absent_and_data_is_always_there(rig: Rig) -> None:
    rig.append("a", {"data": None})
    assert set(rig.records("a", include_tags=True)[0]) == {"$seq", "$ts", "data"}


def test_null_means_absent_for_every_optional_field(rig: Rig) -> None:
    nulls = b'"node":null,"idempotency_key":null,"create":null,"config":null,"disable_backpressure":null'
    rig.append_body("a", b'{"records":[{"data":null,"tag":null,"node":null,"meta":null}],%b}' % nulls)
    assert set(rig.records("a", include_tags=True)[0]) == {"$seq", "$ts", "data"}


def test_empty_texts_are_values(rig: Rig) -> None:
    rig.append("a", {"data": 1, "tag": "", "node": "", "meta": {}})
    record = rig.records("a", include_tags=True)[0]
    assert (record["$tag"], record["$node"], record["meta"]) == ("", "", {})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"records":[]}',
        b'{"records":{}}',
        b'{"records":[{}]}',
        b'{"records":[1]}',
        b'{"records":[{"data":1,"tag":5}]}',
        b'{"records":[{"data":1,"node":5}]}',
        b'{"records":[{"data":1,"meta":[]}]}',
        b'{"records":[{"data":1,"meta":"x"}]}',
        b'{"records":[{"data":1,"meta":5}]}',
        b'{"records":[{"data":1}],"node":5}',
        b'{"records":[{"data":1}],"create":"yes"}',
        b'{"records":[{"data":1}],"idempotency_key":5}',
        b'{"records":[{"data":1}],"config":{"ttl_ms":-1}}',
        b'{"records":[{"data":1}],"idempotency_key":""}',
        b'{"records":[{"data":NaN}]}',
        b'{"records":[{"data":1,}]}',
        b'{"records":[{"data":01}]}',
        b'{"records":[{"data":"\xff"}]}',
        b'{"records":[{"data":"\\ud800"}]}',
        b'{"records":[{"data":' + b"[" * 100_000 + b"]" * 100_000 + b"}]}",
        b'\xef\xbb\xbf{"records":[{"data":1}]}',
        b'{"records":[{"data":1}]} x',
    ],
)
def test_a_malformed_body_is_refused_and_creates_nothing(rig: Rig, body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        rig.append_body("a", body)
    assert rig.engine.list().topics == []


# --- limits ---


def test_the_number_of_records_is_limited_by_its_setting(open_rig: OpenRig) -> None:
    rig = open_rig(max_batch_records=3)
    rig.append("a", 1, 2, 3)
    with pytest.raises(BatchTooLarge):
        rig.append("a", 1, 2, 3, 4)
    assert rig.look("a").head_seq == 3


def test_a_batch_that_no_frame_could_hold_is_refused(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_module, "BATCH_BYTES_MAX", 1000)
    rig.append("a", *["x" * 98] * 10)
    with pytest.raises(BatchTooLarge):
        rig.append("a", *["x" * 98] * 10, 1)


def test_data_and_meta_together_are_limited_by_their_setting(open_rig: OpenRig) -> None:
    rig = open_rig(max_record_bytes=20)
    rig.append("a", "x" * 18)
    rig.append("a", {"data": "x" * 11, "meta": {"a": 1}})
    with pytest.raises(RecordTooLarge):
        rig.append("a", "x" * 19)
    with pytest.raises(RecordTooLarge):
        rig.append("a", {"data": "x" * 12, "meta": {"a": 1}})


@pytest.mark.parametrize(
    ("setting", "field", "fits", "over"),
    [
        ({"max_tag_bytes": 4}, "tag", "abcd", "abcde"),
        ({"max_tag_bytes": 4}, "tag", "éé", "ééa"),
        ({"max_node_bytes": 4}, "node", "éé", "ééa"),
        ({"max_meta_bytes": 9}, "meta", {"a": "x"}, {"a": "xy"}),
        ({}, "tag", "x" * 256, "x" * 257),
        ({}, "node", "x" * 128, "x" * 129),
        ({}, "meta", {"a": "x" * (16384 - 8)}, {"a": "x" * (16384 - 7)}),
        ({}, "meta", {f"k{n}": 0 for n in range(64)}, {f"k{n}": 0 for n in range(65)}),
    ],
)
def test_tag_node_and_meta_are_limited(open_rig: OpenRig, setting: Any, field: str, fits: Any, over: Any) -> None:
    rig = open_rig(**setting)
    rig.append("a", {"data": 1, field: fits})
    with pytest.raises(InvalidRequest) as caught:
        rig.append("a", {"data": 1}, {"data": 1, field: over})
    assert caught.value.detail["field"] == f"records[1].{field}"
    assert rig.look("a").head_seq == 1


def test_the_node_of_a_batch_is_limited_like_that_of_a_record(open_rig: OpenRig) -> None:
    rig = open_rig(max_node_bytes=4)
    rig.append("a", 1, node="abcd")
    with pytest.raises(InvalidRequest):
        rig.append("a", 1, node="abcde")


def test_a_key_has_at_most_256_characters(rig: Rig) -> None:
    rig.append("a", 1, idempotency_key="é" * 256)
    with pytest.raises(InvalidRequest):
        rig.append("a", 1, idempotency_key="x" * 257)


# --- creating ---


def test_a_write_may_insist_that_its_topic_exists(rig: Rig) -> None:
    with pytest.raises(TopicNotFound):
        rig.append("a", 1, create=False)
    rig.configure("a")
    assert rig.append("a", 1, create=False).first_seq == 1


def test_a_write_creates_by_default_and_when_it_says_so(rig: Rig) -> None:
    assert rig.append("a", 1).created
    assert rig.append("b", 1, create=True).created


def test_an_inline_configuration_counts_only_for_the_write_that_creates(rig: Rig) -> None:
    rig.append("a", 1, config={"ttl_ms": 60_000, "cap_records": 9})
    assert (rig.look("a").config.ttl_ms, rig.look("a").config.cap_records) == (60_000, 9)
    rig.append("a", 2, config={"ttl_ms": 5, "type": "queue"})
    assert (rig.look("a").config.ttl_ms, rig.look("a").type) == (60_000, "log")


def test_a_refused_first_write_leaves_no_topic_behind(rig: Rig) -> None:
    with pytest.raises(TopicFull):
        rig.append("a", 1, 2, config={"cap_records": 1, "discard": "reject"})
    with pytest.raises(InvalidRequest):
        rig.append("b", 1, config={"dead_letter": "b"})
    assert rig.engine.list().topics == []


# --- a full topic ---


def test_an_old_discarding_topic_keeps_the_newest_by_count(rig: Rig) -> None:
    rig.configure("a", cap_records=3)
    rig.append("a", 1, 2)
    rig.append("a", 3, 4)
    assert rig.seqs("a") == [2, 3, 4]
    assert rig.look("a").count == 3


def test_an_old_discarding_topic_keeps_the_newest_by_bytes(rig: Rig) -> None:
    size = len(b'{"$seq":1,"$ts":1700000000000,"data":1},')
    rig.configure("a", cap_bytes=3 * size)
    for _ in range(5):
        rig.append("a", 1)
    assert rig.seqs("a") == [3, 4, 5]
    assert rig.look("a").bytes == 3 * size


def test_whichever_cap_is_hit_first_evicts(rig: Rig) -> None:
    rig.configure("a", cap_records=4, cap_bytes=100)
    rig.append("a", 1, 1, 1)
    assert rig.seqs("a") == [2, 3]
    rig.configure("b", cap_records=2, cap_bytes=1000)
    rig.append("b", 1, 1, 1)
    assert rig.seqs("b") == [2, 3]


def test_a_batch_larger_than_the_cap_keeps_its_own_end(rig: Rig) -> None:
    rig.configure("a", cap_records=2)
    assert rig.append("a", *range(5)).last_seq == 5
    assert rig.seqs("a") == [4, 5]


def test_a_rejecting_topic_takes_what_fits_and_refuses_all_of_what_does_not(rig: Rig) -> None:
    rig.configure("a", cap_records=3, discard="reject")
    rig.append("a", 1, 2)
    with pytest.raises(TopicFull):
        rig.append("a", 3, 4)
    assert rig.append("a", 3).first_seq == 3, "a refused write uses no seq"
    with pytest.raises(TopicFull):
        rig.append("a", 4)
    rig.delete("a", before_seq=2)
    assert rig.append("a", 4).first_seq == 4


def test_a_rejecting_topic_counts_bytes_too(rig: Rig) -> None:
    size = len(b'{"$seq":1,"$ts":1700000000000,"data":1},')
    rig.configure("a", cap_bytes=2 * size, discard="reject")
    rig.append("a", 1, 1)
    with pytest.raises(TopicFull) as caught:
        rig.append("a", 1)
    assert caught.value.detail["limit"] == "cap_bytes"


def test_a_rejecting_topic_counts_what_is_on_its_way(rig: Rig) -> None:
    rig.configure("a", cap_records=3, discard="reject", durability="fsync")
    rig.engine.append("a", request(1, 2))
    with pytest.raises(TopicFull):
        rig.engine.append("a", request(3, 4))
    rig.store.commit_log.flush()
    with pytest.raises(TopicFull):
        rig.engine.append("a", request(3, 4))


def test_expired_records_go_before_a_topic_calls_itself_full(rig: Rig) -> None:
    rig.configure("a", cap_records=2, discard="reject", ttl_ms=10)
    rig.append("a", 1, 2)
    rig.clock.advance(11)
    assert rig.append("a", 3, 4).first_seq == 3


@pytest.mark.parametrize("exists", [True, False])
def test_a_batch_that_could_never_fit_is_topic_full(rig: Rig, exists: bool) -> None:
    config = {"cap_records": 2, "discard": "reject"}
    if exists:
        rig.configure("a", **config)
    with pytest.raises(TopicFull):
        rig.append("a", 1, 2, 3, config=config)


# --- time ---


def test_time_never_goes_back_within_a_topic(rig: Rig) -> None:
    rig.append("a", 1)
    rig.clock.advance(-10_000)
    rig.append("a", 2)
    rig.clock.advance(5_000)
    rig.append("a", 3)
    times = [record["$ts"] for record in rig.records("a")]
    assert times == sorted(times)
    assert len(set(times)) == 1


@pytest.mark.parametrize("way", ["reopen", "crash"])
def test_time_does_not_go_back_over_a_restart_either(rig: Rig, way: str) -> None:
    rig.append("a", 1)
    rig.clock.advance(-10_000)
    getattr(rig, way)()
    rig.append("a", 2)
    times = [record["$ts"] for record in rig.records("a")]
    assert times[0] == times[1]


def test_another_topic_is_not_held_back_by_a_clock_that_stepped(rig: Rig) -> None:
    rig.append("a", 1)
    rig.clock.advance(-10_000)
    rig.append("b", 1)
    assert rig.records("b")[0]["$ts"] == rig.clock.now_ms()
