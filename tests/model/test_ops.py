"""Ops as bytes: what the log stores reads back as what was decided."""

from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from topics.engine.core import ops
from topics.engine.core.appended import Appended, DeferredBody
from topics.engine.core.fold import CORE_OPS
from topics.engine.core.op_table import Op, OpTable
from topics.engine.core.ops import (
    Configured,
    Created,
    Deleted,
    Dropped,
    Floored,
    KeyNoted,
    MultiAppended,
    Reserved,
    Resumed,
    Skipped,
    Timed,
)
from topics.engine.log.deletion import Run
from topics.engine.log.seq_ranges import SeqRange
from topics.engine.opening.composition import OPS
from topics.engine.queues.ops import Buried, Extended, Leased, Moved, Paused, Released
from topics.engine.queues.results.ended import EndState
from topics.engine.queues.results.ops import Ended, GroupNotified, Progressed
from topics.engine.routers.ops import FULL, Forwarded, RouterDropped, RouterPut
from topics.engine.schedules.ops import ScheduleDropped, ScheduledRun, SchedulePut, ScheduleRan
from topics.engine.transactions.ops import TxnAborted, TxnFenced, TxnForgotten
from topics.engine.webhooks.ops import (
    Retry,
    WebhookAdvanced,
    WebhookBuried,
    WebhookDropped,
    WebhookPaused,
    WebhookPut,
)
from topics.model.clock import Moment
from topics.model.requests import batch as batch_module
from topics.model.requests.batch import ALWAYS_JOINED, Batch, render
from topics.model.requests.config import TopicConfig
from topics.model.requests.records import AppendRequest, RecordRequest, append_decoder, decode_body
from topics.model.requests.routers import RouterConfig
from topics.model.schedules.schedule_config import ScheduleConfig
from topics.model.webhooks.webhook_config import Secret, WebhookConfig

U64S = st.integers(0, 2**63 - 1)
IDS = st.integers(1, 2**32 - 1)
COLUMNS = ("first_seq", "ts", "count", "blob", "ends", "node_names", "nodes", "tags", "tag_ends", "metas", "jobs")


def columns_of(batch: Batch) -> list[object]:
    return [getattr(batch, name) for name in COLUMNS]


records = st.fixed_dictionaries(
    {"data": st.sampled_from([b"1", b'"x"', b'{"a":[1.10]}', b"null"])},
    optional={
        "tag": st.text(max_size=5),
        "node": st.sampled_from(["n1", "n2", "é", ""]),
        "meta": st.sampled_from([b"{}", b'{"m":1}']),
        "delay_ms": st.integers(0, 5),
        "job_priority": st.integers(0, 9),
        "group": st.sampled_from([{"name": name, "size": 3, "notify": "é" + name} for name in "ab"]),
    },
)


def rendered(
    records: list[dict[str, object]], first_seq: int, ts: int, node: str | None, joined_bytes_max: int = ALWAYS_JOINED
) -> Batch:
    import msgspec

    raw = [
        {name: Raw(value) if isinstance(value, bytes) else value for name, value in record.items()}
        for record in records
    ]
    request = decode_body(append_decoder, msgspec.json.encode({"records": raw, "node": node}))
    bare = all(set(record) == {"data"} for record in records)
    return render(request, first_seq, ts, bare=bare, joined_bytes_max=joined_bytes_max)


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
    op = OPS.decode(encoded)
    assert isinstance(op, Appended)
    assert (op.topic_id, op.floor, op.key, op.answer) == (topic_id, floor, key, answer)
    assert columns_of(op.batch) == columns_of(batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ops, "DEFERRED_BYTES_MIN", 0)
        patch.setattr(batch_module, "JOINED_BYTES", 50)
        deferred = Appended(topic_id, floor, key, rendered(records, first_seq, ts, node, 0), answer)
        assert (deferred.batch.parts is None) == (len(records) == 1)
        several = MultiAppended([KeyNoted(7, 5, b"k" * 16, [1]), deferred, deferred])
        as_written = several.body()
        assert isinstance(as_written, DeferredBody)
        found = b"".join(as_written.buffers())
        assert found == several.encode()
        assert len(found) == len(as_written)
        again = Appended(topic_id, floor, key, rendered(records, first_seq, ts, node, 0), answer).body()
        assert len(again) == len(encoded)
        assert encoded == (again if isinstance(again, bytes) else b"".join(again.buffers()))
        assert columns_of(deferred.batch) == columns_of(batch)


