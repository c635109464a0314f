"""The past hour of queues: a point every 10 s for each, of what is counted anyway.

Queues take the places as they are found. When all are taken, a queue that somebody asks about gets the place of the one
that was asked about longest ago.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from topics.engine.queues.feature import QueuesFeature
from topics.engine.queues.operator.job_pages import oldest_ready_ts
from topics.engine.queues.part import queue_of

if TYPE_CHECKING:
    from topics.engine.log.topic import Topic
    from topics.engine.opening.store import Store

STEP_MS = 10_000
POINTS_MAX = 360
QUEUES_MAX = 200

SERIES: Final[Mapping[str, str]] = {
    "appended_per_s": "Jobs appended a second.",
    "done_per_s": "Jobs acked or deleted a second.",
    "failed_per_s": "Deliveries that failed a second: nacks, and leases that expired.",
    "dead_per_s": "Jobs moved to the dead letters a second.",
    "ready": "Jobs that wait to be claimed.",
    "in_flight": "Jobs that workers hold.",
    "waiting_ms": "How long the job that is next has waited, in ms.",
}


class QueueTotals(NamedTuple):
    """What only grows, at one moment."""

    appended: int
    done: int
    failed: int
    dead: int


class QueuePast:
    """The points of one queue as columns, oldest first."""

    __slots__ = ("_before", "columns", "ts")

    def __init__(self) -> None:
        self.ts = array("Q")
        self.columns = [array("d") for _ in SERIES]
        self._before: QueueTotals | None = None

    def add(self, topic: Topic, now_ms: int, steady_ms: int, span_s: float) -> None:
        queue = queue_of(topic)
        assert queue is not None
        queue.advance(steady_ms)
        dead = queue.dead_lettered
        now = QueueTotals(topic.head_seq, topic.head_seq - topic.count - dead, queue.failed, dead)
        before, self._before = self._before, now
        if before is None:
            return
        oldest_ts = oldest_ready_ts(topic)
        waiting_ms = max(0, now_ms - oldest_ts) if oldest_ts is not None else 0
        rates = [max(0, after - was) / span_s for was, after in zip(before, now, strict=True)]
        self.ts.append(now_ms)
        for column, value in zip(self.columns, (*rates, queue.ready, queue.in_flight, waiting_ms), strict=True):
            column.append(value)
        if len(self.ts) > POINTS_MAX:
            del self.ts[0]
            for column in self.columns:
                del column[0]

    def after(self, since: int) -> tuple[list[int], dict[str, list[float]]]:
        first = next((index for index, ts in enumerate(self.ts) if ts > since), len(self.ts))
        columns = zip(SERIES, self.columns, strict=True)
        return list(self.ts[first:]), {name: [round(value, 2) for value in column[first:]] for name, column in columns}


class QueueHistory:
    """Owned by the thread that owns the engine."""

    def __init__(self, store: Store, now_ms: Callable[[], int]) -> None:
        self._store = store
        self._now_ms = now_ms
        self._since_s = 0.0
        # by the id of the topic; the one that was asked about last is the last
        self._kept: dict[int, QueuePast] = {}

    def note(self, now_s: float) -> None:
        """Called often; now and then that makes a point of each queue."""
        span_s = now_s - self._since_s
        if span_s < STEP_MS / 1000:
            return
        self._since_s = now_s
        by_id, now_ms, steady_ms = self._store.state.by_id, self._now_ms(), self._store.engine.steady.now_ms()
        for topic_id, past in list(self._kept.items()):
            topic = by_id.get(topic_id)
            if topic is None:
                del self._kept[topic_id]
            else:
                past.add(topic, now_ms, steady_ms, span_s)
        if len(self._kept) < QUEUES_MAX:
            for topic in self._without_a_place():
                past = self._kept[topic.id] = QueuePast()
                past.add(topic, now_ms, steady_ms, span_s)

    def _without_a_place(self) -> Iterator[Topic]:
        queues = self._store.state.feature(QueuesFeature).queues
        if len(queues) == len(self._kept):
            return iter(())
        missing = [topic for topic_id, topic in islice(queues.items(), 2 * QUEUES_MAX) if topic_id not in self._kept]
        return iter(missing[: QUEUES_MAX - len(self._kept)])

    def of(self, topic: Topic) -> QueuePast:
        """The past of this queue; empty if it had no place until now."""
        past = self._kept.pop(topic.id, None) or QueuePast()
        if len(self._kept) >= QUEUES_MAX:
            del self._kept[next(iter(self._kept))]
        self._kept[topic.id] = past
        return past

    def latest(self) -> tuple[float, float, float]:
        """Over all queues that have a place: jobs that are ready, jobs in flight, the longest wait."""
        shown = [past.columns for past in self._kept.values() if past.ts]
        ready, in_flight, waiting = (list(SERIES).index(name) for name in ("ready", "in_flight", "waiting_ms"))
        return (
            sum(columns[ready][-1] for columns in shown),
            sum(columns[in_flight][-1] for columns in shown),
            max((columns[waiting][-1] for columns in shown), default=0),
        )
