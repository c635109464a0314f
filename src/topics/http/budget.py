"""Memory for large bodies: one budget for all connections, first come, first served."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class Reservation:
    """Memory reserved for one body, or a place in the line for it; `release` gives up either."""

    __slots__ = ("_budget", "_on_grant", "_size_bytes", "granted")

    def __init__(self, budget: MemoryBudget, size_bytes: int, on_grant: Callable[[], None]) -> None:
        self._budget = budget
        self._size_bytes = size_bytes
        self._on_grant: Callable[[], None] | None = on_grant
        self.granted = False

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    @property
    def cancelled(self) -> bool:
        """Released before it was granted."""
        return self._on_grant is None and not self.granted

    def grant(self) -> None:
        """Called by the budget, which has reserved the memory."""
        self.granted = True
        on_grant, self._on_grant = self._on_grant, None
        if on_grant is not None:
            on_grant()

    def grant_at_once(self) -> None:
        """Like `grant`, for a caller that is not waiting yet."""
        self._on_grant = None
        self.granted = True

    def shrink(self, size_bytes: int) -> None:
        """The body turned out to be smaller."""
        surplus_bytes = self._size_bytes - size_bytes
        if self.granted and surplus_bytes > 0:
            self._size_bytes = size_bytes
            self._budget.give_back(surplus_bytes)

    def release(self) -> None:
        held_bytes, self._size_bytes = self._size_bytes, 0
        self._on_grant = None
        self._budget.give_back(held_bytes if self.granted else 0)


class MemoryBudget:
    """Memory is reserved whole before a body is read, so that two half-read bodies can never wait for each other."""

    __slots__ = ("_waiting", "free_bytes")

    def __init__(self, bytes_max: int) -> None:
        self.free_bytes = bytes_max
        self._waiting: deque[Reservation] = deque()

    def reserve(self, size_bytes: int, on_grant: Callable[[], None]) -> Reservation:
        """Granted now, or later and then `on_grant` is called."""
        self._serve_line()
        reservation = Reservation(self, size_bytes, on_grant)
        if not self._waiting and size_bytes <= self.free_bytes:
            self.free_bytes -= size_bytes
            reservation.grant_at_once()
        else:
            self._waiting.append(reservation)
        return reservation

    def give_back(self, size_bytes: int) -> None:
        self.free_bytes += size_bytes
        self._serve_line()

    def _serve_line(self) -> None:
        while self._waiting:
            reservation = self._waiting[0]
            if not reservation.cancelled and reservation.size_bytes > self.free_bytes:
                return
            self._waiting.popleft()
            if not reservation.cancelled:
                self.free_bytes -= reservation.size_bytes
                reservation.grant()
