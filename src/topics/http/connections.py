"""The open connections of a listener and their time limits: one periodic timer checks an eighth of them at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

PARTS = 8
TURN_S = 0.5  # every connection is checked once in PARTS * TURN_S = 4 s, so a time limit is late by 4 s at most


class OpenConnection(Protocol):
    """A connection of any version of HTTP; it knows its own time limits."""

    def expire(self, now_s: float) -> None: ...
    def drain(self) -> None: ...
    def abort(self) -> None: ...


class Connections:
    """Holds the connections, and the coarse time that they compare their limits with."""

    __slots__ = ("_clock", "_loop", "_next_part", "_on_turn", "_parts", "_timer", "now_s")

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._loop = loop
        self._clock = clock
        # Dictionaries for their order: what is done to all of them is done in the order in which they came.
        self._parts: list[dict[OpenConnection, None]] = [{} for _ in range(PARTS)]
        self._next_part = 0
        self._timer: asyncio.TimerHandle | None = None
        self._on_turn: list[Callable[[], None]] = []
        self.now_s = clock()

    def __len__(self) -> int:
        return sum([len(part) for part in self._parts])

    def __iter__(self) -> Iterator[OpenConnection]:
        """All of them as they are now; they may close meanwhile."""
        return iter([connection for part in self._parts for connection in part])

    def start(self) -> None:
        assert self._timer is None
        self._timer = self._loop.call_later(TURN_S, self._turn)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def on_turn(self, callback: Callable[[], None]) -> None:
        self._on_turn.append(callback)

    def add(self, connection: OpenConnection) -> int:
        """Returns the part, which `remove` needs."""
        number = min(range(PARTS), key=lambda index: len(self._parts[index]))
        self._parts[number][connection] = None
        return number

    def remove(self, connection: OpenConnection, part: int) -> None:
        self._parts[part].pop(connection, None)

    def _turn(self) -> None:
        self._timer = self._loop.call_later(TURN_S, self._turn)
        self.now_s = self._clock()
        for callback in self._on_turn:
            callback()
        part = self._parts[self._next_part]
        self._next_part = (self._next_part + 1) % PARTS
        for connection in list(part):
            connection.expire(self.now_s)
