"""Deadlines of calls that wait: many of them, one timer for all."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Protocol

from topics.model.clock import Clock

DEADLINE_GRAIN_MS = 5


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """Whoever runs the engine: an event loop, or a thread that looks at the clock."""

    def time(self) -> float:
        """In seconds, by a clock that never steps."""
        ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer: ...


class Alarm:
    """The one timer that deadlines ask for at a time."""

    __slots__ = ("cancelled", "due_s", "ring")

    def __init__(self, due_s: float, ring: Callable[[], object]) -> None:
        self.due_s = due_s
        self.ring = ring
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class PolledTimers:
    """Timers of a host without an event loop: it calls `poll` when `due_s` has come; `wake` says that this changed."""

    def __init__(self, clock: Clock, wake: Callable[[], None]) -> None:
        self._clock = clock
        self._wake = wake
        self._alarm: Alarm | None = None

    def time(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def call_at(self, when: float, callback: Callable[[], object], /) -> Alarm:
        self._alarm = Alarm(when, callback)
        self._wake()
        return self._alarm

    @property
    def due_s(self) -> float | None:
        alarm = self._alarm
        return None if alarm is None or alarm.cancelled else alarm.due_s

    def poll(self) -> None:
        due_s, alarm = self.due_s, self._alarm
        if alarm is not None and due_s is not None and due_s <= self.time():
            self._alarm = None
            alarm.ring()


class Deadline:
    __slots__ = ("bucket", "expired")

    def __init__(self, bucket: int, expired: Callable[[], None]) -> None:
        self.bucket = bucket
        self.expired = expired


class Deadlines:
    """Many deadlines, one timer: they are kept in buckets a few milliseconds wide."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._buckets: dict[int, dict[Deadline, None]] = {}
        self._order: list[int] = []
        self._timer: Timer | None = None

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, wait_ms: int, expired: Callable[[], None]) -> Deadline:
        due = self._timers.time() * 1000 + wait_ms
        deadline = Deadline(-int(-due // DEADLINE_GRAIN_MS), expired)
        bucket = self._buckets.get(deadline.bucket)
        if bucket is None:
            bucket = self._buckets[deadline.bucket] = {}
            heapq.heappush(self._order, deadline.bucket)
            self._arm()
        bucket[deadline] = None
        return deadline

    def remove(self, deadline: Deadline) -> None:
        bucket = self._buckets.get(deadline.bucket)
        if bucket is not None:
            bucket.pop(deadline, None)

    def expire_all(self) -> None:
        """Time is up for everyone: the server is going down."""
        order, self._order = sorted(self._order), []
        for number in order:
            self._expire(number)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._order:
            self._timer = self._timers.call_at(self._order[0] * DEADLINE_GRAIN_MS / 1000, self._turn)

    def _turn(self) -> None:
        now = self._timers.time() * 1000 / DEADLINE_GRAIN_MS
        # A timer may fire a hair early; a deadline must not.
        while self._order and self._order[0] <= now + 0.2:
            self._expire(heapq.heappop(self._order))
        self._arm()

    def _expire(self, number: int) -> None:
        for deadline in self._buckets.pop(number, {}):
            deadline.expired()
