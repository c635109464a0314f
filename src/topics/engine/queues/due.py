"""Jobs by the time at which they fall due, in groups of the same millisecond and buckets of 100 ms; and ready ones.

bucket 17 ─┬─ group due 1710 ─ jobs 4, 5, 6        A group falls due as a whole: 100,000 leases that expire
           └─ group due 1742 ─ jobs 9, 12          together are one step, not 100,000.

lane 9 ─┬─ reclaimed: given back, expired, or after a delay      The highest lane that has a job is served first,
        └─ fresh: appended with this priority                    within it reclaimed jobs first. Jobs of priority 0
lane 4 ─┬─ …                                                     need no lane: the queue itself has them.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum
from itertools import groupby

from topics.model.requests.batch import JOB_PRIORITY_MAX

BUCKET_MS = 100
STALE_BUCKETS_MAX = 1_000
# More buckets, or jobs of one group, are not sorted for a list but visited in order, this many places in a row.
PLACES_PER_STEP = 5_000
NEVER_MS = 2**64
NO_STREAM = 0
# Above every rest in the key of a group.
PRIORITY_SHIFT = 32
# A group is sorted when its first job is claimed: those that grow job by job must not grow for ever.
FRESH_PER_GROUP_MAX = 1_000


class JobPlace(IntEnum):
    """The place of a group of jobs, and so of each of its jobs."""

    READY = 0
    LEASED = 1
    RESTING = 2


class JobStanding:
    """What is known of a job beyond its record."""

    __slots__ = ("claimed_ms", "deadline", "deliveries", "error", "group", "lease", "node", "priority", "stream")

    # None: acked or moved, and the change is pending.
    group: DueGroup | None
    # the latest delivery
    deliveries: int
    node: str
    lease: int
    claimed_ms: int
    deadline: int
    # the connection that the job was pushed to
    stream: int
    # the error that its worker gave with a nack
    error: str
    # that of its record; a job with one above 0 has a Job from the start
    priority: int

    def lease_of(self, seq: int) -> int:
        """The number of the lease on this job."""
        raise NotImplementedError


class Job(JobStanding):
    """A job with state beyond its record: leased, resting, given back, or leaving. A fresh one needs none."""

    __slots__ = ("refusals", "seq")

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
        self.group = group
        self.deliveries = deliveries
        self.node = node
        self.lease = lease
        self.claimed_ms = claimed_ms
        self.deadline = deadline
        self.stream = stream
        self.error = ""
        self.priority = 0
        # how often its dead-letter topic refused it
        self.refusals = 0

    def lease_of(self, seq: int) -> int:
        assert seq == self.seq
        return self.lease


class LeasedRun(JobStanding):
    """Neighbouring jobs that one claim delivered for the first time: one object for all of them.

    Its `lease` is that of the first; the others follow. A job that something happens to alone gets a Job of its own,
    and those that move to another group together another run; this one stays that of the rest.
    """

    __slots__ = ("first_seq",)

    def __init__(
        self, first_seq: int, group: DueGroup | None, node: str, lease: int, claimed_ms: int, deadline: int
    ) -> None:
        self.first_seq = first_seq
        self.group = group
        self.deliveries = 1
        self.node = node
        self.lease = lease
        self.claimed_ms = claimed_ms
        self.deadline = deadline
        self.stream = NO_STREAM
        self.error = ""
        self.priority = 0

    def lease_of(self, seq: int) -> int:
        return self.lease + seq - self.first_seq

    def moved_to(self, group: DueGroup | None) -> LeasedRun:
        """The run of those of its jobs that move to this group, or leave."""
        run = LeasedRun(self.first_seq, group, self.node, self.lease, self.claimed_ms, self.deadline)
        run.error = self.error
        return run

    def job(self, seq: int) -> Job:
        """The Job of one of them, which leaves the run."""
        job = Job(seq, self.group, 1, self.node, self.lease_of(seq), self.claimed_ms, self.deadline)
        job.error = self.error
        return job


class DueGroup:
    """Jobs that share their place, the time at which they leave it, and their priority."""

    __slots__ = ("due_ms", "fresh", "jobs", "key", "place", "priority", "pushed", "rest_ms")

    def __init__(
        self, place: JobPlace, due_ms: int = NEVER_MS, rest_ms: int = 0, *, pushed: bool = False, priority: int = 0
    ) -> None:
        self.place = place
        self.due_ms = due_ms
        # What follows: a lease that expires may be followed by a rest.
        self.rest_ms = rest_ms
        # The jobs of each stream are counted, so each one that leaves is reported to the counter.
        self.pushed = pushed
        self.jobs: dict[int, JobStanding] = {}
        # Distinguishes groups that are due at the same time.
        self.key = priority << PRIORITY_SHIFT | rest_ms << 1 | pushed
        self.priority = priority
        # Ready, and neither delayed nor delivered before.
        self.fresh = False


class DueTimes:
    """The groups of one place. `next_ms` may be early because of jobs that have left, never late."""

    __slots__ = ("_buckets", "_last", "_latest", "_order", "_place", "next_ms")

    def __init__(self, place: JobPlace) -> None:
        self._place = place
        self._buckets: dict[int, dict[tuple[int, int], DueGroup]] = {}
        self._order: list[int] = []
        # No bucket is later.
        self._last = 0
        # The group that was asked for last: as long as it has jobs and this place, it is in its bucket.
        self._latest = DueGroup(place)
        self.next_ms = NEVER_MS

    def at(self, due_ms: int, rest_ms: int = 0, *, pushed: bool = False, priority: int = 0) -> DueGroup:
        """The group of the jobs that fall due at this time."""
        key = priority << PRIORITY_SHIFT | rest_ms << 1 | pushed
        latest = self._latest
        if latest.due_ms == due_ms and latest.key == key and latest.place is self._place and latest.jobs:
            return latest
        bucket = self._bucket(due_ms)
        group = bucket.get((due_ms, key))
        if group is None:
            group = DueGroup(self._place, due_ms, rest_ms, pushed=pushed, priority=priority)
            bucket[due_ms, key] = group
        self._latest = group
        return group

    def _bucket(self, due_ms: int) -> dict[tuple[int, int], DueGroup]:
        if due_ms < self.next_ms:
            self.next_ms = due_ms
        number = due_ms // BUCKET_MS
        bucket = self._buckets.get(number)
        if bucket is None:
            bucket = self._buckets[number] = {}
            heapq.heappush(self._order, number)
            if number > self._last:
                self._last = number
        return bucket

    def adopt(self, group: DueGroup, due_ms: int) -> None:
        """Take over a whole group from another place."""
        bucket = self._bucket(due_ms)
        key = group.priority << PRIORITY_SHIFT
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

    def groups(self) -> Iterator[DueGroup]:
        for bucket in self._buckets.values():
            yield from bucket.values()

    def groups_from(self, due_ms: int) -> Iterator[tuple[int, list[DueGroup]]]:
        """The groups that fall due at `due_ms` or later, earliest first; all of one time together.

        No groups with a time: the search has come to that time, and may be ended there.
        """
        buckets, first = self._buckets, max(due_ms, self.next_ms) // BUCKET_MS
        numbers: Iterable[int] = range(first, self._last + 1)
        if len(buckets) <= PLACES_PER_STEP:
            numbers = sorted([number for number in buckets if number >= first])
        for visited, number in enumerate(numbers, 1):
            bucket = buckets.get(number)
            if bucket is None:
                if visited % PLACES_PER_STEP == 0:
                    yield number * BUCKET_MS, []
                continue
            for due, keys in groupby(sorted([key for key in bucket if key[0] >= due_ms]), key=_due_of):
                yield due, [bucket[key] for key in keys]


class ReadyJobs:
    """Groups in the order in which they became ready; within one by seq. Jobs leave their group for any reason."""

    __slots__ = ("_draining", "_group", "_groups")

    def __init__(self) -> None:
        self._groups: deque[DueGroup] = deque()
        self._draining: list[int] = []
        self._group = DueGroup(JobPlace.READY)

    def add(self, group: DueGroup) -> None:
        self._groups.append(group)

    def newest(self) -> DueGroup:
        """The group that a job which is given back is added to."""
        if not self._groups:
            self._groups.append(DueGroup(JobPlace.READY))
        return self._groups[-1]

    def newest_fresh(self) -> DueGroup:
        """The same for jobs that are appended."""
        groups = self._groups
        if not groups or len(groups[-1].jobs) >= FRESH_PER_GROUP_MAX:
            groups.append(DueGroup(JobPlace.READY))
            groups[-1].fresh = True
        return groups[-1]

    def next_seq(self) -> int | None:
        """The job that is claimed next."""
        while True:
            jobs = self._group.jobs
            while self._draining:
                seq = self._draining[-1]
                if seq in jobs:
                    return seq
                self._draining.pop()
            if not self._groups:
                return None
            self._group = self._groups.popleft()
            self._draining = sorted(self._group.jobs, reverse=True)

    def next_seqs(self, most: int) -> list[int]:
        """That one and those of its group that follow it, `most` of them; empty if there is none."""
        if not (self._draining or self._groups) or self.next_seq() is None:
            return []
        jobs = self._group.jobs
        return [seq for seq in reversed(self._draining[-most:]) if seq in jobs]

    def peek(self) -> int | None:
        """The next one without a change, for those who only look."""
        jobs = self._group.jobs
        for seq in reversed(self._draining):
            if seq in jobs:
                return seq
        return next((min(group.jobs) for group in self._groups if group.jobs), None)


class Lane:
    """The ready jobs of one priority above 0."""

    __slots__ = ("fresh", "priority", "reclaimed")

    def __init__(self, priority: int) -> None:
        self.priority = priority
        self.reclaimed = ReadyJobs()
        self.fresh = ReadyJobs()


class Lanes:
    """A lane for each priority above 0 that was ever used, the highest first."""

    __slots__ = ("_lanes",)

    def __init__(self) -> None:
        self._lanes: list[Lane] = []

    def of(self, priority: int) -> Lane:
        for lane in self._lanes:
            if lane.priority == priority:
                return lane
        lane = Lane(priority)
        self._lanes.append(lane)
        self._lanes.sort(key=lambda each: -each.priority)
        return lane

    def next_ranked(self, most: int) -> tuple[int, list[int]] | None:
        """Jobs that are claimed before all jobs without a priority, some of them, and their rank."""
        for lane in self._lanes:
            if seqs := lane.reclaimed.next_seqs(most):
                return rank_of(lane.priority), seqs
            if seqs := lane.fresh.next_seqs(most):
                return rank_of(lane.priority) + 1, seqs
        return None

    def peek(self) -> int | None:
        """The oldest of the next jobs of each lane."""
        seqs = [ready.peek() for lane in self._lanes for ready in (lane.reclaimed, lane.fresh)]
        return min((seq for seq in seqs if seq is not None), default=None)


def rank_of(priority: int) -> int:
    """The rank of reclaimed jobs of a priority: lower ones are handed out first. Fresh ones come right after them."""
    return 2 * (JOB_PRIORITY_MAX - priority)


def jobs_of(groups: list[DueGroup], from_seq: int, to_seq: int) -> Iterator[tuple[int, JobStanding | None]]:
    """The jobs of groups by seq, from … to, both included. A seq without a job: the search has come to it."""
    if sum([len(group.jobs) for group in groups]) <= PLACES_PER_STEP:
        found = [entry for group in groups for entry in group.jobs.items() if from_seq <= entry[0] <= to_seq]
        found.sort(key=_seq_of)
        yield from found
        return
    for visited, seq in enumerate(range(from_seq, to_seq + 1), 1):
        held = next((group.jobs[seq] for group in groups if seq in group.jobs), None)
        if held is not None or visited % PLACES_PER_STEP == 0:
            yield seq, held


def _due_of(key: tuple[int, int]) -> int:
    return key[0]


def _seq_of(entry: tuple[int, JobStanding]) -> int:
    return entry[0]
