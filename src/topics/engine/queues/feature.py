"""Queues as a feature of the state: their fields in a topic's description, their part of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, ClassVar

import msgspec
from msgspec import Raw

from topics.engine.core.checkpoints.image import NOTHING
from topics.engine.core.feature import Feature
from topics.engine.core.listing import QueueState
from topics.engine.queues import lease_log
from topics.engine.queues.dead_letters import DeadLetters, left_of, read_stamps
from topics.engine.queues.lease_log import QueueImage
from topics.engine.queues.part import QueuePart, letters_of, put_letters, queue_of, results_of
from topics.engine.queues.queue import Queue
from topics.engine.queues.results.kept import KeptResults
from topics.model.errors import DamagedData

if TYPE_CHECKING:
    from topics.engine.core.checkpoints.image import TopicImage
    from topics.engine.core.state import State
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(QueueImage)


class QueuesFeature(Feature):
    chunk: ClassVar[bytes | None] = lease_log.PART_CHUNK

    def __init__(self, state: State) -> None:
        self._state = state
        # by the id of the topic, in the order of their creation
        self.queues: dict[int, Topic] = {}
        self.kept = KeptResults()
        # Queues whose jobs, or what is kept of ended ones, the running checkpoint captures last.
        self._large: list[Topic] = []
        # Topics of a snapshot that does not record which of their records are dead letters.
        self._unread: set[Topic] = set()

    # --- topics ---

    def created(self, topic: Topic) -> None:
        if topic.config.type == "queue":
            topic.queue = QueuePart(Queue(), self.kept)
            self.queues[topic.id] = topic

    def dropped(self, topic: Topic) -> list[str]:
        self.queues.pop(topic.id, None)
        self.kept.discard(topic)
        results = results_of(topic)
        if results is not None:
            results.wake_all()
        return []

    def describe(self, topic: Topic, steady_ms: int) -> QueueState | None:
        queue = queue_of(topic)
        if queue is None:
            return None
        queue.advance(steady_ms)
        limits = queue.limits
        return QueueState(
            ready=queue.ready,
            in_flight=queue.in_flight,
            dead_lettered=queue.dead_lettered,
            delayed=queue.delayed,
            paused=queue.paused,
            dead=left_of(self._state, topic),
            dead_letter_error=queue.refusal if queue.refused else None,
            claimers=queue.claimers,
            last_claim_ts=queue.last_claim_ts,
            held_back=0 if limits is None else limits.tags.waiting,
            limited_by=None if limits is None else limits.now_limited_by(steady_ms) or None,
        )

    # --- snapshots ---

    def encode(self, topic: Topic, image: TopicImage, images_of: Callable[[Iterable[Block]], bytes]) -> None:
        queue, letters = queue_of(topic), letters_of(topic)
        if letters is not None:
            image.letters = letters.encode()
        if queue is not None:
            image.queue = Raw(_encode(lease_log.picture(topic, queue)))
            if lease_log.is_large(topic, queue) or results_of(topic) is not None:
                self._large.append(topic)

    def decode(self, topic: Topic, image: TopicImage) -> None:
        queue = queue_of(topic)
        if queue is not None:
            queue.fresh = topic.count
            if image.queue != NOTHING:
                lease_log.restore(topic, queue, _decoder.decode(image.queue))
        if image.letters is None:
            self._unread.add(topic)
        elif image.letters:
            put_letters(topic, DeadLetters()).restore(image.letters, topic.blocks)

    def restore(self, chunk: bytes) -> None:
        lease_log.restore_part(chunk, self._state.by_id)

    def read_old_letters(self) -> Iterator[None]:
        """Version 0.1 stored no count: read the stamps of its dead letters. Yields after each block."""
        names = {topic.config.dead_letter for topic in self._state.by_name.values() if queue_of(topic) is not None}
        for topic in self._unread & {self._state.by_name[name] for name in names if name in self._state.by_name}:
            letters = put_letters(topic, DeadLetters())
            for block in topic.blocks:
                try:
                    self._state.cold.load_now(block)
                except (DamagedData, OSError):
                    # Readers of the topic get the error; a count is not worth refusing the start.
                    continue
                read_stamps(self._state, letters, block)
                yield
        self._unread.clear()

    # --- checkpoints ---

    def marked(self) -> None:
        self._large = []

    def capture_late(self) -> Iterator[bytes]:
        large, self._large = self._large, []
        for topic in large:
            queue = queue_of(topic)
            if queue is not None and self._state.by_id.get(topic.id) is topic:
                yield from lease_log.parts(topic, queue)

    def closing(self) -> None:
        """Without durable leases, deliveries and nacks are not ops: the last checkpoint has to capture them."""
        for topic in self._state.by_id.values():
            queue = queue_of(topic)
            if queue is not None and queue.jobs:
                queue.closing = True
                self._state.dirty.add(topic)
