"""The line of a tag: how many of its jobs are held, when its rate allows the next, and the ready jobs that wait in it.

A job that waits is 8 bytes of an array if it has no Job (fresh, no priority); one that has a Job anyway is in a deque.
Nothing is taken out of the middle: a job that is deleted, or that an operator has moved, is found out when it comes to
the head.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import deque
from typing import Final

from topics.engine.queues.due import rank_of

# The rank of jobs without a Job: none is higher.
FRESH_RANK: Final = rank_of(0) + 1
# As long as fewer seqs at the start of the array are used up, they stay.
USED_MAX: Final = 1_024


class TagLine:
    __slots__ = ("_ranked", "_seqs", "_start", "_trim_at", "full_ms", "held", "listed", "listed_as", "tag", "timed")

    def __init__(self, tag: bytes) -> None:
        self.tag = tag
        # its jobs that are leased, that rest after a failed delivery, or that are about to leave the queue
        self.held = 0
        # when the bucket of its rate is full
        self.full_ms = 0.0
        # whether it is among the lines with a job to hand out, with which head, and among those that wait for a rate
        self.listed = False
        self.listed_as: tuple[int, int] = (0, 0)
        self.timed = False
        self._seqs = array("Q")
        self._start = 0
        self._trim_at = USED_MAX
        self._ranked: dict[int, deque[int]] | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether a job waits in it, which may be gone since."""
        return self._start < len(self._seqs) or bool(self._ranked)

    def add_fresh(self, seq: int, earliest_seq: int) -> None:
        """A job without a Job waits; they come in the order of their seqs."""
        seqs = self._seqs
        seqs.append(seq)
        if len(seqs) >= self._trim_at:
            # A line that never opens must not keep the seqs of what retention has removed.
            self.drop_before(earliest_seq)
            self._trim_at = max(USED_MAX, 2 * len(self._seqs))

    def add(self, rank: int, seq: int) -> None:
        """A job with a Job waits."""
        if self._ranked is None:
            self._ranked = {}
        self._ranked.setdefault(rank, deque()).append(seq)

    def head(self) -> tuple[int, int] | None:
        """The rank and seq of the job that is next, if it is still there."""
        ranked = self._ranked
        if ranked:
            rank = min(ranked)
            return rank, ranked[rank][0]
        if self._start < len(self._seqs):
            return FRESH_RANK, self._seqs[self._start]
        return None

    def pop(self) -> None:
        """The head is handed out, or gone."""
        ranked = self._ranked
        if ranked:
            rank = min(ranked)
            seqs = ranked[rank]
            seqs.popleft()
            if not seqs:
                del ranked[rank]
            return
        self._start += 1
        if self._start == len(self._seqs) or (self._start > USED_MAX and self._start > len(self._seqs) // 2):
            self._use_up()

    def drop_before(self, seq: int) -> None:
        """The fresh ones before this are gone."""
        self._start = bisect_left(self._seqs, seq, self._start)
        self._use_up()

    def _use_up(self) -> None:
        del self._seqs[: self._start]
        self._start = 0
