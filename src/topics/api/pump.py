"""Keeps routers going: short slices of forwarding between two ticks, and a rest after each burst of them.

    tick: requests ─▶ flush ─▶ replies leave          a slice: copies ─▶ flush ─▶ who waits for the copies is woken
          └──────────── poke ──────────────────────▶ └─ more to do ─▶ another slice, the loop's other work first
                                                      └─ nothing   ─▶ rest, a multiple of what the burst took

The rest is what keeps appends fast: under load the records of several ticks gather and cost one mark per router
instead of one per router and tick. Whoever appends now and then finds no rest to wait for.
"""

from __future__ import annotations

import asyncio
import logging
from time import perf_counter

from topics.engine.routers.forwarding import Forwarder

log = logging.getLogger("topics.server")

SLICE_MS = 0.2
REST_FACTOR = 8
REST_S_MAX = 0.02
FAILED_REST_S = 1.0


class Pump:
    """One slice at most is due; none is while there is nothing to forward."""

    def __init__(self, forwarder: Forwarder, loop: asyncio.AbstractEventLoop) -> None:
        self._forwarder = forwarder
        self._loop = loop
        self._due = False
        # What wakes it up, and when. A handle need not know its time: uvloop's do not if that is now.
        self._timer: asyncio.Handle | None = None
        self._timer_s = 0.0
        self._stopped = False
        # the burst that goes on, or the rest after it
        self._burst_s = 0.0
        self._rested_s = 0.0

    def poke(self) -> None:
        """Something was published, or a thread has news."""
        if self._due or self._stopped or not self._forwarder.pending:
            return
        rest_s = self._rested_s - perf_counter() if self._rested_s else 0.0
        if rest_s > 0:
            self._arm(rest_s)
        else:
            self._rested_s = 0.0
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
        started_s = perf_counter()
        try:
            more = self._forwarder.step(SLICE_MS)
        except Exception:
            log.exception("forwarding failed and is tried again")
            self._rested_s = started_s + FAILED_REST_S
            self._arm(FAILED_REST_S)
            return
        ended_s = perf_counter()
        self._burst_s += ended_s - started_s
        if more:
            self._due = True
            self._loop.call_soon(self._run)
            return
        self._rested_s = ended_s + min(REST_S_MAX, REST_FACTOR * self._burst_s)
        self._burst_s = 0.0
        retry_in_ms = self._forwarder.retry_in_ms
        if retry_in_ms is not None:
            self._arm(retry_in_ms / 1000)

    def _arm(self, wait_s: float) -> None:
        """Come again by then at the latest."""
        due_s = self._loop.time() + wait_s
        if self._timer is not None:
            if self._timer_s <= due_s:
                return
            self._timer.cancel()
        self._timer, self._timer_s = self._loop.call_at(due_s, self._wake_up), due_s

    def _wake_up(self) -> None:
        self._timer = None
        if not self._due and not self._stopped:
            self._rested_s = 0.0
            self._due = True
            self._loop.call_soon(self._run)
