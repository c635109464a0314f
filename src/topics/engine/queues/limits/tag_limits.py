"""Limits of tags: which jobs may be handed out while others of their tag are in flight, or were a moment ago.

    lanes, reclaimed, fresh ──met by a claim─▶ its tag has room: handed out, and held until it has ended
                                           └─▶ it has none: waits in the line of its tag, out of the way of later claims
    line ──a held job ended or returned, or the rate allows one─▶ open: its head competes with all other ready jobs

A job is met once: a million jobs of a tag that has no room cost the claims that meet them a bounded number each, and
later claims nothing. After a restart the jobs that waited are fresh again, and the leases that survived are held.
"""

from __future__ import annotations

from array import array
from collections import deque
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from topics.engine.queues.due import NEVER_MS, DueGroup, Job, JobPlace
from topics.engine.queues.lease_log import is_live
from topics.engine.queues.limits.tag_line import FRESH_RANK, TagLine
from topics.model.errors import DamagedData

if TYPE_CHECKING:
    from topics.engine.log.block import Block
    from topics.engine.log.body import Body
    from topics.engine.log.topic import Topic
    from topics.engine.queues.limits.rate import Rate
    from topics.engine.queues.queue import Load, Queue, Taken

# Jobs that one claim looks at without handing them out: about a millisecond of work. The rest is for its next step.
VISITS_MAX = 2_000


class Search:
    """A claim's search for jobs: what it may take, and what it has found."""

    __slots__ = (
        "block",
        "bytes_left",
        "deliveries_max",
        "doomed",
        "doomed_max",
        "load",
        "now_ms",
        "taken",
        "topic",
        "visits_left",
        "wanted",
    )

    def __init__(
        self,
        topic: Topic,
        wanted: int,
        bytes_max: int,
        load: Load,
        now_ms: int,
        taken: list[Taken],
        doomed: list[Job],
    ) -> None:
        self.topic = topic
        # the last one that was loaded
        self.block: Block | None = None
        self.wanted = wanted
        self.bytes_left = bytes_max
        self.deliveries_max = self.doomed_max = 0
        self.visits_left = VISITS_MAX
        self.load = load
        self.now_ms = now_ms
        self.taken = taken
        self.doomed = doomed

    @property
    def goes_on(self) -> bool:
        return (
            len(self.taken) < self.wanted
            and self.bytes_left > 0
            and self.visits_left > 0
            and len(self.doomed) < self.doomed_max
        )


