"""The folds of what ends jobs, of progress, and of groups that are complete; their rows in the table of ops."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from topics.engine.core.fold import addition_of, has_delays
from topics.engine.core.op_table import Addition, OpKind
from topics.engine.queues.fold import move_published
from topics.engine.queues.lease_log import is_live
from topics.engine.queues.ops import Moved
from topics.engine.queues.part import open_results, results_of, set_ending
from topics.engine.queues.results.ended import EndState
from topics.engine.queues.results.ops import (
    ENDED,
    GROUP_NOTIFIED,
    GROUPS_FORGOTTEN,
    PROGRESSED,
    Ended,
    GroupNotified,
    GroupsForgotten,
    Progressed,
    decode_ended_op,
    decode_group_notified,
    decode_groups_forgotten,
    decode_progressed,
)

if TYPE_CHECKING:
    from topics.engine.core.commit_log import CommitLog
    from topics.engine.core.pending import PendingChange
    from topics.engine.core.state import State


def _ended(state: State, op: Ended) -> None:
    topic = state.by_id[op.topic_id]
    set_ending(topic, op.state)
    state.ops.of(op.by).fold(state, op.by)
    set_ending(topic, EndState.REMOVED)
    if op.jobs:
        open_results(topic).add_ended(op.jobs)


def _ended_published(commit_log: CommitLog, op: Ended, found: Any, change: PendingChange) -> None:
    if isinstance(op.by, Moved):
        move_published(commit_log, op.by, found, change)
    else:
        commit_log.left(op.by.topic_id)


def _added_by(op: Ended) -> Iterable[Addition]:
    return (addition_of(op.by.appended, grows=False),) if isinstance(op.by, Moved) else ()


def _progressed(state: State, op: Progressed) -> None:
    topic = state.by_id[op.topic_id]
    if not op.ahead:
        open_results(topic).note_progress([seq for seq in op.seqs if is_live(topic, seq)], op.progress)


def _notified(state: State, op: GroupNotified) -> None:
    results = results_of(state.by_id[op.topic_id])
    if results is not None:
        results.notified(op.name, op.ts, op.seq)
    # In a repaired log the topic may be missing.
    topic = None if op.appended is None else state.by_id.get(op.appended.topic_id)
    if topic is not None and op.appended is not None:
        state.touch(topic)
        state.append(op.appended)


def _forgotten(state: State, op: GroupsForgotten) -> None:
    results = results_of(state.by_id[op.topic_id])
    if results is not None:
        results.groups.forget_numbers(op.numbers)


def _notification_published(commit_log: CommitLog, op: GroupNotified, _found: Any, _change: PendingChange) -> None:
    if op.appended is not None:
        commit_log.landed(op.appended.topic_id)


def _notified_topic(_state: State, op: GroupNotified) -> tuple[int, ...]:
    return () if op.appended is None or op.appended.topic_id == op.topic_id else (op.appended.topic_id,)


RESULT_OPS: Final[tuple[OpKind[Any], ...]] = (
    OpKind(
        Ended,
        ENDED,
        decode=decode_ended_op,
        fold=_ended,
        published=_ended_published,
        other_topics=lambda _, op: (op.by.to_id,) if isinstance(op.by, Moved) else (),
        adds=_added_by,
        dated=lambda op: isinstance(op.by, Moved) and has_delays(op.by.appended),
    ),
    OpKind(Progressed, PROGRESSED, decode=decode_progressed, fold=_progressed),
    OpKind(
        GroupNotified,
        GROUP_NOTIFIED,
        decode=decode_group_notified,
        fold=_notified,
        published=_notification_published,
        other_topics=_notified_topic,
        adds=lambda op: () if op.appended is None else (addition_of(op.appended),),
    ),
    OpKind(GroupsForgotten, GROUPS_FORGOTTEN, decode=decode_groups_forgotten, fold=_forgotten),
)
