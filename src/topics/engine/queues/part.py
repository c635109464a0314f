"""The part of queues in a topic: its jobs if it is a queue, and the dead letters that queues moved to it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.engine.log.part import TopicPart
from topics.engine.queues.queue import Queue
from topics.engine.queues.results.kept import KeptResults, QueueResults

if TYPE_CHECKING:
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic
    from topics.engine.queues.dead_letters import DeadLetters
    from topics.engine.queues.results.ended import EndState
    from topics.model.requests.batch import Batch


class QueuePart(TopicPart):
    __slots__ = ("jobs", "kept", "letters", "results")

    def __init__(self, jobs: Queue | None = None, kept: KeptResults | None = None) -> None:
        self.jobs = jobs
        self.letters: DeadLetters | None = None
        # what it keeps of its jobs beyond their records, if it does; what all queues keep
        self.results: QueueResults | None = None
        self.kept = kept

    def appended(self, topic: Topic, batch: Batch) -> None:
        if self.jobs is not None:
            self.jobs.appended(batch)
            if batch.jobs is not None and batch.jobs.groups is not None:
                open_results(topic).appended(topic, batch)

    def grown(self, topic: Topic, records: int) -> None:
        if self.jobs is not None:
            self.jobs.fresh += records

    def dying(self, block: Block, start: int, stop: int) -> None:
        if self.results is not None:
            self.results.dying(block, start, stop)
        if self.jobs is not None:
            self.jobs.dying(block, start, stop)
        if self.letters is not None:
            self.letters.dying(block, start, stop)


def queue_of(topic: Topic) -> Queue | None:
    """Its jobs, if the topic is a queue."""
    part = topic.queue
    return part.jobs if isinstance(part, QueuePart) else None


def results_of(topic: Topic) -> QueueResults | None:
    """What the queue keeps of its jobs beyond their records, if it does."""
    part = topic.queue
    return part.results if isinstance(part, QueuePart) else None


def open_results(topic: Topic) -> QueueResults:
    """The same of a queue that keeps something from now on."""
    part = topic.queue
    assert isinstance(part, QueuePart) and part.kept is not None, "only a queue has jobs"
    if part.results is None:
        part.results = QueueResults(topic, part.kept)
    return part.results


def set_ending(topic: Topic, state: EndState) -> None:
    """Jobs of the topic that die from now on end like this."""
    results = results_of(topic)
    if results is not None:
        results.state = state


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
