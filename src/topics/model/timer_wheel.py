"""Items by the time at which they fall due, in buckets of equal width; no clock, no loop, no timer for each item.

bucket 17 ─ item, item          take_due(now): the items of buckets that have ended by now, the oldest first.
bucket 21 ─ item                next_due: when the first bucket ends, for the one timer that the owner sets.
"""

from __future__ import annotations

import heapq
from itertools import islice
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")

# Buckets that have become empty, kept before they are removed together.
EMPTY_BUCKETS_MAX = 1_000


class TimerWheel(Generic[ItemT]):
    """An item is never due early, and late by less than `width`, which is in the same unit as all times."""

    __slots__ = ("_buckets", "_order", "_sweep_above", "_width")

    def __init__(self, width: float) -> None:
        self._width = width
        self._buckets: dict[int, dict[ItemT, None]] = {}
        self._order: list[int] = []  # a heap of the numbers of all buckets
        self._sweep_above = EMPTY_BUCKETS_MAX

    def __len__(self) -> int:
        return sum([len(bucket) for bucket in self._buckets.values()])

    def add(self, item: ItemT, due: float) -> int:
        """Returns the number of the bucket, which `remove` needs."""
        number = -int(-due // self._width)
        bucket = self._buckets.get(number)
        if bucket is None:
            if len(self._order) > self._sweep_above:
                self._sweep()
            bucket = self._buckets[number] = {}
            heapq.heappush(self._order, number)
        bucket[item] = None
        return number

    def remove(self, item: ItemT, number: int) -> None:
        """Forget an item, which may have been taken already."""
        bucket = self._buckets.get(number)
        if bucket is not None:
            bucket.pop(item, None)

    def take_due(self, now: float) -> list[ItemT]:
        """Remove and return the items that have fallen due, the earliest first."""
        due: list[ItemT] = []
        while self._order and self._order[0] * self._width <= now:
            due.extend(self._buckets.pop(heapq.heappop(self._order)))
        return due

    def take_some(self, now: float, most: int) -> list[ItemT]:
        """Like `take_due`, at most this many: what is left is due as well."""
        due: list[ItemT] = []
        while self._order and self._order[0] * self._width <= now and len(due) < most:
            bucket = self._buckets[self._order[0]]
            some = list(islice(bucket, most - len(due)))
            due.extend(some)
            if len(some) == len(bucket):
                del self._buckets[heapq.heappop(self._order)]
            else:
                for item in some:
                    del bucket[item]
        return due

    @property
    def next_due(self) -> float | None:
        """When the next items fall due."""
        while self._order and not self._buckets[self._order[0]]:
            del self._buckets[heapq.heappop(self._order)]
        return self._order[0] * self._width if self._order else None

    def _sweep(self) -> None:
        self._buckets = {number: bucket for number, bucket in self._buckets.items() if bucket}
        self._order = list(self._buckets)
        heapq.heapify(self._order)
        self._sweep_above = 2 * len(self._order) + EMPTY_BUCKETS_MAX
