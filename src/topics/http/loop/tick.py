"""The end of a loop iteration: every request read in it has been handled, now flush once, then send every reply.

poll: socket ─▶ handle   socket ─▶ handle   socket ─▶ handle        (the first one arms the tick)
idle: ──────────────────────────────────────────────────▶ callbacks (journal flush) ─▶ one write per connection

Large requests are handled for a few milliseconds per tick; if they took that long, the tick ends in the next iteration.
After work that took long, the finished replies are sent in an iteration of their own (`pace.py`).

A poll reports thousands of sockets if thousands of clients have sent at once: after some milliseconds of handlers the
tick is `crowded`, and what is read after that waits for its turn in `late`. Until that is done, newly read requests
get less time: they are answered between two turns, and hardly keep the others waiting.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from topics.http.loop.pace import PUT_OFF_MAX, Pace
from topics.http.loop.slices import Slices
from topics.http.loop.watchdog import Watchdog

log = logging.getLogger("topics.http")


# How long large requests may take in one tick before others have their turn.
LARGE_S = 0.002
# How long handlers may run in one iteration before it is crowded: usually, and while requests wait for their turn; and
# how long those have in each iteration.
HANDLED_S, HANDLED_BESIDE_LATE_S, LATE_S = 0.008, 0.002, 0.012


class Flushable(Protocol):
    """A connection with bytes to send."""

    def flush(self) -> None: ...


class Tick:
    """Runs once per loop iteration in which something happened; costs nothing when nothing did."""

    __slots__ = (
        "_callbacks",
        "_clock",
        "_handle",
        "_large",
        "_loop",
        "_pace",
        "_put_off",
        "_running",
        "_sent_only",
        "_watchdog",
        "armed",
        "crowded",
        "full_s",
        "late",
        "unflushed",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        watchdog: Watchdog,
        pace: Pace,
        clock: Callable[[], float] = perf_counter,
    ) -> None:
        self._loop = loop
        self._pace = pace
        # requests that were read in a crowded iteration
        self.late = Slices(loop, clock, watchdog, LATE_S)
        self._clock = clock
        self._watchdog = watchdog
        self._callbacks: list[Callable[[], None]] = []
        self._large: deque[Callable[[], None]] = deque()
        self.armed = self._running = self._put_off = False
        # how often in a row replies were sent and the rest of the tick had to wait
        self._sent_only = 0
        # handlers have run for long enough, and when that will be so
        self.crowded = False
        self.full_s = 0.0
        self._handle: asyncio.Handle | None = None
        self.unflushed: list[Flushable] = []

    def on_end(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def arm(self) -> None:
        if not self.armed:
            self.armed = True
            if not self._running:
                self._watchdog.begin()
            self.make_room()
            self._handle = self._loop.call_soon(self._run)

    def make_room(self) -> None:
        """The handlers of what is read next have their time from now on."""
        self.crowded = False
        self.full_s = self._clock() + (HANDLED_BESIDE_LATE_S if self.late.pending else HANDLED_S)

    def end_now(self) -> None:
        """Do not wait for the end of the iteration, if one is due: no other request is expected."""
        if self.armed and not self._running and self._handle is not None:
            self._handle.cancel()
            self._run()

    def queue_large(self, dispatch: Callable[[], None]) -> None:
        """Large bodies take long to handle: a few per tick, so that other requests do not wait for all of them."""
        self._large.append(dispatch)
        self.arm()

    def _run(self) -> None:
        if self._pace.is_resting and self._sent_only < PUT_OFF_MAX:
            # Requests that arrived during long work have waited enough: they do not wait for more of it.
            self._sent_only += 1
            self._send()
            self.make_room()
            self._handle = self._loop.call_soon(self._run)
            return
        began_s = self._clock()
        self._sent_only = 0
        self.armed = self.crowded = False
        self._running = True
        # Once postponed, the end comes first: requests that keep coming must not delay it further.
        self._put_off = not self._put_off and self._handle_large()
        if not self._put_off:
            for callback in self._callbacks:
                self._guarded(callback)
            self._send()
        self._watchdog.end()
        self._pace.took(self._clock() - began_s)
        self._running = False
        if self.armed:
            self._watchdog.begin()
        if self._large or self._put_off:
            self.arm()

    def _handle_large(self) -> bool:
        """Handle large requests while there is time; whether it is used up."""
        until_s = self._clock() + LARGE_S if self._large else 0.0
        while self._large:
            self._guarded(self._large.popleft())
            if self._clock() >= until_s:
                return True
        return False

    def _send(self) -> None:
        unflushed, self.unflushed = self.unflushed, []
        for connection in unflushed:
            try:
                connection.flush()
            except Exception:
                log.exception("a connection could not be flushed")

    def _guarded(self, step: Callable[[], None]) -> None:
        """A failing step must not prevent the replies of others."""
        try:
            step()
        except Exception:
            log.exception("a callback at the end of a tick failed")
