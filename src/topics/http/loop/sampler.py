"""Samples of the loop: how late it is, what it has left to the garbage collector, and whether it can rest.

a sample every 50 ms ─▶ 20 of them without a tick and with nothing to do ─▶ rest: one every 500 ms ─▶ a tick ends it
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable

# Only a clock can make work for a server that rests, a checkpoint or stages that have expired: half a second more is
# nothing to those.
SAMPLES_UNTIL_REST, REST_S = 20, 0.5
# Objects that work outside ticks has made since the last collection: when it is worth one.
YOUNG_OBJECTS_MAX = 10_000


class Sampler:
    """Its owner sets `ticked` in every tick, and calls `end_rest` in one that finds it resting."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        every_s: float,
        sampled: Callable[[float, float], None],
        is_idle: Callable[[], bool],
        collect: Callable[[], None],
    ) -> None:
        """`sampled` gets the lag in ms and the time in s; `is_idle`: nothing is under way; `collect` soon, not now."""
        self._loop = loop
        self._every_s = every_s
        self._sampled = sampled
        self._is_idle = is_idle
        self._collect = collect
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._idle_samples = 0
        self.ticked = False
        self.resting = False

    def start(self) -> None:
        self._sample_in(self._every_s)

    def end_rest(self) -> None:
        self.resting = False
        self._idle_samples = 0
        self._sample_in(self._every_s)

    def _sample(self) -> None:
        now_s = time.monotonic()
        self._sampled(max(0.0, now_s - self._due_s) * 1000, now_s)
        # A collection looks at the objects that were made since the last one and are still alive: 0.15 to 0.5 µs each.
        # Their number is not known. What Python counts goes down with each object that is freed, however old: a crowd
        # of new long polls in place of answered ones counts as nothing. So every sample with ticks collects.
        if self.ticked or gc.get_count()[0] > YOUNG_OBJECTS_MAX:
            self._collect()
        self._idle_samples = self._idle_samples + 1 if not self.ticked and self._is_idle() else 0
        self.ticked = False
        self.resting = self._idle_samples >= SAMPLES_UNTIL_REST
        self._sample_in(REST_S if self.resting else self._every_s)

    def _sample_in(self, wait_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._due_s = time.monotonic() + wait_s
        self._timer = self._loop.call_later(wait_s, self._sample)
