"""The end of a loop iteration: every request read in it has been handled, now flush once, then send every reply.

poll: socket ─▶ handle   socket ─▶ handle   socket ─▶ handle        (the first one arms the tick)
idle: ──────────────────────────────────────────────────▶ callbacks (journal flush) ─▶ one write per connection
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Protocol

from topics.http.loop.watchdog import Watchdog

log = logging.getLogger("topics.http")


class Flushable(Protocol):
    """A connection with bytes to send."""

    def flush(self) -> None: ...


class Tick:
    """Runs once per loop iteration in which something happened; costs nothing when nothing did."""

    __slots__ = ("_callbacks", "_large", "_loop", "_running", "_watchdog", "armed", "unflushed")

    def __init__(self, loop: asyncio.AbstractEventLoop, watchdog: Watchdog) -> None:
        self._loop = loop
        self._watchdog = watchdog
        self._callbacks: list[Callable[[], None]] = []
        self._large: deque[Callable[[], None]] = deque()
        self.armed = self._running = False
        self.unflushed: list[Flushable] = []

    def on_end(self, callback: Callable[[], None]) -> None:
        self._callbacks.append(callback)

    def arm(self) -> None:
        if not self.armed:
            self.armed = True
            if not self._running:
                self._watchdog.begin()
            self._loop.call_soon(self._run)

    def queue_large(self, dispatch: Callable[[], None]) -> None:
        """Large bodies take long to handle: one each tick, so that other requests do not wait for all of them."""
        self._large.append(dispatch)
        self.arm()

    def _run(self) -> None:
        self.armed = False
        self._running = True
        if self._large:
            self._guarded(self._large.popleft())
        for callback in self._callbacks:
            self._guarded(callback)
        unflushed, self.unflushed = self.unflushed, []
        for connection in unflushed:
            try:
                connection.flush()
            except Exception:
                log.exception("a connection could not be flushed")
        self._watchdog.end()
        self._running = False
        if self.armed:
            self._watchdog.begin()
        if self._large:
            self.arm()

    def _guarded(self, step: Callable[[], None]) -> None:
        """A failing step must not keep the replies of others from leaving."""
        try:
            step()
        except Exception:
            log.exception("a callback at the end of a tick failed")
