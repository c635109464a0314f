"""Ops as bytes: what the log stores reads back as what was decided."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from tests.engine.folding import Folding
from topics.engine.core import ops
from topics.engine.core.appended import Appended, DeferredBody, blob_start
from topics.engine.core.fold import CORE_OPS
from topics.engine.core.op_table import Op, OpKind, OpTable
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
from topics.engine.groups.ops import GroupClaimed
from topics.engine.log.deletion import Run
from topics.engine.log.seq_ranges import SeqRange
from topics.engine.opening.composition import OPS
from topics.engine.queues.ops import Buried, Extended, Leased, Moved, Paused, Released
from topics.engine.queues.results.ended import EndState
from topics.engine.queues.results.ops import Ended, GroupNotified, Progressed
from topics.engine.routers.ops import FULL, Forwarded, RouterDropped, RouterPut
from topics.engine.schedules.ops import ScheduleDropped, ScheduledRun, SchedulePut, ScheduleRan
from topics.engine.transactions.ops import Move, TxnAborted, TxnCommitted, TxnFenced, TxnForgotten, TxnStaged
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


def test_delays_that_count_from_another_time_than_that_of_the_append_read_back() -> None:
    batch = rendered([{"data": b"1", "delay_ms": 5}, {"data": b"2"}], 3, 9, None)
    assert batch.jobs is not None
    batch.jobs = batch.jobs._replace(from_ms=2**45)
    op = OPS.decode(Appended(7, 1, b"k" * 16, batch).encode())
    assert isinstance(op, Appended)
    assert columns_of(op.batch) == columns_of(batch)


def test_only_the_body_of_an_append_has_a_blob() -> None:
    batch = batch_of(4)
    body = Appended(8, 1, b"k" * 16, batch).encode()
    assert body[blob_start(body, len(body)) :] == batch.blob
    other = Deleted(1, 9, [Run(1, 2, 3)] * 9).encode()
    assert blob_start(other, len(other)) == 0


def test_a_batch_that_the_log_never_gets_is_joined_when_the_others_are_written() -> None:
    unlogged = rendered([{"data": b"1"}, {"data": b"2"}], 1, 9, None, 0)
    body = DeferredBody([b"head"], unlogged)
    assert unlogged.parts is not None
    assert body.buffers() == [b"head"]
    assert (unlogged.parts, unlogged.blob) == (None, rendered([{"data": b"1"}, {"data": b"2"}], 1, 9, None).blob)


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


def delayed() -> Appended:
    return Appended(8, 1, b"", rendered([{"data": b"1", "delay_ms": 5}], 4, 9, None))


def advanced(topic_id: int) -> WebhookAdvanced:
    return WebhookAdvanced(topic_id, 1, 2, 0, 0, 1, 0, [], [])


def committed_to(*topic_ids: int) -> TxnCommitted:
    return TxnCommitted(1, "app", 5, 9, [Move("t", topic_id, 20, 4, 3, 1, None) for topic_id in topic_ids])


def of_all_kinds(appended: Appended) -> list[Op]:
    """An op that adds these records, of each kind that can."""
    created = Created(7, 2**62, 3, 4, "new", TopicConfig(priority=1))
    moved = Moved(7, True, 9, [Run(1, 1, 0)], appended)
    return [
        appended,
        MultiAppended([created, KeyNoted(9, 5, b"k" * 16, [1]), appended, appended]),
        moved,
        Ended(EndState.DEAD, b"", moved),
        GroupNotified(7, 9, 4, "name", appended),
        ScheduleRan([ScheduledRun(1, 2, 3, 4, 8, 1), ScheduledRun(1, 2, 3, 4, 9, 1)], appended),
        WebhookBuried(advanced(9), appended),
    ]


def of_no_records() -> list[Op]:
    """What they add is in an `ephemeral` topic, or nowhere."""
    return [GroupNotified(7, 9, 4, "name", None), ScheduleRan([], None), WebhookBuried(advanced(9), None)]


def test_an_op_reserves_what_it_adds_and_only_what_was_counted_elsewhere_before_does_not_grow() -> None:
    appended = Appended(8, 1, b"", batch_of(4))
    size = appended.batch.size
    for op in of_all_kinds(appended):
        grows = not isinstance(op, Moved | Ended)
        times = 2 if isinstance(op, MultiAppended) else 1
        assert [*OPS.of(op).adds(op)] == times * [(8, 4, 2, 2, size, size if grows else 0)], op
    gone = Deleted(7, 9, [Run(1, 2, 3)])
    for op in (gone, Ended(EndState.DONE, b"", gone), *of_no_records()):
        assert [*OPS.of(op).adds(op)] == [], op
    committed = committed_to(8, 9)
    assert [*OPS.of(committed).adds(committed)] == [(8, 4, 3, 3, 0, 0), (9, 4, 3, 3, 0, 0)]


def test_an_op_waits_for_earlier_ones_of_every_topic_that_it_changes(tmp_path: Path) -> None:
    state = Folding(tmp_path).state
    found = {type(op): OPS.of(op).other_topics(state, op) for op in of_all_kinds(Appended(8, 1, b"", batch_of(4)))}
    assert found == {
        Appended: (),
        MultiAppended: (9, 8),
        Moved: (8,),
        Ended: (8,),
        GroupNotified: (8,),
        ScheduleRan: (9,),
        WebhookBuried: (9,),
    }
    own = GroupNotified(8, 9, 4, "name", Appended(8, 1, b"", batch_of(4)))
    for op in (own, Ended(EndState.DONE, b"", Deleted(7, 9, [])), *of_no_records()):
        assert OPS.of(op).other_topics(state, op) == (), op
    committed = committed_to(8, 9)
    assert OPS.of(committed).other_topics(state, committed) == (8, 9)


def test_an_op_says_which_topics_it_makes_and_configures() -> None:
    config = TopicConfig(priority=1)
    created = Created(3, 2**62, 3, 4, "new", config)
    fields = {name: 5 for name in Configured._fields if name != "config"}
    changed = Configured(**fields, config=config)
    several = MultiAppended([created, Appended(8, 1, b"", batch_of(4))])
    for op, makes, configures in (
        (created, ("new",), (config,)),
        (changed, (), (config,)),
        (several, ("new",), (config,)),
        (Dropped(7), (), ()),
    ):
        assert (OPS.of(op).makes(op), OPS.of(op).configures(op)) == (makes, configures), op


def test_the_time_is_recorded_with_every_deadline_and_delay() -> None:
    appended = Appended(8, 1, b"", batch_of(4))
    dated = [type(op) for op in of_all_kinds(delayed()) if OPS.of(op).dated(op)]
    assert dated == [Appended, MultiAppended, Moved, Ended]
    assert not [op for op in of_all_kinds(appended) if OPS.of(op).dated(op)]
    with_records = {type(op) for op in of_all_kinds(appended)}
    others = [kind for kind in OPS.kinds.values() if kind.type not in with_records]
    assert {kind.type for kind in others if kind.dated(None)} == {Leased, Released, Extended, GroupClaimed, TxnStaged}


def test_which_ops_need_their_topic_are_ordered_and_carry_its_floor() -> None:
    kinds = OPS.kinds.values()
    assert {kind.type.__name__ for kind in kinds if not kind.needs_topic} == {
        *("Created", "Dropped", "Timed", "MultiAppended"),
        *("SchedulePut", "ScheduleDropped", "ScheduleRan"),
        *("TxnStaged", "TxnFenced", "TxnCommitted", "TxnAborted", "TxnForgotten"),
        *("WebhookPut", "WebhookDropped", "WebhookAdvanced", "WebhookPaused", "WebhookBuried"),
    }
    assert {kind.type for kind in kinds if not kind.ordered} == {Reserved}
    copied = Forwarded(8, 7, 0, 1, batch_of(4), from_seq=0, to_seq=5, lost=3, runs=[(2, 2)])
    adding = {type(op) for op in (*of_all_kinds(Appended(8, 1, b"", batch_of(4))), copied) if [*OPS.of(op).adds(op)]}
    carrying = {kind.type for kind in kinds if kind.carries_floor}
    assert carrying == adding - {MultiAppended, Moved, Ended, GroupNotified}
    assert {kind.type for kind in kinds if kind.derives} == {Forwarded}


def test_a_row_of_the_table_is_what_it_was_declared_to_be() -> None:
    functions: dict[str, Any] = {
        name: lambda *_: ()
        for name in (
            "decode",
            "fold",
            "published",
            "other_topics",
            "adds",
            "makes",
            "configures",
            "dated",
            "written_out",
        )
    }
    for flags in (True, False):
        names = ("needs_topic", "ordered", "carries_floor", "derives")
        kind = OpKind(Deleted, 200, 201, **functions, **dict.fromkeys(names, flags))
        assert (kind.type, kind.codes, [getattr(kind, name) for name in names]) == (Deleted, (200, 201), [flags] * 4)
        assert {name: getattr(kind, name) for name in functions} == functions
    table = OpTable([kind])
    assert (table.kinds, table.decode(bytes([201]))) == ({Deleted: kind}, ())
    bare: OpKind[Any] = OpKind(Deleted, 200, decode=functions["decode"], fold=functions["fold"])
    assert (bare.needs_topic, bare.ordered, bare.carries_floor, bare.derives) == (True, True, False, False)
    assert (bare.dated(None), bare.written_out) == (False, None)
    assert [*bare.adds(None)] == [*bare.makes(None)] == [*bare.configures(None)] == []
