"""The folds of consumer groups, and their rows in the table of ops."""

from __future__ import annotations

from typing import Any, Final

from topics.engine.core.op_table import OpKind
from topics.engine.core.state import State
from topics.engine.groups.group import Group
from topics.engine.groups.ops import (
    FORGOTTEN,
    GROUP_ACKED,
    GROUP_CLAIMED,
    GROUP_PLACED,
    GROUP_RESET,
    GroupAcked,
    GroupClaimed,
    GroupOp,
    GroupPlaced,
    GroupReset,
    decode_acked,
    decode_claimed,
    decode_placed,
    decode_reset,
)
from topics.engine.groups.part import GroupsPart


def _groups(state: State, op: GroupOp) -> dict[str, Group]:
    topic = state.by_id[op.topic_id]
    part = topic.groups
    if not isinstance(part, GroupsPart):
        part = topic.groups = GroupsPart({})
    return part.by_name


def _claimed(state: State, op: GroupClaimed) -> None:
    _groups(state, op).setdefault(op.group, Group()).claim(op)


def _acked(state: State, op: GroupAcked) -> None:
    _groups(state, op).setdefault(op.group, Group()).ack(op)


def _placed(state: State, op: GroupPlaced) -> None:
    _groups(state, op).setdefault(op.group, Group()).place(op)


def _reset(state: State, op: GroupReset) -> None:
    groups = _groups(state, op)
    if op.committed == FORGOTTEN:
        groups.pop(op.group, None)
    else:
        groups[op.group] = Group(op.committed)


GROUP_OPS: Final[tuple[OpKind[Any], ...]] = (
    OpKind(GroupClaimed, GROUP_CLAIMED, decode=decode_claimed, fold=_claimed, dated=lambda _: True),
    OpKind(GroupAcked, GROUP_ACKED, decode=decode_acked, fold=_acked),
    OpKind(GroupReset, GROUP_RESET, decode=decode_reset, fold=_reset),
    OpKind(GroupPlaced, GROUP_PLACED, decode=decode_placed, fold=_placed),
)
