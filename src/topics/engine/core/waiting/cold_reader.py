"""Reads missing bodies from disk in the worker thread; a body that several tasks wait for is read once."""

from __future__ import annotations

from collections.abc import Callable

from topics.engine.log.on_disk.cold import Cold, ColdMiss
from topics.model.errors import DamagedData, TopicsError
from topics.storage.pack import Extent
from topics.storage.worker import Worker, WorkerJob

Arrived = Callable[[TopicsError | None], None]


class ColdReader:
    def __init__(self, cold: Cold, worker: Worker) -> None:
        self._cold = cold
        self._worker = worker
        self._waiting: dict[Extent, list[tuple[ColdMiss, Arrived]]] = {}

    def fetch(self, miss: ColdMiss, then: Arrived) -> None:
        """Give the block its body, then call back; with an error if it cannot be read."""
        waiting = self._waiting.get(miss.extent)
        if waiting is not None:
            waiting.append((miss, then))
            return
        try:
            self._worker.submit(lambda: self._cold.read(miss), lambda job: self._arrived(miss.extent, job))
        except TopicsError as error:
            then(error)
        else:
            self._waiting[miss.extent] = [(miss, then)]

    def _arrived(self, extent: Extent, job: WorkerJob[bytes | DamagedData | OSError]) -> None:
        for miss, then in self._waiting.pop(extent):
            try:
                self._cold.take(miss, job.result())
            except TopicsError as error:
                then(error)
            else:
                then(None)
