"""The engine inside a Python program: a typed, thread-safe, synchronous database of topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from topics.client.sync.job_handle import JobHandle
from topics.client.values import JobGroup
from topics.embedded.groups import Groups
from topics.embedded.host import Host
from topics.embedded.pipelines import Pipelines
from topics.embedded.queues import Queues
from topics.embedded.records import Records
from topics.embedded.routers import Routers
from topics.embedded.schedules import Schedules
from topics.embedded.topics import Topics
from topics.embedded.transactions import Transactions
from topics.embedded.watch import Streaming
from topics.model.clock import Clock
from topics.model.settings import Settings


def _ignore(progress: float) -> None:
    """Ignore the progress of opening."""


class Database(Topics, Records, Streaming, Queues, Routers, Groups, Transactions, Pipelines, Schedules):
    """Open with `topics.open`. It has the verbs of `topics.Client`, without a server.

    Every method may be called from any thread; all threads see one order of events. `close` ends calls that wait.
    """

    def __init__(
        self,
        path: str,
        settings: Settings | None = None,
        *,
        node: str | None = None,
        clock: Clock | None = None,
        on_progress: Callable[[float], None] = _ignore,
    ) -> None:
        self._node = node
        self._host = Host(path, settings, clock, on_progress)

    def enqueue(
        self,
        queue: str,
        data: Any,
        *,
        tag: str | None = None,
        meta: Mapping[str, Any] | None = None,
        delay_ms: int = 0,
        unique_key: str | None = None,
        job_priority: int = 0,
        group: JobGroup | None = None,
        idempotency_key: str | None = None,
    ) -> JobHandle:
        """Append a job; with the handle one can ask how it stands, and wait for its result.

        With a `unique_key` that is pending, it is the handle of the existing job.
        """
        appended = self.append(
            queue,
            data,
            tag=tag,
            meta=meta,
            delay_ms=delay_ms,
            unique_key=unique_key,
            job_priority=job_priority,
            group=group,
            idempotency_key=idempotency_key,
        )
        return self.job_handle(queue, appended.seqs[0])

    def job_handle(self, queue: str, seq: int) -> JobHandle:
        """The handle of a job that was appended before."""
        return JobHandle(self, queue, seq)

    def checkpoint(self) -> bool:
        """Write a checkpoint and trim the log now instead of when it is due; returns whether it succeeded."""
        host = self._host
        with host.lock:
            host.check_open()
            return host.store.checkpoint()

    def backup(self, path: str) -> int:
        """Copy everything into a new file while the database stays in use; returns the file's length.

        The file appears when it is complete. `topics restore` turns it into a data directory.
        """
        from topics import __version__

        host = self._host
        with host.lock:
            host.check_open()
            backup = host.store.begin_backup(f"topics {__version__}")
        try:
            with host.lock:
                host.wait_synced(lambda: backup.is_synced)
                for _ in backup.plan():
                    pass
            backup.save(path)
        finally:
            with host.lock:
                backup.release()
        return backup.archive_bytes

    def close(self) -> None:
        """Write everything and release the directory. The next open then needs no replay."""
        self._host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open(
    path: str,
    settings: Settings | None = None,
    *,
    node: str | None = None,
    clock: Clock | None = None,
    on_progress: Callable[[float], None] = _ignore,
) -> Database:
    """Open the database in this directory; creates it if it does not exist.

    `node` is the origin of records and claims unless a call names another. After a crash the log is replayed first;
    `on_progress` is called with the progress (0.0 … 1.0).
    """
    return Database(path, settings, node=node, clock=clock, on_progress=on_progress)
