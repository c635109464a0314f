"""A schedule's state, and which of its due times a run has to handle."""

from __future__ import annotations

from itertools import takewhile
from typing import Final, NamedTuple

import msgspec
from xxhash import xxh3_64_intdigest

from topics.model.errors import TopicsError
from topics.model.schedules.schedule_config import ScheduleConfig

# `missed: all` appends the newest ones, at most this many.
MISSED_MAX: Final = 100
# A due time that is handled later than this was missed.
LATE_MS_MAX: Final = 10_000
# Where it is if it is in no bucket of the wheel.
TAKEN: Final = -(1 << 62)


class Due(NamedTuple):
    """What a run handles: the times to append a record for, the last due time up to now, and the next one (0: none)."""

    times: list[int]
    last_ms: int
    next_ms: int

    def up_to(self, records: int) -> Due:
        """Only the first ones, at least one; the others stay due."""
        count = max(1, records)
        if len(self.times) <= count:
            return self
        return Due(self.times[:count], self.times[count - 1], self.times[count])


class Schedule:
    """Changed only by folds, except for the fields of the scheduler."""

    __slots__ = (
        "anchor_ms",
        "bucket",
        "captured",
        "config",
        "fires_ms",
        "id",
        "last_error",
        "last_ms",
        "last_seq",
        "last_ts",
        "name",
        "next_ms",
        "runs_total",
    )

    def __init__(self, schedule_id: int, name: str, config: ScheduleConfig, anchor_ms: int, next_ms: int) -> None:
        self.id = schedule_id
        self.name = name
        self.config = config
        self.anchor_ms = anchor_ms
        # the next due time, 0 for none, and when it is handled: that time and the jitter
        self.next_ms = next_ms
        self.fires_ms = 0
        # the due time of the last record, when it was appended, and its seq; 0: none yet
        self.last_ms = self.last_ts = self.last_seq = 0
        self.runs_total = 0
        # number of the checkpoint that has captured it
        self.captured = 0
        # the scheduler's: its place in the wheel, what stops it
        self.bucket = TAKEN
        self.last_error: TopicsError | None = None

    def jittered(self, due_ms: int) -> int:
        """When a due time is handled; the same after a restart."""
        jitter_ms = self.config.jitter_ms
        if not jitter_ms:
            return due_ms
        return due_ms + xxh3_64_intdigest(b"%d %b" % (due_ms, self.name.encode())) % (jitter_ms + 1)

    def due_by(self, now_ms: int) -> Due:
        """Its due times up to now, as its `missed` wants them; only called if there is one."""
        config = self.config
        timing = config.timing(self.anchor_ms)
        few = MISSED_MAX if config.missed == "all" else 2
        times: list[int] = []
        at = self.next_ms
        while at and self.jittered(at) <= now_ms and len(times) < few:
            times.append(at)
            at = timing.next_after(at)
        if at and self.jittered(at) <= now_ms:
            # Too many to go through: only the newest ones count.
            newest = timing.newest_up_to(now_ms, at, few)
            times = list(takewhile(lambda time: self.jittered(time) <= now_ms, newest)) or times
            at = timing.next_after(times[-1])
        last = times[-1]
        if config.missed == "once":
            times = [last]
        elif config.missed == "skip":
            times = [last] if now_ms - self.jittered(last) <= LATE_MS_MAX else []
        return Due(times, last, at)


class ScheduleImage(msgspec.Struct, array_like=True):
    """A schedule in a snapshot."""

    id: int
    name: str
    config: bytes
    anchor_ms: int
    next_ms: int
    last_ms: int
    last_ts: int
    last_seq: int
    runs_total: int
