"""A rate: a number of jobs per second, and a few at once after a pause.

Its bucket is one number, the time at which it is full again: each job moves it on by one interval, and there is room
for another as long as it is less than `burst` intervals ahead. A number in the past is a full bucket.
"""

from __future__ import annotations

from math import ceil
from typing import Final

# Sums of intervals are a little more or less than they should be, and no claim has to wait for that.
ROUNDING_MS: Final = 0.001


class Rate:
    __slots__ = ("_interval_ms", "burst")

    def __init__(self, per_s: float, burst: int | None) -> None:
        self._interval_ms = 1_000 / per_s
        self.burst = burst or max(1, int(per_s))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rate) and (self._interval_ms, self.burst) == (other._interval_ms, other.burst)

    def __hash__(self) -> int:
        return hash((self._interval_ms, self.burst))

    def room(self, full_ms: float, now_ms: int) -> int:
        """How many jobs may be handed out now."""
        if full_ms <= now_ms:
            return self.burst
        return max(0, int(self.burst - (full_ms - now_ms - ROUNDING_MS) / self._interval_ms))

    def after(self, full_ms: float, now_ms: int, jobs: int) -> float:
        """When the bucket is full again if these are handed out."""
        return max(full_ms, float(now_ms)) + jobs * self._interval_ms

    def bounded(self, full_ms: float, now_ms: int) -> float:
        """When a bucket that was filled at another rate is full: it is at most empty."""
        return min(full_ms, now_ms + self.burst * self._interval_ms)

    def due_ms(self, full_ms: float) -> int:
        """When there is room for one."""
        return ceil(full_ms - (self.burst - 1) * self._interval_ms - ROUNDING_MS)
