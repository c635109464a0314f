"""Long work in slices: connections with much to parse take turns, for a few milliseconds in total per iteration."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

from topics.http.loop.watchdog import Watchdog

log = logging.getLogger("topics.http")

TURN_S = 0.004


class Slices:
    """Runs steps in rotation. A step does a millisecond or two of work and returns whether there is more."""

    __slots__ = ("_armed", "_clock", "_loop", "_steps", "_turn_s", "_watchdog")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Callable[[], float],
        watchdog: Watchdog,
        turn_s: float = TURN_S,
    ) -> None:
        self._turn_s = turn_s
        self._loop = loop
        self._watchdog = watchdog
        self._clock = clock
        self._steps: deque[Callable[[], bool]] = deque()
        self._armed = False

    @property
    def pending(self) -> bool:
        """Whether there is something to run in the next iteration."""
        return bool(self._steps)

    def add(self, step: Callable[[], bool]) -> None:
        """Run `step` in later iterations until it returns False."""
        self._steps.append(step)
        self._arm()

    def _arm(self) -> None:
        if not self._armed:
            self._armed = True
            self._loop.call_soon(self._run)

    def _run(self) -> None:
        self._armed = False
        began_s = now_s = self._clock()
        while self._steps:
            step = self._steps.popleft()
            if self._has_more(step):
                self._steps.append(step)
            now_s = self._clock()
            if now_s >= began_s + self._turn_s:
                break
        self._watchdog.note(now_s - began_s, "a slice of input")
        if self._steps:
            self._arm()

    def _has_more(self, step: Callable[[], bool]) -> bool:
        """A step that fails is dropped and does not stop the others."""
        try:
            return step()
        except Exception:
            log.exception("a slice of work failed")
            return False
