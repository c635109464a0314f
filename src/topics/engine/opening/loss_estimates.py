"""Estimates of lost records where the log does not say: for tombstones after a power failure, copy or repair.

Seqs are skipped by the thousand or by the billion so that none is used twice; that does not say how many were used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from topics.engine.core.state import State
from topics.engine.log.topic import Topic
from topics.storage.wal.replay import LogGap

Estimate = Callable[[Topic], int]
# Bytes of a small record in the log besides its payload.
RECORD_BYTES_MIN = 64


def nothing(_topic: Topic) -> int:
    """The log has everything that was acknowledged, or says how much is missing."""
    return 0


def since_sync(heads: dict[int, int] | None) -> Estimate:
    """After a power failure: as many records as came after the last recorded sync, when `heads` were the heads, and
    were not lost. None: there were none after it."""

    def estimate(topic: Topic) -> int:
        return topic.live_within(heads.get(topic.id, 0) + 1, topic.head_seq) if heads is not None else 0

    return estimate


def since_copy(copied_ms: int, now_ms: int) -> Estimate:
    """In a copy whose original continued: as many records as came in an equally long time before the copy."""
    since_ms = copied_ms - max(0, now_ms - copied_ms)

    def estimate(topic: Topic) -> int:
        found = 0
        for block in reversed(topic.blocks):
            if block.last_ts < since_ms:
                break
            span_ms = block.last_ts - block.first_ts
            within_ms = min(span_ms, block.last_ts - since_ms)
            found += -(-block.count * within_ms // span_ms) if span_ms else block.count
        return found

    return estimate


def in_gaps(state: State, gaps: Sequence[LogGap]) -> Estimate:
    """In a log with gaps: as many records of the usual size as the lost bytes can hold, in any topic."""
    lost_bytes = sum(gap.to_position - gap.from_position for gap in gaps)
    usual_bytes = RECORD_BYTES_MIN + state.bytes // max(1, state.count)
    lost = -(-lost_bytes // usual_bytes)
    return lambda _topic: lost