@given(runs=st.lists(st.tuples(U64S, U64S, U64S).map(lambda run: Run(*run)), max_size=200), topic_id=IDS, ts=U64S)
def test_a_delete_reads_back_however_many_runs_it_has(runs: list[Run], topic_id: int, ts: int) -> None:
    assert OPS.decode(Deleted(topic_id, ts, runs).encode()) == Deleted(topic_id, ts, runs)


@pytest.mark.parametrize(
    "op",
    [
        Created(1, 2**62, 3, 4, "name:x", TopicConfig(priority=-5, dead_letter="d")),
        Dropped(7),
        Reserved(7, 2**63),
        Skipped(7, 2**62, 2**63),
        Resumed(7, 2**62, 2**63, 4),
        Floored(7, 2**62),
        Timed(Moment(5, 2**45)),
        KeyNoted(7, 2**45, bytes(range(16)), [3, 1, 2**63]),
        Leased(7, 5, 2**45, 3, "é", [(1, 2**40, 3), (2, 4, 5)]),
        Released(7, 2**45, "too hot", [1, 2**62]),
        Extended(7, 2**45, 3, [1, 2**62]),
        Paused(7, True),
        Buried(7, 3, None),
        Buried(7, 3, Deleted(7, 9, [Run(1, 2, 3)])),
        Ended(EndState.DONE, b"jobs", Deleted(7, 9, [Run(1, 2, 3)])),
        Ended(EndState.DEAD, b"", Buried(7, 3, None)),
        Progressed(7, b'{"done":1}', [1, 2**60]),
        GroupNotified(7, 9, 5, "name", None),
        RouterPut(7, 8, 2**64 - 1, "r", RouterConfig("a", "b")),
        SchedulePut(9, 5, 2**63, "nightly", ScheduleConfig("t", cron="0 3 * * *", data=Raw(b'{"a": 1.10}'))),
        ScheduleDropped(9),
        WebhookPut(9, 2**62, 2**64 - 1, True, "w", WebhookConfig("t", "https://a.org"), [Secret("whsec_x", 5)]),
        WebhookDropped(9),
        WebhookAdvanced(9, 2**62, 2**63, 1, 2, 3, 4, [SeqRange(5, 6), SeqRange(8, 2**63)], [Retry(7, 2**45, 3)]),
        WebhookPaused(9, 2**45, "410 Göne"),
        WebhookBuried(WebhookAdvanced(9, 1, 2, 0, 0, 1, 0, [], []), None),
        ScheduleRan([ScheduledRun(1, 2, 3, 4, 9, 0), ScheduledRun(5, 0, 7, 8, 10, 1)], None),
        RouterDropped(7),
    ],
)
def test_an_op_about_a_topic_reads_back(op: Op) -> None:
    assert not isinstance(op, Appended)
    assert OPS.decode(op.encode()) == op


def test_a_configuration_reads_back() -> None:
    fields = {name: 5 for name in Configured._fields if name != "config"}
    op = Configured(**fields, config=TopicConfig(ttl_ms=2**64 - 1))
    assert OPS.decode(op.encode()) == op


def test_an_unknown_op_is_not_guessed_at() -> None:
    with pytest.raises(ValueError, match="newer version"):
        OPS.decode(b"\xff" + bytes(60))


