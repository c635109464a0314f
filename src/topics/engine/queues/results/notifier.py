"""Writes the records of job groups that are complete, and drops what was kept for its time; in the background.

fold: a group is complete ─▶ `KeptResults.due` ─▶ GroupNotified: the record and the mark, one op
                                   ▲                 └─ refused: shown as the group's error, tried again
start: complete, and not notified ─┘
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from topics.engine.core.appended import Appended
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.deadlines import Deadline, Deadlines
from topics.engine.core.waiting.runner import Runner, Steps, attempt
from topics.engine.queues.part import results_of
from topics.engine.queues.results.ended import EndState
from topics.engine.queues.results.ops import GroupNotified
from topics.model.errors import TopicNotFound, TopicsError
from topics.model.requests.batch import render
from topics.model.requests.config import GATED
from topics.model.requests.records import AppendRequest, RecordRequest

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.log.topic import Topic
    from topics.engine.queues.results.job_groups import JobGroup
    from topics.engine.queues.results.kept import KeptResults, QueueResults
    from topics.model.clock import Clock

log = logging.getLogger("topics.engine")

# Records that are written, and kept jobs that are dropped, before other work has a turn.
SLICE_MAX, DROPPED_MAX = 16, 500
# When to try again after an error.
FAILED_MS = 1_000
# How often what is kept is looked through for what has been kept long enough.
SWEEP_MS = 30_000


class Notifier:
    """Owned by the store. One task at a time; `wanted` as its own owner."""

    wanted = True

    def __init__(self, engine: Engine, kept: KeptResults, runner: Runner, deadlines: Deadlines, clock: Clock) -> None:
        self._engine = engine
        self._kept = kept
        self._runner = runner
        self._deadlines = deadlines
        self._clock = clock
        self._sweep: Deadline | None = None
        self._running = self._sweeping = self._stopped = False
        # Queues with groups that could not be notified, and when they are looked at again.
        self._stuck: dict[int, Topic] = {}
        self._retry: Deadline | None = None

    def look(self) -> None:
        """Called in every turn: is there anything to do?"""
        if self._kept.due:
            self._begin()
        if self._sweep is None and self._kept.for_a_time and not self._stopped:
            self._sweep = self._deadlines.add(SWEEP_MS, self._begin_sweep)

    def stop(self) -> None:
        """The process ends: what is due now is due after the next start."""
        self._stopped = True

    def _begin_sweep(self) -> None:
        self._sweeping = True
        self._begin()

    def _begin(self) -> None:
        if not self._running and not self._stopped:
            self._running = True
            self._runner.start(self._steps(), self)

    def _again(self) -> None:
        self._retry = None
        self._kept.due.update(self._stuck)
        self._stuck.clear()
        self._begin()

    def _steps(self) -> Steps[None]:
        # The turn that found this ends first.
        yield None
        for number, (topic, results, group) in enumerate(self._due(), 1):
            try:
                yield from attempt(partial(self._submit, topic, results, group))
            except TopicsError as error:
                self._refused(topic, results, group, error)
            if number % SLICE_MAX == 0:
                yield None
        if self._sweeping:
            yield from self._drop()
            self._sweeping, self._sweep = False, None

    def _due(self) -> Iterator[tuple[Topic, QueueResults, JobGroup]]:
        while self._kept.due:
            _, topic = self._kept.due.popitem()
            results = results_of(topic)
            if results is not None:
                for group in list(results.groups.due.values()):
                    yield topic, results, group

    def _submit(self, topic: Topic, results: QueueResults, group: JobGroup) -> None:
        """Unless that is pending, or done meanwhile, or the queue is gone. May raise Busy and ColdMiss."""
        engine, key = self._engine, ("job group", topic.id, group.name)
        exists = engine.state.by_id.get(topic.id) is topic
        if not exists or not group.is_due or engine.in_flight.with_what(key) is not None:
            return
        engine.commit_log.check_writable()
        if engine.find_to_write(group.notify) is None and not topic.config.auto_create:
            raise TopicNotFound(group.notify)
        record = RecordRequest(Raw(_record(topic.name, group)))
        room = engine.room_for(group.notify, 1, len(record.data), topic.config.durability)
        now_ms = self._clock.now_ms()
        batch = render(
            AppendRequest([record]), room.first_seq, now_ms if room.topic is None else room.topic.now(now_ms), bare=True
        )
        appended = Appended(room.topic_id, room.floor, b"", batch)
        op = GroupNotified(topic.id, topic.now(now_ms), batch.first_seq, group.name, appended)
        leaves, arrives = topic.config.durability != "ephemeral", room.config.durability != "ephemeral"
        if not arrives:
            engine.commit_log.note_head(appended)
        # Of an ephemeral queue only the record can be in the log, of a record in an ephemeral topic only the mark.
        body = (op.head() if leaves else b"") + (appended.encode() if arrives else b"")
        gated = not GATED.isdisjoint((topic.config.durability, room.config.durability))
        change = engine.commit_log.submit(op, body, gated=gated, urgent=True, journaled=bool(body))
        change.then(lambda done: self._done(topic, results, group, done))
        engine.in_flight.hold(engine.hold_room(change, group.notify, room), key)

    def _done(self, topic: Topic, results: QueueResults, group: JobGroup, change: PendingChange) -> None:
        if change.error is None:
            results.refusals.pop(group.name, None)
        else:
            self._refused(topic, results, group, change.error)

    def _refused(self, topic: Topic, results: QueueResults, group: JobGroup, error: TopicsError) -> None:
        results.refusals[group.name] = error.message
        self._stuck[topic.id] = topic
        if self._retry is None:
            self._retry = self._deadlines.add(FAILED_MS, self._again)

    def _drop(self) -> Steps[None]:
        for topic in list(self._kept.for_a_time.values()):
            results = results_of(topic)
            now_ms = topic.now(self._clock.now_ms())
            ended_until = now_ms - (topic.config.keep_results_ms or 0)
            while results is not None and results.forget(ended_until, now_ms, DROPPED_MAX):
                yield None

    # --- the owner of the task ---

    def done(self, _result: None) -> None:
        self._running = False

    def failed(self, error: Exception) -> None:
        log.error("job groups: a run failed, trying again", exc_info=error)
        self._running = self._sweeping = False
        self._sweep = None
        # The run had taken queues out of the list, and is not sure to have done them.
        for topic in self._engine.state.by_id.values():
            results = results_of(topic)
            if results is not None and results.groups.due:
                self._stuck[topic.id] = topic
        if self._retry is None:
            self._retry = self._deadlines.add(FAILED_MS, self._again)

    def cancelled(self) -> None:
        self._running = False


def _record(queue: str, group: JobGroup) -> bytes:
    """The payload of the record: how many jobs of the group ended, and how."""
    ended = {state.name.lower(): group.ended[state] for state in EndState}
    counts = {name: ended[name] for name in ("done", "dead", "cancelled", "removed")}
    return msgspec.json.encode({"queue": queue, "group": group.name, "size": group.size, **counts})
