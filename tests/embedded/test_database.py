"""The embedded API: what goes in, what comes out, and how it says no."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import msgspec
import pytest

import topics
from tests.embedded.conftest import OpenDatabase
from topics.model.errors import (
    InvalidRequest,
    ShuttingDown,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
)
from topics.model.requests.records import append_decoder, decode_body


def test_what_is_appended_is_read(db: topics.Database) -> None:
    done = db.append("a", {"x": [1, 2]}, tag="t", node="n", meta={"m": 1})
    assert (done.first_seq, done.last_seq, done.head_seq, done.created, done.deduped) == (1, 1, 1, True, False)
    (record,) = db.diff("a", include_tags=True).records
    assert (record.seq, record.data, record.tag, record.node, record.meta) == (1, {"x": [1, 2]}, "t", "n", {"m": 1})
    assert record.json == b'{"x":[1,2]}'
    assert record.meta_json == b'{"m":1}'
    assert "seq=1" in repr(record)


def test_a_batch_is_data_or_whole_records(db: topics.Database) -> None:
    done = db.append_many("a", [1, topics.Outgoing(2, tag="t", node="own"), {"data": 3}, None], node="batch")
    assert (done.first_seq, done.last_seq) == (1, 4)
    records = db.diff("a", include_tags=True).records
    assert [record.data for record in records] == [1, 2, {"data": 3}, None]
    assert [record.node for record in records] == ["batch", "own", "batch", "batch"]
    assert [record.tag for record in records] == [None, "t", None, None]
    assert [record.meta for record in records] == [None] * 4


def test_a_batch_may_be_any_iterable(db: topics.Database) -> None:
    assert db.append_many("a", (number for number in range(3))).last_seq == 3


@pytest.mark.parametrize(
    "text", ["123456789012345678901234567890", "1.10", '{"a":1,"a":2}', " [ 1 ,\n2 ] ", '"\\u00e9"']
)
@pytest.mark.parametrize("kind", [str, bytes])
def test_json_is_stored_as_it_is(db: topics.Database, text: str, kind: type) -> None:
    db.append("a", topics.Json(text if kind is str else text.encode()), meta=None)
    assert db.diff("a").records[0].json.strip() == text.encode().strip()


def test_meta_may_be_json_too(db: topics.Database) -> None:
    db.append("a", 1, meta=topics.Json('{"b": 1.10, "a":2}'))  # pyright: ignore[reportArgumentType]
    assert db.diff("a").records[0].meta_json == b'{"b": 1.10, "a":2}'


@pytest.mark.parametrize(
    "text", ["", "{", "1 2", "NaN", "[1,]", "'x'", b'"\xff"', b"\xef\xbb\xbf1", '"\\ud800"', "[" * 100_000]
)
def test_what_is_not_json_is_refused_before_it_is_stored(text: Any) -> None:
    with pytest.raises(InvalidRequest):
        topics.Json(text)


def cyclic() -> list[Any]:
    circle: list[Any] = []
    circle.append(circle)
    return circle


@pytest.mark.parametrize("value", [object(), {"x": object()}, "\ud800", {"\ud800": 1}, cyclic()])
def test_what_cannot_be_written_as_json_is_refused(db: topics.Database, value: Any) -> None:
    with pytest.raises(InvalidRequest):
        db.append("a", value)
    with pytest.raises(TopicNotFound):
        db.state("a")


def test_an_integer_of_any_size_is_stored_or_refused(db: topics.Database) -> None:
    try:
        db.append("a", 10**30)
    except InvalidRequest:
        return
    assert db.diff("a").records[0].json == b"1" + b"0" * 30


@pytest.mark.parametrize(
    "fields",
    [
        {"tag": "\ud800"},
        {"node": "\ud800"},
        {"idempotency_key": "\ud800"},
        {"meta": {"\ud800": 1}},
        {"meta": topics.Json("[1]")},
        {"tag": "x" * 257},
        {"node": "x" * 129},
        {"idempotency_key": ""},
        {"config": {"ttl_ms": -1}},
        {"config": {"no_such_field": 1}},
        {"config": {"durability": "tape"}},
    ],
)
def test_a_wrong_field_is_refused(db: topics.Database, fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        db.append("a", 1, **fields)
    assert list(db.topics()) == []


@pytest.mark.parametrize(
    "fields",
    [{"from_seq": -1}, {"limit": -1}, {"max_batch_bytes": -1}, {"from_ts": -1}, {"from_seq": 2**64}],
)
def test_a_wrong_cursor_is_refused(db: topics.Database, fields: dict[str, Any]) -> None:
    db.append("a", 1)
    with pytest.raises(InvalidRequest):
        db.diff("a", **fields)


def test_errors_carry_a_code_and_facts(db: topics.Database) -> None:
    with pytest.raises(topics.TopicsError) as caught:
        db.diff("nowhere")
    assert (caught.value.code, caught.value.detail) == ("topic_not_found", {"topic": "nowhere"})
    with pytest.raises(TopicNotFound):
        db.append("nowhere", 1, create=False)
    with pytest.raises(TopicNotFound):
        db.delete("nowhere", before_seq=1)
    with pytest.raises(InvalidRequest):
        db.append("../nowhere", 1)
    with pytest.raises(InvalidRequest):
        db.append_many("a", [])
    db.configure("full", cap_records=1, discard="reject")
    db.append("full", 1)
    with pytest.raises(TopicFull):
        db.append("full", 2)
    with pytest.raises(TopicNotEmpty):
        db.drop("full", if_empty=True)
    with pytest.raises(TopicExistsIncompatible):
        db.configure("full", type="queue")
    with pytest.raises(InvalidRequest):
        db.delete("full")


def test_reading_goes_on_where_it_ended(db: topics.Database) -> None:
    db.append_many("a", range(25))
    cursor, found = 0, []
    while True:
        diff = db.diff("a", cursor, limit=10)
        found += [record.data for record in diff.records]
        cursor = diff.next_from_seq
        assert (diff.head_seq, diff.earliest_seq, diff.lag) == (25, 1, 25 - cursor)
        assert diff.records_scanned == len(diff.records)
        if diff.caught_up:
            break
    assert found == list(range(25))


def test_every_field_of_a_read_is_passed_on(db: topics.Database) -> None:
    db.append_many("a", [topics.Outgoing(number, tag="t", node=f"n{number % 3}", meta={"m": 1}) for number in range(9)])
    assert [record.data for record in db.diff("a", node="n0").records] == [1, 2, 4, 5, 7, 8]
    assert [record.data for record in db.diff("a", node=["n0", "n1"]).records] == [2, 5, 8]
    assert db.diff("a").records[0].tag == "t"
    assert db.diff("a", include_tags=False).records[0].tag is None
    assert db.diff("a", include_meta=False).records[0].meta is None
    assert len(db.diff("a", max_batch_bytes=1).records) == 1
    assert len(db.diff("a", from_ts=db.diff("a").records[0].ts).records) == 9
    assert len(db.diff("a", from_ts=2**50).records) == 0


def test_topics_are_configured_looked_at_listed_and_dropped(db: topics.Database) -> None:
    config = db.configure("b:1", ttl_ms=5_000_000, durable=True)
    assert (config.ttl_ms, config.durability) == (5_000_000, "fsync")
    db.append("a", 1)
    state = db.state("a")
    assert (state.head_seq, state.next_seq, state.count) == (1, 2, 1)
    assert [state.topic for state in db.topics()] == ["a", "b:1"]
    assert [state.topic for state in db.topics("b:")] == ["b:1"]
    assert db.drop("a") is True
    assert db.drop("a") is False


def test_records_are_deleted_by_seq_and_by_tag(db: topics.Database) -> None:
    db.append_many("a", [topics.Outgoing(number, tag=f"t{number % 2}") for number in range(10)])
    assert db.delete("a", before_seq=3) == 2
    assert db.delete("a", match="t0") == 4
    assert db.delete("a", match=["tag", "Glob", "t*"], before_seq=7) == 2
    assert [record.seq for record in db.diff("a").records] == [8, 10]


def test_a_key_is_remembered(open_db: OpenDatabase) -> None:
    db = open_db()
    assert not db.append("a", 1, idempotency_key="k").deduped
    assert db.append("a", 1, idempotency_key="k").deduped
    db.close()
    assert open_db().append("a", 1, idempotency_key="k").deduped


def test_request_bytes_are_appended_as_they_are(db: topics.Database) -> None:
    request = decode_body(append_decoder, b'{"records":[{"data":1.10,"tag":"t"}]}')
    assert db.append_request("a", request).first_seq == 1
    assert db.append_wish("a", request).first_seq == 2, "its name in version 0.1"
    assert [record.json for record in db.diff("a").records] == [b"1.10", b"1.10"]


def test_a_gap_is_reported(db: topics.Database) -> None:
    db.configure("a", cap_records=2)
    db.append_many("a", range(5))
    tombstone = db.diff("a", 1).tombstone
    assert isinstance(tombstone, topics.Tombstone)
    assert (tombstone.gap_from, tombstone.gap_to, tombstone.reason) == (2, 3, "cap")
    assert tombstone.as_dict()["missed_estimate"] == 2


# --- opening and closing ---


def test_everything_is_there_when_it_is_opened_again(open_db: OpenDatabase) -> None:
    with open_db() as db:
        db.append_many("a", range(10), config={"durability": "fsync"})
        before = [(record.seq, record.ts, record.json) for record in db.diff("a").records]
        epoch = db.diff("a").epoch
    again = open_db()
    assert [(record.seq, record.ts, record.json) for record in again.diff("a").records] == before
    assert again.diff("a").epoch == epoch


def test_leaving_the_context_closes_also_after_an_error(open_db: OpenDatabase) -> None:
    db = open_db()
    db.append("a", 1)
    with pytest.raises(TopicNotFound), db:
        db.state("nowhere")
    assert open_db().state("a").head_seq == 1


def test_a_closed_database_takes_no_more_calls(open_db: OpenDatabase) -> None:
    db = open_db()
    db.append("a", 1)
    db.close()
    db.close()
    for verb in (
        lambda: db.append("a", 1),
        lambda: db.diff("a"),
        lambda: db.state("a"),
        lambda: db.delete("a", before_seq=1),
        lambda: db.configure("a"),
        lambda: db.drop("a"),
        db.checkpoint,
        lambda: list(db.topics()),
    ):
        with pytest.raises(ShuttingDown):
            verb()


def test_a_directory_is_opened_once(open_db: OpenDatabase, db: topics.Database) -> None:
    with pytest.raises(topics.DataDirLocked, match=r"use another directory, or talk to it with topics\.Client"):
        open_db()
    db.append("a", 1)


def test_a_directory_is_made_with_its_parents(open_db: OpenDatabase, tmp_path: Path) -> None:
    open_db("deep/down/data").append("a", 1)
    assert (tmp_path / "deep" / "down" / "data").is_dir()


def test_progress_is_told_while_it_opens(open_db: OpenDatabase, tmp_path: Path) -> None:
    db = open_db()
    for number in range(1200):
        db.append("a", "x" * 1000, tag=f"t{number}")
    host = db._host
    with host.lock:
        host.store.syncer.stop()
        host.store.worker.stop()
        host.closed = True
    host._news.set()
    host._housekeeper.join()
    host.store.directory.close()
    told: list[float] = []
    again = topics.open(str(tmp_path / "data"), on_progress=told.append)
    assert told == sorted(told)
    assert told[-1] == 1.0
    assert any(0.0 < step < 1.0 for step in told)
    assert again.state("a").head_seq == 1200
    again.close()


def test_a_checkpoint_can_be_asked_for(db: topics.Database, tmp_path: Path) -> None:
    db.append("a", "x" * 1000)
    assert db.checkpoint() is True
    assert list((tmp_path / "data").rglob("*.pack"))


def test_numbers_tell_what_a_write_cost(db: topics.Database) -> None:
    db.configure("f", durability="fsync")
    assert db.append("f", 1).fsync_ms > 0
    disk = db.append("a", 1)
    assert disk.fsync_ms == 0.0
    assert disk.wal_append_ms > 0


def test_cold_reads_are_reported(open_db: OpenDatabase) -> None:
    settings = {"segment_max_events": 2, "hot_retain_segments": 0, "hot_retain_bytes": 0}
    with open_db(**settings) as db:
        db.append_many("a", [1, 2])
        db.append_many("a", [3, 4])
    db = open_db(**settings)
    diff = db.diff("a")
    assert ([record.data for record in diff.records], diff.cold_segments_read) == ([1, 2, 3, 4], 2)


def test_decoded_data_is_what_json_means(db: topics.Database) -> None:
    value = {"a": [1, 2.5, None, True, "é"], "b": {}}
    db.append("a", value)
    assert db.diff("a").records[0].data == value
    assert msgspec.json.decode(db.diff("a").records[0].json) == value


def test_load_makes_no_reference_cycles(db: topics.Database) -> None:
    db.append("a", 0)
    gc.collect()
    gc.disable()
    try:
        for number in range(300):
            db.append("a", {"x": number}, tag="t", idempotency_key=str(number))
            db.diff("a", limit=10)
        db.delete("a", match="t", before_seq=100)
        assert gc.collect() < 10
    finally:
        gc.enable()