def test_a_bare_batch_of_one_is_the_same_as_one_with_columns() -> None:
    request = AppendRequest(
        records=[RecordRequest(data=decode_body(append_decoder, b'{"records":[{"data":7}]}').records[0].data)]
    )
    bare, full = render(request, 3, 9, bare=True), render(request, 3, 9, bare=False)
    assert bare.blob == full.blob == b'{"$seq":3,"$ts":9,"data":7},'
    assert bare.ends == full.ends == array("I", [len(bare.blob)])


def batch_of(first_seq: int) -> Batch:
    return rendered([{"data": b"1"}, {"data": b"2"}], first_seq, 9, None)


def test_what_carries_records_reads_back_with_them() -> None:
    appended = Appended(8, 1, b"", batch_of(4))
    moved = OPS.decode(Moved(7, True, 9, [Run(1, 2, 3)], appended).encode())
    buried = OPS.decode(Buried(7, 2, appended).encode())
    copied = Forwarded(8, 7, FULL, 1, batch_of(4), from_seq=0, to_seq=5, lost=1, runs=[(2, 2)])
    forwarded = OPS.decode(copied.encode())
    assert isinstance(moved, Moved)
    assert isinstance(buried, Buried)
    assert isinstance(forwarded, Forwarded)
    assert isinstance(buried.rest, Appended)
    ran = OPS.decode(ScheduleRan([ScheduledRun(1, 2, 3, 4, 9, 1)], appended).encode())
    assert isinstance(ran, ScheduleRan)
    assert ran.appended is not None
    ended = OPS.decode(Ended(EndState.DEAD, b"jobs", Moved(7, True, 9, [Run(1, 2, 3)], appended)).encode())
    assert isinstance(ended, Ended)
    assert isinstance(ended.by, Moved)
    notified = OPS.decode(GroupNotified(7, 9, 4, "name", appended).encode())
    assert isinstance(notified, GroupNotified)
    assert notified.appended is not None
    given_up = OPS.decode(WebhookBuried(WebhookAdvanced(9, 1, 2, 0, 0, 1, 0, [], []), appended).encode())
    assert isinstance(given_up, WebhookBuried)
    assert given_up.appended is not None
    batches = (ended.by.appended.batch, notified.appended.batch, ran.appended.batch, given_up.appended.batch)
    for found in (moved.appended.batch, buried.rest.batch, forwarded.batch, *batches):
        assert columns_of(found) == columns_of(batch_of(4))
    assert (forwarded.to_seq, forwarded.lost, forwarded.runs) == (5, 1, [(2, 2)])


@pytest.mark.parametrize("op", [TxnFenced(3, "app", 2, 9, "owner"), TxnAborted(3, [(1, "s")]), TxnForgotten(3)])
def test_an_op_of_a_transaction_reads_back(op: Op) -> None:
    found = OPS.decode(op.encode())
    assert type(found) is type(op)
    assert found.encode() == op.encode()


def test_every_op_and_every_code_is_declared_once() -> None:
    with pytest.raises(AssertionError, match="declared once"):
        OpTable(CORE_OPS, CORE_OPS)
    codes = [code for kind in OPS.kinds.values() for code in kind.codes]
    assert sorted(codes) == [
        *range(1, 15),
        32,
        33,
        34,
        40,
        41,
        42,
        *range(48, 53),
        80,
        84,
        85,
        86,
        88,
        *range(92, 96),
        *range(104, 108),
        *range(112, 117),
    ]


def test_what_an_op_adds_ends_where_its_batch_does() -> None:
    copied = Forwarded(8, 7, 0, 1, batch_of(4), from_seq=0, to_seq=5, lost=3, runs=[(2, 2)])
    (added,) = OPS.of(copied).adds(copied)
    assert (added.topic_id, added.first_seq, added.last_seq, added.records) == (8, 1, 5, 2)
    moved = Moved(7, True, 9, [Run(1, 2, 3)], Appended(8, 1, b"", batch_of(4)))
    (added,) = OPS.of(moved).adds(moved)
    assert (added.topic_id, added.last_seq, added.growth) == (8, 5, 0)
