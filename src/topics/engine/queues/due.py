"""Jobs by the time at which they fall due: groups of the same millisecond, in buckets of 100 ms, no timer per job.

bucket 17 ─┬─ group due 1710 ─ jobs 4, 5, 6        A group falls due as a whole: 100,000 leases that expire
           └─ group due 1742 ─ jobs 9, 12          together are one step, not 100,000.
"""

from __future__ import annotations

import heapq
from enum import IntEnum

BUCKET_MS = 100
STALE_BUCKETS_MAX = 1_000
NEVER_MS = 2**64
NO_STREAM = 0


class JobPlace(IntEnum):
    """The place of a group of jobs, and so of each of its jobs."""

    READY = 0
    LEASED = 1
    RESTING = 2


class Job:
    """A job with state beyond its record: leased, resting, given back, or leaving. A fresh one needs none."""

    __slots__ = ("claimed_ms", "deadline", "deliveries", "error", "group", "lease", "node", "refusals", "seq", "stream")

    def __init__(
        self,
        seq: int,
        group: DueGroup | None = None,
        deliveries: int = 0,
        node: str = "",
        lease: int = 0,
        claimed_ms: int = 0,
        deadline: int = 0,
        stream: int = NO_STREAM,
    ) -> None:
        self.seq = seq
        # None: acked or moved, and the change is pending.
        self.group = group
        # the latest delivery
        self.deliveries = deliveries
        self.node = node
        self.lease = lease
        self.claimed_ms = claimed_ms
        self.deadline = deadline
        # the connection that the job was pushed to
        self.stream = stream
        # the error that its worker gave with a nack
        self.error = ""
        # how often its dead-letter topic refused it
        self.refusals = 0


class DueGroup:
    """Jobs that share their place and the time at which they leave it."""

    __slots__ = ("due_ms", "jobs", "key", "place", "pushed", "rest_ms")

    def __init__(self, place: JobPlace, due_ms: int = NEVER_MS, rest_ms: int = 0, *, pushed: bool = False) -> None:
        self.place = place
        self.due_ms = due_ms
        # What follows: a lease that expires may be followed by a rest.
        self.rest_ms = rest_ms
        # The jobs of each stream are counted, so each one that leaves is reported to the counter.
        self.pushed = pushed
        self.jobs: dict[int, Job] = {}
        # Distinguishes groups that are due at the same time.
        self.key = rest_ms << 1 | pushed


class DueTimes:
    """The groups of one place. `next_ms` may be early because of jobs that have left, never late."""

    __slots__ = ("_buckets", "_order", "_place", "next_ms")

    def __init__(self, place: JobPlace) -> None:
        self._place = place
        self._buckets: dict[int, dict[tuple[int, int], DueGroup]] = {}
        self._order: list[int] = []
        self.next_ms = NEVER_MS

    def at(self, due_ms: int, rest_ms: int = 0, *, pushed: bool = False) -> DueGroup:
        """The group of the jobs that fall due at this time."""
        bucket = self._bucket(due_ms)
        group = bucket.get((due_ms, rest_ms << 1 | pushed))
        if group is None:
            group = DueGroup(self._place, due_ms, rest_ms, pushed=pushed)
            bucket[due_ms, group.key] = group
        return group

    def _bucket(self, due_ms: int) -> dict[tuple[int, int], DueGroup]:
        if due_ms < self.next_ms:
            self.next_ms = due_ms
        number = due_ms // BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            heapq.heappush(self._order, number)
        return bucket

    def adopt(self, group: DueGroup, due_ms: int) -> None:
        """Take over a whole group from another place."""
        bucket = self._bucket(due_ms)
        key = 0
        while (due_ms, key) in bucket:
            key += 1
        group.place, group.due_ms, group.key, group.pushed = self._place, due_ms, key, False
        bucket[due_ms, key] = group

    def discard(self, group: DueGroup) -> None:
        """Remove a group that has become empty."""
        number = group.due_ms // BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None or bucket.pop((group.due_ms, group.key), None) is None or bucket:
            return
        del self._buckets[number]
        if len(self._order) > 2 * len(self._buckets) + STALE_BUCKETS_MAX:
            # Most leases are acked long before their deadline: their empty groups must not pile up until then.
            self._order = list(self._buckets)
            heapq.heapify(self._order)

    def fallen_due(self, now_ms: int) -> list[DueGroup]:
        """The groups that are due, earliest first; the caller owns them from here on."""
        found: list[DueGroup] = []
        order, buckets = self._order, self._buckets
        last = now_ms // BUCKET_MS
        while order:
            bucket = buckets.get(order[0])
            if bucket is not None:
                if order[0] > last:
                    break
                found += [bucket.pop(key) for key in sorted(key for key in bucket if key[0] <= now_ms)]
                if bucket:
                    break
                del buckets[order[0]]
            heapq.heappop(order)
        self.next_ms = min(due_ms for due_ms, _ in buckets[order[0]]) if order else NEVER_MS
        return found

    def groups_from(self, due_ms: int) -> list[DueGroup]:
        """All groups that fall due at `due_ms` or later, earliest first."""
        found: list[DueGroup] = []
        for number in sorted(number for number in self._buckets if number >= due_ms // BUCKET_MS):
            bucket = self._buckets[number]
            found += [bucket[key] for key in sorted(bucket) if key[0] >= due_ms]
        return found
