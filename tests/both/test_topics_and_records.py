"""Topics and records, the same over HTTP and in a program."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

import topics
from topics.client import CaughtUp, TopicDeleted
from topics.client.values import Outgoing, TopicBatch

Beside = Callable[[Callable[[], Any]], Any]


# --- topics ---


def test_a_topic_is_created_confirmed_and_edited(verbs: Any, topic: str) -> None:
    made = verbs.create(topic, cap_records=100)
    assert (made.topic, made.created, made.config.cap_records, made.warnings) == (topic, True, 100, [])
    assert not verbs.create(topic, cap_records=100).created
    with pytest.raises(topics.TopicExistsIncompatible) as caught:
        verbs.create(topic, cap_records=5)
    assert caught.value.detail["changes"] == {"cap_records": {"from": 100, "to": 5}}
    verbs.append_many(topic, range(50))
    tried = verbs.edit(topic, cap_records=20, dry_run=True)
    assert (tried.changes["cap_records"].before, tried.changes["cap_records"].after, tried.evicts) == (100, 20, 30)
    assert verbs.state(topic).count == 50
    assert verbs.edit(topic, cap_records=20).config.cap_records == 20
    assert verbs.state(topic).count == 20
    assert verbs.create(topic, replace=True).config.cap_records == 0


def test_a_state_and_a_list_tell_the_same(verbs: Any, topic: str) -> None:
    verbs.create(f"{topic}.q", type="queue")
    verbs.append_many(f"{topic}.log", [1, 2])
    state = verbs.state(f"{topic}.log")
    assert (state.topic, state.type) == (f"{topic}.log", "log")
    assert (state.head_seq, state.earliest_seq, state.next_seq) == (2, 1, 3)
    assert (state.count, state.queue, state.config.durability) == (2, None, "disk")
    queue = verbs.state(f"{topic}.q", touch=False).queue
    assert (queue.ready, queue.in_flight, queue.dead_lettered, queue.dead, queue.delayed, queue.paused) == (0,) * 5 + (
        False,
    )
    items = list(verbs.list(f"{topic}.", page_size=1))
    assert [(item.topic, item.type, item.head_seq, item.durable) for item in items] == [
        (f"{topic}.log", "log", 2, False),
        (f"{topic}.q", "queue", 0, False),
    ]


def test_topics_are_found_by_part_of_the_name_by_type_and_in_any_order(verbs: Any, topic: str) -> None:
    for number in (2, 3, 1):
        verbs.append_many(f"{topic}.Shop.{number}", range(number))
    verbs.create(f"{topic}.jobs", type="queue")

    def names(**query: Any) -> list[str]:
        return [item.topic.removeprefix(f"{topic}.") for item in verbs.list(f"{topic}.", page_size=2, **query)]

    assert names(contains="sHOP") == ["Shop.1", "Shop.2", "Shop.3"]
    assert names(sort="-records") == ["Shop.3", "Shop.2", "Shop.1", "jobs"]
    assert names(sort="records", type="log") == ["Shop.1", "Shop.2", "Shop.3"]
    assert names(type="queue") == ["jobs"]
    for wrong in ({"sort": "size"}, {"type": "heap"}):
        with pytest.raises(topics.InvalidRequest):
            names(**wrong)


def test_topics_are_dropped_and_records_deleted(verbs: Any, topic: str) -> None:
    verbs.append_many(topic, [Outgoing(number, tag=f"t{number % 2}") for number in range(10)])
    assert verbs.delete(topic, 3) == 2
    assert verbs.delete(topic, match="t0") == 4
    assert verbs.delete(topic, match=("tag", "Glob", "t*"), before_seq=7) == 2
    with pytest.raises(topics.TopicNotEmpty):
        verbs.drop(topic, if_empty=True)
    assert verbs.drop(topic) is True
    assert verbs.drop(topic) is False


@pytest.mark.parametrize(
    ("call", "kind", "detail"),
    [
        (lambda verbs, topic: verbs.state(topic), topics.TopicNotFound, {"topic"}),
        (lambda verbs, topic: verbs.diff(topic), topics.TopicNotFound, {"topic"}),
        (lambda verbs, topic: list(verbs.export(topic)), topics.TopicNotFound, {"topic"}),
        (lambda verbs, topic: next(verbs.watch(topic)), topics.TopicNotFound, {"topic"}),
        (lambda verbs, topic: verbs.claim(topic), topics.TopicNotFound, {"topic"}),
        (lambda verbs, topic: next(verbs.work(topic)), topics.TopicNotFound, set()),
        (lambda verbs, topic: verbs.edit(topic, ttl_ms=1), topics.TopicNotFound, {"topic"}),
        (lambda verbs, topic: verbs.create(topic, ttl_ms=-1), topics.InvalidRequest, {"field"}),
        (lambda verbs, topic: verbs.create(topic, no_such=1), topics.InvalidRequest, {"field"}),
        (lambda verbs, topic: verbs.create(topic, durability="tape"), topics.InvalidRequest, {"field"}),
        (lambda verbs, topic: verbs.create("a b"), topics.InvalidRequest, {"field"}),
        (lambda verbs, topic: verbs.append_many(topic, []), topics.InvalidRequest, {"field"}),
        (lambda verbs, topic: verbs.append_many(topic, b"[1]"), topics.InvalidRequest, {"field"}),
        (lambda verbs, topic: verbs.append_many(topic, b"[{]"), topics.InvalidRequest, {"field"}),
        (lambda verbs, topic: verbs.append(topic, 1, tag=5), topics.InvalidRequest, {"field"}),
        (lambda verbs, topic: verbs.append(topic, float("nan")), topics.InvalidRequest, {"field"}),
        (lambda verbs, topic: verbs.diff(topic, -1), topics.InvalidRequest, {"field"}),
        (lambda verbs, topic: verbs.delete(topic), topics.InvalidRequest, {"field"}),
        (lambda verbs, topic: verbs.router(topic), topics.RouterNotFound, {"router"}),
        (lambda verbs, topic: verbs.pipeline(topic), topics.PipelineNotFound, {"pipeline"}),
        (lambda verbs, topic: verbs.commit_txn(topic, 1, ["s"]), topics.StageNotFound, {"stage"}),
        (lambda verbs, topic: verbs.consume(topic, ""), topics.InvalidRequest, set()),
        (lambda verbs, topic: verbs.consume(topic, "g"), topics.TopicNotFound, set()),
    ],
)
def test_errors_are_of_the_same_class(
    verbs: Any, topic: str, call: Callable[[Any, str], Any], kind: type[Exception], detail: set[str]
) -> None:
    with pytest.raises(kind) as caught:
        call(verbs, topic)
    assert isinstance(caught.value, topics.TopicsError)
    assert detail <= set(caught.value.detail)
    assert caught.value.code == kind.code  # type: ignore[attr-defined]


# --- writing ---


def test_appends_tell_where_records_went(verbs: Any, topic: str) -> None:
    first = verbs.append(topic, {"n": 1}, tag="t", node="n", meta={"m": 1}, idempotency_key="k")
    assert (first.topic, first.seqs, first.count, first.created, first.deduped) == (topic, [1], 1, True, False)
    again = verbs.append(topic, {"n": 2}, idempotency_key="k")
    assert (again.seqs, again.deduped, again.created) == ([1], True, False)
    many = verbs.append_many(topic, [2, Outgoing(3, tag="u")], return_seqs=False)
    assert (many.first_seq, many.last_seq, many.head_seq, many.seqs) == (2, 3, 3, [2, 3])
    ready_made = verbs.append_many(topic, b'[{"data": 1.10}]')
    assert ready_made.seqs == [4]
    assert verbs.diff(topic, 3).records[0].raw == b"1.10"
    with pytest.raises(topics.TopicNotFound):
        verbs.append(f"{topic}.absent", 1, create=False)


def test_a_job_that_is_pending_is_not_added_again(verbs: Any, topic: str) -> None:
    verbs.create(topic, type="queue")
    assert verbs.append(topic, 1, unique_key="u").seqs == [1]
    assert verbs.append(topic, 2, unique_key="u").seqs == [1]
    assert verbs.state(topic).queue.ready == 1


def test_several_topics_are_written_in_one_step(verbs: Any, topic: str) -> None:
    a, b = f"{topic}.a", f"{topic}.b"
    done = verbs.append_all({a: [1, 2], b: TopicBatch([3], config={"ttl_ms": 60_000})}, idempotency_key="k")
    assert (done.topics[a].seqs, done.topics[b].seqs, done.topics[b].created, done.deduped) == (
        [1, 2],
        [1],
        True,
        False,
    )
    assert verbs.append_all({a: [1, 2], b: [3]}, idempotency_key="k").deduped
    assert verbs.state(b).config.ttl_ms == 60_000
    with pytest.raises(topics.TopicNotFound):
        verbs.append_all({a: [9], f"{topic}.c": TopicBatch([9], create=False)})
    assert verbs.state(a).head_seq == 2


def test_a_producer_gathers_batches(verbs: Any, topic: str) -> None:
    with verbs.producer(topic, linger_ms=1) as producer:
        tickets = [producer.append(number) for number in range(100)]
        producer.flush()
        assert [ticket.result() for ticket in tickets] == list(range(1, 101))
    assert [record.data for record in verbs.read(topic)] == list(range(100))


ORDER = {"specversion": "1.0", "id": "1", "source": "/shop", "type": "order.paid"}


def test_cloudevents_are_appended_and_shown_as_they_were(verbs: Any, topic: str) -> None:
    when = datetime(2026, 11, 17, 8, 30, tzinfo=UTC)
    events = [
        {**ORDER, "data": {"n": 1}, "rank": 7, "time": when, "subject": None},
        {**ORDER, "data": b"\x00\xff", "datacontenttype": "image/png"},
        ORDER,
        {**ORDER, "data": None},
    ]
    appended = verbs.append_events(topic, events, tag="t", node="n")
    assert (appended.seqs, appended.created) == ([1, 2, 3, 4], True)
    records = verbs.diff(topic).records
    assert [(record.tag, record.node) for record in records] == [("t", "n")] * 4
    events[0] = {**ORDER, "data": {"n": 1}, "rank": 7, "time": "2026-11-17T08:30:00Z"}
    assert [record.event for record in records] == events
    verbs.append(topic, 1, meta={"id": "1"})
    assert verbs.diff(topic, 4).records[0].event is None


def test_a_cloudevent_is_appended_once_if_asked(verbs: Any, topic: str) -> None:
    assert not verbs.append_events(topic, [ORDER], dedupe=True).deduped
    assert verbs.append_events(topic, [{**ORDER, "type": "again"}], dedupe=True).deduped
    assert not verbs.append_events(topic, [{**ORDER, "id": "2"}], dedupe=True).deduped
    assert verbs.append_events(topic, iter([ORDER]), return_seqs=False).last_seq == 3
    with pytest.raises(topics.InvalidRequest, match="one event"):
        verbs.append_events(topic, [ORDER, ORDER], dedupe=True)


@pytest.mark.parametrize(
    ("events", "field"),
    [
        ([], "events"),
        (ORDER, "events"),
        ([1], "events[0]"),
        ([ORDER, {"id": "1"}], "events[1].specversion"),
        ([{**ORDER, "time": "noon"}], "events[0].time"),
        ([{**ORDER, "ext": {}}], "events[0].ext"),
        ([{**ORDER, "data": float("nan")}], "events[0]"),
    ],
)
def test_a_wrong_cloudevent_is_refused(verbs: Any, topic: str, events: Any, field: str) -> None:
    with pytest.raises(topics.InvalidRequest) as caught:
        verbs.append_events(topic, events)
    assert caught.value.detail["field"] == field
    with pytest.raises(topics.TopicNotFound):
        verbs.state(topic)


def test_a_job_is_a_cloudevent(verbs: Any, topic: str) -> None:
    verbs.create(topic, type="queue")
    verbs.append_events(topic, [{**ORDER, "data": [1]}], delay_ms=60_000)
    verbs.append_events(topic, [{**ORDER, "data": [2]}])
    (job,) = verbs.claim(topic, "w", max=5)
    assert job.event == {**ORDER, "data": [2]}


# --- reading ---


def test_reading_shows_the_same_fields(verbs: Any, topic: str) -> None:
    verbs.append_many(topic, [Outgoing(number, tag="t", node=f"n{number % 3}", meta={"m": 1}) for number in range(9)])
    page = verbs.diff(topic, 0, limit=2)
    assert (page.topic, page.next_from_seq, page.head_seq, page.earliest_seq) == (topic, 2, 9, 1)
    assert (page.caught_up, page.lag, page.tombstone) == (False, 7, None)
    record = page.records[0]
    assert (record.seq, record.data, record.raw, record.tag, record.node) == (1, 0, b"0", "t", "n0")
    assert (record.meta, record.raw_meta) == ({"m": 1}, b'{"m":1}')
    assert [record.data for record in verbs.read(topic, 3, to_seq=6, node=["n0"], page_records=2)] == [4, 5]
    bare = next(iter(verbs.read(topic, include_tags=False, include_meta=False)))
    assert (bare.tag, bare.meta) == (None, None)
    assert verbs.diff(topic, from_ts=2**50).records == []


def test_a_gap_is_a_tombstone(verbs: Any, topic: str) -> None:
    verbs.create(topic, cap_records=2)
    verbs.append_many(topic, range(5))
    gap, *records = verbs.read(topic, 1)
    assert (gap.gap_from, gap.gap_to, gap.reason, gap.missed_estimate, gap.records) == (2, 3, "cap", 2, [])
    assert [record.data for record in records] == [3, 4]


def test_a_long_poll_ends_with_the_next_record(verbs: Any, topic: str, beside: Beside) -> None:
    verbs.append(topic, 1)
    waiting = beside(lambda: verbs.diff(topic, 1, wait_ms=30_000))
    verbs.append(topic, 2)
    assert [record.data for record in waiting.result().records] == [2]
    assert verbs.diff(topic, 2, wait_ms=1).records == []


def test_a_long_poll_of_a_deleted_topic_gets_an_error(verbs: Any, topic: str, beside: Beside) -> None:
    verbs.append(topic, 1)
    waiting = beside(lambda: verbs.diff(topic, 1, wait_ms=30_000))
    verbs.drop(topic)
    with pytest.raises(topics.TopicNotFound):
        waiting.result()


def test_following_goes_on(verbs: Any, topic: str, beside: Beside) -> None:
    verbs.append(topic, 0)
    following = verbs.read(topic, follow=True)
    assert next(following).data == 0
    waiting = beside(lambda: next(following))
    verbs.append(topic, 1)
    assert waiting.result().data == 1


def test_an_export_is_lines(verbs: Any, topic: str) -> None:
    verbs.create(topic, cap_records=1_500)
    verbs.append_many(topic, [Outgoing({"n": number, "pad": "x" * 50}, tag="t") for number in range(2_000)])
    with verbs.export(topic, 0, 1_990, chunk_bytes=10_000) as export:
        chunks = list(export)
    lines = [json.loads(line) for line in b"".join(chunks).splitlines()]
    assert lines[0]["tombstone"]["gap_to"] == 500
    assert [line["$seq"] for line in lines[1:]] == list(range(501, 1_991))
    assert (export.end.records, export.end.next_from_seq, export.end.head_seq) == (1_490, 1_990, 2_000)
    assert len(chunks) > 1
    assert all(chunk.endswith(b"\n") for chunk in chunks)
    slim = json.loads(b"".join(verbs.export(topic, 1_999, include_data=False, include_tags=False)))
    assert set(slim) == {"$seq", "$ts"}


# --- watching ---


def test_a_watch_brings_what_is_there_and_what_comes(verbs: Any, topic: str, beside: Beside) -> None:
    a, b = f"{topic}.a", f"{topic}.b"
    verbs.append_many(a, [1, 2])
    verbs.append(b, 3)
    with verbs.watch([a, b]) as watch:
        found: dict[str, list[Any]] = {a: [], b: []}
        caught_up: set[str] = set()
        while len(caught_up) < 2:
            event = next(watch)
            found[event.topic] += [record.data for record in event.records]
            if isinstance(event, CaughtUp):
                caught_up.add(event.topic)
        assert found == {a: [1, 2], b: [3]}
        assert watch.positions == {a: 2, b: 1}
        waiting = beside(lambda: next(watch))
        verbs.append(b, Outgoing(4).data, tag="t")
        event = waiting.result()
        assert (event.topic, event.from_seq, event.to_seq, event.head_seq) == (b, 1, 2, 2)
        assert [(record.data, record.tag) for record in event.records] == [(4, "t")]
        cursor = watch.cursor
    verbs.append(a, 5)
    with verbs.watch([a, b], cursor=cursor) as watch:
        assert [record.data for record in next(watch).records] == [5]


def test_a_watch_from_the_end_sees_only_what_is_new(verbs: Any, topic: str) -> None:
    verbs.append_many(topic, range(5))
    with verbs.watch({topic: "tail"}, consistency="strong") as watch:
        assert isinstance(next(watch), CaughtUp)
        verbs.append(topic, "new")
        assert [record.data for record in next(watch).records] == ["new"]


def test_a_watch_ends_with_its_last_topic(verbs: Any, topic: str) -> None:
    verbs.append(topic, 1)
    with verbs.watch([topic, f"{topic}.absent"], lenient=True, limit=1) as watch:
        assert [record.data for record in next(watch).records] == [1]
        assert isinstance(next(watch), CaughtUp)
        verbs.drop(topic)
        gone = next(watch)
        assert isinstance(gone, TopicDeleted)
        assert gone.topic == topic
        assert list(watch) == []


def test_a_watch_tells_what_was_lost(verbs: Any, topic: str) -> None:
    verbs.create(topic, cap_records=2)
    verbs.append_many(topic, range(5))
    with verbs.watch({topic: 1}) as watch:
        gap = next(watch)
        assert (gap.gap_from, gap.gap_to, gap.reason, gap.topic) == (2, 3, "from_seq_too_old", topic)
        assert [record.data for record in next(watch).records] == [3, 4]


def test_a_watch_is_closed_from_elsewhere(verbs: Any, topic: str, beside: Beside) -> None:
    verbs.append(topic, 1)
    watch = verbs.watch(topic, tail=True)
    assert isinstance(next(watch), CaughtUp)
    waiting = beside(lambda: list(watch))
    watch.close()
    assert waiting.result() == []


def test_a_long_backlog_comes_in_frames_and_in_order(verbs: Any, topic: str) -> None:
    for _ in range(5):
        verbs.append_many(topic, range(1_000))
    seqs: list[int] = []
    with verbs.watch(topic, limit=100) as watch:
        for event in watch:
            seqs += [record.seq for record in event.records]
            if isinstance(event, CaughtUp):
                break
    assert seqs == list(range(1, 5_001))
