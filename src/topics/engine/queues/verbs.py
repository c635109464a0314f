"""The verbs of queues: serve claims, ack, nack, extend, pause, redrive, decided synchronously like all others.

A lease takes effect when it is decided, so that no other worker gets the job; if the queue's leases are durable the
decision is in the log before the reply, and a failed write only makes the job claimable again.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from topics.engine.core.ops import Deleted
from topics.engine.core.pending import Busy, PendingChange, settled
from topics.engine.log.deletion import Run, find_seqs
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.queues import transfers as moving
from topics.engine.queues.claims import (
    ANSWER_BYTES_MAX,
    Claim,
    Grant,
    bytes_for,
    deal,
    render_jobs,
    render_run,
    rest_after,
)
from topics.engine.queues.dead_letters import left_of
from topics.engine.queues.due import NO_STREAM, Job, LeasedRun
from topics.engine.queues.limits.limits import limit, room_by_expiry_ms
from topics.engine.queues.operator.job_actions import JobActions
from topics.engine.queues.operator.job_pages import JobPages
from topics.engine.queues.operator.redrive import Redriver
from topics.engine.queues.ops import Extended, FreshRun, Leased, LeaseOp, Paused, Released
from topics.engine.queues.part import queue_of, results_of
from topics.engine.queues.queue import DOOMED_PER_TAKE_MAX, Queue, Taken
from topics.engine.queues.results.ended import EndState
from topics.engine.queues.results.endings import NO_RESULTS, Endings, progress_in, results_in
from topics.engine.queues.results.ops import Ended, Progressed
from topics.model.clock import shown_ms
from topics.model.errors import BatchTooLarge, InvalidRequest, NotAQueue, TopicFull, TopicNotFound, TopicsError
from topics.model.requests.config import DELAY_MS_MAX, GATED, LEASE_MS_MAX, LEASE_MS_MIN
from topics.model.requests.records import (
    UNSET,
    AckRequest,
    ClaimRequest,
    ExtendRequest,
    NackRequest,
    RecordRequest,
    check_u64,
)

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.log.topic import Topic
    from topics.model.clock import Clock

UNLIMITED = 2**64
ERROR_CHARS_MAX = 1_024
# How long a job waits for a dead-letter topic that refused it, doubled each time.
REFUSED_REST_MS, REFUSED_REST_MS_MAX = 1_000, 60_000


class Held(NamedTuple):
    """The result of an ack, nack or extend: how many jobs, which seqs were not held.

    Of an extend also the new deadline, and which of the skipped jobs were cancelled; of an ack whether its results, if
    it had any, are kept.
    """

    jobs: list[int]
    skipped: list[int]
    deadline: int = 0
    cancelled: Sequence[int] = ()
    results_kept: bool = True


class Queues:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock
        self._steady = engine.steady
        self._state = engine.state
        self._commit_log = engine.commit_log
        self._waiters = engine.waiters
        self._settings = engine.settings
        self.redriver = Redriver(engine, self)
        self.job_pages = JobPages(engine, self)
        self.job_actions = JobActions(engine, self)
        self.endings = Endings(engine, clock)

    # --- looking up ---

    def find(self, name: str) -> tuple[Topic, Queue, int]:
        """The topic, its queue, and the time: due leases have expired, due records are removed."""
        topic = self._engine.find(name)
        if topic is None:
            raise TopicNotFound(name)
        queue = queue_of(topic)
        if queue is None:
            raise NotAQueue(name)
        now = self._steady.now_ms()
        if topic.config.ttl_ms:
            self._state.expire(topic, self._clock.now_ms(), self._state.cold.load)
        queue.advance(now)
        return topic, queue, now

    def existing(self, name: str) -> Queue:
        """The queue with its counts at this moment, regardless of pending changes."""
        topic = self._state.by_name.get(name)
        queue = None if topic is None else queue_of(topic)
        if queue is None:
            raise TopicNotFound(name)
        queue.advance(self.now())
        return queue

    def counts(self, name: str) -> dict[str, object]:
        """How many jobs there are in each state, whether they are handed out, and where dead ones go."""
        queue, topic = self.existing(name), self._state.by_name[name]
        return {
            "ready": queue.ready,
            "in_flight": queue.in_flight,
            "delayed": queue.delayed,
            "dead": left_of(self._state, topic),
            "paused": queue.paused,
            "dead_letter": topic.config.dead_letter,
        }

    def now(self) -> int:
        """The time that leases and delays are measured by."""
        return self._steady.now_ms()

    def wall_ms(self) -> int:
        """The time that records are stamped with."""
        return self._clock.now_ms()

    def shown_ms(self, steady_ms: int) -> int:
        """The time of a lease or a delay as callers see it."""
        return self._steady.wall_ms(steady_ms)

    def appended_ts(self, topic: Topic, seq: int) -> int:
        """When a live record was appended. May raise ColdMiss."""
        block = topic.blocks[topic.block_after(seq - 1)]
        self._state.cold.load(block)
        assert block.body is not None
        return block.body.ts_at(block.number_after(seq - 1))

    def bring_up(self, topic: Topic, queue: Queue) -> int:
        now = self.now()
        if topic.config.ttl_ms:
            self._state.expire(topic, self._clock.now_ms(), self._state.cold.load)
        queue.advance(now)
        return now

    def expires_ms(self, topic: Topic) -> int:
        """When the oldest job of a queue with limits expires: it may be in flight, and others wait for its place."""
        return room_by_expiry_ms(topic, self.now(), self._clock.now_ms())

    def check_node(self, node: str) -> str:
        if not node or len(node.encode()) > self._settings.max_node_bytes:
            raise InvalidRequest(f"node must have 1 to {self._settings.max_node_bytes} bytes", field="node")
        return node

    # --- claim ---

    def check_claim(self, request: ClaimRequest) -> tuple[int, int]:
        """Check what can be checked without the topic: how many jobs, and for how long; 0: for as long as it says."""
        lease_ms = 0
        if request.lease_ms is not UNSET:
            lease_ms = min(LEASE_MS_MAX, max(LEASE_MS_MIN, check_u64(request.lease_ms, "lease_ms")))
        wanted = max(1, min(self._settings.max_claim, check_u64(request.max, "max")))
        self.check_node(request.node)
        return wanted, lease_ms

    def read_claim(self, request: ClaimRequest) -> Claim:
        return Claim(request.node, *self.check_claim(request))

    def serve_one(self, topic: Topic, queue: Queue, claim: Claim, now: int) -> Grant:
        """`serve` for one claimer; nothing is made for each of its jobs if they are fresh and neighbours."""
        if claim.stream != NO_STREAM or topic.config.retry_backoff is not UNSET or queue.paused:
            return self.serve(topic, queue, [claim], now)[0]
        self._commit_log.check_writable()
        if queue.limits_of is not topic.config:
            limit(queue, topic.config, now)
        limits, room, tags = queue.limits, claim.wanted, None
        if limits is not None:
            room, tags = limits.room(room, now), limits.tags if limits.tags.in_use else None
        run = queue.take_run(topic, room, ANSWER_BYTES_MAX, self._state.cold.load, tags, now) if room else None
        if run is None:
            return self.serve(topic, queue, [claim], now)[0]
        wall_ms = queue.last_claim_ts = topic.last_read_ts = self._clock.now_ms()
        deadline = now + claim.lease_ms
        first_seq, count = run.block.first_seq + run.first, run.stop - run.first
        self._state.read_total += count
        lease = queue.next_lease or random.getrandbits(40) + 1
        queue.next_lease = lease + count
        grant = Grant()
        grant.jobs = render_run(run, lease, shown_ms(deadline, wall_ms - now))
        grant.seqs = list(range(first_seq, first_seq + count))
        leased = FreshRun(first_seq, count, lease)
        if topic.config.leases_durable:
            op = Leased(topic.id, queue.logged_cursor, deadline, 0, claim.node, leased, now_ms=now)
            self._state.fold_ahead(op)
            grant.change = self._journal_leases(op, topic)
        else:
            # The fold of such an op: it would not reach the log.
            queue.hand_out_run(leased, claim.node, deadline, 0, now)
        if limits is not None:
            limits.spend(count, room, now)
            grant.tell_what_is_left(queue, claim)
        return grant

    def serve(self, topic: Topic, queue: Queue, claims: list[Claim], now: int) -> list[Grant]:
        """One pass: the available jobs, dealt out one by one over the claimers until all have enough.

        The queue has been brought up to `now`. May raise ColdMiss, as long as no claimer got a job.
        """
        self._commit_log.check_writable()
        queue.last_claim_ts = topic.last_read_ts = self._clock.now_ms()
        grants = [Grant() for _ in claims]
        if queue.paused:
            return grants
        config = topic.config
        if queue.limits_of is not config:
            limit(queue, config, now)
        deliveries_max = config.max_deliveries if config.max_deliveries and config.dead_letter else UNLIMITED
        wanted = sum([claim.wanted for claim in claims])
        taken, doomed = queue.take(topic, wanted, bytes_for(claims), deliveries_max, self._state.cold.load, now)
        self._state.read_total += len(taken)
        for claim, grant, share in zip(claims, grants, deal(taken, claims), strict=True):
            if share:
                grant.change = self._lease(topic, queue, claim, share, grant, now)
            grant.tell_what_is_left(queue, claim)
        if doomed:
            self.bury(topic, doomed)
            if len(doomed) >= DOOMED_PER_TAKE_MAX:
                self._waiters.moved(topic)
        return grants

    def _lease(
        self, topic: Topic, queue: Queue, claim: Claim, share: list[Taken], grant: Grant, now: int
    ) -> PendingChange | None:
        share.sort()
        config = topic.config
        node, deadline = claim.node, now + claim.lease_ms
        lease = queue.next_lease or random.getrandbits(40) + 1
        queue.next_lease = lease + len(share)
        grant.jobs = render_jobs(share, lease, self._steady.wall_ms(deadline))
        leases = [
            (taken[0], number, 1 if taken[1] is None else taken[1].deliveries + 1)
            for number, taken in enumerate(share, lease)
        ]
        grant.seqs = [taken[0] for taken in share]
        # One op for each length of rest that would follow; it differs only between jobs with a backoff.
        by_rest: dict[int, list[tuple[int, int, int]]] = {}
        if config.retry_backoff is UNSET:
            by_rest[0] = leases
        else:
            for entry in leases:
                by_rest.setdefault(rest_after(config, entry[2], entry[1]), []).append(entry)
        ops = [
            Leased(topic.id, queue.logged_cursor, deadline, rest_ms, node, some, now_ms=now, stream=claim.stream)
            for rest_ms, some in by_rest.items()
        ]
        for op in ops:
            self._state.fold_ahead(op)
        change = None
        if config.leases_durable:
            for op in ops:
                change = self._journal_leases(op, topic)
        return change

    def _journal_leases(self, op: Leased, topic: Topic) -> PendingChange:
        leases = op.lease_numbers()
        try:
            change = self._journal(topic, op)
        except TopicsError:
            self._unlease(topic, leases)
            raise
        change.then(lambda done: self._unlease(topic, leases) if done.error is not None else None)
        return change

    def _unlease(self, topic: Topic, leases: dict[int, int]) -> None:
        """The leases could not be written to the log: no worker has them yet, so the jobs are claimable again."""
        queue, now = queue_of(topic), self.now()
        assert queue is not None
        for seq, lease in leases.items():
            job = queue.held(seq, now)
            if job is not None and job.lease == lease:
                job.deliveries -= 1
                queue.give_back(job, now, now)

    def _journal(self, topic: Topic, op: LeaseOp | Progressed) -> PendingChange:
        """Part of the leases log: as durable as the topic; an ephemeral one has no log."""
        durability = topic.config.durability
        journaled = durability != "ephemeral"
        body = op.encode() if journaled else b""
        urgent = isinstance(op, Released)
        op = op._replace(ahead=True)
        return self._commit_log.submit(op, body, gated=durability in GATED, urgent=urgent, journaled=journaled)

    # --- ack, nack, extend ---

    def ack(self, name: str, request: AckRequest) -> PendingChange:
        """Complete jobs: their records die, as durably as the topic is. `result` is a Held."""
        self.check_seqs(request)
        results: Mapping[int, bytes] = NO_RESULTS
        if request.result is not UNSET or request.results is not None:
            results = results_in(request)
        topic, queue, now = self.find(name)
        self._commit_log.check_writable()
        run = queue.held_run(request.node, request.seqs, request.lease_ids, now)
        kept = not results or topic.config.keep_results_ms is not UNSET
        if run is not None:
            return self._ack_run(topic, queue, run, Held(request.seqs, [], results_kept=kept), results)
        jobs, skipped = queue.held_by(request.node, request.seqs, request.lease_ids, now)
        seqs = [job.seq for job in jobs]
        if not jobs:
            return settled(topic.id, Held(seqs, skipped))
        runs = find_seqs(topic, sorted(seqs), self._state.cold.load)
        change = self._complete(topic, queue, runs, seqs, results)
        queue.take_out(jobs)
        change.then(lambda done: self._acked(topic, jobs, Held(seqs, skipped, results_kept=kept), done))
        self._waiters.moved(topic)
        return change

    def _complete(
        self, topic: Topic, queue: Queue, runs: list[Run], seqs: list[int], results: Mapping[int, bytes]
    ) -> PendingChange:
        op = Deleted(topic.id, self._clock.now_ms(), runs)
        if topic.config.keep_results_ms is UNSET and results_of(topic) is None:
            return self._commit_log.submit_delete(op, topic.config.durability)
        return self.endings.submit(topic, op, map(queue.look_at, seqs), EndState.DONE, results)

    def _ack_run(
        self, topic: Topic, queue: Queue, run: LeasedRun, held: Held, results: Mapping[int, bytes]
    ) -> PendingChange:
        """Jobs that one claim has leased, and that are neighbours, are completed together."""
        seqs = held.jobs
        runs = find_seqs(topic, seqs, self._state.cold.load)
        change = self._complete(topic, queue, runs, seqs, results)
        leaving = queue.take_out_run(run, seqs)
        change.then(lambda done: self._run_acked(topic, queue, leaving, held, done))
        self._waiters.moved(topic)
        return change

    def _run_acked(self, topic: Topic, queue: Queue, leaving: LeasedRun, held: Held, done: PendingChange) -> None:
        done.result = held
        if done.error is not None:
            self.give_back(topic, [queue.job_for(seq) for seq in held.jobs if queue.jobs.get(seq) is leaving])

    def _acked(self, topic: Topic, jobs: list[Job], held: Held, done: PendingChange) -> None:
        done.result = held
        if done.error is not None:
            self.give_back(topic, jobs)

    def give_back(self, topic: Topic, jobs: Iterable[Job], rest_ms: int = 0) -> None:
        """Leaving the queue failed: claimable again, at once or after a rest."""
        queue, now = queue_of(topic), self.now()
        assert queue is not None
        for job in jobs:
            if job.group is None and queue.jobs.get(job.seq) is job:
                queue.give_back(job, now + rest_ms, now)
        self._waiters.moved(topic)

    def nack(self, name: str, request: NackRequest) -> PendingChange:
        """Give jobs back, now or after a rest, or move them to the dead-letter topic. `result` is a Held."""
        self.check_seqs(request)
        if request.delay_ms is not UNSET:
            check_u64(request.delay_ms, "delay_ms")
        error = request.error or ""
        if len(error) > ERROR_CHARS_MAX:
            raise InvalidRequest(f"error must be at most {ERROR_CHARS_MAX} characters", field="error")
        topic, queue, now = self.find(name)
        if request.dead_letter and topic.config.dead_letter is None:
            raise InvalidRequest(f'queue "{name}" has no dead_letter topic', field="dead_letter")
        rest_equally = request.delay_ms is not UNSET or topic.config.retry_backoff is UNSET
        if (
            rest_equally
            and not request.dead_letter
            and queue.held_run(request.node, request.seqs, request.lease_ids, now) is not None
        ):
            return self._nack_run(topic, queue, request, error, now)
        jobs, skipped = queue.held_by(request.node, request.seqs, request.lease_ids, now)
        result = Held([job.seq for job in jobs], skipped)
        if not jobs:
            return settled(topic.id, result)
        queue.failed += len(jobs)
        for job in jobs:
            job.error = error or job.error
        if request.dead_letter:
            self._commit_log.check_writable()
            find_seqs(topic, sorted(result.jobs), self._state.cold.load)
            queue.take_out(jobs)
            change = self.bury(topic, jobs)
        else:
            change = self._release(topic, jobs, now, request, error)
        change.then(lambda done: setattr(done, "result", result))
        self._waiters.moved(topic)
        return change

    def _nack_run(self, topic: Topic, queue: Queue, request: NackRequest, error: str, now: int) -> PendingChange:
        """Jobs that one claim has leased, and that are neighbours, are given back together."""
        seqs, result = request.seqs, Held(request.seqs, [])
        queue.failed += len(seqs)
        due = now if request.delay_ms is UNSET else now + min(DELAY_MS_MAX, request.delay_ms)
        change = self.decide_ahead(topic, [Released(topic.id, due, error, seqs, now_ms=now)])
        change.then(lambda done: setattr(done, "result", result))
        self._waiters.moved(topic)
        return change

    def _release(self, topic: Topic, jobs: list[Job], now: int, request: NackRequest, error: str) -> PendingChange:
        by_due: dict[int, list[int]] = {}
        for job in jobs:
            if request.delay_ms is UNSET:
                due = now + rest_after(topic.config, job.deliveries, job.lease)
            else:
                due = now + min(DELAY_MS_MAX, request.delay_ms)
            by_due.setdefault(due, []).append(job.seq)
        ops = [Released(topic.id, due, error, seqs, now_ms=now) for due, seqs in by_due.items()]
        return self.decide_ahead(topic, ops)

    def decide_ahead(self, topic: Topic, ops: Sequence[Released | Extended | Progressed]) -> PendingChange:
        """They take effect now, and are in the log before this is done if the leases are durable."""
        for op in ops:
            self._state.fold_ahead(op)
        change = settled(topic.id)
        if topic.config.leases_durable:
            for op in ops:
                change = self._journal(topic, op)
        return change

    def extend(self, name: str, request: ExtendRequest) -> PendingChange:
        """Set a new deadline for held leases, counted from now. `result` is a Held with the deadline."""
        self.check_seqs(request)
        lease_ms = max(LEASE_MS_MIN, min(LEASE_MS_MAX, check_u64(request.lease_ms, "lease_ms")))
        progress = progress_in(request)
        topic, queue, now = self.find(name)
        deadline = now + lease_ms
        ops: list[Extended | Progressed] = []
        if (
            topic.config.retry_backoff is UNSET
            and queue.held_run(request.node, request.seqs, request.lease_ids, now) is not None
        ):
            ops.append(Extended(topic.id, deadline, 0, request.seqs))
            if progress:
                ops.append(Progressed(topic.id, progress, request.seqs))
            change = self.decide_ahead(topic, ops)
            change.result = Held(request.seqs, [], self._steady.wall_ms(deadline))
            return change
        jobs, skipped = queue.held_by(request.node, request.seqs, request.lease_ids, now)
        by_rest: dict[int, list[int]] = {}
        for job in jobs:
            rest_ms = rest_after(topic.config, job.deliveries, job.lease)
            by_rest.setdefault(rest_ms, []).append(job.seq)
        ops += [Extended(topic.id, deadline, rest_ms, seqs) for rest_ms, seqs in by_rest.items()]
        if progress and jobs:
            ops.append(Progressed(topic.id, progress, [job.seq for job in jobs]))
        change = self.decide_ahead(topic, ops)
        cancelled: Sequence[int] = ()
        if skipped and queue.cancelled:
            cancelled = [seq for seq in skipped if seq in queue.cancelled]
        change.result = Held([job.seq for job in jobs], skipped, self._steady.wall_ms(deadline), cancelled)
        return change

    def check_seqs(self, request: AckRequest | NackRequest | ExtendRequest) -> None:
        self.check_node(request.node)
        if not request.seqs:
            raise InvalidRequest("seqs must hold at least one seq", field="seqs")
        if len(request.seqs) > self._settings.max_claim:
            raise BatchTooLarge(
                f"seqs holds {len(request.seqs)} seqs; at most {self._settings.max_claim} fit one call",
                field="seqs",
                max=self._settings.max_claim,
            )
        check_u64(max(request.seqs), "seqs")
        if request.lease_ids is not None and len(request.lease_ids) != len(request.seqs):
            raise InvalidRequest("lease_ids must hold one token for each of seqs", field="lease_ids")

    # --- dead letters ---

    def bury(self, topic: Topic, jobs: list[Job]) -> PendingChange:
        """Move jobs to the dead-letter topic in one step. If it refuses them they stay, and the move is tried again."""
        try:
            change = self.move_to_dead_letters(topic, jobs)
        except TopicFull as error:
            if len(jobs) > 1:
                return self._bury_halves(topic, jobs)
            self._refused(topic, jobs, error.message)
        except TopicNotFound as error:
            self._refused(topic, jobs, f"{error.message} and auto_create of this queue is false; create it")
        except (TopicsError, Busy, ColdMiss) as error:
            self._refused(topic, jobs, error.message if isinstance(error, TopicsError) else "")
        else:
            change.then(lambda done: self._refused(topic, jobs, done.error.message) if done.error is not None else None)
            return change
        return settled(topic.id)

    def _bury_halves(self, topic: Topic, jobs: list[Job]) -> PendingChange:
        """The dead-letter topic has no room for all of them; it may have for some."""
        half = len(jobs) // 2
        first, second = self.bury(topic, jobs[:half]), self.bury(topic, jobs[half:])
        return first if second.done else second

    def move_to_dead_letters(self, topic: Topic, jobs: list[Job], reason: str = "") -> PendingChange:
        """In one step, stamped with the reason or their own errors.

        May raise an error, Busy and ColdMiss; then nothing has happened.
        """
        config = topic.config
        name = config.dead_letter
        assert name is not None
        letters = self._engine.find(name)
        if letters is None and not config.auto_create:
            raise TopicNotFound(name)
        jobs = sorted(jobs, key=lambda job: job.seq)
        runs = find_seqs(topic, [job.seq for job in jobs], self._state.cold.load)
        if letters is not None and letters.config.discard == "reject":
            # A full one is found out before the work of a move.
            self._engine.refuse_if_full(letters, len(jobs), sum(run.size for run in runs))
        records = [self._lift(topic, job.seq) for job in jobs]
        for record, job in zip(records, jobs, strict=True):
            moving.stamp(record, topic.name, job, reason or job.error)
        ended = self.endings.ended(topic, jobs, EndState.DEAD, reason=reason)
        return self.move(topic, runs, records, name, dead=True, ended=ended)

    def _refused(self, topic: Topic, jobs: list[Job], reason: str) -> None:
        queue = queue_of(topic)
        assert queue is not None
        for job in jobs:
            rest_ms = min(REFUSED_REST_MS_MAX, REFUSED_REST_MS << min(job.refusals, 10))
            queue.refuse(job, reason)
            self.give_back(topic, [job], rest_ms)

    def _lift(self, topic: Topic, seq: int) -> RecordRequest:
        """A record as an append would send it. May raise ColdMiss."""
        block = topic.blocks[topic.block_after(seq - 1)]
        self._state.cold.load(block)
        return moving.record_of(block, block.number_after(seq - 1))

    def move(
        self,
        source: Topic,
        runs: list[Run],
        records: list[RecordRequest],
        name: str,
        *,
        dead: bool,
        ended: bytes = b"",
    ) -> PendingChange:
        """Move records to another topic in one step; that topic is created if it is absent.

        `ended` is what is kept of dead jobs.
        """
        durability = source.config.durability
        room = self._engine.room_for(name, len(records), sum(run.size for run in runs), durability)
        now = self._clock.now_ms()
        op = moving.move(source, runs, records, room, now if room.topic is None else room.topic.now(now), dead=dead)
        self._commit_log.date(op.appended.batch)
        body = moving.encode_move(op, source, room.config)
        gated = not GATED.isdisjoint((durability, room.config.durability))
        whole = Ended(EndState.DEAD, ended, op) if ended else op
        if isinstance(whole, Ended) and body and source.lasts(runs[0].from_seq):
            body = whole.around(body)
        change = self._commit_log.submit(whole, body, gated=gated, urgent=True, journaled=bool(body))
        return self._engine.hold_room(change, name, room)

    # --- pause, streams ---

    def pause(self, name: str, *, paused: bool) -> PendingChange:
        """Stop handing out jobs, or resume; jobs in flight can still be acked."""
        topic, queue, _ = self.find(name)
        if queue.paused == paused:
            return settled(topic.id)
        self._commit_log.check_writable()
        op = Paused(topic.id, paused)
        change = self._commit_log.submit(op, op.encode(), gated=topic.config.durability in GATED)
        change.then(lambda _: self._waiters.moved(topic))
        return change

    def open_stream(self, queue: Queue) -> int:
        """A number for a connection that jobs are pushed to."""
        number = max(queue.streams, default=NO_STREAM) + 1
        queue.streams[number] = {}
        return number

    def close_stream(self, topic: Topic, queue: Queue, number: int) -> None:
        """The connection is closed: the jobs it holds are claimable at once."""
        now = self.now()
        queue.advance(now)
        seqs = list(queue.streams.pop(number, {}))
        if seqs and self._state.by_id.get(topic.id) is topic:
            try:
                self.decide_ahead(topic, [Released(topic.id, 0, "", seqs, now_ms=now)])
            except TopicsError:
                # If they are not in the log, the leases expire by themselves after a restart.
                pass
            self._waiters.moved(topic)
