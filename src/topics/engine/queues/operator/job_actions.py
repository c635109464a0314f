"""What is done to many jobs at once: retry, release, extend, bury, redrive, delete, cancel; in pieces, counted.

choose the jobs ─▶ of 250: decide about those that are still in their state ─▶ published ─▶ other work ─▶ the next 250
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from topics.engine.core.ops import Deleted
from topics.engine.core.pending import PendingChange, settled
from topics.engine.core.waiting.runner import Steps, attempt, published
from topics.engine.log.deletion import find_seqs
from topics.engine.queues import transfers
from topics.engine.queues.claims import rest_after
from topics.engine.queues.due import JobPlace
from topics.engine.queues.lease_log import is_live
from topics.engine.queues.operator.job_pages import START, JobPosition
from topics.engine.queues.ops import Extended, Released
from topics.engine.queues.part import queue_of
from topics.engine.queues.results.ended import EndState
from topics.model.errors import InvalidRequest, TopicNotFound, TopicsError
from topics.model.requests.config import LEASE_MS_MAX, LEASE_MS_MIN
from topics.model.requests.jobs import (
    LIMIT_DEFAULT,
    LIMIT_MAX,
    CancelRequest,
    JobsRequest,
    JobState,
    check_jobs,
    check_seqs,
)
from topics.model.requests.records import RedriveRequest, TagMatch, parse_match

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.log.topic import Topic
    from topics.engine.queues.due import Job
    from topics.engine.queues.queue import Queue
    from topics.engine.queues.verbs import Queues

PIECE_MAX = 250
REASON_DEFAULT = "moved by an operator"
REASON_CHARS_MAX = 1_024


class Done(NamedTuple):
    """How many jobs were (or would be) changed, how many of the seqs were not in their state, whether more match."""

    state: JobState
    changed: int
    skipped: int
    more: bool


class Cancelled(NamedTuple):
    """How many jobs were removed, and which seqs were no jobs of the queue any more."""

    removed: int
    skipped: list[int]


class JobActions:
    def __init__(self, engine: Engine, queues: Queues) -> None:
        self._engine = engine
        self._queues = queues

    def act(self, name: str, request: JobsRequest, on_change: Callable[[], None]) -> Steps[Done]:
        """`on_change` is called when some are changed and more will be."""
        state = check_jobs(request)
        if len(request.error or "") > REASON_CHARS_MAX:
            raise InvalidRequest(f"error must be at most {REASON_CHARS_MAX} characters", field="error")
        topic, _, _ = yield from attempt(partial(self._queues.find, name))
        if request.action == "bury" and topic.config.dead_letter is None:
            raise InvalidRequest(f'queue "{name}" has no dead_letter topic', field="action")
        if request.action == "redrive":
            return (yield from self._redrive(topic, request, on_change))
        if request.seqs is not None:
            return (yield from self._in_pieces(name, state, request, sorted(set(request.seqs)), on_change))
        limit = min(LIMIT_MAX, request.limit or LIMIT_DEFAULT)
        match = None if request.match is None else parse_match(request.match)
        seqs, more = yield from self._chosen(name, state, match, limit)
        done = yield from self._in_pieces(name, state, request, seqs, on_change)
        return done._replace(more=done.more or more)

    def cancel(self, name: str, request: CancelRequest, on_change: Callable[[], None]) -> Steps[Cancelled]:
        """Remove jobs that are ready, delayed or leased; a worker that has one learns it at its next extend."""
        check_seqs(request.seqs)
        seqs = sorted(set(request.seqs))
        cancelled: list[int] = []
        for first in range(0, len(seqs), PIECE_MAX):
            piece = seqs[first : first + PIECE_MAX]
            change = yield from attempt(partial(self._decide_cancel, name, piece))
            yield from published(change)
            cancelled += change.result
            if cancelled:
                on_change()
            yield None
        gone = set(cancelled)
        return Cancelled(len(cancelled), [seq for seq in seqs if seq not in gone])

    def _decide_cancel(self, name: str, seqs: list[int]) -> PendingChange:
        """`result` has the jobs that are removed. May raise Busy and ColdMiss; then nothing has happened."""
        topic, queue, _ = self._queues.find(name)
        found = [seq for seq in seqs if is_live(topic, seq) and not _is_leaving(queue, seq)]
        if not found:
            return settled(topic.id, found)
        self._engine.commit_log.check_writable()
        change = self._delete(topic, found)
        change.then(lambda done: setattr(done, "result", found))
        self._engine.waiters.moved(topic)
        return change

    def _chosen(self, name: str, state: JobState, match: TagMatch | None, limit: int) -> Steps[tuple[list[int], bool]]:
        """Up to `limit` seqs, and whether there may be more.

        All are chosen before the first is changed: a job that is released, and claimed again, must not be met twice.
        """
        # A dict: a lease that its worker extends meanwhile is found again, but counts once.
        found: dict[int, None] = {}
        after: JobPosition | None = START
        while after is not None and len(found) < limit:
            chosen = yield from self._queues.job_pages.choose(name, state, match, after, limit - len(found))
            found.update((at.seq, None) for at in chosen.found)
            after = chosen.after
            yield None
        return list(found), after is not None

    def _in_pieces(
        self, name: str, state: JobState, request: JobsRequest, seqs: list[int], on_change: Callable[[], None]
    ) -> Steps[Done]:
        changed = 0
        for first in range(0, len(seqs), PIECE_MAX):
            try:
                changed += yield from self._change(name, state, request, seqs[first : first + PIECE_MAX], changed)
            except TopicsError:
                if not changed:
                    raise
                # Some are changed already: that is the answer, and the next call meets what stopped this one.
                return Done(state, changed, first - changed, more=True)
            on_change()
            yield None
        return Done(state, changed, len(seqs) - changed, more=False)

    def _change(self, name: str, state: JobState, request: JobsRequest, seqs: list[int], before: int) -> Steps[int]:
        """How many of the jobs were changed, or would be."""
        if not seqs:
            return 0
        try:
            change = yield from attempt(partial(self._decide, name, state, request, sorted(seqs)))
        except TopicNotFound:
            if not before:
                raise
            return 0
        yield from published(change)
        return change.result

    def _decide(self, name: str, state: JobState, request: JobsRequest, seqs: list[int]) -> PendingChange:
        """`result` is how many jobs are changed. May raise Busy and ColdMiss; then nothing has happened."""
        topic, queue, now = self._queues.find(name)
        home = topic
        if state == "dead":
            letters = self._queues.job_pages.letters_of(topic)
            if letters is None:
                return settled(topic.id, 0)
            home = letters
            # Until a move is published, its records still look as if they were there.
            self._engine.in_flight.check(("redrive", letters.id), ("topic", letters.name))
            seqs = [seq for seq in seqs if is_live(letters, seq) and self._is_from(letters, seq, name)]
        else:
            seqs = [seq for seq in seqs if self._queues.job_pages.is_in(topic, queue, state, seq)]
        if request.dry_run or not seqs:
            return settled(topic.id, len(seqs))
        self._engine.commit_log.check_writable()
        match request.action:
            case "retry" | "release":
                op = Released(topic.id, now, request.error or "", seqs, now_ms=now)
                change = self._queues.decide_ahead(topic, [op])
            case "extend":
                change = self._extend(topic, queue, seqs, now, request.lease_ms)
            case "bury":
                change = self._bury(topic, queue, seqs, request.error or REASON_DEFAULT)
            case _:
                change = self._delete(home, seqs)
        change.then(lambda done: setattr(done, "result", len(seqs)))
        self._engine.waiters.moved(topic)
        return change

    def _is_from(self, letters: Topic, seq: int, name: str) -> bool:
        block = letters.blocks[letters.block_after(seq - 1)]
        self._engine.state.cold.load(block)
        return transfers.home_of(transfers.record_of(block, block.number_after(seq - 1))) == name

    def _extend(self, topic: Topic, queue: Queue, seqs: list[int], now: int, lease_ms: int) -> PendingChange:
        deadline = now + max(LEASE_MS_MIN, min(LEASE_MS_MAX, lease_ms))
        by_rest: dict[int, list[int]] = {}
        for seq in seqs:
            job = queue.jobs[seq]
            by_rest.setdefault(rest_after(topic.config, job.deliveries, job.lease_of(seq)), []).append(seq)
        ops = [Extended(topic.id, deadline, rest_ms, group) for rest_ms, group in by_rest.items()]
        return self._queues.decide_ahead(topic, ops)

    def _bury(self, topic: Topic, queue: Queue, seqs: list[int], reason: str) -> PendingChange:
        change = self._queues.move_to_dead_letters(topic, [queue.look_at(seq) for seq in seqs], reason)
        jobs = [queue.job_for(seq) for seq in seqs]
        queue.take_out(jobs)
        change.then(lambda done: self._queues.give_back(topic, jobs) if done.error is not None else None)
        return change

    def _delete(self, topic: Topic, seqs: list[int]) -> PendingChange:
        """From a queue, or from the topic of its dead letters, which may be a queue itself."""
        runs = find_seqs(topic, seqs, self._engine.state.cold.load)
        op = Deleted(topic.id, topic.now(self._queues.wall_ms()), runs)
        queue = queue_of(topic)
        if queue is None:
            return self._engine.commit_log.submit_delete(op, topic.config.durability)
        change = self._queues.endings.submit(topic, op, map(queue.look_at, seqs), EndState.CANCELLED)
        jobs: list[Job] = [queue.job_for(seq) for seq in seqs]
        leased = [job.seq for job in jobs if job.group is not None and job.group.place is JobPlace.LEASED]
        queue.take_out(jobs)
        change.then(lambda done: self._deleted(topic, queue, jobs, leased, done))
        return change

    def _deleted(self, topic: Topic, queue: Queue, jobs: list[Job], leased: list[int], done: PendingChange) -> None:
        if done.error is not None:
            self._queues.give_back(topic, jobs)
        elif leased:
            queue.note_cancelled(leased)

    def _redrive(self, topic: Topic, request: JobsRequest, on_change: Callable[[], None]) -> Steps[Done]:
        letters = topic.config.dead_letter
        if letters is None or letters not in self._engine.state.by_name:
            return Done("dead", 0, len(request.seqs or ()), more=False)
        home = topic.name
        wish = RedriveRequest(
            match=request.match, limit=request.limit, rate_per_s=request.rate_per_s, dry_run=request.dry_run
        )
        only = None if request.seqs is None else frozenset(request.seqs)
        if only is not None:
            wish.limit = len(only)
        driven = yield from self._queues.redriver.redrive_all(
            letters, wish, lambda name: name == home, on_change, only=only
        )
        skipped = len(only) - driven.moved if only is not None else 0
        return Done("dead", driven.moved, skipped, more=driven.more and only is None)


def _is_leaving(queue: Queue, seq: int) -> bool:
    """Whether it was acked or moved, and the change is pending."""
    job = queue.jobs.get(seq)
    return job is not None and job.group is None
