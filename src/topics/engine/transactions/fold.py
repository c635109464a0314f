"""The rows of transactions in the table of ops; the folds are in the ledger."""

from __future__ import annotations

from typing import Any, Final

from topics.engine.core.commit_log import CommitLog
from topics.engine.core.op_table import Addition, OpKind
from topics.engine.core.pending import PendingChange
from topics.engine.transactions.ledger import Ledger
from topics.engine.transactions.ops import (
    ABORTED,
    COMMITTED,
    FENCED,
    FORGOTTEN,
    STAGED,
    TxnAborted,
    TxnCommitted,
    TxnFenced,
    TxnForgotten,
    TxnStaged,
    decode_aborted,
    decode_committed,
    decode_fenced,
    decode_forgotten,
    decode_staged,
)


def _commit_published(commit_log: CommitLog, op: TxnCommitted, _found: Any, _change: PendingChange) -> None:
    for move in op.moves:
        commit_log.arrived(move.dest_id)


def _additions(op: TxnCommitted) -> list[Addition]:
    """Records were counted when they were staged, or are counted on arrival: only their seqs are reserved."""
    return [Addition(move.dest_id, move.first_seq, move.records, move.records, 0, 0) for move in op.moves]


TXN_OPS: Final[tuple[OpKind[Any], ...]] = (
    OpKind(
        TxnStaged,
        STAGED,
        decode=decode_staged,
        fold=lambda state, op: state.feature(Ledger).staged(op),
        dated=lambda _: True,
        needs_topic=False,
    ),
    OpKind(
        TxnFenced,
        FENCED,
        decode=decode_fenced,
        fold=lambda state, op: state.feature(Ledger).fenced(op),
        needs_topic=False,
    ),
    OpKind(
        TxnCommitted,
        COMMITTED,
        decode=decode_committed,
        fold=lambda state, op: state.feature(Ledger).committed(op),
        published=_commit_published,
        other_topics=lambda _, op: tuple(move.dest_id for move in op.moves),
        adds=_additions,
        needs_topic=False,
    ),
    OpKind(
        TxnAborted,
        ABORTED,
        decode=decode_aborted,
        fold=lambda state, op: state.feature(Ledger).aborted(op),
        needs_topic=False,
    ),
    OpKind(
        TxnForgotten,
        FORGOTTEN,
        decode=decode_forgotten,
        fold=lambda state, op: state.feature(Ledger).forgotten(op),
        needs_topic=False,
    ),
)