class TagLimits:
    __slots__ = (
        "_due",
        "_held_max",
        "_holders",
        "_lines",
        "_open",
        "_queue",
        "_rate",
        "_returned",
        "_returning",
        "_serial",
        "_spent",
        "_stirred",
        "_unseen",
        "_waiting_fresh",
        "_waiting_reclaimed",
        "met_all",
        "unfinished",
    )

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._held_max: int | None = None
        self._rate: Rate | None = None
        # Tags that have held jobs, waiting ones, or a bucket that is not full; and the line of each held job.
        self._lines: dict[bytes, TagLine] = {}
        self._holders: dict[int, TagLine] = {}
        # jobs that were in flight before the limit came, and may be holders
        self._unseen: array[int] = array("Q")
        # Waiting jobs that have a Job, of all lines: those that were appended with a priority, and all others.
        self._waiting_fresh = DueGroup(JobPlace.READY)
        self._waiting_fresh.fresh = True
        self._waiting_reclaimed = DueGroup(JobPlace.READY)
        # Lines with a job to hand out, by its rank and seq (listed anew when one comes that is claimed first); lines by
        # the time at which their rate allows a job; lines that may have room; lines whose bucket may be full.
        self._open: list[tuple[int, int, int, TagLine]] = []
        self._due: list[tuple[int, int, TagLine]] = []
        self._stirred: deque[TagLine] = deque()
        self._spent: deque[TagLine] = deque()
        self._serial = 0
        # Groups of jobs that are ready again and may be held, and the jobs of the first that are not looked at.
        self._returned: deque[DueGroup] = deque()
        self._returning: list[int] = []
        # Whether the last claim has looked at all jobs it might have got. If not, whether it has to go on as it met
        # too many that wait; otherwise its answer is full, or the next job is on disk.
        self.met_all = True
        self.unfinished = False

    def configure(self, held_max: int | None, rate: Rate | None, now_ms: int) -> None:
        if held_max == self._held_max and rate == self._rate:
            # Another field of the configuration has changed: do not look at all lines again.
            return
        if held_max is None:
            self._unseen = array("Q")
            self._holders.clear()
            self._returned.clear()
            self._returning.clear()
        elif self._held_max is None:
            self._unseen = self._queue.seqs_begun()
        self._held_max, self._rate = held_max, rate
        lines: dict[bytes, TagLine] = {}
        for line in self._lines.values():
            line.timed = False
            if rate is not None:
                line.full_ms = rate.bounded(line.full_ms, now_ms)
            if held_max is None:
                line.held = 0
            if rate is not None or line.held or line.is_waiting:
                lines[line.tag] = line
        self._lines = lines
        self._due.clear()
        self._spent = deque(lines.values() if rate is not None else ())
        self._stirred = deque(lines.values())

    @property
    def in_use(self) -> bool:
        """Whether it depends on its tag whether a job may be handed out; after a change, whether jobs still wait."""
        return self._held_max is not None or self._rate is not None or bool(self._lines)

    @property
    def waiting(self) -> int:
        """Ready jobs that their tag holds back, of those that claims have met."""
        return self._queue.parked + len(self._waiting_fresh.jobs) + len(self._waiting_reclaimed.jobs)

    @property
    def next_ms(self) -> int:
        return self._due[0][0] if self._due else NEVER_MS

    def limited_by(self) -> str:
        """What holds back those that wait."""
        if not self.waiting:
            return ""
        return "rate_per_s_per_tag" if self._due or self._held_max is None else "max_in_flight_per_tag"

    # --- held jobs ---

    def _line(self, tag: bytes) -> TagLine:
        line = self._lines.get(tag)
        if line is None:
            line = self._lines[tag] = TagLine(tag)
            if self._rate is not None:
                self._spent.append(line)
        return line

    def _hold(self, line: TagLine, seq: int) -> None:
        line.held += 1
        self._holders[seq] = line

    def let_go(self, seq: int) -> None:
        """The job is ready again, or gone: another one of its tag may be handed out."""
        line = self._holders.pop(seq, None)
        if line is not None:
            line.held -= 1
            if line.is_waiting:
                self._stirred.append(line)
            else:
                self._forget_idle(line)

    def returned(self, group: DueGroup) -> None:
        """Its jobs are ready again: any number of them, so they are let go of in steps."""
        if self._holders:
            self._returned.append(group)

    def _forget_idle(self, line: TagLine) -> None:
        """A line with a bucket is forgotten when that is full."""
        if self._rate is None and not line.held and not line.is_waiting:
            del self._lines[line.tag]

    def _forget_full_buckets(self, lines: int, now_ms: int) -> None:
        spent = self._spent
        for _ in range(min(len(spent), lines)):
            line = spent.popleft()
            if line.held or line.is_waiting or line.full_ms > now_ms:
                spent.append(line)
            else:
                del self._lines[line.tag]

    def _find_holders(self, search: Search) -> None:
        """Jobs that were in flight when the limit came, or when the process started."""
        unseen, jobs = self._unseen, self._queue.jobs
        while unseen and search.visits_left > 0:
            seq = unseen[-1]
            job = jobs.get(seq)
            group = None if job is None else job.group
            # A job that rests since its append has not begun.
            if job is not None and group is not None and group.place is not JobPlace.READY and job.deliveries:
                tag = _tag_of(search, seq) if seq not in self._holders else None
                if tag is not None:
                    self._hold(self._line(tag), seq)
            unseen.pop()
            search.visits_left -= 1

    # --- which lines are open ---

    def _is_open(self, line: TagLine, now_ms: int) -> bool:
        if self._held_max is not None and line.held >= self._held_max:
            return False
        return self._rate is None or self._rate.room(line.full_ms, now_ms) > 0

    def _list(self, line: TagLine, now_ms: int) -> None:
        """Put a line where it is found when its next job may be handed out."""
        head = line.head()
        if head is None:
            if self._lines.get(line.tag) is line:
                self._forget_idle(line)
        elif (line.listed and line.listed_as <= head) or (self._held_max is not None and line.held >= self._held_max):
            # It is found when the heap comes to it, or when a held job is let go of.
            return
        elif self._rate is None or self._rate.room(line.full_ms, now_ms):
            line.listed, line.listed_as = True, head
            self._serial += 1
            heappush(self._open, (head[0], head[1], self._serial, line))
        elif not line.timed:
            line.timed = True
            self._serial += 1
            heappush(self._due, (self._rate.due_ms(line.full_ms), self._serial, line))

    def _reopen(self, search: Search) -> None:
        """Find the lines that have room since the last claim."""
        due, returned, stirred = self._due, self._returned, self._stirred
        while due and due[0][0] <= search.now_ms and search.visits_left > 0:
            line = heappop(due)[2]
            line.timed = False
            self._list(line, search.now_ms)
            search.visits_left -= 1
        while returned and search.visits_left > 0:
            jobs = returned[0].jobs
            if not self._returning:
                self._returning = list(jobs)
            while self._returning and search.visits_left > 0:
                seq = self._returning.pop()
                if seq in jobs:
                    self.let_go(seq)
                search.visits_left -= 1
            if not self._returning:
                returned.popleft()
        while stirred and search.visits_left > 0:
            self._list(stirred.popleft(), search.now_ms)
            search.visits_left -= 1

    # --- choosing ---

    def take(self, search: Search) -> None:
        """What `Queue.take` does without limits of tags. May raise ColdMiss or a read error at any point."""
        self.met_all = self.unfinished = False
        if not search.wanted:
            return
        self._find_holders(search)
        if not self._unseen:
            self._reopen(search)
            self._take_known(search)
            if self._queue.fresh and search.goes_on:
                self._take_fresh(search)
        self.met_all = search.goes_on
        self.unfinished = search.visits_left <= 0 and len(search.taken) < search.wanted
        if self._spent:
            self._forget_full_buckets(2 * len(search.taken) + 2, search.now_ms)

    def take_run(self, body: Body, first_seq: int, first: int, stop: int, now_ms: int) -> bool:
        """Hand out fresh neighbours, if nothing comes before them and each is the only one of its tag with room."""
        due = self._due
        if self._unseen or self._open or self._stirred or self._returned or (due and due[0][0] <= now_ms):
            return False
        self.met_all, self.unfinished = True, False
        if body.tags is None:
            return True
        tags = [body.tag_at(number) for number in range(first, stop)]
        lines = self._lines
        found: list[TagLine | None] = []
        if len(set(tags)) < len(tags) - max(0, tags.count(None) - 1):
            return False
        for tag in tags:
            line = lines.get(tag) if tag is not None else None
            if line is not None and not self._is_open(line, now_ms):
                return False
            found.append(line)
        for seq, tag, line in zip(range(first_seq + first, first_seq + stop), tags, found, strict=True):
            if tag is not None:
                self._hand_out(tag, line, seq, now_ms)
        if self._spent:
            self._forget_full_buckets(2 * len(tags) + 2, now_ms)
        return True

    def _take_known(self, search: Search) -> None:
        """Heads of open lines, reclaimed jobs and jobs with a priority, by rank."""
        rank, at = 0, 0
        seqs: list[int] = []
        while search.goes_on:
            if at == len(seqs):
                rank, seqs = self._queue.next_ranked(search.wanted - len(search.taken)) or (0, [])
                at = 0
            if self._open and (not seqs or self._open[0][0] <= rank):
                self._take_head(search)
            elif seqs:
                self._take_released(search, rank, seqs[at])
                at += 1
            else:
                return

    def _take_head(self, search: Search) -> None:
        """The head of the first of the open lines, if that is open and its head a job that waits."""
        queue, topic = self._queue, search.topic
        rank, seq, _, line = self._open[0]
        if not line.listed or line.listed_as != (rank, seq):
            # The line was listed anew since, with a job that comes first.
            heappop(self._open)
            search.visits_left -= 1
            return
        is_head = line.head() == (rank, seq)
        is_waiting = self._is_waiting(topic, rank, seq)
        if is_head and is_waiting and self._is_open(line, search.now_ms):
            body, number = _located(search, seq)
            heappop(self._open)
            line.listed = False
            line.pop()
            job: Job | None = None
            if rank == FRESH_RANK:
                queue.parked -= 1
            else:
                job = queue.job_for(seq)
            self._choose(search, seq, job, bytes(body.record(number)), line.tag, line)
        else:
            heappop(self._open)
            line.listed = False
            if is_head and not is_waiting:
                line.pop()
                line.drop_before(topic.earliest_seq)
            search.visits_left -= 1
        self._list(line, search.now_ms)

    def _is_waiting(self, topic: Topic, rank: int, seq: int) -> bool:
        """Whether it still waits in its line: it may have been deleted, or moved by an operator."""
        job = self._queue.jobs.get(seq)
        if rank == FRESH_RANK:
            return job is None and is_live(topic, seq)
        return job is not None and (job.group is self._waiting_fresh or job.group is self._waiting_reclaimed)

    def _take_released(self, search: Search, rank: int, seq: int) -> None:
        """A reclaimed job, or one with a priority."""
        queue = self._queue
        body, number = _located(search, seq)
        job = queue.job_for(seq)
        if seq in self._holders:
            self.let_go(seq)
        tag = body.tag_at(number)
        line = self._lines.get(tag) if tag is not None else None
        if line is None or self._is_open(line, search.now_ms) or job.deliveries >= search.deliveries_max:
            self._choose(search, seq, job, bytes(body.record(number)), tag, line)
            return
        queue.park(job, self._waiting_fresh if rank % 2 else self._waiting_reclaimed)
        line.add(rank, seq)
        self._list(line, search.now_ms)
        search.visits_left -= 1

    def _choose(
        self, search: Search, seq: int, job: Job | None, record: bytes, tag: bytes | None, line: TagLine | None
    ) -> None:
        """The job is handed out, or becomes a dead letter."""
        if job is not None:
            self._queue.choose(job)
            if job.deliveries >= search.deliveries_max:
                search.doomed.append(job)
                if tag is not None and self._held_max is not None:
                    # Until it has left, or is claimable again because it could not.
                    self._hold(line or self._line(tag), seq)
                return
            if job.refusals:
                self._queue.accept(job)
        search.taken.append((seq, job, record, tag))
        search.bytes_left -= len(record)
        if tag is not None:
            self._hand_out(tag, line, seq, search.now_ms)

    def _hand_out(self, tag: bytes, line: TagLine | None, seq: int, now_ms: int) -> None:
        if self._held_max is None and self._rate is None:
            return
        if line is None:
            line = self._line(tag)
        if self._held_max is not None:
            line.held += 1
            self._holders[seq] = line
        if self._rate is not None:
            line.full_ms = self._rate.after(line.full_ms, now_ms, 1)

    def _take_fresh(self, search: Search) -> None:
        """From the cursor on. No line that is open has a waiting job any more."""
        queue, blocks = self._queue, search.topic.blocks
        index = search.topic.block_after(queue.cursor)
        while index < len(blocks):
            block = blocks[index]
            for first, stop in block.alive_runs(block.number_after(queue.cursor), block.count):
                search.load(block)
                self._take_run(search, block, first, stop)
                if not search.goes_on:
                    return
            index += 1

    def _take_run(self, search: Search, block: Block, first: int, stop: int) -> None:
        """Live records first … stop − 1 are handed out, or wait, until there are enough."""
        queue, lines, body, taken = self._queue, self._lines, block.body, search.taken
        assert body is not None
        buf, ends, seqs, first_seq = body.buf, body.ends, block.seqs, block.first_seq
        tagged, now_ms = body.tags is not None, search.now_ms
        jobs = queue.jobs if queue.ahead else None
        room, visits, bytes_left = search.wanted - len(taken), search.visits_left, search.bytes_left
        number, seq, parked, before = first, queue.cursor, queue.parked, len(taken)
        while number < stop and room and visits > 0 and bytes_left > 0:
            seq = first_seq + number if seqs is None else seqs[number]
            tag = body.tag_at(number) if tagged else None
            line = lines.get(tag) if tag is not None else None
            if jobs is not None and seq in jobs:
                queue.ahead -= 1
                visits -= 1
            elif line is not None and (line.is_waiting or not self._is_open(line, now_ms)):
                if not queue.parked:
                    queue.parked_from = seq
                queue.parked += 1
                line.add_fresh(seq, search.topic.earliest_seq)
                if self._rate is not None and not line.timed:
                    self._list(line, now_ms)
                visits -= 1
            else:
                begin = ends[number - 1] if number else 0
                taken.append((seq, None, bytes(buf[begin : ends[number] - 1]), tag))
                bytes_left -= ends[number] - begin
                room -= 1
                if tag is not None:
                    self._hand_out(tag, line, seq, now_ms)
            number += 1
        queue.cursor = seq
        queue.fresh -= len(taken) - before + queue.parked - parked
        search.visits_left, search.bytes_left = visits, bytes_left


def _located(search: Search, seq: int) -> tuple[Body, int]:
    """The body of a live record and its number there. May raise ColdMiss or a read error."""
    block, topic = search.block, search.topic
    if block is None or seq < block.first_seq or seq > block.last_seq:
        block = topic.blocks[topic.block_after(seq - 1)]
        search.load(block)
        search.block = block
    assert block.body is not None
    return block.body, block.number_after(seq - 1)


def _tag_of(search: Search, seq: int) -> bytes | None:
    try:
        body, number = _located(search, seq)
    except DamagedData:
        # The readers of that job get the error; the other jobs go on.
        return None
    return body.tag_at(number)
