"""The state of a queue: which worker holds which job of the topic's records.

    fresh ─────claim────▶ leased ──ack──▶ (gone)         A fresh job is a live record after the claim cursor and
      ▲                    │    ▲                        nothing else: a million of them cost nothing and no claim
    append               nack,  │claim                   is slower for them. Every live record up to the cursor has
      │                 expires │                        a Job, and so has one that was appended with a delay or a
      └─with a delay─▶ resting ─┴─ ready                 priority: that one is ready from the start, in its lane.

Counts are exact at any time: whole groups fall due at once, and records that die are reported here (`dying`) for any
reason. Every method takes the time as a parameter; none reads a clock.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from topics.engine.log.block import Block
from topics.engine.log.body import Body
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.queues.due import DueGroup, Job, JobPlace, JobStanding, jobs_of, rank_of
from topics.engine.queues.places import JobPlaces
from topics.model.errors import TopicsError
from topics.model.requests.batch import NO_KEY, Batch, JobColumns, unique_keys

if TYPE_CHECKING:
    from topics.engine.log.topic import Topic
    from topics.engine.queues.limits.tag_limits import TagLimits

# Looked up once: an attribute of an Enum costs as much as a call.
_LEASED: Final = JobPlace.LEASED

SCAN_RECORDS_MAX = 20_000
DOOMED_PER_TAKE_MAX = 256

Load = Callable[["Block"], None]


# A job chosen for delivery (seq, its Job if it has one, its record, its tag): it is leased in the same step. A plain
# tuple, because a claim makes one for each job.
Taken = tuple[int, Job | None, bytes, bytes | None]


class TakenRun(NamedTuple):
    """Neighbouring fresh jobs chosen for delivery: records first … stop − 1 of a block, which has its body."""

    block: Block
    body: Body
    first: int
    stop: int


class Queue(JobPlaces):
    """Chooses jobs for claims, and folds what happens to their records."""

    __slots__ = ()

    # --- choosing ---

    def take(
        self, topic: Topic, wanted: int, bytes_max: int, deliveries_max: int, load: Load, now_ms: int
    ) -> tuple[list[Taken], list[Job]]:
        """Up to `wanted` claimable jobs, given back ones first, and jobs that were delivered too often.

        The last one may exceed `bytes_max`.

        May raise ColdMiss or a read error, as long as no job is taken.
        """
        taken: list[Taken] = []
        doomed: list[Job] = []
        limits, room = self.limits, wanted
        if limits is not None:
            room = limits.room(wanted, now_ms)
        try:
            if limits is not None and limits.tags.in_use:
                limits.take(topic, room, bytes_max, deliveries_max, load, now_ms, taken, doomed)
            else:
                size = self._take_released(topic, room, bytes_max, deliveries_max, load, taken, doomed)
                if len(taken) < room and self.fresh and size < bytes_max:
                    self._take_fresh(topic, room, bytes_max - size, load, taken)
        except (ColdMiss, TopicsError):
            if not taken and not doomed:
                raise
        if limits is not None:
            limits.spend(len(taken), room, now_ms)
            self.drop_limits_if_off()
        return taken, doomed

    def take_run(
        self, topic: Topic, wanted: int, bytes_max: int, load: Load, tags: TagLimits | None, now_ms: int
    ) -> TakenRun | None:
        """What `take` would, if that is all of one run of fresh jobs; otherwise None, and nothing is taken.

        The limits of the whole queue have room for it; those of tags are asked.
        """
        if self.released or self.ahead or not self.fresh:
            return None
        block = topic.blocks[topic.block_after(self.cursor)]
        if block.seqs is not None:
            return None
        if wanted > self.fresh:
            wanted = self.fresh
        first, stop = block.first_alive_run(self.cursor + 1 - block.first_seq, wanted)
        if stop - first != wanted:
            return None
        load(block)
        body = block.body
        assert body is not None
        ends = body.ends
        if ends[stop - 1] - (ends[first - 1] if first else 0) > bytes_max:
            return None
        if tags is not None and not tags.take_run(body, block.first_seq, first, stop, now_ms):
            return None
        self.cursor = block.first_seq + stop - 1
        self.fresh -= wanted
        return TakenRun(block, body, first, stop)

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
        block: Block | None = None
        while self.released and len(taken) < wanted and size < bytes_max and len(doomed) < DOOMED_PER_TAKE_MAX:
            ranked = self.next_ranked(wanted - len(taken))
            assert ranked is not None, "a released job is in a group"
            for seq in ranked[1]:
                if block is None or seq < block.first_seq or seq > block.last_seq:
                    block = topic.blocks[topic.block_after(seq - 1)]
                    load(block)
                body = block.body
                assert body is not None
                job = self.job_for(seq)
                self.choose(job)
                if job.deliveries >= deliveries_max:
                    doomed.append(job)
                else:
                    number = block.number_after(seq - 1)
                    record = bytes(body.record(number))
                    taken.append((seq, job, record, body.tag_at(number)))
                    if job.refusals:
                        self.accept(job)
                    size += len(record)
                if size >= bytes_max or len(doomed) >= DOOMED_PER_TAKE_MAX:
                    break
        return size

    @property
    def unfinished(self) -> bool:
        """Whether the last claim has to go on: limits of tags held back too many of the jobs it met."""
        limits = self.limits
        return limits is not None and not self.paused and limits.tags.in_use and limits.tags.unfinished

    def next_ranked(self, most: int) -> tuple[int, list[int]] | None:
        """The released jobs that are claimed next, some of them, and their rank: the lowest is claimed first."""
        found = self._lanes.next_ranked(most)
        if found is None and (seqs := self._ready.next_seqs(most)):
            found = rank_of(0), seqs
        return found

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
        first_seq, apart = batch.first_seq, jobs.delays
        if jobs.priorities:
            apart = array("I", map(max, jobs.delays, jobs.priorities))
        if not self.fresh and all(apart):
            # No fresh job is in between: the cursor need not pass them one by one later.
            self.ahead = 0
            self.cursor = first_seq + batch.count - 1
        else:
            self.fresh += batch.count
        if jobs.priorities:
            self._prioritize(first_seq, jobs)
        elif any(jobs.delays):
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
        group = DueGroup(JobPlace.RESTING)
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

    def _prioritize(self, first_seq: int, jobs: JobColumns) -> None:
        """Jobs with a priority are ready in their lane from the start, or rest until their delay is over."""
        is_ahead = first_seq > self.cursor
        for seq, priority in enumerate(jobs.priorities, first_seq):
            delay_ms = jobs.delays[seq - first_seq]
            if priority or delay_ms:
                job = self.jobs[seq] = Job(seq)
                job.priority = priority
                if is_ahead:
                    self.ahead += 1
                    self.fresh -= 1
                if delay_ms:
                    self._rest(job, jobs.from_ms + delay_ms)
                else:
                    self.make_fresh(job)

    def make_fresh(self, job: Job) -> None:
        """A job with a priority is ready, as it was when it was appended."""
        self._detach(job)
        job.group = group = self._lanes.of(job.priority).fresh.newest_fresh()
        group.jobs[job.seq] = job
        self.released += 1

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
        if block.all_alive(start, stop):
            if stop - start == 1:
                self._dying_one(block.seq_at(start))
            else:
                self._dying_run(block, start, stop)
        else:
            for first, end in block.alive_runs(start, stop):
                self._dying_run(block, first, end)

    def _dying_one(self, seq: int) -> None:
        """The same as `_dying_run`, for jobs without neighbours that leave with them: most of those with a priority."""
        if self.limits is not None:
            self.limits.let_go(seq)
        job = self.jobs.pop(seq, None)
        if job is not None and job.group is not None:
            self._leave(seq, job, job.group)
        if isinstance(job, Job):
            job.group = None
            self.accept(job)
            if seq > self.cursor:
                self.ahead -= 1
        elif seq > self.cursor:
            self.fresh -= 1
        elif job is None and self.parked:
            self.parked -= 1
        if self.unique_of:
            self._forget_key(seq)

    def _dying_run(self, block: Block, first: int, end: int) -> None:
        jobs, cursor = self.jobs, self.cursor
        from_seq, to_seq = block.seq_at(first), block.seq_at(end - 1)
        behind = 0 if to_seq <= cursor else end - max(first, block.number_after(cursor))
        seqs: Iterable[int] = range(from_seq, to_seq + 1)
        if to_seq - from_seq >= len(jobs):
            seqs = [seq for seq in jobs if from_seq <= seq <= to_seq]
        if self.parked:
            # Up to the cursor, exactly those that have no Job are parked.
            self.parked -= end - first - behind - sum([seq in jobs for seq in seqs if seq <= cursor])
        if self.limits is not None:
            for seq in seqs:
                self.limits.let_go(seq)
        leaving: JobStanding | None = None
        for seq in seqs:
            job = jobs.pop(seq, None)
            if job is None or job is leaving:
                continue
            if job.group is not None:
                self._leave(seq, job, job.group)
            if isinstance(job, Job):
                job.group = None
                self.accept(job)
                if seq > cursor:
                    self.ahead -= 1
                    behind -= 1
            elif job.group is None:
                # Most acks are of a whole run: the rest of it needs no second look.
                leaving = job
        self.fresh -= behind
        if self.unique_of:
            self._forget_keys(block, first, end)

    def _forget_keys(self, block: Block, first: int, end: int) -> None:
        for seq in map(block.seq_at, range(first, end)):
            self._forget_key(seq)

    def _forget_key(self, seq: int) -> None:
        key = self.unique_of.pop(seq, None)
        if key is not None and self.unique.get(key) == seq:
            del self.unique[key]

    # --- listing ---

    def leases_from(self, topic: Topic, deadline: int, seq: int, limit: int) -> list[tuple[int, JobStanding]]:
        """Valid leases and their seqs, soonest to expire first, after (deadline, seq)."""
        found = (
            (number, job) for _, number, job in self.due_from(topic, _LEASED, deadline + 1, seq) if job is not None
        )
        return list(islice(found, limit))

    def due_from(
        self, topic: Topic, place: JobPlace, due_ms: int, seq: int
    ) -> Iterator[tuple[int, int, JobStanding | None]]:
        """Leased or resting jobs after (due_ms, seq), those that leave their place first, first.

        A time and a seq without a job: the search has come to there, and may be ended.
        """
        times = self._leases if place is _LEASED else self._rests
        for due, groups in times.groups_from(due_ms):
            if not groups:
                yield due, 0, None
            after = seq if due == due_ms else 0
            for number, job in jobs_of(groups, max(after + 1, topic.earliest_seq), topic.head_seq):
                yield due, number, job

    def next_released_seq(self) -> int | None:
        """About the oldest of those that were given back, or have a priority."""
        return min((seq for seq in (self._lanes.peek(), self._ready.peek()) if seq is not None), default=None)
