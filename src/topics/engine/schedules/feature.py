"""All schedules by name, folded from their ops, and the wheel that has each of them by the time it is due."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

import msgspec

from topics.engine.core.feature import Feature
from topics.engine.schedules.ops import ScheduleDropped, ScheduledRun, SchedulePut, ScheduleRan
from topics.engine.schedules.schedule import TAKEN, Schedule, ScheduleImage
from topics.model.schedules.schedule_config import decode_schedule_config, encode_schedule_config
from topics.model.timer_wheel import TimerWheel

if TYPE_CHECKING:
    from topics.engine.core.state import State

# The first byte of a schedule in a snapshot; no topic starts with it.
SCHEDULE_CHUNK = b"\xc6"
WHEEL_GRAIN_MS = 10

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ScheduleImage)


class ScheduleTable(Feature):
    """The scheduler takes what is due from `wheel`; a fold puts it back with its next time."""

    chunk: ClassVar[bytes | None] = SCHEDULE_CHUNK

    def __init__(self, state: State) -> None:
        self._state = state
        self.by_name: dict[str, Schedule] = {}
        self.by_id: dict[int, Schedule] = {}
        self.names: list[str] = []
        # of `data`, which is in memory
        self.data_bytes = 0
        self.wheel = TimerWheel[Schedule](WHEEL_GRAIN_MS)

    # --- folds ---

    def put(self, op: SchedulePut) -> None:
        schedule = self.by_id.get(op.topic_id)
        if schedule is None:
            schedule = self._add(Schedule(op.topic_id, op.name, op.config, op.anchor_ms, op.next_ms))
            if self._state.behind_mark:
                schedule.captured = self._state.checkpoint
        else:
            self._touch(schedule)
            self.data_bytes += len(op.config.data) - len(schedule.config.data)
            schedule.config, schedule.anchor_ms, schedule.next_ms = op.config, op.anchor_ms, op.next_ms
        schedule.last_error = None
        self._place(schedule)

    def drop(self, op: ScheduleDropped) -> None:
        schedule = self.by_id.get(op.topic_id)
        if schedule is None:
            return
        self._touch(schedule)
        self.wheel.remove(schedule, schedule.bucket)
        schedule.next_ms = 0
        self.data_bytes -= len(schedule.config.data)
        del self.by_id[schedule.id], self.by_name[schedule.name]
        del self.names[bisect_left(self.names, schedule.name)]

    def ran(self, op: ScheduleRan) -> None:
        for run in op.runs:
            schedule = self.by_id.get(run.schedule_id)
            if schedule is not None:
                self._touch(schedule)
                self._advance(schedule, run)
        # In a repaired log the topic may be missing.
        if op.appended is not None and op.appended.topic_id in self._state.by_id:
            self._state.append(op.appended)

    def _advance(self, schedule: Schedule, run: ScheduledRun) -> None:
        schedule.next_ms = run.next_ms
        if run.records:
            schedule.last_ms, schedule.last_ts, schedule.last_seq = run.due_ms, run.ts, run.last_seq
            schedule.runs_total += run.records
        schedule.last_error = None
        self._place(schedule)

    # --- the wheel ---

    def _place(self, schedule: Schedule) -> None:
        """Where its next due time is; what has none, or is paused, is in no bucket."""
        self.wheel.remove(schedule, schedule.bucket)
        schedule.bucket = TAKEN
        schedule.fires_ms = schedule.jittered(schedule.next_ms) if schedule.next_ms else 0
        if schedule.next_ms:
            schedule.bucket = self.wheel.add(schedule, schedule.fires_ms)

    def retry(self, schedule: Schedule, at_ms: int) -> None:
        """It is due and could not run: the scheduler looks at it again at this time."""
        if self.by_id.get(schedule.id) is schedule and schedule.next_ms:
            self.wheel.remove(schedule, schedule.bucket)
            schedule.bucket = self.wheel.add(schedule, at_ms)

    # --- snapshots ---

    def _add(self, schedule: Schedule) -> Schedule:
        self.by_id[schedule.id] = self.by_name[schedule.name] = schedule
        insort(self.names, schedule.name)
        self.data_bytes += len(schedule.config.data)
        self._state.next_id = max(self._state.next_id, schedule.id + 1)
        return schedule

    def _touch(self, schedule: Schedule) -> None:
        if self._state.behind_mark and schedule.captured != self._state.checkpoint:
            self._state.keep_chunk(self._captured(schedule))

    def capture(self) -> Iterator[bytes]:
        for schedule in list(self.by_id.values()):
            if schedule.captured != self._state.checkpoint and self.by_id.get(schedule.id) is schedule:
                yield self._captured(schedule)

    def _captured(self, schedule: Schedule) -> bytes:
        schedule.captured = self._state.checkpoint
        image = ScheduleImage(
            schedule.id,
            schedule.name,
            encode_schedule_config(schedule.config),
            schedule.anchor_ms,
            schedule.next_ms,
            schedule.last_ms,
            schedule.last_ts,
            schedule.last_seq,
            schedule.runs_total,
        )
        return SCHEDULE_CHUNK + _encoder.encode(image)

    def restore(self, chunk: bytes) -> None:
        image = _decoder.decode(chunk[len(SCHEDULE_CHUNK) :])
        config = decode_schedule_config(image.config)
        schedule = self._add(Schedule(image.id, image.name, config, image.anchor_ms, image.next_ms))
        schedule.last_ms, schedule.last_ts, schedule.last_seq = image.last_ms, image.last_ts, image.last_seq
        schedule.runs_total = image.runs_total
        self._place(schedule)
