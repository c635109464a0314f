"""One pipeline on one runner: started, watched, restarted with growing pauses, stopped."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from topics_spark.pipelines.assignment import Assignment
from topics_spark.pipelines.schedule import Schedule

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

    from topics_spark.pipelines.jobs import JobQuery

log = logging.getLogger("topics_spark.pipelines")

PAUSE_S_FIRST: Final = 1.0
PAUSE_S_MAX: Final = 60.0
# After this long without a failure the next pause is short again.
CALM_S: Final = 300.0
# How long a start has for itself before the next one: several at once only delay each other.
START_ALONE_S: Final = 20.0
ERROR_CHARS_MAX: Final = 4_000


class Start(Protocol):
    """Starts the query of an assignment; what it raises is the pipeline's failure, not the runner's."""

    def __call__(self, assignment: Assignment) -> StreamingQuery | JobQuery: ...


class PipelineRun:
    """`poll` decides what to do next; nothing here waits."""

    def __init__(self, assignment: Assignment, start: Start, clock: Callable[[], float]) -> None:
        self.assignment = assignment
        self._start = start
        self._clock = clock
        self._query: StreamingQuery | JobQuery | None = None
        trigger = assignment.definition.trigger
        self._once = trigger is not None and bool(trigger.once)
        self._schedule = Schedule(trigger.cron) if trigger is not None and trigger.cron else None
        # when to start next, by the clock of `poll`; None: not again
        self._due_s: float | None = self._first_due_s()
        self._pause_s = PAUSE_S_FIRST
        self._started_s = 0.0
        # what is reported
        self.state = "starting"
        self.restarts = 0
        self.rows_total = 0
        self.last_error: str | None = None
        # the last batch, and Spark's last progress report, which also comes without a batch
        self.progress: dict[str, Any] | None = None
        self._heard: dict[str, Any] = {}

    def _first_due_s(self) -> float | None:
        return self._clock() if self._schedule is None else self._next_due_s()

    def _next_due_s(self) -> float | None:
        """The next time of the schedule; None if there is none."""
        if self._schedule is None:
            return None
        now = datetime.now(UTC)
        found = self._schedule.next_after(now)
        return None if found is None else self._clock() + (found - now).total_seconds()

    @property
    def active(self) -> bool:
        return self._query is not None

    @property
    def begins(self) -> bool:
        """Whether it was just started and Spark has not begun a batch of it yet."""
        if self._query is None or self._clock() - self._started_s > START_ALONE_S:
            return False
        return is_initializing(self._query)

    def poll(self, *, may_begin: bool = True) -> list[dict[str, Any]]:
        """Start what is due, notice what has ended; returns the batches that were finished since the last call."""
        if self._query is None:
            if self._due_s is not None and self._clock() >= self._due_s:
                if may_begin:
                    self._begin()
            elif self.state == "starting":
                self.state = "idle"
            return []
        active = self._query.isActive
        fresh = self._fresh_batches(self._query)
        if not active:
            self._ended(self._query)
        return fresh

    def _begin(self) -> None:
        self.state = "starting"
        self._started_s = self._clock()
        try:
            self._query = self._start(self.assignment)
            self.state = "running"
        except Exception as error:  # noqa: BLE001 - a definition can fail in every way that Spark and Python know
            self._failed(error)

    def _fresh_batches(self, query: StreamingQuery | JobQuery) -> list[dict[str, Any]]:
        """Batch numbers alone are not enough: Spark reports a number while it is idle, and again with its batch."""
        seen = moment_of(self._heard)
        heard = [cast("dict[str, Any]", json.loads(progress.json)) for progress in query.recentProgress]
        fresh = [progress for progress in heard if moment_of(progress) > seen]
        batches = [progress for progress in fresh if not is_idle(progress)]
        self._heard = fresh[-1] if fresh else self._heard
        self.progress = batches[-1] if batches else self.progress
        self.rows_total += sum(int(batch["numInputRows"]) for batch in batches)
        return batches

    def _ended(self, query: StreamingQuery | JobQuery) -> None:
        self._query = None
        error = query.exception()
        if error is not None:
            self._failed(error)
            return
        self._pause_s = PAUSE_S_FIRST
        self._due_s = self._next_due_s()
        self.state, self.last_error = "idle", None
        if self._due_s is None and not self._once:
            # A continuous query that ended without an error was stopped by something else.
            self._failed(RuntimeError("the query was stopped from outside"))

    def _failed(self, error: BaseException) -> None:
        self._query = None
        self.last_error = words_of(error)
        log.error("pipeline %s failed: %s", self.assignment.name, self.last_error)
        if self._clock() - self._started_s > CALM_S:
            self._pause_s = PAUSE_S_FIRST
        self.state = "restarting"
        self.restarts += 1
        self._due_s = self._clock() + self._pause_s
        self._pause_s = min(PAUSE_S_MAX, 2 * self._pause_s)

    def stop(self) -> list[dict[str, Any]]:
        """Finish or abandon the current batch; what it did not commit is done again by the next run.

        Returns the batches that were finished since the last `poll`.
        """
        query, self._query, self._due_s = self._query, None, None
        self.state = "stopped"
        if query is None:
            return []
        try:
            query.stop()
        except Exception as error:  # noqa: BLE001 - what Spark cannot stop any more has ended by itself
            log.warning("stopping pipeline %s failed: %s", self.assignment.name, words_of(error))
        return self._fresh_batches(query)

    def status(self, runner: str) -> dict[str, Any]:
        progress = self.progress or {}
        return {
            "state": self.state,
            "runner": runner,
            "revision": self.assignment.revision,
            "batch": progress.get("batchId"),
            "rows_total": self.rows_total,
            "rows_per_second": float(self._heard.get("processedRowsPerSecond") or 0.0) if self.active else 0.0,
            "lag": lag_of(self._heard),
            "restarts": self.restarts,
            "last_error": self.last_error,
            "progress": brief(progress) if progress else None,
        }


def is_initializing(query: StreamingQuery | JobQuery) -> bool:
    status = cast("dict[str, Any]", getattr(query, "status", {}))
    return str(status.get("message", "")).startswith("Initializing")


def moment_of(progress: dict[str, Any]) -> tuple[str, int]:
    return progress.get("timestamp", ""), int(progress.get("batchId", -1))


def is_idle(progress: dict[str, Any]) -> bool:
    """Whether Spark only reports that it is alive."""
    return "durationMs" in progress and "addBatch" not in progress["durationMs"]


def lag_of(progress: dict[str, Any]) -> int:
    """The lag over all sources that report one: by how much each topic is ahead of the batch."""
    behind = 0
    for source in progress.get("sources", ()):
        latest = source.get("latestOffset")
        ends = json.loads(latest) if isinstance(latest, str) else latest
        if isinstance(ends, dict):
            behind += sum(int(end.get("lag", 0)) for end in cast("dict[str, dict[str, Any]]", ends).values())
    return behind


def brief(progress: dict[str, Any]) -> dict[str, Any]:
    """The part of Spark's progress report that is stored for every batch."""
    kept = ("batchId", "timestamp", "batchDuration", "numInputRows", "inputRowsPerSecond", "processedRowsPerSecond")
    found = {name: progress[name] for name in kept if name in progress}
    if progress.get("eventTime"):
        found["eventTime"] = progress["eventTime"]
    if progress.get("stateOperators"):
        found["state_rows"] = sum(int(state.get("numRowsTotal", 0)) for state in progress["stateOperators"])
    return found


def words_of(error: BaseException) -> str:
    """The first words of an error: Spark adds long plans and stack traces."""
    text = str(error).split("\n\nJVM stacktrace:")[0].split("\n== ")[0].strip()
    return (text or type(error).__name__)[:ERROR_CHARS_MAX]
