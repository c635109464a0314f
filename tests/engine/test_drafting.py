"""A large append is prepared in slices: no step works on more than some of its records, and the decision on none."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, TypeVar, cast

import msgspec
import pytest

from tests.engine.conftest import OpenRig
from tests.engine.rig import Outcome, Rig
from topics.api.admission import Pressure
from topics.client import Outgoing
from topics.engine.core.engine import Engine as CoreEngine
from topics.engine.core.multi_append import MultiAppend
from topics.engine.log import block, body
from topics.engine.queues.part import queue_of
from topics.model.requests import batch, multi_append
from topics.model.requests.batch import DRAFTED_PER_STEP, Draft
from topics.model.requests.multi_append import CHECKED_PER_STEP, MultiAppendRequest
from topics.model.requests.records import AppendRequest, RecordRequest, append_decoder, decode_body
from topics.model.variant import VARIANT
from topics.testing import Engine
from topics.testing.fixtures import topics_engine

__all__ = ["topics_engine"]

T = TypeVar("T")
RECORDS = 4 * DRAFTED_PER_STEP


class Work:
    """Counts the records that are drafted, hashed and sorted, step by step."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records = 0
        self.tags = 0
        self.steps: list[int] = []
        add, digest, sort = Draft.add, batch.unique_column, body.tag_order_of

        def adding(draft: Draft, records: Sequence[RecordRequest], node: str | None) -> None:
            self.records += len(records)
            add(draft, records, node)

        def digesting(keys: Any) -> bytes:
            column = digest(keys)
            self.records += len(column) // 16
            return column

        def sorting(tags: Any) -> Any:
            self.tags += len(tags)
            return sort(tags)

        monkeypatch.setattr(Draft, "add", adding)
        monkeypatch.setattr(batch, "unique_column", digesting)
        monkeypatch.setattr("topics.engine.queues.unique_keys.unique_column", digesting)
        monkeypatch.setattr(body, "tag_order_of", sorting)
        monkeypatch.setattr(block, "tag_order_of", sorting)

    def run(self, steps: Generator[Any, None, T]) -> T:
        while True:
            before = self.records
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            finally:
                self.steps.append(self.records - before)


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    return Work(monkeypatch)


def records(**more: Any) -> list[dict[str, Any]]:
    def record(n: int) -> dict[str, Any]:
        return {"data": {"n": n, "text": "x" * 200}, "node": f"node-{n}", "meta": {"n": n}, "tag": f"tag-{n % 7}"}

    return [{**record(n), "unique_key": f"key-{n}", "delay_ms": 1_000 + n, **more} for n in range(RECORDS)]


def request(given: list[dict[str, Any]]) -> AppendRequest:
    return decode_body(append_decoder, msgspec.json.encode({"records": given}))


def everything(rig: Rig, name: str = "q") -> tuple[Any, ...]:
    topic = rig.store.state.by_name[name]
    queue = queue_of(topic)
    assert queue is not None
    blocks = [(it.tag_filter, it.body.tag_order, it.body.node_names, it.body.nodes) for it in topic.blocks if it.body]
    return rig.records(name, include_tags=True), queue.delayed, sorted(queue.unique.values()), blocks


def test_no_step_drafts_more_than_some_records_and_the_decision_none(rig: Rig, work: Work) -> None:
    rig.configure("q", type="queue")
    wanted = request(records())
    draft = work.run(rig.engine.drafting(wanted))
    # Each of them is drafted, and its key hashed.
    assert sum(work.steps) == 2 * RECORDS
    assert max(work.steps) == 2 * DRAFTED_PER_STEP
    done, sorted_tags = work.records, work.tags
    rig.finish(rig.engine.append("q", wanted, draft=draft))
    assert (work.records, work.tags) == (done, sorted_tags), "what is decided and published was prepared"
    assert queue_of(rig.store.state.by_name["q"]).delayed == RECORDS  # pyright: ignore[reportOptionalMemberAccess]


def test_a_drafted_append_is_the_one_that_is_decided_at_once(open_rig: OpenRig, work: Work) -> None:
    changes: list[dict[str, Any]] = [{}, {"tag": None}, {"meta": None, "node": None}, {"unique_key": None}]
    for change in changes:
        given = records(**change)
        rig = open_rig()
        for name in ("at_once", "drafted"):
            rig.configure(name, type="queue")
        wanted = request(given)
        rig.finish(rig.engine.append("at_once", wanted))
        rig.finish(rig.engine.append("drafted", wanted, draft=work.run(rig.engine.drafting(wanted))))
        assert everything(rig, "drafted") == everything(rig, "at_once")
        rig.crash()
        assert everything(rig, "drafted") == everything(rig, "at_once")


