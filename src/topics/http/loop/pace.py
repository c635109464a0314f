"""One long piece of work in an iteration of the loop; after it, iterations that only send the replies that are ready.

    iteration 1: 30 ms of work ─▶ poll: a request came meanwhile ─▶ 2: its reply is sent ─▶ 3: the next piece of work

uvloop sends what is written in an iteration at the end of it. A reply that is written before a piece of work in the
same iteration therefore waits for that work, and two pieces in one iteration make one wait of both.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

# From here on a piece of work is long.
LONG_S = 0.004
# How often in a row work is put off, so that a loop that is always busy still gets to it.
PUT_OFF_MAX = 2


class Pace:
    """Work that may take long asks before it begins, and reports how long it took."""

    __slots__ = ("_counting", "_left", "_loop", "_put_off")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = 0
        self._counting = False
        self._put_off: dict[Callable[[], None], int] = {}

    @property
    def is_resting(self) -> bool:
        """Whether long work should wait for a later iteration."""
        return self._left > 0

    def took(self, took_s: float) -> None:
        """A piece of work took so long: the rest of this iteration and the next one are without long work."""
        if took_s >= LONG_S:
            # The counter may have to run in this iteration, too.
            self._left = 3 if self._counting else 2
            if not self._counting:
                self._counting = True
                self._loop.call_soon(self._count)

    def puts_off(self, work: Callable[[], None]) -> bool:
        """Whether this work has to wait; then it is called in the next iteration."""
        if self._left:
            times = self._put_off.get(work, 0)
            if times < PUT_OFF_MAX:
                self._put_off[work] = times + 1
                self._loop.call_soon(work)
                return True
        if self._put_off:
            self._put_off.pop(work, None)
        return False

    def _count(self) -> None:
        """Once in each iteration while there is something to count."""
        self._left -= 1
        self._counting = self._left > 0
        if self._counting:
            self._loop.call_soon(self._count)
