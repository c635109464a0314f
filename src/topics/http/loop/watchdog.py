"""How long the loop is blocked: the longest iteration of the last minutes, and a log line for each that is too long.

first request of an iteration ─▶ handlers ─▶ tick: journal, waiters, replies ─▶ end        one turn
a slice of parsing, a checkpoint's slice, the result of a thread                            turns of their own
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from time import perf_counter

from topics.http.request import Request

log = logging.getLogger("topics.http")

SLOW_S = 0.1
WINDOW_S = 60.0


class Watchdog:
    """Measures on the loop's own thread, so that a turn costs two reads of the clock."""

    __slots__ = (
        "_began_s",
        "_clock",
        "_longest_before_s",
        "_longest_s",
        "_window_s",
        "slow_turns_total",
        "slowest",
        "slowest_s",
    )

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._began_s = 0.0
        # the longest turn of this window and of the one before it
        self._longest_s = self._longest_before_s = 0.0
        self._window_s = clock()
        # the request of this turn whose handler took the longest
        self.slowest: Request | None = None
        self.slowest_s = 0.0
        self.slow_turns_total = 0

    @property
    def longest_s(self) -> float:
        """The longest turn of the last one to two minutes."""
        self._turn_window(self._clock())
        return max(self._longest_s, self._longest_before_s)

    def begin(self) -> None:
        self._began_s = self._clock()

    def end(self) -> float:
        """The turn that `begin` started is over; how long it took."""
        took_s = self._clock() - self._began_s
        if took_s > self._longest_s or took_s > SLOW_S:
            self.note(took_s, self._describe())
        self.slowest = None
        self.slowest_s = 0.0
        return took_s

    def ran(self, request: Request, took_s: float) -> None:
        """The handler of a request ran for `took_s`, the first time or again."""
        if took_s > self.slowest_s:
            self.slowest, self.slowest_s = request, took_s

    def note(self, took_s: float, what: str) -> None:
        """A separate turn took `took_s`; `what` names it in the log."""
        if took_s > SLOW_S:
            self.slow_turns_total += 1
            log.warning("the loop was blocked for %.0f ms by %s", took_s * 1000, what)
        self._turn_window(self._clock())
        self._longest_s = max(self._longest_s, took_s)

    def _describe(self) -> str:
        """The work after the handlers is done for all of them: the slowest one is the likely cause."""
        request = self.slowest
        if request is None:
            return "work without a request"
        path = request.raw_path.decode("latin-1")
        return f"a turn whose slowest request was {request.method} {path} ({self.slowest_s * 1000:.0f} ms)"

    def _turn_window(self, now_s: float) -> None:
        if now_s - self._window_s >= WINDOW_S:
            fresh = now_s - self._window_s < 2 * WINDOW_S
            self._longest_before_s = self._longest_s if fresh else 0.0
            self._longest_s = 0.0
            self._window_s = now_s