def test_jobs_that_are_pending_are_left_out_of_a_drafted_append(rig: Rig, work: Work) -> None:
    rig.configure("q", type="queue")
    rig.append("q", {"data": "first", "unique_key": "key-7"})
    wanted = request(records())
    done = rig.finish(rig.engine.append("q", wanted, draft=work.run(rig.engine.drafting(wanted))))
    assert done.result is not None
    assert (done.result[6], done.result[7], done.result[8], len(done.result)) == (8, 1, 9, RECORDS)
    assert [record["data"]["n"] for record in rig.records("q", 1)][6:8] == [6, 8]


def test_several_topics_are_drafted_together(rig: Rig, work: Work) -> None:
    rig.configure("q", type="queue")
    small = [{"data": n, "tag": "t"} for n in range(10)]
    topics = {"q": {"records": records()}, **{f"t{n}": {"records": small} for n in range(100)}}
    wanted = msgspec.json.decode(msgspec.json.encode({"topics": topics}), type=MultiAppendRequest)
    verb = rig.store.multi_append
    drafted = work.run(verb.drafting(wanted))
    assert sum(work.steps) == 2 * (RECORDS + 1_000)
    assert max(work.steps) <= 2 * (DRAFTED_PER_STEP + 10)
    done, sorted_tags = work.records, work.tags
    rig.finish(verb.append(wanted, drafted=drafted))
    assert (work.records, work.tags) == (done, sorted_tags)
    assert len(rig.records("q")) == RECORDS
    assert [record["data"] for record in rig.records("t99")] == list(range(10))


def test_no_step_checks_more_than_some_records_of_several_topics(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the decision looks at no record again: what a log may have is known from the draft."""
    checked = looked = 0
    check, columns = multi_append.check_batch, batch._job_columns

    def checking(given: AppendRequest, *more: Any, **options: Any) -> bool:
        nonlocal checked
        checked += len(given.records)
        return check(given, *more, **options)

    def looking(*given: Any) -> Any:
        nonlocal looked
        looked += 1
        return columns(*given)

    monkeypatch.setattr(multi_append, "check_batch", checking)
    monkeypatch.setattr(batch, "_job_columns", looking)
    topics = {f"t{n}": {"records": [{"data": n, "tag": "t"} for n in range(100)]} for n in range(100)}
    wanted = msgspec.json.decode(msgspec.json.encode({"topics": topics}), type=MultiAppendRequest)
    steps, drafted, longest = rig.store.multi_append.drafting(wanted), None, 0
    while drafted is None:
        before = checked
        try:
            next(steps)
        except StopIteration as end:
            drafted = end.value
        longest = max(longest, checked - before)
    assert (checked, longest) == (10_000, CHECKED_PER_STEP)
    before = looked
    rig.finish(rig.store.multi_append.append(wanted, drafted=drafted))
    assert (checked, looked) == (10_000, before)
    assert len(rig.records("t99")) == 100


@pytest.mark.skipif(VARIANT == "compiled", reason="a compiled class takes no stand-in for another")
def test_a_large_append_is_answered_in_another_turn_than_it_is_published(rig: Rig) -> None:
    rig.configure("t")
    wanted = request(records(unique_key=None, delay_ms=0))
    answered: list[Any] = []
    pressure = Pressure(lambda: 0, lambda: 0.0)
    outcome: Outcome[None] = Outcome()
    steps = pressure.submit_drafted(
        cast("Any", None),
        lambda: rig.engine.append("t", wanted),
        lambda _call, change: answered.append(change.count),
        opted_out=False,
    )
    rig.store.runner.start(steps, outcome)
    rig.store.commit_log.flush()
    assert (rig.look("t").head_seq, answered) == (RECORDS, [])
    rig.store.flush()
    assert answered == [RECORDS]


def test_the_server_drafts_large_appends_before_it_decides(
    topics_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over HTTP, to one topic and to several; small ones are decided at once."""
    decided: list[tuple[int, bool]] = []
    append, append_all = CoreEngine.append, MultiAppend.append

    def noted(self: CoreEngine, name: str, given: AppendRequest, *more: Any, draft: Draft | None = None) -> Any:
        decided.append((len(given.records), draft is not None))
        return append(self, name, given, *more, draft=draft)

    def all_noted(self: MultiAppend, given: MultiAppendRequest, *more: Any, drafted: Any = None) -> Any:
        decided.append((sum(len(part.records) for part in given.topics.values()), drafted is not None))
        return append_all(self, given, *more, drafted=drafted)

    monkeypatch.setattr(CoreEngine, "append", noted)
    monkeypatch.setattr(MultiAppend, "append", all_noted)
    client = topics_engine.client()
    for count in (1, DRAFTED_PER_STEP, DRAFTED_PER_STEP + 1):
        client.append_many("t", [Outgoing(n, tag="t") for n in range(count)])
        client.append_all({"t": [Outgoing(n, tag="t") for n in range(count)]})
    few, many = DRAFTED_PER_STEP, DRAFTED_PER_STEP + 1
    assert decided == [(1, False)] * 2 + [(few, False)] * 2 + [(many, True)] * 2
    assert client.state("t").count == 2 * (1 + few + many)
