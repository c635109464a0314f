"""Time limits without a timer per connection: one periodic timer asks one bucket of connections at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

BUCKETS = 8
TURN_S = 0.5  # every connection is asked once in BUCKETS * TURN_S = 4 s, so a time limit is late by 4 s at most


class Expiring(Protocol):
    """A connection that knows its own deadlines."""

    def expire(self, now_s: float) -> None: ...


class Wheel:
    """Holds the connections of a listener and the coarse time they stamp themselves with."""

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        self._buckets: list[set[Expiring]] = [set() for _ in range(BUCKETS)]
        self._next_bucket = 0
        self._timer: asyncio.TimerHandle | None = None
        self._on_turn: list[Callable[[], None]] = []
        self.now_s = clock()

    def __len__(self) -> int:
        return sum([len(bucket) for bucket in self._buckets])

    def start(self) -> None:
        assert self._timer is None
        self._timer = self._loop.call_later(TURN_S, self._turn)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_turn(self, callback: Callable[[], None]) -> None:
        self._on_turn.append(callback)

    def add(self, connection: Expiring) -> int:
        """Returns the bucket, which `remove` wants back."""
        number = min(range(BUCKETS), key=lambda index: len(self._buckets[index]))
        self._buckets[number].add(connection)
        return number

    def remove(self, connection: Expiring, bucket: int) -> None:
        self._buckets[bucket].discard(connection)

    def connections(self) -> list[Expiring]:
        return [connection for bucket in self._buckets for connection in bucket]

    def check_all(self) -> None:
        """Ask every connection now."""
        self.now_s = self._clock()
        for connection in self.connections():
            connection.expire(self.now_s)

    def _turn(self) -> None:
        self._timer = self._loop.call_later(TURN_S, self._turn)
        self.now_s = self._clock()
        for callback in self._on_turn:
            callback()
        bucket = self._buckets[self._next_bucket]
        self._next_bucket = (self._next_bucket + 1) % BUCKETS
        for connection in list(bucket):
            connection.expire(self.now_s)
