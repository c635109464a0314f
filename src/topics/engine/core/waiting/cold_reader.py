"""Reads missing bodies in other threads; a body that several tasks wait for is read once.

local   ─▶ the worker
remote  ─▶ one of several threads: a request takes long, and other reads must not wait for it
"""

from __future__ import annotations

from collections.abc import Callable

from topics.engine.core.waiting.deadlines import Deadlines
from topics.engine.log.on_disk.cold import Cold, ColdMiss, Found, Reader
from topics.model.errors import BucketAway, TopicsError
from topics.storage.pack import Extent
from topics.storage.worker import Worker, WorkerJob, Workers

Arrived = Callable[[TopicsError | None], None]

AGAIN_MS = 1_000


class ColdReader:
    def __init__(self, cold: Cold, worker: Worker, remote_readers: Workers) -> None:
        self._cold = cold
        self._worker = worker
        self._remote_readers = remote_readers
        self._waiting: dict[Extent, list[tuple[ColdMiss, Arrived]]] = {}

    def fetch(self, miss: ColdMiss, then: Arrived) -> None:
        """Give the block its body, then call back; with an error if it cannot be read."""
        waiting = self._waiting.get(miss.extent)
        if waiting is not None:
            waiting.append((miss, then))
            return
        try:
            if self._cold.is_remote(miss.block):
                self._remote_readers.submit(lambda: self._cold.read(miss), lambda job: self._arrived(miss.extent, job))
            else:
                self._worker.submit(lambda: self._cold.read(miss), lambda job: self._arrived(miss.extent, job))
        except TopicsError as error:
            then(error)
        else:
            self._waiting[miss.extent] = [(miss, then)]

    def _arrived(self, extent: Extent, job: WorkerJob[Found]) -> None:
        for miss, then in self._waiting.pop(extent):
            try:
                self._cold.take(miss, job.result())
            except TopicsError as error:
                then(error)
            else:
                then(None)


class PatientReader:
    """For readers without a caller who could try again: while the bucket is away, it does."""

    def __init__(self, reader: Reader, deadlines: Deadlines) -> None:
        self._reader = reader
        self._deadlines = deadlines

    def fetch(self, miss: ColdMiss, then: Arrived) -> None:
        def arrived(error: TopicsError | None) -> None:
            if isinstance(error, BucketAway):
                self._deadlines.add(AGAIN_MS, lambda: self.fetch(miss, then))
            else:
                then(error)

        self._reader.fetch(miss, arrived)
