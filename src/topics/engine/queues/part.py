"""The part of queues in a topic: its jobs if it is a queue, and the dead letters that queues moved to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.engine.log.part import TopicPart
from topics.engine.queues.queue import Queue

if TYPE_CHECKING:
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic
    from topics.engine.queues.dead_letters import DeadLetters
    from topics.model.requests.batch import Batch


class QueuePart(TopicPart):
    __slots__ = ("jobs", "letters")

    def __init__(self, jobs: Queue | None = None) -> None:
        self.jobs = jobs
        self.letters: DeadLetters | None = None

    def appended(self, topic: Topic, batch: Batch) -> None:
        if self.jobs is not None:
            self.jobs.appended(batch)

    def grown(self, topic: Topic, records: int) -> None:
        if self.jobs is not None:
            self.jobs.fresh += records

    def dying(self, block: Block, start: int, stop: int) -> None:
        if self.jobs is not None:
            self.jobs.dying(block, start, stop)
        if self.letters is not None:
            self.letters.dying(block, start, stop)


def queue_of(topic: Topic) -> Queue | None:
    """Its jobs, if the topic is a queue."""
    part = topic.queue
    return part.jobs if isinstance(part, QueuePart) else None


def letters_of(topic: Topic) -> DeadLetters | None:
    """The dead letters in the topic, if it ever had any."""
    part = topic.queue
    return part.letters if isinstance(part, QueuePart) else None


def put_letters(topic: Topic, letters: DeadLetters) -> DeadLetters:
    part = topic.queue
    if not isinstance(part, QueuePart):
        part = topic.queue = QueuePart()
    part.letters = letters
    return letters
