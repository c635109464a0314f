"""One coarse timer for all long-lived connections: heartbeats when they are idle, and the end of stalled ones.

add ─▶ bucket of its next heartbeat ─▶ turn: idle for its whole interval? beat : look again when it could be
pause ─▶ stalled ─▶ turn: paused for longer than allowed? give_up
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Protocol

from topics.model.timer_wheel import TimerWheel

log = logging.getLogger("topics.api")

TURN_S = 0.25


class LongLivedConnection(Protocol):
    """A connection that must not stay silent for longer than `interval_s`."""

    interval_s: float
    # When something was last sent, and since when the client has not kept up (0.0: it does), by the same clock.
    sent_s: float
    stalled_s: float

    def beat(self) -> None:
        """It was idle for its interval."""
        ...

    def give_up(self) -> None:
        """Its client has not kept up for too long."""
        ...


class Heartbeats:
    """Holds the time that connections stamp themselves with: coarse, so that reading it costs nothing."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, slow_consumer_s: float, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._loop = loop
        self._clock_s = clock_s
        self._slow_consumer_s = slow_consumer_s
        self._wheel = TimerWheel[LongLivedConnection](TURN_S)
        self._buckets: dict[LongLivedConnection, int] = {}  # the bucket of each in the wheel
        self._stalled: dict[LongLivedConnection, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self.now_s = clock_s()
        # Called at each turn.
        self.on_turn: list[Callable[[], None]] = []

    def __len__(self) -> int:
        return len(self._buckets)

    def add(self, connection: LongLivedConnection) -> None:
        if self._timer is None:
            self.now_s = self._clock_s()
            self._timer = self._loop.call_later(TURN_S, self._turn)
        connection.sent_s = self.now_s
        self._enter(connection, self.now_s + connection.interval_s)

    def discard(self, connection: LongLivedConnection) -> None:
        number = self._buckets.pop(connection, None)
        if number is not None:
            self._wheel.remove(connection, number)
        self._stalled.pop(connection, None)

    def paused(self, connection: LongLivedConnection) -> None:
        connection.stalled_s = self._clock_s()
        self._stalled[connection] = None

    def resumed(self, connection: LongLivedConnection) -> float:
        """How long it was paused."""
        stalled_s, connection.stalled_s = connection.stalled_s, 0.0
        self._stalled.pop(connection, None)
        return self._clock_s() - stalled_s if stalled_s else 0.0

    def _enter(self, connection: LongLivedConnection, due_s: float) -> None:
        self._buckets[connection] = self._wheel.add(connection, due_s)

    def _turn(self) -> None:
        self._timer = self._loop.call_later(TURN_S, self._turn) if self._buckets else None
        self.now_s = self._clock_s()
        for callback in self.on_turn:
            callback()
        for connection in self._wheel.take_due(self.now_s):
            self._ask(connection)
        for connection in list(self._stalled):
            if self.now_s - connection.stalled_s > self._slow_consumer_s:
                del self._stalled[connection]
                self._guarded(connection.give_up)

    def _ask(self, connection: LongLivedConnection) -> None:
        due_s = connection.sent_s + connection.interval_s
        if due_s <= self.now_s:
            # Data that a client has not read yet shows it that the server is alive.
            if not connection.stalled_s:
                self._guarded(connection.beat)
            connection.sent_s = self.now_s
            due_s = self.now_s + connection.interval_s
        if connection in self._buckets:
            self._enter(connection, due_s)

    def _guarded(self, step: Callable[[], None]) -> None:
        """A bug in one connection must not stop the heartbeats of the others."""
        try:
            step()
        except Exception:
            log.exception("a heartbeat failed")
