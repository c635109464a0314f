"""The rows of topics and records in the table of ops: the folds themselves are methods of `State`."""

from __future__ import annotations

from typing import Any, Final

from topics.engine.core.appended import APPEND_CODES, Appended, decode_appended
from topics.engine.core.commit_log import CommitLog
from topics.engine.core.op_table import Addition, OpKind
from topics.engine.core.ops import (
    CONFIGURED,
    CREATED,
    DELETED,
    DROPPED,
    FLOORED,
    KEY_NOTED,
    MULTI_APPENDED,
    RESERVED,
    RESUMED,
    SKIPPED,
    TIMED,
    Configured,
    Created,
    Deleted,
    Dropped,
    Floored,
    KeyNoted,
    MultiAppended,
    Reserved,
    Resumed,
    Skipped,
    Timed,
    decode_configured,
    decode_created,
    decode_deleted,
    decode_dropped,
    decode_floored,
    decode_key_noted,
    decode_multi_appended,
    decode_reserved,
    decode_resumed,
    decode_skipped,
    decode_timed,
)
from topics.engine.core.pending import PendingChange
from topics.engine.core.state import State


def fold_multi_append(state: State, op: MultiAppended) -> None:
    for part in op.parts:
        if isinstance(part, Created):
            state.create(part)
            if state.behind_mark:
                # Created after the checkpoint's position: not part of it.
                state.by_id[part.topic_id].captured = state.checkpoint
            continue
        topic = state.by_id.get(part.topic_id)
        if topic is None:
            # Only a log with gaps refers to a topic that does not exist.
            continue
        state.touch(topic)
        if isinstance(part, Appended):
            state.append(part)
        else:
            state.note_key(part)


def _fold_timed(state: State, op: Timed) -> None:
    state.noted = op.moment


def addition_of(appended: Appended, *, grows: bool = True) -> Addition:
    batch = appended.batch
    size = batch.size
    return Addition(appended.topic_id, batch.first_seq, batch.count, batch.count, size, size if grows else 0)


def has_delays(appended: Appended) -> bool:
    return appended.batch.jobs is not None


def _configured(commit_log: CommitLog, op: Configured, _found: Any, _change: PendingChange) -> None:
    commit_log.configured(op.topic_id)


def _deleted(commit_log: CommitLog, op: Deleted, found: tuple[int, int], change: PendingChange) -> None:
    change.result = found
    commit_log.left(op.topic_id)


def _dropped(_commit_log: CommitLog, _op: Dropped, found: list[str], change: PendingChange) -> None:
    change.routers_removed = found


def _multi_appended(commit_log: CommitLog, op: MultiAppended, _found: Any, _change: PendingChange) -> None:
    for appended in op.batches:
        commit_log.landed(appended.topic_id)


CORE_OPS: Final[tuple[OpKind[Any], ...]] = (
    OpKind(
        Appended,
        *APPEND_CODES,
        decode=decode_appended,
        fold=State.append,
        published=CommitLog.append_published,
        adds=lambda op: (addition_of(op),),
        dated=has_delays,
        carries_floor=True,
    ),
    OpKind(Deleted, DELETED, decode=decode_deleted, fold=State.delete, published=_deleted),
    OpKind(
        Created,
        CREATED,
        decode=decode_created,
        fold=State.create,
        makes=lambda op: (op.name,),
        configures=lambda op: (op.config,),
        needs_topic=False,
    ),
    OpKind(
        Configured,
        CONFIGURED,
        decode=decode_configured,
        fold=State.configure,
        published=_configured,
        configures=lambda op: (op.config,),
    ),
    OpKind(Dropped, DROPPED, decode=decode_dropped, fold=State.drop, published=_dropped, needs_topic=False),
    OpKind(Reserved, RESERVED, decode=decode_reserved, fold=State.reserve_seqs, ordered=False),
    OpKind(Skipped, SKIPPED, decode=decode_skipped, fold=State.skip),
    OpKind(Resumed, RESUMED, decode=decode_resumed, fold=State.resume),
    OpKind(Floored, FLOORED, decode=decode_floored, fold=State.floor),
    OpKind(KeyNoted, KEY_NOTED, decode=decode_key_noted, fold=State.note_key),
    OpKind(Timed, TIMED, decode=decode_timed, fold=_fold_timed, needs_topic=False),
    OpKind(
        MultiAppended,
        MULTI_APPENDED,
        decode=decode_multi_appended,
        fold=fold_multi_append,
        published=_multi_appended,
        other_topics=lambda _, op: tuple(dict.fromkeys(part.topic_id for part in op.parts))[1:],
        adds=lambda op: map(addition_of, op.batches),
        makes=lambda op: tuple(part.name for part in op.parts if isinstance(part, Created)),
        configures=lambda op: tuple(part.config for part in op.parts if isinstance(part, Created)),
        dated=lambda op: any(map(has_delays, op.batches)),
        needs_topic=False,
    ),
)
