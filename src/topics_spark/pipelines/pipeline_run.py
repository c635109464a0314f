"""One pipeline on one runner: started, watched, restarted with growing pauses, stopped."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import time
from collections import Counter, deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from topics.model.requests.pipelines import JOBS, LOG_LINES_MAX, LOG_MESSAGE_CHARS_MAX
from topics_spark.errors import NeedsDecision
from topics_spark.pipelines.assignment import DEAD_LETTER, NOT_MET, OBSERVED, Assignment
from topics_spark.pipelines.schedule import Schedule
from topics_spark.source.limits import LIMITED
from topics_spark.source.offsets import Offsets, between, decoded

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
# What Spark wraps into the story of a failed task.
_NOT_MET: Final = re.compile(rf"expectation \S+ {NOT_MET} .*?(?=(?:\.? SQLSTATE)|\n|$)")

# The end of what is said; the plan of the whole query follows.
_SAID: Final = re.compile(r"(SQLSTATE: \w+|; line \d+,? pos \d+);\n.*|;\n[^\n]*\n *\+- .*", re.DOTALL)


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
        # Spark 4.1 ends after one batch, which may be one that is repeated after a crash: a second run has the rest.
        ends = self._once or self._schedule is not None
        self._runs = 1 if LIMITED or not ends or assignment.definition.use in JOBS else 2
        self._ran = 0
        # when to start next, by the clock of `poll`; None: not again
        self._due_s: float | None = self._first_due_s()
        self._pause_s = PAUSE_S_FIRST
        self._started_s = 0.0
        # what is reported
        self.state = "starting"
        self.restarts = 0
        self.rows_total = 0
        self.late_rows = 0
        self.unmet: Counter[str] = Counter()
        self.last_error: str | None = None
        self.last_error_ts = 0
        self.problem: str | None = None
        # the last batch, and Spark's last progress report, which also comes without a batch
        self.progress: dict[str, Any] | None = None
        self._heard: dict[str, Any] = {}
        self._lines: deque[dict[str, Any]] = deque(maxlen=LOG_LINES_MAX)

    def note(self, level: int, message: str) -> None:
        """Say it in the log of the runner, and in the end of it that is reported."""
        log.log(level, "pipeline %s %s", self.assignment.name, message)
        self._keep(level, message)

    def _keep(self, level: int, message: str) -> None:
        line = {"ts": time.time_ns() // 1_000_000, "level": logging.getLevelName(level).lower()}
        self._lines.append({**line, "message": message[:LOG_MESSAGE_CHARS_MAX]})

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
        self.note(logging.INFO, f"starts, revision {self.assignment.revision}")
        try:
            self._query = self._start(self.assignment)
            self.state, self.problem = "running", None
        except Exception as error:  # noqa: BLE001 - a definition can fail in every way that Spark and Python know
            self._failed(error)

    def _fresh_batches(self, query: StreamingQuery | JobQuery) -> list[dict[str, Any]]:
        """Batch numbers alone are not enough: Spark reports a number while it is idle, and again with its batch."""
        seen = moment_of(self._heard)
        heard = [counted_once(json.loads(progress.json)) for progress in query.recentProgress]
        fresh = [progress for progress in heard if moment_of(progress) > seen]
        batches = [progress for progress in fresh if not is_idle(progress)]
        self._heard = fresh[-1] if fresh else self._heard
        self.progress = batches[-1] if batches else self.progress
        self.rows_total += sum(int(batch["numInputRows"]) for batch in batches)
        self.late_rows += sum(map(late_rows_of, batches))
        for batch in batches:
            self._count_unmet(batch)
        for batch in batches:
            took_ms = batch.get("batchDuration", 0)
            self._keep(logging.INFO, f"batch {batch.get('batchId')}: {batch['numInputRows']} rows in {took_ms} ms")
        return batches

    def _count_unmet(self, batch: dict[str, Any]) -> None:
        unmet = unmet_of(batch)
        self.unmet.update(unmet)
        for name, rows in unmet.items():
            told = "payloads do not fit the schema" if name.endswith(f".{DEAD_LETTER}") else "rows do not meet it"
            self._keep(logging.WARNING, f"batch {batch.get('batchId')}: {name}: {rows} {told}")

    def _ended(self, query: StreamingQuery | JobQuery) -> None:
        self._query = None
        error = query.exception()
        if error is not None:
            self._failed(error)
            return
        self._pause_s = PAUSE_S_FIRST
        self._ran = (self._ran + 1) % self._runs
        self._due_s = self._clock() if self._ran else self._next_due_s()
        self.state, self.last_error = "idle", None
        if self._due_s is None and not self._once:
            # A continuous query that ended without an error was stopped by something else.
            self._failed(RuntimeError("the query was stopped from outside"))

    def _failed(self, error: BaseException) -> None:
        self._query = None
        self.last_error, self.last_error_ts = words_of(error), time.time_ns() // 1_000_000
        self.note(logging.ERROR, f"failed: {self.last_error}")
        if self._clock() - self._started_s > CALM_S:
            self._pause_s = PAUSE_S_FIRST
        problem = problem_of(error, self.last_error)
        if problem is not None:
            # A directory that is mounted late may still appear.
            self.state, self.problem, self._pause_s = "failed", problem, PAUSE_S_MAX
        else:
            self.state, self.problem = "restarting", None
            self.restarts += 1
        self._due_s = self._clock() + self._pause_s
        self._keep(logging.INFO, f"starts again in {self._pause_s:g} s")
        self._pause_s = min(PAUSE_S_MAX, 2 * self._pause_s)

    def stop(self) -> list[dict[str, Any]]:
        """Finish or abandon the current batch; what it did not commit is done again by the next run.

        Returns the batches that were finished since the last `poll`.
        """
        query, self._query, self._due_s = self._query, None, None
        self.state = "stopped"
        self.note(logging.INFO, "stops")
        if query is None:
            return []
        try:
            query.stop()
        except Exception as error:  # noqa: BLE001 - what Spark cannot stop any more has ended by itself
            self.note(logging.WARNING, f"could not be stopped: {words_of(error)}")
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
            "late_rows": self.late_rows,
            "unmet": dict(self.unmet),
            "restarts": self.restarts,
            "last_error": self.last_error,
            "last_error_ts": self.last_error_ts,
            "problem": self.problem,
            "progress": brief(progress) if progress else None,
            "log": list(self._lines),
        }


def is_initializing(query: StreamingQuery | JobQuery) -> bool:
    status = cast("dict[str, Any]", getattr(query, "status", {}))
    return str(status.get("message", "")).startswith("Initializing")


def moment_of(progress: dict[str, Any]) -> tuple[str, int]:
    return progress.get("timestamp", ""), int(progress.get("batchId", -1))


def counted_once(progress: dict[str, Any]) -> dict[str, Any]:
    """Spark's report with each record as one row: topics whose records can be rejected have up to three readers."""
    rows: dict[str, int] = {}
    for source in progress.get("sources") or ():
        topics, found = str(source.get("description")), int(source.get("numInputRows", 0))
        if (end := _offset(source.get("endOffset"))) is not None:
            topics = " ".join(sorted(end))
            # Spark makes one source of readers of the same topics, and adds up what they have read.
            found = min(found, sum(each.seqs for each in between(_offset(source.get("startOffset")) or {}, end)))
        rows[topics] = max(rows.get(topics, 0), found)
    once, read = sum(rows.values()), int(progress.get("numInputRows", 0))
    if not 0 < once < read:
        return progress
    rates = ("inputRowsPerSecond", "processedRowsPerSecond")
    scaled = {name: progress[name] * once / read for name in rates if isinstance(progress.get(name), (int, float))}
    return {**progress, "numInputRows": once, **scaled}


