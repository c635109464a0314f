"""Time, passed in: wall milliseconds for records, a monotonic clock for durations, a steady one for deadlines.

wall clock ──────▶ $ts, TTL, times in replies          may be set wrong, and right again, by any amount
monotonic clock ─▶ SteadyClock ─▶ leases, delays       starts at the wall clock's time and never jumps; the log stores
                                                       both, so that it continues after a restart
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple, Protocol

from mypy_extensions import mypyc_attr

# Below this difference the wall clock and the steady clock count as equal.
SKEW_MS_MIN = 1_000
# On Linux, time during which the machine was suspended counts as well.
_MONOTONIC: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds that never jump, for measuring durations."""
        ...


class SystemClock:
    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.clock_gettime_ns(_MONOTONIC) / 1_000_000


@mypyc_attr(allow_interpreted_subclasses=True)
class ManualClock:
    """A clock that moves only when a test moves it."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = float(now_ms)

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance(self, ms: int) -> None:
        """Let time pass. A negative value only sets the wall clock back."""
        self._now_ms += ms
        self._monotonic_ms += max(0, ms)

    def step(self, ms: int) -> None:
        """Set the wall clock wrong, or right again: no time passes."""
        self._now_ms += ms


class Moment(NamedTuple):
    """One moment on both clocks."""

    steady_ms: int
    wall_ms: int


class SteadyClock:
    """The clock for deadlines: it starts at the wall clock's time and is monotonic from then on.

    After a restart it continues from the last stored moment, plus the time that has passed by the wall clock.
    """

    def __init__(self, clock: Clock, noted: Moment | None = None) -> None:
        self._clock = clock
        self._offset_ms = 0.0
        self.go_on(noted)

    def go_on(self, noted: Moment | None) -> None:
        """Continue from a stored moment."""
        start_ms = self._clock.now_ms()
        if noted is not None:
            start_ms = noted.steady_ms + max(0, start_ms - noted.wall_ms)
        # Half a millisecond, so that truncation rounds.
        self._offset_ms = start_ms - self._clock.monotonic_ms() + 0.5

    def now_ms(self) -> int:
        return int(self._clock.monotonic_ms() + self._offset_ms)

    def moment(self) -> Moment:
        return Moment(self.now_ms(), self._clock.now_ms())

    def wall_ms(self, steady_ms: int) -> int:
        """A moment as the wall clock would show it."""
        return shown_ms(steady_ms, self._clock.now_ms() - self.now_ms())


def shown_ms(steady_ms: int, skew_ms: int) -> int:
    """A moment of the steady clock as a wall clock that is `skew_ms` ahead of it shows it."""
    return steady_ms if -SKEW_MS_MIN < skew_ms < SKEW_MS_MIN else steady_ms + skew_ms
