"""Appends in batches: many small ones become few large requests, sent in the background, in order."""

# Made by tools/sync_half.py from aio/producer.py: change that one.
from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Protocol

from topics.client.batching import BatchPart, Gathering, ProducerBatch
from topics.client.errors import Closed, InvalidRequest, TopicsError
from topics.client.request import encode
from topics.client.sync.wire import primitives
from topics.client.values import Appended, JobGroup, Outgoing, Outgoings
from topics.model.requests.groups import partition_for, partition_name

PARTITIONS_MAX = 10_000


class Appends(Protocol):
    """Anything that can append a batch."""

    def append_many(
        self,
        name: str,
        records: Outgoings,
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        create: bool = True,
        return_seqs: bool = True,
    ) -> Appended: ...


class Ticket:
    """A record that is being sent."""

    __slots__ = ("_batch", "_number", "_settled", "partition")

    def __init__(self, batch: ProducerBatch, number: int, settled: primitives.Event, partition: int) -> None:
        self._batch = batch
        self._number = number
        self._settled = settled
        self.partition = partition

    def done(self) -> bool:
        return self._batch.done

    def result(self, timeout_s: float | None = None) -> int:
        """The record's seq once the server has it; raises the error that prevented it."""
        primitives.wait_event(self._settled, timeout_s)
        outcome = self._batch.outcomes[self._number]
        if isinstance(outcome, TopicsError):
            raise outcome
        return outcome


class Producer:
    """Collects records for `linger_ms`, or until a batch is full, and appends them in order.

    Every batch has an idempotency key, so a retry never duplicates. With `partitions`, a record goes to the partition
    of its tag (without a tag: round-robin); records with the same tag stay in order. While the buffer is full `append`
    waits. A record that has failed for good is reported by its ticket, and by the next `flush` or `close`. A record
    that the server refuses does not affect the others of its batch.
    """

    def __init__(
        self,
        appends: Appends,
        name: str,
        *,
        linger_s: float,
        batch_records_max: int,
        batch_bytes_max: int,
        buffer_records_max: int,
        buffer_bytes_max: int,
        partitions: int,
        node: str | None,
        create: bool,
    ) -> None:
        if not 1 <= partitions <= PARTITIONS_MAX:
            raise InvalidRequest(f"partitions must be 1 to {PARTITIONS_MAX}", field="partitions")
        self._appends = appends
        self._names = [partition_name(name, number) for number in range(partitions)]
        self._node = node
        self._create = create
        self._buffer_records_max = buffer_records_max
        self._buffer_bytes_max = buffer_bytes_max
        self._gathering = Gathering(
            linger_s=linger_s, batch_records_max=batch_records_max, batch_bytes_max=batch_bytes_max
        )
        self._news = primitives.Condition()
        # for each batch that is not done
        self._settled: dict[ProducerBatch, primitives.Event] = {}
        self._failed: TopicsError | None = None
        self._turn = 0
        self._closing = False
        self._runner: primitives.Runner | None = None

    def append(
        self,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
        delay_ms: int = 0,
        unique_key: str | None = None,
        job_priority: int = 0,
        group: JobGroup | None = None,
    ) -> Ticket:
        """Add a record; the ticket has its seq later. Waits only while the buffer is full."""
        job = Outgoing(data, tag, node, meta, delay_ms, unique_key, job_priority=job_priority, group=group)
        record = encode(job)
        with self._news:
            while not self._closing and not self._has_room(len(record)):
                primitives.wait(self._news, None)
            if self._closing:
                raise Closed("this producer was closed")
            partition = self._partition(tag)
            batch, number, news = self._gathering.add(self._names[partition], record, time.monotonic())
            batch.uneven = batch.uneven or unique_key is not None
            settled = self._settled.get(batch)
            if settled is None:
                settled = self._settled[batch] = primitives.Event()
            if self._runner is None:
                self._runner = primitives.Runner(self._run)
            if news:
                self._news.notify_all()
            return Ticket(batch, number, settled, partition)

    def _has_room(self, size: int) -> bool:
        gathering = self._gathering
        if not gathering.records:
            return True
        return gathering.records < self._buffer_records_max and gathering.size + size <= self._buffer_bytes_max

    def _partition(self, tag: str | None) -> int:
        if len(self._names) == 1:
            return 0
        if tag is not None:
            return partition_for(tag, len(self._names))
        self._turn = (self._turn + 1) % len(self._names)
        return self._turn

    # --- the sender ---

    def _run(self) -> None:
        while True:
            with self._news:
                batch = self._gathering.take(time.monotonic())
                while batch is None:
                    if self._closing:
                        return
                    primitives.wait(self._news, self._gathering.due_s(time.monotonic()))
                    batch = self._gathering.take(time.monotonic())
            self._send(batch)

    def _send(self, batch: ProducerBatch) -> None:
        parts = [batch.whole()]
        try:
            while parts:
                parts += self._try(parts.pop())
        finally:
            missing = len(batch.records) - len(batch.outcomes)
            batch.outcomes += [Closed("the producer was stopped before this record was acknowledged")] * missing
            failed = [outcome for outcome in batch.outcomes if isinstance(outcome, TopicsError)]
            self._failed = self._failed or next(iter(failed), None)
            self._gathering.settle(batch)
            self._settled.pop(batch).set()
        with self._news:
            self._news.notify_all()

    def _try(self, part: BatchPart) -> list[BatchPart]:
        """Append a part, and store its outcome; returns the parts to try instead."""
        batch = part.batch
        try:
            appended = self._appends.append_many(
                batch.topic,
                part.json(),
                node=self._node,
                idempotency_key=part.key,
                create=self._create,
                return_seqs=batch.uneven,
            )
        except TopicsError as error:
            if halves := part.halves(error):
                return halves
            batch.outcomes += [error] * (part.stop - part.start)
        else:
            batch.outcomes += appended.seqs
        return []

    # --- the end ---

    def flush(self) -> None:
        """Send all records so far and wait for them; raises if a batch has failed since the last flush."""
        with self._news:
            waiting = [self._settled[batch] for batch in self._gathering.hurry()]
            self._news.notify_all()
        for settled in waiting:
            primitives.wait_event(settled, None)
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def close(self) -> None:
        """Flush, then accept no more records."""
        try:
            self.flush()
        finally:
            with self._news:
                self._closing = True
                self._news.notify_all()
            if self._runner is not None:
                self._runner.join()

    def __enter__(self) -> Producer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
