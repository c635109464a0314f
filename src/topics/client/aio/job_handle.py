"""A job that was appended: how it stands, and its result, for which a caller may wait."""

from __future__ import annotations

import time
from typing import Any, Final, Protocol

from topics.client.jobs import Cancelled, Jobs, JobStatus

# The server waits at most 30 s; a shorter time survives proxies.
WAIT_MS: Final = 20_000


class AsyncJobSource(Protocol):
    """The part of a client that knows of jobs."""

    async def job(self, name: str, seq: int, wait_ms: int = 0) -> JobStatus: ...

    async def cancel(self, name: str, jobs: Jobs) -> Cancelled: ...


class AsyncJobHandle:
    """One job of a queue. Anyone who knows its seq can make another handle: `client.job_handle(queue, seq)`."""

    __slots__ = ("_source", "seq", "topic")

    def __init__(self, source: AsyncJobSource, topic: str, seq: int) -> None:
        self._source = source
        self.topic = topic
        self.seq = seq

    async def status(self) -> JobStatus:
        """How the job stands. Raises JobNotFound if it has ended and the queue keeps no results, or no longer."""
        return await self._source.job(self.topic, self.seq)

    async def result(self, timeout: float | None = None) -> Any:
        """Wait for the end of the job, `timeout` seconds if given; what its worker returned.

        Raises JobFailed, JobCancelled, ResultTimeout, or JobNotFound if the queue keeps no results.
        """
        until_s = None if timeout is None else time.monotonic() + timeout
        while True:
            left_ms = WAIT_MS if until_s is None else max(0, round((until_s - time.monotonic()) * 1000))
            status = await self._source.job(self.topic, self.seq, min(WAIT_MS, left_ms))
            if status.ended or left_ms == 0:
                return status.check_done()

    async def cancel(self) -> bool:
        """Remove the job, whatever its state; whether it had not ended yet."""
        return (await self._source.cancel(self.topic, self.seq)).cancelled == 1

    def __repr__(self) -> str:
        return f"JobHandle({self.topic}/{self.seq})"
