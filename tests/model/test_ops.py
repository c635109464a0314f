"""Ops as bytes: what the log stores reads back as what was decided."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.engine.core import ops
from topics.engine.core.appended import DeferredBody
from topics.engine.core.ops import (
    Appended,
    Configured,
    Created,
    Deleted,
    Dropped,
    KeyNoted,
    MultiAppended,
    Op,
    Reserved,
    Run,
    Skipped,
    decode,
)
from topics.model.requests import batch as batch_module
from topics.model.requests.batch import Batch, render
from topics.model.requests.config import TopicConfig
from topics.model.requests.records import AppendRequest, RecordRequest, append_decoder, decode_body

U64S = st.integers(0, 2**63 - 1)
IDS = st.integers(1, 2**32 - 1)
COLUMNS = ("first_seq", "ts", "count", "blob", "ends", "node_names", "nodes", "tags", "tag_ends", "metas")


def columns_of(batch: Batch) -> list[object]:
    return [getattr(batch, name) for name in COLUMNS]


records = st.fixed_dictionaries(
    {"data": st.sampled_from([b"1", b'"x"', b'{"a":[1.10]}', b"null"])},
    optional={
        "tag": st.text(max_size=5),
        "node": st.sampled_from(["n1", "n2", "é", ""]),
        "meta": st.sampled_from([b"{}", b'{"m":1}']),
    },
)


def rendered(
    records: list[dict[str, object]], first_seq: int, ts: int, node: str | None, *, deferred: bool = False
) -> Batch:
    import msgspec
    from msgspec import Raw

    raw = [
        {name: Raw(value) if isinstance(value, bytes) else value for name, value in record.items()}
        for record in records
    ]
    request = decode_body(append_decoder, msgspec.json.encode({"records": raw, "node": node}))
    bare = all(set(record) == {"data"} for record in records)
    return render(request, first_seq, ts, bare=bare, deferred=deferred)


@given(
    records=st.lists(records, min_size=1, max_size=8),
    node=st.none() | st.just("batch"),
    first_seq=st.integers(1, 2**53),
    ts=st.integers(0, 2**45),
    topic_id=IDS,
    floor=U64S,
    key=st.sampled_from([b"", bytes(range(16))]),
    answer=st.none() | st.lists(U64S, min_size=1, max_size=9),
)
def test_an_appended_batch_reads_back_with_every_column(
    records: list[dict[str, object]],
    node: str | None,
    first_seq: int,
    ts: int,
    topic_id: int,
    floor: int,
    key: bytes,
    answer: list[int] | None,
) -> None:
    batch = rendered(records, first_seq, ts, node)
    encoded = Appended(topic_id, floor, key, batch, answer).encode()
    op = decode(encoded)
    assert isinstance(op, Appended)
    assert (op.topic_id, op.floor, op.key, op.answer) == (topic_id, floor, key, answer)
    assert columns_of(op.batch) == columns_of(batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(batch_module, "DEFERRED_BYTES_MIN", 0)
        patch.setattr(ops, "DEFERRED_BYTES_MIN", 0)
        patch.setattr(batch_module, "JOINED_BYTES", 50)
        deferred = Appended(topic_id, floor, key, rendered(records, first_seq, ts, node, deferred=True), answer)
        assert (deferred.batch.parts is None) == (len(records) == 1 and set(records[0]) == {"data"})
        several = MultiAppended([KeyNoted(7, 5, b"k" * 16, [1]), deferred, deferred])
        as_written = several.body()
        assert isinstance(as_written, DeferredBody)
        found = b"".join(as_written.buffers())
        assert found == several.encode()
        assert len(found) == len(as_written)
        again = Appended(topic_id, floor, key, rendered(records, first_seq, ts, node, deferred=True), answer).body()
        assert len(again) == len(encoded)
        assert encoded == (again if isinstance(again, bytes) else b"".join(again.buffers()))
        assert columns_of(deferred.batch) == columns_of(batch)


@given(runs=st.lists(st.tuples(U64S, U64S, U64S).map(lambda run: Run(*run)), max_size=200), topic_id=IDS, ts=U64S)
def test_a_delete_reads_back_however_many_runs_it_has(runs: list[Run], topic_id: int, ts: int) -> None:
    assert decode(Deleted(topic_id, ts, runs).encode()) == Deleted(topic_id, ts, runs)


@pytest.mark.parametrize(
    "op",
    [
        Created(1, 2**62, 3, 4, "name:x", TopicConfig(priority=-5, dead_letter="d")),
        Dropped(7),
        Reserved(7, 2**63),
        Skipped(7, 2**62, 2**63),
        KeyNoted(7, 2**45, bytes(range(16)), [3, 1, 2**63]),
    ],
)
def test_an_op_about_a_topic_reads_back(op: Op) -> None:
    assert not isinstance(op, Appended)
    assert decode(op.encode()) == op


def test_a_configuration_reads_back() -> None:
    fields = {name: 5 for name in Configured._fields if name != "config"}
    op = Configured(**fields, config=TopicConfig(ttl_ms=2**64 - 1))
    assert decode(op.encode()) == op


def test_an_unknown_op_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="newer version"):
        decode(b"\xff" + bytes(60))


def test_a_bare_batch_of_one_is_the_same_as_one_with_columns() -> None:
    request = AppendRequest(
        records=[RecordRequest(data=decode_body(append_decoder, b'{"records":[{"data":7}]}').records[0].data)]
    )
    bare, full = render(request, 3, 9, bare=True), render(request, 3, 9, bare=False)
    assert bare.blob == full.blob == b'{"$seq":3,"$ts":9,"data":7},'
    assert bare.ends == full.ends == array("I", [len(bare.blob)])
