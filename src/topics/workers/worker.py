"""One queue and its handler: claims no more jobs than it has free slots, runs handlers, and stops without losing any.

claim (waits at the server) ─▶ slot ─▶ handler: task or thread ─▶ outcome ─▶ Outbox ─▶ ack, nack, dead letter
                                         Leases renew all the while
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, cast

from topics.client import AsyncClient
from topics.client import Job as Leased
from topics.client.errors import Forbidden, NotAQueue, TopicNotFound, TopicsError, Unauthorized
from topics.model.clock import Clock
from topics.model.tracing import TRACEPARENT, Tracer
from topics.workers.health import QueueHealth
from topics.workers.job import ACK, RELEASE, Counts, Job, JobOutcome, Reject, Release, Retry, failed, result_of
from topics.workers.leases import HeldLease, Leases
from topics.workers.outbox import Outbox
from topics.workers.pauses import Pauses
from topics.workers.threads import Threads

log = logging.getLogger("topics.workers")

CONCURRENCY_MAX = 1_000
# When stopping: how long the last outcomes may take, and how many leases are searched for forgotten ones.
FAREWELL_S_MAX = 5.0
LEASES_SEEN_MAX = 10_000

Handler = Callable[[Job], Any]


@dataclass(frozen=True, slots=True)
class Duty:
    """The arguments of `App.worker`."""

    topic: str
    handler: Handler
    concurrency: int
    lease_ms: int
    wait_ms: int

    @property
    def is_coroutine(self) -> bool:
        return inspect.iscoroutinefunction(self.handler) or inspect.iscoroutinefunction(
            getattr(self.handler, "__call__", None)  # noqa: B004 - an object with an async __call__ is a handler, too
        )


class Worker:
    def __init__(self, duty: Duty, client: AsyncClient, node: str, counts: Counts, clock: Clock) -> None:
        self._duty = duty
        self._client = client
        self._node = node
        self._threads = None if duty.is_coroutine else Threads(f"topics-{duty.topic}", duty.concurrency)
        interrupt = None if self._threads is None else self._threads.interrupt
        self._leases = Leases(client, node, duty.topic, duty.lease_ms, clock, interrupt)
        self._freed = asyncio.Event()
        self._outbox = Outbox(client, node, duty.topic, self._leases, self._freed.set, counts, clock)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: set[asyncio.Task[None]] = set()
        self._claim_cut = False
        self._tracer = Tracer("worker") if client.traces else None
        self._upkeep: list[asyncio.Task[None]] = []
        self.handled = 0
        self._handler_s = 0.0
        # whether the last claim got an answer
        self._reached = False

    @property
    def health(self) -> QueueHealth:
        duty = self._duty
        return QueueHealth(
            duty.topic, duty.concurrency, len(self._running), self.handled, self._handler_s, self._reached
        )

    # --- running ---

    def start(self) -> None:
        """Start renewing leases and reporting outcomes."""
        self._upkeep = [
            asyncio.create_task(self._leases.renew_forever()),
            asyncio.create_task(self._leases.report_forever()),
            asyncio.create_task(self._outbox.send_forever()),
        ]

    async def claim_forever(self) -> None:
        """Run until cancelled, or until the server reports an error that is permanent."""
        duty, pauses = self._duty, Pauses()
        while True:
            while not self._slots():
                self._freed.clear()
                await self._freed.wait()
            try:
                await self.claim(duty.wait_ms)
                pauses.reset()
            except (Unauthorized, Forbidden, NotAQueue):
                raise
            except TopicsError as error:
                level = logging.WARNING if pauses.fresh else logging.DEBUG
                pause_s = pauses.after(error)
                if isinstance(error, TopicNotFound):
                    log.log(level, "%s does not exist yet; trying again until it does", duty.topic)
                else:
                    log.log(level, "%s: claiming failed, trying again: %s", duty.topic, error)
                await asyncio.sleep(pause_s)

    async def claim(self, wait_ms: int) -> int:
        """Claim as many jobs as there are free slots; how many there were."""
        duty = self._duty
        try:
            jobs = await self._client.claim(duty.topic, self._node, self._slots(), duty.lease_ms, wait_ms)
        except asyncio.CancelledError:
            self._claim_cut = True
            raise
        except TopicsError:
            self._reached = False
            raise
        self._reached = True
        for leased in jobs:
            self._start(leased)
        return len(jobs)

    def _slots(self) -> int:
        """Free slots; none while outcomes pile up."""
        if len(self._outbox) > 2 * self._duty.concurrency:
            return 0
        return self._duty.concurrency - len(self._running)

    def _start(self, leased: Leased) -> None:
        self._loop = asyncio.get_running_loop()
        held = self._leases.take(Job(self._duty.topic, leased, self._report))
        task = asyncio.create_task(self._handle(held))
        if self._threads is None:
            held.task = task
        self._running.add(task)
        task.add_done_callback(self._ended)

    def _report(self, job: Job, progress: bytes) -> None:
        """Called by handlers, in any thread."""
        assert self._loop is not None
        try:
            self._loop.call_soon_threadsafe(self._leases.report, job, progress)
        except RuntimeError:
            # The loop is closed: the app no longer waits for this handler.
            pass

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._freed.set()

    async def _handle(self, held: HeldLease) -> None:
        begin_s = time.monotonic()
        outcome = await self._outcome(held)
        self._handler_s += time.monotonic() - begin_s
        self.handled += 1
        if not held.job.lost:
            self._outbox.put(held, outcome)

    async def _outcome(self, held: HeldLease) -> JobOutcome:
        job = held.job
        if self._tracer is None:
            return await self._handled(held)
        parent = job.meta.get(TRACEPARENT)
        facts = {"topics.queue": job.topic, "topics.seq": job.seq, "topics.deliveries": job.deliveries}
        with self._tracer.span(f"process {job.topic}", "CONSUMER", parent and str(parent), **facts) as span:
            outcome = await self._handled(held)
            if not outcome.acked:
                self._tracer.failed(span, outcome.error or "")
            return outcome

    async def _handled(self, held: HeldLease) -> JobOutcome:
        job = held.job
        try:
            if self._threads is None:
                returned = await cast("Awaitable[object]", self._duty.handler(job))
            else:
                returned = await asyncio.shield(self._threads.run(self._duty.handler, job))
        except Retry as retry:
            return failed(retry, delay_ms=retry.delay_ms)
        except Reject as rejection:
            return failed(rejection, dead_letter=True)
        except asyncio.CancelledError:
            return RELEASE
        except Release as release:
            return replace(RELEASE, error=failed(release).error)
        except (Exception, SystemExit) as error:
            # A handler that exits ends its job, not the worker.
            outcome = failed(error)
            log.warning("%s/%d, delivery %d: %s", job.topic, job.seq, job.deliveries, outcome.error, exc_info=True)
            return outcome
        if returned is not None:
            held.result = result_of(job, returned)
        return ACK

    # --- stopping ---

    @property
    def busy(self) -> bool:
        return bool(self._running)

    async def idle(self) -> None:
        """Wait until no handler runs and every outcome is reported."""
        while self._running:
            await asyncio.wait(self._running)
        await self._outbox.emptied()

    async def finish(self, grace_s: float) -> None:
        """No more jobs are claimed: let handlers run for the grace period, then return unfinished jobs."""
        if self._running:
            log.info("%s: waiting for %d handlers", self._duty.topic, len(self._running))
            await asyncio.wait(self._running, timeout=grace_s)
        left = [held for held in self._leases.all() if held.outcome is None]
        for held in left:
            self._give_back(held)
        if left:
            log.warning("%s: %d unfinished jobs go back to the queue", self._duty.topic, len(left))
            await asyncio.sleep(0)
        try:
            async with asyncio.timeout(FAREWELL_S_MAX):
                await self._outbox.emptied()
                if self._claim_cut:
                    await self._release_strays()
        except (TimeoutError, TopicsError) as error:
            log.warning("%s: leases were not released and will expire: %s", self._duty.topic, error or "no reply")

    def _give_back(self, held: HeldLease) -> None:
        held.job.lost = True
        self._outbox.put(held, RELEASE)
        if held.task is not None:
            held.task.cancel()

    async def _release_strays(self) -> None:
        """Release the jobs of a claim whose reply came too late."""
        strays: list[int] = []
        seen = 0
        async for lease in self._client.leases(self._duty.topic):
            if lease.node == self._node and lease.lease_id not in self._leases:
                strays.append(lease.seq)
            seen += 1
            if seen >= LEASES_SEEN_MAX:
                break
        if strays:
            await self._client.nack(self._duty.topic, strays, self._node, delay_ms=0, error=RELEASE.error)

    async def close(self) -> None:
        tasks = [*self._upkeep, *self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._threads is not None:
            self._threads.close()
