"""The places of a queue's jobs: ready, leased to a worker, or resting; and how many there are of each.

Whole groups change their place at once; a job that something happens to alone has a Job of its own. `queue.py` chooses
among them and folds what the log says.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from topics.engine.queues.due import (
    NO_STREAM,
    DueGroup,
    DueTimes,
    Job,
    JobPlace,
    JobStanding,
    Lanes,
    LeasedRun,
    ReadyJobs,
)
from topics.engine.queues.ops import FreshRun

if TYPE_CHECKING:
    from topics.engine.queues.limits.limits import Limits
    from topics.model.requests.config import TopicConfig

# Looked up once: an attribute of an Enum costs as much as a call.
_READY: Final = JobPlace.READY
_LEASED: Final = JobPlace.LEASED

WORKERS_KEPT_MAX = 200
CANCELLED_KEPT_MAX = 10_000


class JobPlaces:
    """The state of a queue, and how jobs change their place in it."""

    __slots__ = (
        "_lanes",
        "_leases",
        "_ready",
        "_rests",
        "ahead",
        "cancelled",
        "claimers",
        "closing",
        "cursor",
        "dead_lettered",
        "delayed",
        "failed",
        "fresh",
        "in_flight",
        "jobs",
        "last_claim_ts",
        "limits",
        "limits_of",
        "next_lease",
        "parked",
        "parked_from",
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
        self.fresh: int = 0
        self.ahead: int = 0
        self.jobs: dict[int, JobStanding] = {}
        # Live records up to the cursor that have no Job, because limits of their tags hold them back, and a seq that
        # none of them is before.
        self.parked: int = 0
        self.parked_from: int = 0
        # None: there are none. They are those of the second, which may have been replaced since.
        self.limits: Limits | None = None
        self.limits_of: TopicConfig | None = None
        # jobs by place, and how many there are of each
        self._leases = DueTimes(JobPlace.LEASED)
        self._rests = DueTimes(JobPlace.RESTING)
        self._ready = ReadyJobs()
        self._lanes = Lanes()
        self.released: int = 0
        self.in_flight: int = 0
        self.delayed: int = 0
        # unique keys of pending jobs
        self.unique: dict[bytes, int] = {}
        self.unique_of: dict[int, bytes] = {}
        self.dead_lettered = 0
        # deliveries that failed since the start: nacks, and leases that expired
        self.failed = 0
        self.paused = False
        # jobs that should be in the dead-letter topic, which refuses them, and why
        self.refused = 0
        self.refusal = ""
        # Jobs that were removed while a worker had them, the latest last: its next extend reports them.
        self.cancelled: dict[int, None] = {}
        # The process stops: the state of jobs is kept, except for leases that are not durable.
        self.closing = False
        # 0: this process has given out none yet
        self.next_lease = 0
        # jobs in flight on each connection that jobs are pushed to
        self.streams: dict[int, dict[int, Job]] = {}
        # workers that have claimed since the start, the latest last, and when
        self.workers: dict[str, int] = {}
        # claims that wait for jobs and streams that jobs are pushed to, now; the last claim since the start, with or
        # without a job
        self.claimers = 0
        self.last_claim_ts: int | None = None

    @property
    def ready(self) -> int:
        return self.fresh + self.released + self.parked

    @property
    def next_ms(self) -> int:
        """When the next job may become claimable by time alone."""
        next_ms = min(self._leases.next_ms, self._rests.next_ms)
        return next_ms if self.limits is None else min(next_ms, self.limits.next_ms)

    @property
    def logged_cursor(self) -> int:
        """The cursor for the log and for snapshots: without their limits, parked jobs are fresh again."""
        return self.cursor if not self.parked else min(self.cursor, self.parked_from - 1)

    # --- time ---

    def advance(self, now_ms: int) -> None:
        """Expire leases and end rests. Costs one step per group, whatever the number of jobs."""
        if self.limits is not None:
            self.limits.advance(now_ms)
        if now_ms >= self._leases.next_ms:
            for group in self._leases.fallen_due(now_ms):
                self.in_flight -= len(group.jobs)
                self.failed += len(group.jobs)
                if group.pushed:
                    for seq, job in group.jobs.items():
                        self._off_stream(seq, job)
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
        ready = self._ready if not group.priority else self._lanes.of(group.priority).reclaimed
        ready.add(group)
        if self.limits is not None:
            self.limits.returned(group)

    # --- places ---

    def _detach(self, job: Job) -> None:
        if job.group is not None:
            self._leave(job.seq, job, job.group)
            job.group = None

    def _leave(self, seq: int, job: JobStanding, group: DueGroup) -> None:
        """The job leaves its group; the caller says where it goes."""
        del group.jobs[seq]
        place = group.place
        if place is _LEASED:
            self.in_flight -= 1
            if job.stream:
                self._off_stream(seq, job)
            if not group.jobs:
                self._leases.discard(group)
        elif place is _READY:
            self.released -= 1
        else:
            self.delayed -= 1
            if not group.jobs:
                self._rests.discard(group)

    def _off_stream(self, seq: int, job: JobStanding) -> None:
        pushed = self.streams.get(job.stream)
        if pushed is not None:
            pushed.pop(seq, None)
        job.stream = NO_STREAM

    def _rest(self, job: Job, due_ms: int) -> None:
        job.group = group = self._rests.at(due_ms, priority=job.priority)
        group.jobs[job.seq] = job
        self.delayed += 1

    def give_back(self, job: Job, due_ms: int, now_ms: int) -> None:
        """Claimable again from `due_ms` on."""
        self._detach(job)
        if due_ms > now_ms:
            self._rest(job, due_ms)
            return
        ready = self._ready if not job.priority else self._lanes.of(job.priority).reclaimed
        job.group = group = ready.newest()
        group.jobs[job.seq] = job
        self.released += 1
        if self.limits is not None:
            self.limits.let_go(job.seq)

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

    # --- runs: what the methods above do, for neighbours that one claim has leased ---

    def run_of(self, seqs: list[int]) -> LeasedRun | None:
        """The run that all of these seqs are leased jobs of, if there is one."""
        known = self.jobs
        run = known.get(seqs[0])
        if not isinstance(run, LeasedRun) or run.group is None or run.group.place is not _LEASED:
            return None
        for seq in seqs:
            if known.get(seq) is not run:
                return None
        return run

    def take_out_run(self, run: LeasedRun, seqs: list[int]) -> LeasedRun:
        """The result is what the jobs are until they have left."""
        return self._move_run(run, seqs, None)

    def give_back_run(self, run: LeasedRun, seqs: list[int], due_ms: int, now_ms: int, error: str) -> None:
        if due_ms > now_ms:
            moved = self._move_run(run, seqs, self._rests.at(due_ms))
            self.delayed += len(seqs)
        else:
            moved = self._move_run(run, seqs, self._ready.newest())
            self.released += len(seqs)
            if self.limits is not None:
                for seq in seqs:
                    self.limits.let_go(seq)
        moved.error = error or moved.error

    def extend_run(self, run: LeasedRun, seqs: list[int], deadline: int, rest_ms: int) -> None:
        self._move_run(run, seqs, self.leased_until(deadline, rest_ms)).deadline = deadline
        self.in_flight += len(seqs)

    def _move_run(self, run: LeasedRun, seqs: list[int], group: DueGroup | None) -> LeasedRun:
        """Leased jobs of a run go to another group; the caller counts them there."""
        left = run.group
        assert left is not None
        members = left.jobs
        for seq in seqs:
            del members[seq]
        self.in_flight -= len(seqs)
        moved = run.moved_to(group)
        jobs: dict[int, JobStanding] = dict.fromkeys(seqs, moved)
        self.jobs.update(jobs)
        if group is not None:
            group.jobs.update(jobs)
        if not members:
            self._leases.discard(left)
        return moved

    # --- leases ---

    def lease(self, job: Job, node: str, lease: int, deadline: int, rest_ms: int, stream: int = NO_STREAM) -> None:
        """Expires when the clock is past the deadline, not at it."""
        self._detach(job)
        job.node, job.lease, job.deadline = node, lease, deadline
        self.let_out(job, self.leased_until(deadline, rest_ms, stream, job.priority), stream)

    def hand_out(
        self, jobs: list[tuple[int, int, int]], node: str, deadline: int, rest_ms: int, now_ms: int, stream: int
    ) -> None:
        """Jobs (seq, lease, deliveries) go to their worker; inlined because it runs for every job."""
        known, cursor = self.jobs, self.cursor
        group = apart = self.leased_until(deadline, rest_ms, stream)
        members, pushed = group.jobs, self.streams[stream] if stream else None
        for seq, lease, deliveries in jobs:
            standing = known.get(seq)
            if standing is None:
                job = known[seq] = Job(seq, group, deliveries, node, lease, now_ms, deadline, stream)
                if seq > cursor:
                    self.ahead += 1
                    self.fresh -= 1
            else:
                job = standing if isinstance(standing, Job) else self.job_for(seq)
                if job.group is not None:
                    self._detach(job)
                    if not members:
                        # In a replay it may have been the last one of this very group, which is in no bucket any more.
                        group = self.leased_until(deadline, rest_ms, stream)
                        members = group.jobs
                job.deliveries = deliveries
                job.claimed_ms = now_ms
                job.node = node
                job.lease = lease
                job.deadline = deadline
                job.stream = stream
                if job.priority:
                    if job.priority != apart.priority or not apart.jobs:
                        apart = self.leased_until(deadline, rest_ms, stream, job.priority)
                    job.group = apart
                    apart.jobs[seq] = job
                    if pushed is not None:
                        pushed[seq] = job
                    continue
                job.group = group
            members[seq] = job
            if pushed is not None:
                pushed[seq] = job
        if not members:
            # All of them have a priority.
            self._leases.discard(group)
        self.in_flight += len(jobs)
        if now_ms:
            self._note_worker(node, now_ms)

    def hand_out_run(self, run: FreshRun, node: str, deadline: int, rest_ms: int, now_ms: int) -> None:
        """Neighbouring fresh jobs go to their worker."""
        group = self._leases.at(deadline + 1, rest_ms)
        leased = LeasedRun(run.first_seq, group, node, run.lease, now_ms, deadline)
        jobs: dict[int, JobStanding] = dict.fromkeys(range(run.first_seq, run.first_seq + run.seqs), leased)
        self.jobs.update(jobs)
        if group.jobs:
            group.jobs.update(jobs)
        else:
            group.jobs = jobs
        self.in_flight += run.seqs
        self._note_worker(node, now_ms)

    def _note_worker(self, node: str, now_ms: int) -> None:
        workers = self.workers
        workers.pop(node, None)
        workers[node] = now_ms
        if len(workers) > WORKERS_KEPT_MAX:
            del workers[next(iter(workers))]

    def leased_until(self, deadline: int, rest_ms: int, stream: int = NO_STREAM, priority: int = 0) -> DueGroup:
        """The group of leases with this deadline."""
        return self._leases.at(deadline + 1, rest_ms, pushed=stream != NO_STREAM, priority=priority)

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
        return self.job_for(seq)

    def held_run(self, node: str, seqs: list[int], tokens: list[str] | None, now_ms: int) -> LeasedRun | None:
        """The run that all of these seqs are jobs of, if they are neighbours, ascending, and this worker holds them.

        Most acks are of what one claim has answered; `held_by` finds out about all others.
        """
        run = self.run_of(seqs)
        if run is None or run.node != node or run.deadline < now_ms:
            return None
        first_seq, count = seqs[0], len(seqs)
        if count > 1 and seqs != list(range(first_seq, first_seq + count)):
            return None
        if tokens is not None:
            lease = run.lease_of(first_seq)
            if tokens != [f"lease_{number:x}" for number in range(lease, lease + count)]:
                return None
        return run

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
                or (tokens is not None and tokens[number] != f"lease_{job.lease_of(seq):x}")
            ):
                skipped.append(seq)
            else:
                found[seq] = job if isinstance(job, Job) else self.job_for(seq)
        return list(found.values()), skipped

    def note_cancelled(self, seqs: Iterable[int]) -> None:
        """Their workers have not heard of it yet. A seq is not given out again, so it may stay here."""
        cancelled = self.cancelled
        for seq in seqs:
            cancelled[seq] = None
        while len(cancelled) > CANCELLED_KEPT_MAX:
            del cancelled[next(iter(cancelled))]

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

    def look_at(self, seq: int) -> Job:
        """What `job_for` would return, without a change; not to be changed."""
        known = self.jobs.get(seq)
        if isinstance(known, Job):
            return known
        return known.job(seq) if isinstance(known, LeasedRun) else Job(seq)

    def job_for(self, seq: int) -> Job:
        """The Job of a live record, created if it has none, or shares a run with others."""
        known = self.jobs.get(seq)
        if isinstance(known, Job):
            return known
        if isinstance(known, LeasedRun):
            job = self.jobs[seq] = known.job(seq)
            if known.group is not None:
                known.group.jobs[seq] = job
            return job
        job = self.jobs[seq] = Job(seq)
        if seq > self.cursor:
            self.ahead += 1
            self.fresh -= 1
        elif self.parked:
            self.parked -= 1
        return job

    # --- limits ---

    def seqs_begun(self) -> array[int]:
        """Jobs that are leased or rest."""
        seqs = array("Q")
        for times in (self._leases, self._rests):
            for group in times.groups():
                seqs.extend(group.jobs)
        return seqs

    def park(self, job: Job, group: DueGroup) -> None:
        """A ready job waits for its tag in a group of its limits."""
        self._detach(job)
        job.group = group
        group.jobs[job.seq] = job
        self.released += 1

    def choose(self, job: Job) -> None:
        """A ready job is in no group until it is leased, or moved to the dead letters."""
        group = job.group
        assert group is not None and group.place is _READY
        del group.jobs[job.seq]
        job.group = None
        self.released -= 1

    def drop_limits_if_off(self) -> None:
        """Once the last job that they had held back is handed out."""
        if self.limits is not None and self.limits.are_off:
            self.limits = None
