"""Timers of an event loop by a precise clock, for waits that must not end early.

uvloop's own time is that of the start of its iteration, in whole milliseconds: 20 ms of handlers later, a wait that is
counted from it would end 20 ms early.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

# What is left of a whole number of milliseconds after computing with seconds.
ROUNDING_MS = 1e-3


class LoopTimers:
    """A timer may run up to a millisecond early; who sets one looks at `time`."""

    __slots__ = ("_clock_ms", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock_ms: Callable[[], float]) -> None:
        self._loop = loop
        self._clock_ms = clock_ms

    def time(self) -> float:
        return self._clock_ms() / 1000

    def call_at(self, when: float, callback: Callable[[], object], /) -> asyncio.TimerHandle:
        """In a whole number of milliseconds, which is what the loop counts in: not 0 before the time has come."""
        delay_ms = math.ceil(when * 1000 - self._clock_ms() - ROUNDING_MS)
        return self._loop.call_later(max(0, delay_ms) / 1000, callback)
