"""`POST /v0/compact`: a checkpoint now, which removes from the disk what retention, deletes and acks have freed."""

from __future__ import annotations

import os
from typing import TypeVar

import msgspec

from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.replies import encode, performance
from topics.api.routes import Route
from topics.api.schema import Performance
from topics.engine.core.waiting.runner import Signal, Steps
from topics.engine.opening.store import Store
from topics.model.errors import Forbidden, StorageError
from topics.storage.worker import WorkerJob

T = TypeVar("T")


class CompactReply(msgspec.Struct):
    """Bytes that the data directory takes on its disk, before and after."""

    bytes_before: int
    bytes_after: int
    performance: Performance


class Compaction:
    def __init__(self, store: Store, data_dir: str, cold_dir: str | None) -> None:
        self._store = store
        self._paths = [path for path in (data_dir, cold_dir) if path is not None]

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v0/compact",
                changes=False,
                handler=self.run,
                summary="Remove from the disk, now, what retention, deletes and acks have freed.",
                scopes=Scope.ADMIN,
                replies={200: CompactReply},
                errors=("read_only",),
            )
        ]

    def run(self, call: Call) -> Steps[None]:
        """Several may ask at once: one checkpoint answers all who asked before it began."""
        if not call.principal.sees_all_names:
            raise Forbidden("compacting concerns every topic, but the key is limited to names with its prefixes")
        if self._store.commit_log.read_only is not None:
            raise self._store.commit_log.read_only
        before = yield from self._bytes_on_disk()
        done = Signal()
        outcome: list[bool] = []

        def ended(succeeded: bool) -> None:
            outcome.append(succeeded)
            done.set()

        self._store.compact(ended)
        yield done
        if not outcome[0]:
            raise self._store.commit_log.read_only or StorageError("the checkpoint failed, see the server's log")
        after = yield from self._bytes_on_disk()
        call.reply(200, encode(CompactReply(bytes_before=before, bytes_after=after, performance=performance(call))))

    def _bytes_on_disk(self) -> Steps[int]:
        """Counted by the worker: the directory may hold many files."""
        counted = Signal()
        found: list[WorkerJob[int]] = []

        def arrived(job: WorkerJob[int]) -> None:
            found.append(job)
            counted.set()

        self._store.worker.submit(lambda: sum(map(bytes_below, self._paths)), arrived)
        yield counted
        return found[0].result()


def bytes_below(path: str) -> int:
    """What the files below a directory take on their disk; files that go away meanwhile do not count."""
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:
                continue
    return total
