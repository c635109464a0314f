"""Time, passed in: wall milliseconds for records, a monotonic clock for durations, a steady one for deadlines.

wall clock ──────▶ $ts, TTL, what clients are shown    may be put wrong, and right again, by any amount
monotonic clock ─▶ SteadyClock ─▶ leases, delays       starts at the wall clock's time and never jumps; the log notes
                                                       both, so that it goes on after a restart
"""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

# Below this the wall clock and the steady clock count as agreeing.
SKEW_MS_MIN = 1_000
# On Linux the time that a machine was suspended counts, too.
_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds that never step, for measuring how long something took."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.clock_gettime_ns(_MONOTONIC) / 1_000_000


class ManualClock:
    """A clock that moves only when told to."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = float(now_ms)

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let time pass. A negative value only puts the wall clock back."""
        self._now_ms += ms
        self._monotonic_ms += max(0, ms)

    def step(self, ms: int) -> None:
        """Put the wall clock wrong, or right again: no time passes."""
        self._now_ms += ms


class Moment(NamedTuple):
    """One moment on both clocks."""

    steady_ms: int
    wall_ms: int


class SteadyClock:
    """The time that deadlines are set by: the wall clock's at the start, and monotonic from there on.

    After a restart it goes on from the last moment that was noted, by as much as the wall clock says has passed since.
    """

    def __init__(self, clock: Clock, noted: Moment | None = None) -> None:
        self._clock = clock
        start_ms = clock.now_ms()
        if noted is not None:
            start_ms = noted.steady_ms + max(0, start_ms - noted.wall_ms)
        # Half a millisecond, so that cutting off the fraction rounds.
        self._offset_ms = start_ms - clock.monotonic_ms() + 0.5

    def now_ms(self) -> int:
        return int(self._clock.monotonic_ms() + self._offset_ms)

    def moment(self) -> Moment:
        return Moment(self.now_ms(), self._clock.now_ms())

    def wall_ms(self, steady_ms: int) -> int:
        """A moment as the wall clock would show it now."""
        skew_ms = self._clock.now_ms() - self.now_ms()
        return steady_ms if abs(skew_ms) < SKEW_MS_MIN else steady_ms + skew_ms
