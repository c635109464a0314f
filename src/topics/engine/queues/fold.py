"""The folds of queue ops: leases, pauses, and records that change their topic; their rows in the table of ops."""

from __future__ import annotations

from typing import Any, Final

from topics.engine.core.appended import Appended
from topics.engine.core.commit_log import CommitLog
from topics.engine.core.fold import addition_of, has_delays
from topics.engine.core.op_table import OpKind
from topics.engine.core.ops import Deleted
from topics.engine.core.pending import PendingChange
from topics.engine.core.state import State
from topics.engine.queues.dead_letters import DeadLetters
from topics.engine.queues.due import Job
from topics.engine.queues.lease_log import is_live
from topics.engine.queues.ops import (
    BURIED,
    EXTENDED,
    LEASED,
    MOVED,
    PAUSED,
    RELEASED,
    Buried,
    Extended,
    FreshRun,
    Leased,
    Moved,
    Paused,
    Released,
    decode_buried,
    decode_extended,
    decode_leased,
    decode_moved,
    decode_paused,
    decode_released,
)
from topics.engine.queues.part import letters_of, put_letters, queue_of, set_ending
from topics.engine.queues.queue import Queue
from topics.engine.queues.results.ended import EndState

# --- leases: folded when they are decided; when read from the log, a record that has died since needs none ---


def _leased(state: State, op: Leased) -> None:
    topic = state.by_id[op.topic_id]
    queue = queue_of(topic)
    if queue is None or op.ahead:
        return
    jobs = op.jobs
    if isinstance(jobs, FreshRun):
        queue.hand_out_run(jobs, op.node, op.deadline, op.rest_ms, op.now_ms)
        return
    if not op.now_ms:
        queue.pass_over(topic, op.cursor)
        jobs = [job for job in jobs if is_live(topic, job[0])]
    queue.hand_out(jobs, op.node, op.deadline, op.rest_ms, op.now_ms, op.stream)


def _released(state: State, op: Released) -> None:
    queue = queue_of(state.by_id[op.topic_id])
    if queue is not None and not op.ahead:
        run = queue.run_of(op.seqs)
        if run is not None:
            queue.give_back_run(run, op.seqs, op.due, op.now_ms, op.error)
            return
        for job in _known(queue, op.seqs):
            job.error = op.error or job.error
            queue.give_back(job, op.due, op.now_ms)


def _extended(state: State, op: Extended) -> None:
    queue = queue_of(state.by_id[op.topic_id])
    if queue is not None and not op.ahead:
        run = queue.run_of(op.seqs)
        if run is not None:
            queue.extend_run(run, op.seqs, op.deadline, op.rest_ms)
            return
        for job in _known(queue, op.seqs):
            queue.extend(job, op.deadline, op.rest_ms)


def _known(queue: Queue, seqs: list[int]) -> list[Job]:
    return [queue.job_for(seq) for seq in seqs if seq in queue.jobs]


def _paused(state: State, op: Paused) -> None:
    queue = queue_of(state.by_id[op.topic_id])
    if queue is not None:
        queue.paused = op.paused


# --- records that change their topic ---


def _moved(state: State, op: Moved) -> None:
    """Removed here and added there in one step, so that no crash loses a record or leaves it in both topics."""
    source = state.by_id[op.topic_id]
    if op.dead:
        set_ending(source, EndState.DEAD)
    died, _ = state.delete(Deleted(op.topic_id, op.ts, op.runs))
    set_ending(source, EndState.REMOVED)
    queue = queue_of(source)
    if queue is not None and op.dead:
        queue.dead_lettered += died
    _land(state, op.appended, source.epoch if op.dead else None)


def _buried(state: State, op: Buried) -> None:
    source = state.by_id[op.topic_id]
    queue = queue_of(source)
    if queue is not None:
        queue.dead_lettered += op.letters
    if isinstance(op.rest, Appended):
        _land(state, op.rest, source.epoch)
    elif op.rest is not None:
        set_ending(source, EndState.DEAD)
        state.delete(op.rest)
        set_ending(source, EndState.REMOVED)


def _land(state: State, appended: Appended, epoch: int | None) -> None:
    """Records come from another topic; as dead letters, if `epoch` is that of their queue."""
    topic = state.by_id.get(appended.topic_id)
    if topic is None:
        return
    state.touch(topic)
    state.append(appended)
    if epoch is not None:
        letters = letters_of(topic) or put_letters(topic, DeadLetters())
        letters.add(epoch, appended.batch.first_seq, appended.batch.count)
        letters.tidy(topic)


def move_published(commit_log: CommitLog, op: Moved, _found: Any, _change: PendingChange) -> None:
    commit_log.left(op.topic_id)
    commit_log.landed(op.appended.topic_id)


QUEUE_OPS: Final[tuple[OpKind[Any], ...]] = (
    OpKind(Leased, LEASED, decode=decode_leased, fold=_leased, dated=lambda _: True),
    OpKind(Released, RELEASED, decode=decode_released, fold=_released, dated=lambda _: True),
    OpKind(Extended, EXTENDED, decode=decode_extended, fold=_extended, dated=lambda _: True),
    OpKind(Paused, PAUSED, decode=decode_paused, fold=_paused),
    OpKind(
        Moved,
        MOVED,
        decode=decode_moved,
        fold=_moved,
        published=move_published,
        other_topics=lambda _, op: (op.to_id,),
        adds=lambda op: (addition_of(op.appended, grows=False),),
        dated=lambda op: has_delays(op.appended),
    ),
    OpKind(Buried, BURIED, decode=decode_buried, fold=_buried),
)
