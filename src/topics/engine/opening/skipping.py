"""Seqs that a reader may have seen and the log no longer has: topics continue above them."""

from __future__ import annotations

from typing import Final

from topics.engine.core.commit_log import CommitLog
from topics.engine.core.ops import Resumed
from topics.engine.core.state import State
from topics.engine.log.topic import SEQ_CHUNK
from topics.engine.opening import loss_estimates as estimates
from topics.model.errors import TopicsError
from topics.model.requests.config import GATED, Durability
from topics.storage.steps import Steps
from topics.storage.wal.wal import Wal

# Frames of topics that skip seqs after a crash; they are written and folded at once.
SKIPPED_BYTES_PER_STEP = 4096
# More records per second than one topic can get, and how far the clocks of two machines may differ.
SEQS_PER_S_MAX = 1 << 21
CLOCKS_APART_S_MAX = 60
# The classes of which the log has everything after a kill of the process.
LOGGED: Final[frozenset[Durability]] = frozenset(("memory", "disk", "fsync", "replicated"))


def seqs_since(copied_ms: int, now_ms: int) -> int:
    """More seqs than any topic of the original can have assigned since this copy was made."""
    passed_ms = max(0, now_ms - copied_ms) + 1000 * CLOCKS_APART_S_MAX
    return passed_ms * SEQS_PER_S_MAX // 1000


def skip(
    state: State,
    commit_log: CommitLog,
    wal: Wal,
    whole: frozenset[Durability],
    lost: estimates.Estimate,
    seqs_min: int,
) -> Steps[list[TopicsError]]:
    """Continue above every seq that a reader may have seen and the log no longer has; `lost` of them were records.

    `whole` are the durability classes of which the log has everything: all classes in the log after a kill of the
    process, `fsync` and `replicated` after a power failure, `replicated` if another machine is lost and its log was
    restored from the bucket, none after a repair of the log or in a copy whose original continued.
    Without a note in the log the same seqs would be assigned again: the start must wait for its sync, and fail if
    it returned errors.
    """
    failures: list[TopicsError] = []
    for topic in list(state.by_id.values()):
        if topic.config.durability not in whole and topic.counted:
            # Such a topic reserves nothing: here it is as far ahead as any other would be.
            ahead = max(seqs_min, SEQ_CHUNK if topic.config.durability in GATED else 0)
            seen = max(topic.ceiling, topic.head_seq + ahead)
            op = Resumed(topic.id, seen, seen + topic.chunk, min(lost(topic), seen - topic.head_seq))
            change = commit_log.submit(op, op.encode(), gated=False, urgent=True)
            change.then(lambda done: failures.append(done.error) if done.error is not None else None)
            if wal.buffered_to - wal.written_to >= SKIPPED_BYTES_PER_STEP:
                commit_log.flush()
        yield
    commit_log.flush()
    return failures
