"""The state of a queue: which worker holds which job of the topic's records.

    fresh ─────claim────▶ leased ──ack──▶ (gone)         A fresh job is a live record after the claim cursor and
      ▲                    │    ▲                        nothing else: a million of them cost nothing and no claim
    append               nack,  │claim                   is slower for them. Every live record up to the cursor has
      │                 expires │                        a Job, and so has one that was appended with a delay.
      └─with a delay─▶ resting ─┴─ ready

Counts are exact at any time: whole groups fall due at once, and records that die are reported here (`dying`) for any
reason. Every method takes the time as a parameter; none reads a clock.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Final

from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.queues.due import NO_STREAM, DueGroup, DueTimes, Job, JobPlace
from topics.model.errors import TopicsError
from topics.model.requests.batch import NO_KEY, Batch, JobColumns, unique_keys

if TYPE_CHECKING:
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic

# Looked up once: an attribute of an Enum costs as much as a call.
_READY: Final = JobPlace.READY
_LEASED: Final = JobPlace.LEASED

SCAN_RECORDS_MAX = 20_000
DOOMED_PER_TAKE_MAX = 256
WORKERS_KEPT_MAX = 200

Load = Callable[["Block"], None]


# A job chosen for delivery (seq, its Job if it has one, its record, its tag): it is leased in the same step. A plain
# tuple, because a claim makes one for each job.
Taken = tuple[int, Job | None, bytes, bytes | None]


class Queue:
    __slots__ = (
        "_draining",
        "_draining_group",
        "_leases",
        "_ready",
        "_rests",
        "ahead",
        "closing",
        "cursor",
        "dead_lettered",
        "delayed",
        "fresh",
        "in_flight",
        "jobs",
        "next_lease",
        "paused",
        "refusal",
        "refused",
        "released",
        "streams",
        "unique",
        "unique_of",
        "workers",
    )

    def __init__(self) -> None:
        # records after the cursor that have no Job, and Jobs after the cursor
        self.cursor: int = 0
        self.fresh = 0
        self.ahead = 0
        self.jobs: dict[int, Job] = {}
        # jobs by place, and how many there are of each
        self._leases = DueTimes(JobPlace.LEASED)
        self._rests = DueTimes(JobPlace.RESTING)
        self._ready: deque[DueGroup] = deque()
        self._draining: list[int] = []
        self._draining_group = DueGroup(_READY)
        self.released = 0
        self.in_flight = 0
        self.delayed = 0
        # unique keys of pending jobs
        self.unique: dict[bytes, int] = {}
        self.unique_of: dict[int, bytes] = {}
        self.dead_lettered = 0
        self.paused = False
        # jobs that should be in the dead-letter topic, which refuses them, and why
        self.refused = 0
        self.refusal = ""
        # The process stops: the state of jobs is kept, except for leases that are not durable.
        self.closing = False
        # 0: this process has given out none yet
        self.next_lease = 0
        # jobs in flight on each connection that jobs are pushed to
        self.streams: dict[int, dict[int, Job]] = {}
        # workers that have claimed since the start, the latest last, and when
        self.workers: dict[str, int] = {}

    @property
    def ready(self) -> int:
        return self.fresh + self.released

    @property
    def next_ms(self) -> int:
        """When the next job may become claimable by time alone."""
        return min(self._leases.next_ms, self._rests.next_ms)

    # --- time ---

    def advance(self, now_ms: int) -> None:
        """Expire leases and end rests. Costs one step per group, whatever the number of jobs."""
        if now_ms >= self._leases.next_ms:
            for group in self._leases.fallen_due(now_ms):
                self.in_flight -= len(group.jobs)
                if group.pushed:
                    for job in group.jobs.values():
                        self._off_stream(job)
                rest_until = group.due_ms + group.rest_ms
                if rest_until > now_ms:
                    self._rests.adopt(group, rest_until)
                    self.delayed += len(group.jobs)
                else:
                    self._make_ready(group)
        if now_ms >= self._rests.next_ms:
            for group in self._rests.fallen_due(now_ms):
                self.delayed -= len(group.jobs)
                self._make_ready(group)

    def _make_ready(self, group: DueGroup) -> None:
        group.place = _READY
        self.released += len(group.jobs)
        self._ready.append(group)

    # --- places ---

    def _detach(self, job: Job) -> None:
        group = job.group
        if group is None:
            return
        del group.jobs[job.seq]
        job.group = None
        place = group.place
        if place is _LEASED:
            self.in_flight -= 1
            if job.stream:
                self._off_stream(job)
            if not group.jobs:
                self._leases.discard(group)
        elif place is _READY:
            self.released -= 1
        else:
            self.delayed -= 1
            if not group.jobs:
                self._rests.discard(group)

    def _off_stream(self, job: Job) -> None:
        pushed = self.streams.get(job.stream)
        if pushed is not None:
            pushed.pop(job.seq, None)
        job.stream = NO_STREAM

    def _rest(self, job: Job, due_ms: int) -> None:
        job.group = group = self._rests.at(due_ms)
        group.jobs[job.seq] = job
        self.delayed += 1

    def give_back(self, job: Job, due_ms: int, now_ms: int) -> None:
        """Claimable again from `due_ms` on."""
        self._detach(job)
        if due_ms > now_ms:
            self._rest(job, due_ms)
            return
        group = self._ready[-1] if self._ready else None
        if group is None:
            group = DueGroup(_READY)
            self._ready.append(group)
        job.group = group
        group.jobs[job.seq] = job
        self.released += 1

    def take_out(self, jobs: Iterable[Job]) -> None:
        """They are leaving the queue; if that fails, they are given back."""
        leased = 0
        for job in jobs:
            group = job.group
            if group is None or group.place is not _LEASED or job.stream:
                self._detach(job)
                continue
            # The work of an ack, inlined because it runs for every job.
            leased += 1
            job.group = None
            del group.jobs[job.seq]
            if not group.jobs:
                self._leases.discard(group)
        self.in_flight -= leased

    def lease(self, job: Job, node: str, lease: int, deadline: int, rest_ms: int, stream: int = NO_STREAM) -> None:
        """Expires when the clock is past the deadline, not at it."""
        self._detach(job)
        job.node, job.lease, job.deadline = node, lease, deadline
        self.let_out(job, self.leased_until(deadline, rest_ms, stream), stream)

    def hand_out(
        self, jobs: list[tuple[int, int, int]], node: str, deadline: int, rest_ms: int, now_ms: int, stream: int
    ) -> None:
        """Jobs (seq, lease, deliveries) go to their worker; inlined because it runs for every job."""
        known, cursor = self.jobs, self.cursor
        group = self.leased_until(deadline, rest_ms, stream)
        members, pushed = group.jobs, self.streams[stream] if stream else None
        for seq, lease, deliveries in jobs:
            job = known.get(seq)
            if job is None:
                job = known[seq] = Job(seq, group, deliveries, node, lease, now_ms, deadline, stream)
                if seq > cursor:
                    self.ahead += 1
                    self.fresh -= 1
            else:
                if job.group is not None:
                    self._detach(job)
                job.deliveries = deliveries
                job.claimed_ms = now_ms
                job.node = node
                job.lease = lease
                job.deadline = deadline
                job.stream = stream
                job.group = group
            members[seq] = job
            if pushed is not None:
                pushed[seq] = job
        self.in_flight += len(jobs)
        if now_ms:
            self._note_worker(node, now_ms)

    def _note_worker(self, node: str, now_ms: int) -> None:
        workers = self.workers
        workers.pop(node, None)
        workers[node] = now_ms
        if len(workers) > WORKERS_KEPT_MAX:
            del workers[next(iter(workers))]

    def leased_until(self, deadline: int, rest_ms: int, stream: int = NO_STREAM) -> DueGroup:
        """The group of leases with this deadline."""
        return self._leases.at(deadline + 1, rest_ms, pushed=stream != NO_STREAM)

    def let_out(self, job: Job, group: DueGroup, stream: int = NO_STREAM) -> None:
        """A job that is in no group goes to its worker."""
        job.group = group
        group.jobs[job.seq] = job
        self.in_flight += 1
        job.stream = stream
        if stream:
            self.streams[stream][job.seq] = job

    def extend(self, job: Job, deadline: int, rest_ms: int) -> None:
        self.lease(job, job.node, job.lease, deadline, rest_ms, job.stream)

    def held(self, seq: int, now_ms: int) -> Job | None:
        """The job, if a lease on it is valid."""
        job = self.jobs.get(seq)
        if job is None or job.group is None or job.group.place is not _LEASED or job.deadline < now_ms:
            return None
        return job

    def held_by(self, node: str, seqs: list[int], tokens: list[str] | None, now_ms: int) -> tuple[list[Job], list[int]]:
        """The jobs that this worker holds, by its tokens if it sent them, and the seqs it does not hold."""
        found: dict[int, Job] = {}
        skipped: list[int] = []
        known = self.jobs
        for number, seq in enumerate(seqs):
            job = known.get(seq)
            if (
                job is None
                or job.node != node
                or job.group is None
                or job.group.place is not _LEASED
                or job.deadline < now_ms
                or seq in found
                or (tokens is not None and tokens[number] != f"lease_{job.lease:x}")
            ):
                skipped.append(seq)
            else:
                found[seq] = job
        return list(found.values()), skipped

    def refuse(self, job: Job, reason: str) -> None:
        """The dead-letter topic refuses the job; without a reason: not yet."""
        self.refused += not job.refusals
        self.refusal = reason or self.refusal
        job.refusals += 1

    def accept(self, job: Job) -> None:
        """The job leaves for the dead-letter topic, or for a worker after all."""
        if job.refusals:
            self.refused -= 1
            job.refusals = 0

    def job_for(self, seq: int) -> Job:
        """The Job of a live record, created if it has none."""
        job = self.jobs.get(seq)
        if job is None:
            job = self.jobs[seq] = Job(seq)
            if seq > self.cursor:
                self.ahead += 1
                self.fresh -= 1
        return job

    # --- choosing ---

    def take(
        self, topic: Topic, wanted: int, bytes_max: int, deliveries_max: int, load: Load
    ) -> tuple[list[Taken], list[Job]]:
        """Up to `wanted` claimable jobs, given back ones first, and jobs that were delivered too often.

        The last one may exceed `bytes_max`.

        May raise ColdMiss or a read error, as long as no job is taken.
        """
        taken: list[Taken] = []
        doomed: list[Job] = []
        try:
            size = self._take_released(topic, wanted, bytes_max, deliveries_max, load, taken, doomed)
            if len(taken) < wanted and self.fresh and size < bytes_max:
                self._take_fresh(topic, wanted, bytes_max - size, load, taken)
        except (ColdMiss, TopicsError):
            if not taken and not doomed:
                raise
        return taken, doomed

    def _take_released(
        self,
        topic: Topic,
        wanted: int,
        bytes_max: int,
        deliveries_max: int,
        load: Load,
        taken: list[Taken],
        doomed: list[Job],
    ) -> int:
        size = 0
        while self.released and len(taken) < wanted and size < bytes_max and len(doomed) < DOOMED_PER_TAKE_MAX:
            job = self._next_released()
            block = topic.blocks[topic.block_after(job.seq - 1)]
            load(block)
            body = block.body
            assert body is not None
            if job.deliveries >= deliveries_max:
                doomed.append(job)
            else:
                number = block.number_after(job.seq - 1)
                record = bytes(body.record(number))
                taken.append((job.seq, job, record, body.tag_at(number)))
                self.accept(job)
                size += len(record)
            self._detach(job)
        return size

    def _next_released(self) -> Job:
        """Groups in the order in which they became ready; within one by seq."""
        while True:
            jobs = self._draining_group.jobs
            while self._draining:
                job = jobs.get(self._draining[-1])
                if job is not None:
                    return job
                self._draining.pop()
            self._draining_group = self._ready.popleft()
            self._draining = sorted(self._draining_group.jobs, reverse=True)

    def _take_fresh(self, topic: Topic, wanted: int, bytes_max: int, load: Load, taken: list[Taken]) -> None:
        index = topic.block_after(self.cursor)
        blocks = topic.blocks
        scanned = size = 0
        while index < len(blocks) and scanned < SCAN_RECORDS_MAX:
            block = blocks[index]
            for first, stop in block.alive_runs(block.number_after(self.cursor), block.count):
                load(block)
                if not self.ahead:
                    stop = min(stop, first + wanted - len(taken))
                count, more = self._take_run(block, first, stop, wanted, bytes_max - size, taken)
                scanned += count
                size += more
                if len(taken) == wanted or size >= bytes_max:
                    return
            index += 1

    def _take_run(
        self, block: Block, first: int, stop: int, wanted: int, bytes_max: int, taken: list[Taken]
    ) -> tuple[int, int]:
        """Take live records first … stop − 1 until there are enough; how many were visited, and their bytes."""
        body = block.body
        assert body is not None
        buf, ends, seqs, tagged = body.buf, body.ends, block.seqs, body.tags is not None
        jobs = self.jobs if self.ahead else None
        begin = ends[first - 1] if first else 0
        number, first_seq, before = first, block.first_seq, len(taken)
        room = wanted - before
        size = 0
        seq = self.cursor
        while number < stop and room and size < bytes_max:
            end = ends[number]
            seq = first_seq + number if seqs is None else seqs[number]
            if jobs is not None and seq in jobs:
                self.ahead -= 1
            else:
                taken.append((seq, None, bytes(buf[begin : end - 1]), body.tag_at(number) if tagged else None))
                size += end - begin
                room -= 1
            begin = end
            number += 1
        self.cursor = seq
        self.fresh -= len(taken) - before
        return number - first, size

    # --- folds ---

    def appended(self, batch: Batch) -> None:
        jobs = batch.jobs
        if jobs is None:
            self.fresh += batch.count
            return
        first_seq = batch.first_seq
        if not self.fresh and all(jobs.delays):
            # No fresh job is in between: the cursor need not pass them one by one later.
            self.ahead = 0
            self.cursor = first_seq + batch.count - 1
        else:
            self.fresh += batch.count
        if any(jobs.delays):
            self._delay(first_seq, jobs)
        keys = unique_keys(jobs.unique)
        if NO_KEY not in keys:
            seqs = range(first_seq, first_seq + batch.count)
            self.unique.update(zip(keys, seqs, strict=True))
            self.unique_of.update(zip(seqs, keys, strict=True))
            return
        for seq, key in enumerate(keys, first_seq):
            if key != NO_KEY:
                self.pend(key, seq)

    def _delay(self, first_seq: int, jobs: JobColumns) -> None:
        """Jobs with a delay rest from the start; inlined because it runs for every job."""
        known, group_at, from_ms = self.jobs, self._rests.at, jobs.from_ms
        count = len(known)
        delay_before = 0
        group = self._draining_group
        for seq, delay_ms in enumerate(jobs.delays, first_seq):
            if delay_ms:
                if delay_ms != delay_before:
                    group, delay_before = group_at(from_ms + delay_ms), delay_ms
                job = known[seq] = Job(seq)
                job.group = group
                group.jobs[seq] = job
        count = len(known) - count
        self.delayed += count
        if first_seq > self.cursor:
            self.ahead += count
            self.fresh -= count

    def pend(self, key: bytes, seq: int) -> None:
        self.unique[key] = seq
        self.unique_of[seq] = key

    def pass_over(self, topic: Topic, seq: int) -> None:
        """A lease in the log proves that the cursor was there; live records that it passed are claimable."""
        if seq <= self.cursor:
            return
        index = topic.block_after(self.cursor)
        while index < len(topic.blocks) and topic.blocks[index].first_seq <= seq:
            block = topic.blocks[index]
            for first, stop in block.alive_runs(block.number_after(self.cursor), block.number_after(seq)):
                for number in range(first, stop):
                    passed = block.seq_at(number)
                    if passed in self.jobs:
                        self.ahead -= 1
                    else:
                        self.fresh -= 1
                        self.jobs[passed] = job = Job(passed)
                        self.give_back(job, 0, 0)
            index += 1
        self.cursor = seq

    def dying(self, block: Block, start: int, stop: int) -> None:
        """The live records start … stop − 1 of a block are about to die."""
        cursor_number = block.number_after(self.cursor)
        for first, end in block.alive_runs(start, stop):
            behind = max(0, end - max(first, cursor_number))
            for seq in self._among_jobs(block, first, end):
                job = self.jobs.pop(seq)
                if job.refusals:
                    self.accept(job)
                if job.group is not None:
                    self._detach(job)
                if seq > self.cursor:
                    self.ahead -= 1
                    behind -= 1
            self.fresh -= behind
            if self.unique_of:
                self._forget_keys(block, first, end)

    def _among_jobs(self, block: Block, first: int, end: int) -> list[int]:
        jobs = self.jobs
        if not jobs:
            return []
        from_seq, to_seq = block.seq_at(first), block.seq_at(end - 1)
        if to_seq - from_seq < len(jobs):
            return [seq for seq in range(from_seq, to_seq + 1) if seq in jobs]
        return [seq for seq in jobs if from_seq <= seq <= to_seq]

    def _forget_keys(self, block: Block, first: int, end: int) -> None:
        for seq in map(block.seq_at, range(first, end)):
            key = self.unique_of.pop(seq, None)
            if key is not None and self.unique.get(key) == seq:
                del self.unique[key]

    # --- listing ---

    def leases_from(self, deadline: int, seq: int, limit: int) -> list[Job]:
        """Valid leases, soonest to expire first, after (deadline, seq)."""
        found: list[Job] = []
        for group in self._leases.groups_from(deadline + 1):
            for job in sorted(group.jobs.values(), key=_seq_of):
                if (job.deadline, job.seq) > (deadline, seq):
                    found.append(job)
                    if len(found) == limit:
                        return found
        return found

    def due_from(self, place: JobPlace, due_ms: int, seq: int) -> Iterator[Job]:
        """Leased or resting jobs after (due_ms, seq), those that leave their place first, first."""
        times = self._leases if place is JobPlace.LEASED else self._rests
        for due, groups in groupby(times.groups_from(due_ms), key=_due_of):
            for job in sorted((job for group in groups for job in group.jobs.values()), key=_seq_of):
                if (due, job.seq) > (due_ms, seq):
                    yield job

    def next_released_seq(self) -> int | None:
        """Of the jobs that were given back, the one that is claimed next."""
        jobs = self._draining_group.jobs
        for seq in reversed(self._draining):
            if seq in jobs:
                return seq
        return next((min(group.jobs) for group in self._ready if group.jobs), None)

    def entries(self) -> Iterable[Job]:
        return self.jobs.values()


def _seq_of(job: Job) -> int:
    return job.seq


def _due_of(group: DueGroup) -> int:
    return group.due_ms
