"""The jobs that a worker holds, and the loop that renews their leases.

claimed ──────── a third of the lease ────────▶ extended in one call with all others that are due ──▶ …
                                                ├─ not held any more, or no answer before the deadline ─▶ lost
                                                └─ cancelled ─▶ lost, and the handler ends
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from msgspec import Raw

from topics.client import AsyncClient, TopicsError
from topics.model.clock import Clock
from topics.workers.job import Job, JobOutcome

log = logging.getLogger("topics.workers")

BATCH_MAX = 1_000
# As parts of a lease: how often the loop runs, when a lease is renewed, how long a call may take.
LOOK, RENEW, CALL_MAX = 1 / 9, 1 / 3, 1 / 3


class HeldLease:
    """A leased job that this process is responsible for: its handler runs, or its outcome is not yet reported."""

    __slots__ = ("deadline_s", "job", "outcome", "progress", "result", "task")

    def __init__(self, job: Job, deadline_s: float) -> None:
        self.job = job
        self.deadline_s = deadline_s
        # What to cancel when the lease is lost; a function in a thread cannot be cancelled and keeps its slot until it
        # ends.
        self.task: asyncio.Task[None] | None = None
        self.outcome: JobOutcome | None = None
        # JSON: what the handler reported and is not sent yet, and what it returned
        self.progress: bytes | None = None
        self.result: bytes | None = None


class Leases:
    """By lease, not by seq: a job that was lost and claimed again is here twice while its first handler runs."""

    def __init__(
        self,
        client: AsyncClient,
        node: str,
        topic: str,
        lease_ms: int,
        clock: Clock,
        interrupt: Callable[[Job], None] | None = None,
    ) -> None:
        """`interrupt` ends a handler that is not a task."""
        self._client = client
        self._interrupt = interrupt
        self._node = node
        self._topic = topic
        self._lease_ms = lease_ms
        self._lease_s = lease_ms / 1000
        self._clock = clock
        self._by_id: dict[str, HeldLease] = {}
        # Jobs with progress to send; set when there is one.
        self._progressed: dict[str, HeldLease] = {}
        self._news = asyncio.Event()

    def __len__(self) -> int:
        return len(self._by_id)

    def _now_s(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def __contains__(self, lease_id: str) -> bool:
        return lease_id in self._by_id

    def all(self) -> list[HeldLease]:
        return list(self._by_id.values())

    def take(self, job: Job) -> HeldLease:
        """Just claimed. The server's deadline is by its own clock; here the time since the reply counts."""
        held = self._by_id[job.lease_id] = HeldLease(job, self._now_s() + self._lease_s)
        return held

    def is_alive(self, held: HeldLease) -> bool:
        """Whether the lease is held and the server may still know it."""
        return held.job.lease_id in self and held.deadline_s > self._now_s()

    def let_go(self, held: HeldLease) -> None:
        self._by_id.pop(held.job.lease_id, None)

    def lose(self, held: HeldLease) -> None:
        """The lease is lost: the handler is informed, and nothing more is sent to the server."""
        self.let_go(held)
        held.job.lost = True
        log.info("%s/%d: the lease is lost, the job will be delivered again", self._topic, held.job.seq)
        if held.task is not None:
            held.task.cancel()

    def cancel(self, held: HeldLease) -> None:
        """The job is not wanted any more: its handler ends, and nothing is reported."""
        self.let_go(held)
        held.job.lost = held.job.cancelled = True
        log.info("%s/%d: the job was cancelled", self._topic, held.job.seq)
        if held.task is not None:
            held.task.cancel("the job was cancelled")
        elif self._interrupt is not None:
            self._interrupt(held.job)

    async def renew_forever(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s * LOOK)
            await self.renew()

    def report(self, job: Job, progress: bytes) -> None:
        """The handler of a job says how far it is."""
        held = self._by_id.get(job.lease_id)
        if held is not None:
            held.progress = progress
            self._progressed[job.lease_id] = held
            self._news.set()

    async def report_forever(self) -> None:
        """Send progress, the latest of each job: one call at a time, so that it cannot pile up."""
        while True:
            await self._news.wait()
            self._news.clear()
            while self._progressed:
                _, held = self._progressed.popitem()
                progress, held.progress = held.progress, None
                if progress is not None and held.outcome is None and held.job.lease_id in self:
                    await self._extend([held], progress)

    async def renew(self) -> None:
        """Extend the leases that are due, in as few calls as possible."""
        now_s = self._now_s()
        for held in self.all():
            if held.deadline_s <= now_s:
                self.lose(held)
        due = [held for held in self.all() if held.deadline_s - now_s <= self._lease_s * (1 - RENEW)]
        for start in range(0, len(due), BATCH_MAX):
            await self._extend(due[start : start + BATCH_MAX])

    async def _extend(self, due: list[HeldLease], progress: bytes | None = None) -> None:
        sent_s = self._now_s()
        try:
            async with asyncio.timeout(self._lease_s * CALL_MAX):
                jobs = [held.job.leased for held in due]
                report = None if progress is None else Raw(progress)
                reply = await self._client.extend(self._topic, jobs, self._lease_ms, self._node, progress=report)
        except (TopicsError, TimeoutError) as error:
            # The loop runs again well before the deadline.
            log.info("%s: leases could not be extended yet: %s", self._topic, error or "no reply")
            return
        skipped, cancelled = set(reply.skipped), set(reply.cancelled)
        for held in due:
            if held.job.seq not in skipped:
                held.deadline_s = sent_s + self._lease_s
            elif held.job.seq in cancelled and held.outcome is None and held.job.lease_id in self:
                self.cancel(held)
            elif held.outcome is None and held.job.lease_id in self:
                self.lose(held)
