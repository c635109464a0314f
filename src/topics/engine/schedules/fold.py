"""The rows of schedules in the table of ops."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from topics.engine.core.fold import addition_of
from topics.engine.core.op_table import OpKind
from topics.engine.schedules.feature import ScheduleTable
from topics.engine.schedules.ops import (
    SCHEDULE_DROPPED,
    SCHEDULE_PUT,
    SCHEDULE_RAN,
    ScheduleDropped,
    SchedulePut,
    ScheduleRan,
    decode_schedule_dropped,
    decode_schedule_put,
    decode_schedule_ran,
)

if TYPE_CHECKING:
    from topics.engine.core.commit_log import CommitLog
    from topics.engine.core.pending import PendingChange


def _ran(commit_log: CommitLog, op: ScheduleRan, _found: Any, change: PendingChange) -> None:
    if op.appended is not None:
        commit_log.append_published(op.appended, None, change)


SCHEDULE_OPS: Final[tuple[OpKind[Any], ...]] = (
    OpKind(
        SchedulePut,
        SCHEDULE_PUT,
        decode=decode_schedule_put,
        fold=lambda state, op: state.feature(ScheduleTable).put(op),
        needs_topic=False,
    ),
    OpKind(
        ScheduleDropped,
        SCHEDULE_DROPPED,
        decode=decode_schedule_dropped,
        fold=lambda state, op: state.feature(ScheduleTable).drop(op),
        needs_topic=False,
    ),
    OpKind(
        ScheduleRan,
        SCHEDULE_RAN,
        decode=decode_schedule_ran,
        fold=lambda state, op: state.feature(ScheduleTable).ran(op),
        published=_ran,
        other_topics=lambda _, op: tuple(run.schedule_id for run in op.runs if run.schedule_id != op.topic_id),
        adds=lambda op: () if op.appended is None else (addition_of(op.appended),),
        needs_topic=False,
        carries_floor=True,
    ),
)
