"""Dead letters by the queue they come from: which records of a topic they are, and how many of each queue are left.

A move adds neighbouring records of one queue, so they are kept as spans of seqs, three numbers each, whatever their
count. A queue is identified by its epoch, which no other queue ever has.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from topics.engine.queues import transfers as moving
from topics.engine.queues.part import letters_of, queue_of

if TYPE_CHECKING:
    from topics.engine.core.state import State
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic

# With more spans than this, and more than letters, each new letter causes a few spans to be checked.
SPANS_MIN = 1_024
SPANS_PER_SWEEP = 256


class DeadLetters:
    """The dead letters in one topic."""

    __slots__ = ("_epochs", "_firsts", "_lasts", "_left", "_swept")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._lasts = array("Q")
        self._epochs = array("Q")
        self._left: dict[int, int] = {}
        self._swept = 0

    def left(self, queue: Topic) -> int:
        """How many dead letters of this queue are in the topic."""
        return self._left.get(queue.epoch, 0)

    def add(self, epoch: int, first_seq: int, count: int) -> None:
        self._left[epoch] = self._left.get(epoch, 0) + count
        if self._epochs and self._epochs[-1] == epoch and self._lasts[-1] == first_seq - 1:
            self._lasts[-1] += count
            return
        self._firsts.append(first_seq)
        self._lasts.append(first_seq + count - 1)
        self._epochs.append(epoch)

    def dying(self, block: Block, start: int, stop: int) -> None:
        """The live records start … stop − 1 of a block are about to die."""
        for epoch, died in self._among(block, start, stop):
            self._left[epoch] -= died
            if not self._left[epoch]:
                del self._left[epoch]

    def _among(self, block: Block, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Dead letters among the live records start … stop − 1: of which queue, and how many."""
        for first, end in block.alive_runs(start, stop):
            last_seq = block.seq_at(end - 1)
            at = bisect_left(self._lasts, block.seq_at(first))
            while at < len(self._firsts) and self._firsts[at] <= last_seq:
                begin = max(first, block.number_after(self._firsts[at] - 1))
                yield self._epochs[at], min(end, block.number_after(self._lasts[at])) - begin
                at += 1

    def tidy(self, topic: Topic) -> None:
        """Remove empty spans, a few at a time, while most spans are empty."""
        spans = len(self._firsts)
        if spans <= SPANS_MIN + 2 * sum(self._left.values()):
            return
        start = self._swept if self._swept < spans else 0
        stop = min(spans, start + SPANS_PER_SWEEP)
        kept = [at for at in range(start, stop) if topic.live_within(self._firsts[at], self._lasts[at])]
        for column in (self._firsts, self._lasts, self._epochs):
            column[start:stop] = array("Q", [column[at] for at in kept])
        self._swept = start + len(kept)

    # --- in a snapshot ---

    def encode(self) -> bytes:
        return b"".join(column.tobytes() for column in (self._firsts, self._lasts, self._epochs))

    @classmethod
    def decode(cls, data: bytes, blocks: list[Block]) -> DeadLetters:
        """Those of the dead letters that are in the blocks."""
        letters = cls()
        numbers = array("Q", data)
        spans = len(numbers) // 3
        letters._firsts, letters._lasts, letters._epochs = (
            numbers[:spans],
            numbers[spans : 2 * spans],
            numbers[2 * spans :],
        )
        for block in blocks:
            for epoch, found in letters._among(block, 0, block.count):
                letters._left[epoch] = letters._left.get(epoch, 0) + found
        return letters


def left_of(state: State, queue: Topic) -> int:
    """How many of this queue's jobs are in its dead-letter topic now."""
    topic = state.by_name.get(queue.config.dead_letter or "")
    letters = letters_of(topic) if topic is not None else None
    return letters.left(queue) if letters is not None else 0


def read_stamps(state: State, letters: DeadLetters, block: Block) -> None:
    """Add the live records of a block whose stamps say that they are dead letters."""
    body = block.body
    if body is None or body.metas is None:
        return
    for first, stop in block.alive_runs(0, block.count):
        for number in range(first, stop):
            home = moving.home_of(moving.record_of(block, number)) if body.metas[number] else None
            queue = state.by_name.get(home or "")
            if queue is not None and queue_of(queue) is not None:
                letters.add(queue.epoch, block.seq_at(number), 1)
