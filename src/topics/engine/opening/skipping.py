"""Seqs that a reader may have seen and the log no longer has: topics continue above them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from topics.engine.core.commit_log import CommitLog
from topics.engine.core.ops import Resumed
from topics.engine.core.state import State
from topics.engine.log.topic import SEQ_CHUNK
from topics.engine.opening import loss_estimates as estimates
from topics.model.clock import Clock
from topics.model.errors import TopicsError
from topics.model.requests.config import GATED, Durability
from topics.storage.steps import PAUSE_S, Steps
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


class Skipping:
    """Lets topics continue above every seq that a reader may have seen and the log no longer has."""

    def __init__(
        self,
        state: State,
        commit_log: CommitLog,
        wal: Wal,
        clock: Clock,
        settle: Callable[[], None],
        synced: Callable[[], Steps[None]],
    ) -> None:
        self._state = state
        self._commit_log = commit_log
        self._wal = wal
        self._clock = clock
        self._settle, self._synced = settle, synced

    def since(self, copied_ms: int, *, in_bucket: bool) -> Steps[int]:
        """Skip the seqs that the original of this copy may have assigned since; returns how many they can be.

        `in_bucket`: everything that readers of `replicated` topics have seen is here.
        """
        now_ms = self._clock.now_ms()
        seqs_min = seqs_since(copied_ms, now_ms)
        whole: frozenset[Durability] = frozenset(("replicated",) if in_bucket else ())
        yield from self.skip(whole, estimates.since_copy(copied_ms, now_ms), seqs_min)
        return seqs_min

    def skip(self, whole: frozenset[Durability], lost: estimates.Estimate, seqs_min: int = 0) -> Steps[None]:
        """`lost` of the skipped seqs were records.

        `whole` are the durability classes of which the log has everything: all classes in the log after a kill of the
        process, `fsync` and `replicated` after a power failure, `replicated` if another machine is lost and its log was
        restored from the bucket, none after a repair of the log or in a copy whose original continued.
        Without a note in the log the same seqs would be assigned again: so this waits for its sync, and fails with it.
        """
        commit_log, wal = self._commit_log, self._wal
        failures: list[TopicsError] = []
        for topic in list(self._state.by_id.values()):
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
        yield from self.written()
        if failures:
            raise failures[0]

    def written(self) -> Steps[None]:
        """What was decided is folded, and synced: the commit thread may have to write it, or the lease be in doubt."""
        while self._commit_log.has_unwritten:
            # Not only a flush: another server may have taken over.
            self._settle()
            time.sleep(PAUSE_S)
            yield
        yield from self._synced()
