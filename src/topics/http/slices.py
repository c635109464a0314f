"""Long work in slices: connections with much to parse take turns, for a few milliseconds per loop iteration in all."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

log = logging.getLogger("topics.http")

TURN_S = 0.004


class Slices:
    """Runs steps in rotation. A step does a millisecond or two of work and answers whether there is more."""

    __slots__ = ("_armed", "_clock", "_loop", "_steps")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._steps: deque[Callable[[], bool]] = deque()
        self._armed = False

    def add(self, step: Callable[[], bool]) -> None:
        """Run `step` in later iterations until it answers False."""
        self._steps.append(step)
        self._arm()

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._armed = False
        until_s = self._clock() + TURN_S
        for _ in range(len(self._steps)):
            step = self._steps.popleft()
            if self._has_more(step):
                self._steps.append(step)
            if self._clock() >= until_s:
                break
        if self._steps:
            self._arm()

    def _has_more(self, step: Callable[[], bool]) -> bool:
        """A step that fails is dropped and does not stop the others."""
        try:
            return step()
        except Exception:
            log.exception("a slice of work failed")
            return False
