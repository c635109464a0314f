"""The verbs of schedules: create, change, look, list, drop, and run one now."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from topics.engine.core.listing import PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX, page_of
from topics.engine.core.pending import PendingChange, settled
from topics.engine.core.waiting.runner import Steps
from topics.engine.schedules.feature import ScheduleTable
from topics.engine.schedules.ops import ScheduleDropped, SchedulePut
from topics.engine.schedules.schedule import Schedule
from topics.model.cursors import AfterName, page_cursor
from topics.model.errors import InvalidRequest, ScheduleNotFound, Throttled, TopicNotFound
from topics.model.names import check_topic_name
from topics.model.schedules.schedule_config import ScheduleConfig, ScheduleRequest, resolve_schedule

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.schedules.scheduler import Scheduler
    from topics.model.clock import Clock

# Schedules that are looked at in one step of a list, whether they are wanted or not.
SCANNED_PER_STEP = 1_000
# A page ends after this much data; at least one schedule is in it.
PAGE_BYTES_MAX = 1024 * 1024
# The data of all schedules together, which is in memory.
DATA_BYTES_MAX = 64 * 1024 * 1024


class ScheduleState(NamedTuple):
    """A schedule as it is shown; times are None if there is none."""

    name: str
    config: ScheduleConfig
    next_ts: int | None
    last_due_ts: int | None
    last_ts: int | None
    last_seq: int | None
    runs_total: int
    last_error: str | None


class SchedulePage(NamedTuple):
    schedules: list[ScheduleState]
    next_cursor: str | None


def describe(schedule: Schedule) -> ScheduleState:
    error = schedule.last_error
    return ScheduleState(
        schedule.name,
        schedule.config,
        schedule.next_ms or None,
        schedule.last_ms or None,
        schedule.last_ts or None,
        schedule.last_seq or None,
        schedule.runs_total,
        None if error is None else f"{error.code}: {error.message}",
    )


class Schedules:
    """A change of a schedule waits for a run of it that is pending, and for an earlier change."""

    def __init__(self, engine: Engine, scheduler: Scheduler, clock: Clock) -> None:
        self._engine = engine
        self._scheduler = scheduler
        self._clock = clock
        self._table = engine.state.feature(ScheduleTable)
        self._in_flight = engine.in_flight
        # of `data` in changes that are not yet published
        self._pending_bytes = 0

    def resolve(self, request: ScheduleRequest) -> ScheduleConfig:
        return resolve_schedule(request, self._engine.settings, self._clock.now_ms())

    def put(self, name: str, request: ScheduleRequest) -> PendingChange:
        """Create the schedule, or change it. `result` is its state."""
        check_topic_name(name, "schedule")
        config = self.resolve(request)
        self._in_flight.check(("schedule", name))
        known = self._table.by_name.get(name)
        if known is not None and known.config == config:
            return settled(known.id, describe(known))
        if self._engine.find(config.topic) is None:
            raise TopicNotFound(config.topic)
        limit = self._engine.settings.max_schedules
        if known is None and limit and len(self._table.by_name) >= limit:
            raise Throttled(f"there are {limit} schedules already", limit="max_schedules", max=limit)
        self._refuse_more_data(len(config.data) - (0 if known is None else len(known.config.data)))
        anchor_ms, next_ms = self._times(known, config)
        self._engine.commit_log.check_writable()
        schedule_id = known.id if known is not None else self._engine.state.new_id()
        op = SchedulePut(schedule_id, anchor_ms, next_ms, name, config)
        change = self._engine.commit_log.submit(op, op.encode(), gated=True)
        change.created = known is None
        self._pending_bytes += len(config.data)
        change.then(lambda done: self._was_put(done, name, config))
        return self._in_flight.hold(change, ("schedule", name))

    def _refuse_more_data(self, added_bytes: int) -> None:
        total = self._table.data_bytes + self._pending_bytes + added_bytes
        if added_bytes > 0 and total > DATA_BYTES_MAX:
            raise Throttled(
                f"the data of all schedules would have {total} bytes; at most {DATA_BYTES_MAX} are allowed: keep large "
                "data in a record, and let the schedule name it",
                limit="schedule_data_bytes",
                max=DATA_BYTES_MAX,
            )

    def _times(self, known: Schedule | None, config: ScheduleConfig) -> tuple[int, int]:
        """From when intervals count, and the next due time: both stay if nothing about the times has changed."""
        now_ms = self._clock.now_ms()
        same = known is not None and known.config.is_due_like(config)
        anchor_ms = known.anchor_ms if known is not None and same else now_ms
        if config.paused:
            return anchor_ms, 0
        keeps = known is not None and same and not known.config.paused
        next_ms = known.next_ms if known is not None and keeps else config.timing(anchor_ms).next_after(now_ms)
        if not next_ms:
            raise InvalidRequest(f"at must be after the server's time, {now_ms}, not {config.at}", field="at")
        return anchor_ms, next_ms

    def _was_put(self, change: PendingChange, name: str, config: ScheduleConfig) -> None:
        self._pending_bytes -= len(config.data)
        schedule = self._table.by_name.get(name)
        if change.error is None and schedule is not None:
            change.result = describe(schedule)
            self._scheduler.look_again()

    def drop(self, name: str) -> PendingChange:
        """Remove the schedule; records that it has appended stay. `result`: whether there was one."""
        check_topic_name(name, "schedule")
        self._in_flight.check(("schedule", name))
        schedule = self._table.by_name.get(name)
        if schedule is None:
            return settled(0, False)
        self._engine.commit_log.check_writable()
        op = ScheduleDropped(schedule.id)
        change = self._engine.commit_log.submit(op, op.encode(), gated=True, urgent=True)
        change.result = True
        return self._in_flight.hold(change, ("schedule", name))

    def run(self, name: str) -> PendingChange:
        """Append its record now, due or not, paused or not; its due times stay. `first_seq` is the record's."""
        schedule = self._existing(name)
        self._in_flight.check(("schedule", name))
        return self._scheduler.run_now(schedule)

    def look(self, name: str) -> ScheduleState:
        return describe(self._existing(name))

    def _existing(self, name: str) -> Schedule:
        schedule = self._table.by_name.get(name)
        if schedule is None:
            check_topic_name(name, "schedule")
            raise ScheduleNotFound(name)
        return schedule

    def list(
        self,
        prefix: str = "",
        cursor: str | None = None,
        page_size: int = PAGE_SIZE_DEFAULT,
        *,
        wanted: Callable[[str, ScheduleConfig], bool],
    ) -> Steps[SchedulePage]:
        """Schedules by name, those that start with `prefix` and are `wanted`; with other work between the steps."""
        table, left = self._table, max(1, min(PAGE_SIZE_MAX, page_size))
        left_bytes = PAGE_BYTES_MAX
        page: list[ScheduleState] = []
        while True:
            found, cursor = page_of(
                table.names,
                prefix,
                cursor,
                left,
                table.by_name.__getitem__,
                lambda schedule: wanted(schedule.name, schedule.config),
                SCANNED_PER_STEP,
            )
            for number, schedule in enumerate(found, 1):
                page.append(describe(schedule))
                left_bytes -= len(schedule.config.data)
                if left_bytes <= 0 and (number < len(found) or cursor is not None):
                    return SchedulePage(page, page_cursor(AfterName(schedule.name)))
            left -= len(found)
            if cursor is None or not left:
                return SchedulePage(page, cursor)
            yield None
