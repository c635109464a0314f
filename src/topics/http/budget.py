"""Memory for large bodies: one budget for all connections, given out first come, first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol


class Holder(Protocol):
    """What a share is for: a request, or a connection with an unfinished message. `gone` gives up a wait for it."""

    gone: bool
    reserved_bytes: int


class BodyBudget:
    """A share is taken whole before the body is read, so that two half-read bodies can never wait for each other."""

    __slots__ = ("_waiting", "free_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.free_bytes = bytes_max
        self._waiting: deque[tuple[Holder, int, Callable[[], None]]] = deque()

    def take(self, holder: Holder, share_bytes: int, granted: Callable[[], None]) -> bool:
        """Take a share now (True), or wait in line for it and be told by `granted`."""
        self.settle()
        if not self._waiting and share_bytes <= self.free_bytes:
            self.free_bytes -= share_bytes
            holder.reserved_bytes = share_bytes
            return True
        self._waiting.append((holder, share_bytes, granted))
        return False

    def give_back(self, share_bytes: int) -> None:
        self.free_bytes += share_bytes
        self.settle()

    def settle(self) -> None:
        """Serve those in line as far as the budget goes; whoever has left the line is passed over."""
        while self._waiting:
            holder, share_bytes, granted = self._waiting[0]
            if not holder.gone:
                if share_bytes > self.free_bytes:
                    return
                self.free_bytes -= share_bytes
                holder.reserved_bytes = share_bytes
                granted()
            self._waiting.popleft()
