"""Deadlines of calls that wait: many of them, one timer for all."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import Protocol

from topics.model.clock import Clock
from topics.model.timer_wheel import TimerWheel

DEADLINE_GRAIN_MS = 5
# What is left of whole milliseconds after computing with seconds.
ROUNDING_MS = 1e-3
# Deadlines that end in one turn of the timer; the others follow in the next one, which comes at once.
EXPIRED_AT_ONCE = 1_000
# The bucket of a deadline that is in none.
REMOVED = -1


class Timer(Protocol):
    def cancel(self) -> None: ...


class Timers(Protocol):
    """The host of the engine: an event loop, or a thread that checks the clock."""

    def time(self) -> float:
        """In seconds, by a clock that never steps."""
        ...

    def call_at(self, when: float, callback: Callable[[], object], /) -> Timer: ...


class Alarm:
    """The one timer that deadlines need at a time."""

    __slots__ = ("cancelled", "due_s", "ring")

    def __init__(self, due_s: float, ring: Callable[[], object]) -> None:
        self.due_s = due_s
        self.ring = ring
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class PolledTimers:
    """Timers of a host without an event loop: it calls `poll` at `due_s`; `wake` reports that this changed."""

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

    def __init__(self, expired: Callable[[], None]) -> None:
        self.expired = expired
        self.bucket = REMOVED


class Deadlines:
    """Many deadlines, one timer: they are kept in buckets a few milliseconds wide."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._wheel = TimerWheel[Deadline](DEADLINE_GRAIN_MS)
        self._timer: Timer | None = None
        self._timer_ms = inf

    def __len__(self) -> int:
        return len(self._wheel)

    def add(self, wait_ms: int, expired: Callable[[], None]) -> Deadline:
        deadline = Deadline(expired)
        bucket = deadline.bucket = self._wheel.add(deadline, self._timers.time() * 1000 + wait_ms)
        if bucket * DEADLINE_GRAIN_MS < self._timer_ms:
            self._arm()
        return deadline

    def remove(self, deadline: Deadline) -> None:
        self._wheel.remove(deadline, deadline.bucket)
        deadline.bucket = REMOVED

    def expire_all(self) -> None:
        """Every deadline expires now: the server is going down."""
        self._expire(self._wheel.take_due(inf))

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due_ms = self._wheel.next_due
        self._timer_ms = inf if due_ms is None else due_ms
        if due_ms is not None:
            self._timer = self._timers.call_at(due_ms / 1000, self._turn)

    def _turn(self) -> None:
        try:
            # A timer may run slightly early; a deadline must not end early, and is armed again.
            until_ms = self._timers.time() * 1000 + ROUNDING_MS
            self._expire(self._wheel.take_some(until_ms, EXPIRED_AT_ONCE))
        finally:
            self._arm()

    def _expire(self, due: list[Deadline]) -> None:
        for deadline in due:
            # One that expired before it may have removed this one.
            if deadline.bucket != REMOVED:
                deadline.expired()
