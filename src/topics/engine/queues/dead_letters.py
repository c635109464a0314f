"""Dead letters by the queue they come from: which records of a topic they are, and how many of each queue are left.

A move adds neighbouring records of one queue. A queue is identified by its epoch, which no other queue ever has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.engine.log.seq_spans import SeqSpans
from topics.engine.queues import transfers as moving
from topics.engine.queues.part import letters_of, queue_of

if TYPE_CHECKING:
    from topics.engine.core.state import State
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic


class DeadLetters(SeqSpans):
    """The dead letters in one topic, labelled with the epochs of their queues."""

    __slots__ = ()

    def left_of(self, queue: Topic) -> int:
        """How many dead letters of this queue are in the topic."""
        return self.left.get(queue.epoch, 0)

    def dying(self, block: Block, start: int, stop: int) -> None:
        """The live records start … stop − 1 of a block are about to die."""
        self.take(block, start, stop)


def left_of(state: State, queue: Topic) -> int:
    """How many of this queue's jobs are in its dead-letter topic now."""
    topic = state.by_name.get(queue.config.dead_letter or "")
    letters = letters_of(topic) if topic is not None else None
    return letters.left_of(queue) if letters is not None else 0


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