def _offset(reported: Any) -> Offsets | None:
    """None if it is not one of topics."""
    with contextlib.suppress(TypeError, KeyError, AttributeError):
        return decoded(json.loads(reported) if isinstance(reported, str) else reported)
    return None


def is_idle(progress: dict[str, Any]) -> bool:
    """Whether Spark only reports that it is alive."""
    return "durationMs" in progress and "addBatch" not in progress["durationMs"]


def late_rows_of(progress: dict[str, Any]) -> int:
    """Rows of a batch that were dropped because they came after the watermark."""
    return sum(int(state.get("numRowsDroppedByWatermark", 0)) for state in progress.get("stateOperators", ()))


def unmet_of(progress: dict[str, Any]) -> dict[str, int]:
    """Rows of a batch that did not meet an expectation, by its name."""
    observed = cast("dict[str, dict[str, Any]]", progress.get("observedMetrics") or {})
    found = [counts for name, counts in observed.items() if name.startswith(OBSERVED)]
    return {name: int(rows) for counts in found for name, rows in counts.items() if rows}


def problem_of(error: BaseException, words: str) -> str | None:
    """What only its operator can change."""
    if isinstance(error, NeedsDecision):
        return error.problem
    return "expectation_failed" if NOT_MET in words else None


def brief(progress: dict[str, Any]) -> dict[str, Any]:
    """The part of Spark's progress report that is stored for every batch."""
    kept = ("batchId", "timestamp", "batchDuration", "numInputRows", "inputRowsPerSecond", "processedRowsPerSecond")
    found = {name: progress[name] for name in kept if name in progress}
    if progress.get("eventTime"):
        found["eventTime"] = progress["eventTime"]
    if progress.get("stateOperators"):
        found["state_rows"] = sum(int(state.get("numRowsTotal", 0)) for state in progress["stateOperators"])
    if late := late_rows_of(progress):
        found["late_rows"] = late
    if unmet := unmet_of(progress):
        found["unmet"] = unmet
    return found


def words_of(error: BaseException) -> str:
    """The first words of an error: Spark adds long plans and stack traces."""
    text = str(error).split("\n\nJVM stacktrace:")[0].split("\n== ")[0].strip()
    text = _SAID.sub(r"\1", text)
    if found := _NOT_MET.search(text):
        text = found[0]
    return (text or type(error).__name__)[:ERROR_CHARS_MAX]
