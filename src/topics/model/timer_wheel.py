"""Items by the time at which they fall due, in buckets of equal width; no clock, no loop, no timer for each item.

bucket 17 ─ item, item          take_due(now): the buckets that have ended by now, the oldest first.
bucket 21 ─ item                next_due: when the first bucket ends, for the one timer that the owner sets.
"""

from __future__ import annotations

import heapq
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")

# Numbers of buckets that have become empty, kept in the heap before it is made anew.
STALE_BUCKETS_MAX = 1_000


class TimerWheel(Generic[ItemT]):
    """An item is never due early, and late by less than `width`, which is in the same unit as all times."""

    __slots__ = ("_buckets", "_order", "_width")

    def __init__(self, width: float) -> None:
        self._width = width
        self._buckets: dict[int, dict[ItemT, None]] = {}
        self._order: list[int] = []  # a heap of the numbers of all buckets, and of some that are no longer there

    def __len__(self) -> int:
        return sum([len(bucket) for bucket in self._buckets.values()])

    def add(self, item: ItemT, due: float) -> int:
        """Returns the number of the bucket, which `remove` needs."""
        number = -int(-due // self._width)
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            heapq.heappush(self._order, number)
        bucket[item] = None
        return number

    def remove(self, item: ItemT, number: int) -> None:
        """Forget an item, which may have been taken already."""
        bucket = self._buckets.get(number)
        if bucket is None or item not in bucket:
            return
        del bucket[item]
        if not bucket:
            del self._buckets[number]
            if len(self._order) > 2 * len(self._buckets) + STALE_BUCKETS_MAX:
                self._order = list(self._buckets)
                heapq.heapify(self._order)

    def take_due(self, now: float) -> list[ItemT]:
        """Remove and return the items that have fallen due, the earliest first."""
        due: list[ItemT] = []
        while self._order and self._order[0] * self._width <= now:
            due.extend(self._buckets.pop(heapq.heappop(self._order), ()))
        return due

    @property
    def next_due(self) -> float | None:
        """When the next items fall due."""
        while self._order and self._order[0] not in self._buckets:
            heapq.heappop(self._order)
        return self._order[0] * self._width if self._order else None
