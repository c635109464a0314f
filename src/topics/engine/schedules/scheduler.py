"""The scheduler: takes what is due from the wheel and appends its records, a fraction of a millisecond at a time.

    deadline ─▶ task in the background ─▶ some of what is due, by topic ─▶ ScheduleRan: records and next times, one op
                      └─ until nothing is due ─▶ deadline of the next one

A schedule in a pending op is busy: it runs again when that op is published. What cannot run (no such topic, a full
one) stays due, shows why, and is tried again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec
from msgspec import Raw

from topics.engine.core.appended import Appended
from topics.engine.core.pending import Busy, PendingChange
from topics.engine.core.waiting.deadlines import Deadline, Deadlines
from topics.engine.core.waiting.runner import Runner, Steps
from topics.engine.log import retention
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.schedules.feature import ScheduleTable
from topics.engine.schedules.ops import ScheduledRun, ScheduleRan
from topics.engine.schedules.schedule import Due, Schedule
from topics.model.errors import Internal, TopicFull, TopicNotFound, TopicsError
from topics.model.requests.batch import render
from topics.model.requests.config import GATED
from topics.model.requests.records import AppendRequest, RecordRequest
from topics.model.schedules.schedule_config import META_BYTES_MAX

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.log.topic import Topic
    from topics.model.clock import Clock

log = logging.getLogger("topics.engine")

# What is handled at once: this many schedules, this much time, this many bytes of records.
SLICE_MAX = 64
SLICE_S = 0.0005
SLICE_BYTES_MAX = 256 * 1024
# The wall clock may be set: it is looked at this often while there is a schedule.
LOOK_AGAIN_MS = 1_000
# When to try again: something pending is in the way, or an error.
BUSY_MS, FAILED_MS = 20, 1_000

Runs = list[tuple[Schedule, Due]]


class Scheduler:
    """Owned by the store. One task at a time; `wanted` as its own owner."""

    wanted = True

    def __init__(self, engine: Engine, runner: Runner, deadlines: Deadlines, clock: Clock) -> None:
        self._engine = engine
        self._runner = runner
        self._deadlines = deadlines
        self._clock = clock
        self._table = engine.state.feature(ScheduleTable)
        self._deadline: Deadline | None = None
        self._deadline_ms = 0.0
        self._running = self._stopped = False

    # --- when ---

    def look_again(self) -> None:
        """The wheel has changed: set the deadline of what is due next."""
        if self._running or self._stopped:
            return
        due_ms = self._table.wheel.next_due
        if due_ms is None:
            return
        now_ms = self._clock.now_ms()
        wait_ms = int(max(0, min(LOOK_AGAIN_MS, due_ms - now_ms)))
        if self._deadline is not None:
            if self._deadline_ms <= now_ms + wait_ms:
                return
            self._deadlines.remove(self._deadline)
        self._deadline_ms = now_ms + wait_ms
        self._deadline = self._deadlines.add(wait_ms, self._begin)

    def stop(self) -> None:
        """The process ends: what is due now is due after the next start."""
        self._stopped = True

    def _begin(self) -> None:
        self._deadline = None
        if not self._running and not self._stopped:
            self._running = True
            self._runner.start(self._steps(), self)

    def _steps(self) -> Steps[None]:
        # The turn of the deadline ends first.
        yield None
        clock_s = self._runner.clock_s
        while not self._stopped:
            now_ms = self._clock.now_ms()
            due = self._table.wheel.take_some(now_ms, SLICE_MAX)
            if not due:
                return
            until_s = clock_s() + SLICE_S
            size = 0
            by_topic: dict[str, Runs] = {}
            for schedule in due:
                if clock_s() >= until_s or size >= SLICE_BYTES_MAX:
                    self._table.retry(schedule, now_ms)
                elif self._is_due(schedule, now_ms) and (found := self._due(schedule, now_ms)) is not None:
                    size += len(found.times) * _record_bytes(schedule)
                    by_topic.setdefault(schedule.config.topic if found.times else "", []).append((schedule, found))
            missed: list[tuple[ColdMiss, Runs]] = []
            for name, runs in by_topic.items():
                miss = self._run(name, runs)
                if miss is not None:
                    missed.append((miss, runs))
            # All of them are decided, or back in the wheel, before anything is waited for.
            for read, runs in missed:
                try:
                    yield read
                except TopicsError as error:
                    self._failed((schedule for schedule, _ in runs), error)
            yield None

    def _is_due(self, schedule: Schedule, now_ms: int) -> bool:
        """It may have been changed or removed since it was taken from the wheel."""
        if not schedule.next_ms or self._table.by_id.get(schedule.id) is not schedule:
            return False
        if schedule.fires_ms > now_ms:
            # A run that was asked for has failed: its own time is still to come.
            self._table.retry(schedule, schedule.fires_ms)
            return False
        if self._engine.in_flight.with_what(("schedule", schedule.name)) is not None:
            self._table.retry(schedule, now_ms + BUSY_MS)
            return False
        return True

    def _due(self, schedule: Schedule, now_ms: int) -> Due | None:
        """As much as fits a slice; None if that cannot be said, for example without its time zone."""
        try:
            return schedule.due_by(now_ms).up_to(SLICE_BYTES_MAX // _record_bytes(schedule))
        except Exception as error:  # noqa: BLE001 - as in `_run`
            self._cannot_run(schedule, "its due times cannot be computed", error)
            return None

    # --- what ---

    def _run(self, name: str, runs: Runs) -> ColdMiss | None:
        """What has to be read from disk before they can run."""
        try:
            self._submit(name, runs)
        except Busy:
            self._again(runs)
        except ColdMiss as miss:
            self._again(runs)
            return miss
        except TopicFull as error:
            if sum(len(due.times) for _, due in runs) > 1:
                return self._run_fewer(name, runs)
            self._failed((schedule for schedule, _ in runs), error)
        except TopicsError as error:
            self._failed((schedule for schedule, _ in runs), error)
        except Exception as error:  # noqa: BLE001 - logged; whatever is wrong with one must not stop the others
            if len(runs) > 1:
                return self._run_fewer(name, runs)
            self._cannot_run(runs[0][0], "its record cannot be appended", error)
        return None

    def _cannot_run(self, schedule: Schedule, why: str, error: Exception) -> None:
        """A bug: in the log once, and tried again like any other failure."""
        if schedule.last_error is None:
            log.error("schedule %s cannot run", schedule.name, exc_info=error)
        self._failed((schedule,), Internal(f"{why}: {error}"))

    def _run_fewer(self, name: str, runs: Runs) -> ColdMiss | None:
        """They cannot run together, for example because the topic has no room for all records; some of them may."""
        if len(runs) == 1:
            schedule, due = runs[0]
            return self._run(name, [(schedule, due.up_to(len(due.times) // 2))])
        misses = [self._run(name, [one]) for one in runs]
        return next((miss for miss in misses if miss is not None), None)

    def run_now(self, schedule: Schedule) -> PendingChange:
        """A record for this moment; the due times stay."""
        return self._submit(
            schedule.config.topic, [(schedule, Due([self._clock.now_ms()], self._clock.now_ms(), schedule.next_ms))]
        )

    def _submit(self, name: str, runs: Runs) -> PendingChange:
        """One op for schedules of one topic; without a name they have nothing to append."""
        engine = self._engine
        engine.commit_log.check_writable()
        appended = durability = None
        if name:
            topic = engine.find_to_write(name)
            if topic is None:
                raise TopicNotFound(name)
            appended, durability = self._appended(topic, runs), topic.config.durability
        op = ScheduleRan(list(_runs_of(runs, appended)), appended)
        if appended is not None and durability == "ephemeral":
            engine.commit_log.note_head(appended)
            body = op.head()
        else:
            body = op.encode()
        change = engine.commit_log.submit(op, body, gated=durability in GATED)
        if appended is not None:
            change.first_seq, change.count = appended.batch.first_seq, appended.batch.count
        schedules = [schedule for schedule, _ in runs]
        change.then(lambda done: self._ran(schedules, done))
        return engine.in_flight.hold(change, *(("schedule", schedule.name) for schedule in schedules))

    def _appended(self, topic: Topic, runs: Runs) -> Appended:
        engine = self._engine
        records = [_record(schedule, time) for schedule, due in runs for time in due.times]
        engine.keep_seqs(topic, len(records))
        now_ms = topic.now(self._clock.now_ms())
        batch = render(AppendRequest(records=records), topic.assigned_seq + 1, now_ms, bare=False)
        if engine.settings.max_total_bytes:
            engine.expire(topic)
            freed = retention.freed_by_caps(topic, batch.count, batch.size)
            engine.refuse_over_quota(batch.size, freed)
        if topic.config.discard == "reject":
            engine.refuse_if_full(topic, batch.count, batch.size)
        return Appended(topic.id, topic.evict_floor, b"", batch)

    def _ran(self, schedules: list[Schedule], change: PendingChange) -> None:
        if change.error is not None:
            self._failed(schedules, change.error)
        self.look_again()

    def _failed(self, schedules: Iterable[Schedule], error: TopicsError) -> None:
        for schedule in schedules:
            schedule.last_error = error
            self._table.retry(schedule, self._clock.now_ms() + FAILED_MS)

    def _again(self, runs: Runs) -> None:
        for schedule, _ in runs:
            self._table.retry(schedule, self._clock.now_ms() + BUSY_MS)

    # --- the owner of the task ---

    def done(self, _result: None) -> None:
        self._running = False
        self.look_again()

    def failed(self, error: Exception) -> None:
        log.error("schedules: a run failed, trying again", exc_info=error)
        self._running = False
        now_ms = self._clock.now_ms()
        for schedule in self._table.by_id.values():
            if schedule.next_ms and schedule.fires_ms <= now_ms:
                # Some of them were taken from the wheel and have not run.
                self._table.retry(schedule, now_ms + FAILED_MS)
        self._deadline = self._deadlines.add(FAILED_MS, self._begin)

    def cancelled(self) -> None:
        self._running = False


def _record_bytes(schedule: Schedule) -> int:
    """At most; it is never 0."""
    return len(schedule.config.data) + META_BYTES_MAX


def _record(schedule: Schedule, due_ms: int) -> RecordRequest:
    config = schedule.config
    meta = msgspec.json.encode({"schedule": schedule.name, "due_ts": due_ms})
    return RecordRequest(data=config.data, tag=config.tag, meta=Raw(meta))


def _runs_of(runs: Runs, appended: Appended | None) -> Iterable[ScheduledRun]:
    seq = ts = 0
    if appended is not None:
        seq, ts = appended.batch.first_seq - 1, appended.batch.ts
    for schedule, due in runs:
        seq += len(due.times)
        yield ScheduledRun(due.last_ms, due.next_ms, seq, ts, schedule.id, len(due.times))
