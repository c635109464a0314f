"""Collecting records into batches: those that are full or have waited long enough are sent, oldest first.

add ─▶ open batch of its topic ─▶ full, or hurried ─▶ sealed ─┐
                └────────────── has lingered ─────────────────┴─▶ take ─▶ sent ─▶ settle
"""

from __future__ import annotations

from collections import deque
from uuid import uuid4

from topics.client.errors import BatchTooLarge, InvalidRequest, PayloadTooLarge, RecordTooLarge, TopicsError

# Errors that may concern a single record of a batch.
AT_FAULT = (InvalidRequest, RecordTooLarge, BatchTooLarge, PayloadTooLarge)


class ProducerBatch:
    """Records of one topic that are appended together, under an idempotency key that makes a retry harmless."""

    __slots__ = ("done", "key", "opened_s", "outcomes", "records", "size", "topic", "uneven")

    def __init__(self, topic: str, now_s: float) -> None:
        self.topic = topic
        self.opened_s = now_s
        self.key = uuid4().hex
        self.records: list[bytes] = []
        self.size = 0
        # seqs must be listed: a job with a unique key may already exist
        self.uneven = False
        # its outcome: the seq of each record, or its error
        self.done = False
        self.outcomes: list[int | TopicsError] = []

    def whole(self) -> BatchPart:
        return BatchPart(self, 0, len(self.records))


class BatchPart:
    """A part of a batch. An invalid record must not keep the others out: a part that fails is halved."""

    __slots__ = ("batch", "start", "stop")

    def __init__(self, batch: ProducerBatch, start: int, stop: int) -> None:
        self.batch = batch
        self.start = start
        self.stop = stop

    @property
    def key(self) -> str:
        if self.stop - self.start == len(self.batch.records):
            return self.batch.key
        return f"{self.batch.key}-{self.start}-{self.stop}"

    def json(self) -> bytes:
        return b"[%b]" % b",".join(self.batch.records[self.start : self.stop])

    def halves(self, error: TopicsError) -> list[BatchPart]:
        """The parts to try instead, the first half last; none if the error does not concern a single record."""
        if self.stop - self.start < 2 or not isinstance(error, AT_FAULT):
            return []
        middle = (self.start + self.stop) // 2
        return [BatchPart(self.batch, middle, self.stop), BatchPart(self.batch, self.start, middle)]


class Gathering:
    def __init__(self, *, linger_s: float, batch_records_max: int, batch_bytes_max: int) -> None:
        self._linger_s = linger_s
        self._batch_records_max = batch_records_max
        self._batch_bytes_max = batch_bytes_max
        # by topic, oldest first; then full ones, oldest first; then the one that is being sent
        self._open: dict[str, ProducerBatch] = {}
        self._sealed: deque[ProducerBatch] = deque()
        self._sent: list[ProducerBatch] = []
        # all of these together
        self.records = 0
        self.size = 0

    def add(self, topic: str, record: bytes, now_s: float) -> tuple[ProducerBatch, int, bool]:
        """The batch it is in, its number there, and whether the sender must be woken."""
        news = False
        batch = self._open.get(topic)
        if batch is not None and batch.size + len(record) > self._batch_bytes_max:
            self._seal(batch)
            batch, news = None, True
        if batch is None:
            batch = self._open[topic] = ProducerBatch(topic, now_s)
            news = news or len(self._open) == 1
        batch.records.append(record)
        batch.size += len(record) + 1
        self.records += 1
        self.size += len(record) + 1
        if len(batch.records) >= self._batch_records_max:
            self._seal(batch)
            news = True
        return batch, len(batch.records) - 1, news

    def _seal(self, batch: ProducerBatch) -> None:
        del self._open[batch.topic]
        self._sealed.append(batch)

    def hurry(self) -> list[ProducerBatch]:
        """Stop lingering. Returns all batches that are not done, oldest first."""
        self._sealed.extend(self._open.values())
        self._open.clear()
        return [*self._sent, *self._sealed]

    def take(self, now_s: float) -> ProducerBatch | None:
        """The next batch to send, if one is due."""
        if self._sealed:
            batch = self._sealed.popleft()
        elif self._open and (batch := next(iter(self._open.values()))).opened_s + self._linger_s <= now_s:
            del self._open[batch.topic]
        else:
            return None
        self._sent.append(batch)
        return batch

    def due_s(self, now_s: float) -> float | None:
        """How long until a batch has lingered long enough; None: there is none."""
        if not self._open:
            return None
        return max(0.0, next(iter(self._open.values())).opened_s + self._linger_s - now_s)

    def settle(self, batch: ProducerBatch) -> None:
        """The batch was accepted or has failed."""
        self._sent.remove(batch)
        self.records -= len(batch.records)
        self.size -= batch.size
        batch.done = True
        batch.records = []
