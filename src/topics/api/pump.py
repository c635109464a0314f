"""Keeps routers going: a short slice of forwarding whenever there is something to forward, between two ticks.

tick: requests ─▶ flush ─▶ replies leave          a slice: copies ─▶ flush ─▶ who waits for the copies is woken
      └──────────── poke ──────────────────────▶ └─ more to do ─▶ another slice, the loop's other work first
"""

from __future__ import annotations

import asyncio
import logging

from topics.engine.forwarding import Forwarder

log = logging.getLogger("topics.server")

SLICE_MS = 0.5
FAILED_REST_S = 1.0


class Pump:
    """One slice at most is due; none is while there is nothing to forward."""

    def __init__(self, forwarder: Forwarder, loop: asyncio.AbstractEventLoop) -> None:
        self._forwarder = forwarder
        self._loop = loop
        self._due = False
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    def poke(self) -> None:
        """Something was published, or a thread has news."""
        if not self._due and self._forwarder.pending and not self._stopped:
            self._due = True
            self._loop.call_soon(self._run)

    def stop(self) -> None:
        """What is not forwarded yet goes on at the next start."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _run(self) -> None:
        self._due = False
        if self._stopped:
            return
        try:
            self._forwarder.step(SLICE_MS)
        except Exception:
            log.exception("forwarding failed and is tried again")
            self._arm(FAILED_REST_S)
            return
        self.poke()
        retry_in_ms = self._forwarder.retry_in_ms
        if retry_in_ms is not None:
            self._arm(retry_in_ms / 1000)

    def _arm(self, wait_s: float) -> None:
        if self._timer is None:
            self._timer = self._loop.call_later(wait_s, self._retry)

    def _retry(self) -> None:
        self._timer = None
        if not self._due and not self._stopped:
            self._due = True
            self._loop.call_soon(self._run)
