"""Outcomes of jobs on their way to the server: collected while a call is running, retried while the leases last."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator

from msgspec import Raw

from topics.client import AsyncClient
from topics.client.errors import ConnectionFailed, InvalidRequest, Timeout, TopicsError
from topics.model.clock import Clock
from topics.model.requests.jobs import ACK_RESULTS_BYTES_MAX
from topics.workers.failing import Failing
from topics.workers.job import Counts, JobOutcome
from topics.workers.leases import BATCH_MAX, HeldLease, Leases
from topics.workers.pauses import Pauses

log = logging.getLogger("topics.workers")

# How long a rejected job waits if its queue has no dead-letter topic.
REJECTED_REST_MS = 60_000


class Outbox:
    def __init__(
        self,
        client: AsyncClient,
        node: str,
        topic: str,
        leases: Leases,
        on_reported: Callable[[], None],
        counts: Counts,
        clock: Clock,
    ) -> None:
        self._client = client
        self._node = node
        self._topic = topic
        self._leases = leases
        self._on_reported = on_reported
        self._counts = counts
        self._failing = Failing(client, topic, clock)
        self._waiting: list[HeldLease] = []
        self._sending = 0
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._pauses = Pauses()

    def __len__(self) -> int:
        return len(self._waiting) + self._sending

    def put(self, held: HeldLease, outcome: JobOutcome) -> None:
        held.outcome = outcome
        self._waiting.append(held)
        self._news.set()
        self._empty.clear()

    async def emptied(self) -> None:
        await self._empty.wait()

    async def send_forever(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            waiting, self._waiting = self._waiting, []
            self._sending = len(waiting)
            pause_s = await self._send_all(waiting)
            self._sending = 0
            self._on_reported()
            if pause_s:
                await asyncio.sleep(pause_s)
                self._news.set()
            elif not self._waiting:
                self._empty.set()

    async def _send_all(self, waiting: list[HeldLease]) -> float:
        """How long to wait before unsent outcomes are sent again; None if there are none."""
        pause_s = 0.0
        if any(_needs_config(held) for held in waiting):
            try:
                await self._failing.look()
            except TopicsError as error:
                undecided = [held for held in waiting if _needs_config(held)]
                waiting = [held for held in waiting if not _needs_config(held)]
                pause_s = self._again(undecided, error)
        by_outcome: dict[JobOutcome, list[HeldLease]] = {}
        for held in waiting:
            assert held.outcome is not None
            outcome = self._failing.settled(held.outcome, held.job.deliveries)
            by_outcome.setdefault(outcome, []).append(held)
        for outcome, jobs in by_outcome.items():
            for some in _batches(jobs):
                pause_s = max(pause_s, await self._send(outcome, some))
        return pause_s

    async def _send(self, outcome: JobOutcome, jobs: list[HeldLease]) -> float:
        """How long to wait before the next attempt, if one is needed."""
        try:
            self._note(outcome, jobs, await self._tell(outcome, jobs))
        except (ConnectionFailed, Timeout) as error:
            return self._again(jobs, error)
        except TopicsError as error:
            if error.status in (429, 503, 507) or error.status >= 500:
                return self._again(jobs, error)
            if outcome.dead_letter and isinstance(error, InvalidRequest) and error.detail.get("field") == "dead_letter":
                self._rest(outcome, jobs)
                return 0.0
            log.error("%s: the server refused the outcome of %d jobs: %s", self._topic, len(jobs), error)
        self._pauses.reset()
        for held in jobs:
            self._leases.let_go(held)
        return 0.0

    async def _tell(self, outcome: JobOutcome, jobs: list[HeldLease]) -> set[int]:
        """The seqs whose leases were no longer held."""
        leased = [held.job.leased for held in jobs]
        if outcome.acked:
            results = None
            if self._failing.keeps_results and any(held.result is not None for held in jobs):
                results = [Raw(held.result or b"null") for held in jobs]
            skipped = (await self._client.ack(self._topic, leased, self._node, results=results)).skipped
        else:
            reply = await self._client.nack(
                self._topic,
                leased,
                self._node,
                delay_ms=outcome.delay_ms,
                dead_letter=outcome.dead_letter,
                error=outcome.error,
            )
            skipped = reply.skipped
        if skipped:
            log.info("%s: %d leases expired before the outcome was reported", self._topic, len(skipped))
        return set(skipped)

    def _note(self, outcome: JobOutcome, jobs: list[HeldLease], skipped: set[int]) -> None:
        """Count and log what the server has accepted; a lost lease was logged, and its job is delivered again."""
        counts = self._counts
        for job in (held.job for held in jobs if held.job.seq not in skipped):
            name, reason = f"{self._topic}/{job.seq}, delivery {job.deliveries}", outcome.error
            if outcome.acked:
                counts.done += 1
            elif outcome.released:
                log.info("%s: returned to the queue: %s", name, reason)
            elif outcome.last:
                counts.dead += 1
                log.error("%s: the last delivery failed, moved to %s: %s", name, self._failing.dead_letter, reason)
            elif outcome.dead_letter:
                counts.rejected += 1
                log.warning("%s: rejected, moved to %s: %s", name, self._failing.dead_letter, reason)
            else:
                counts.retried += 1
                log.info("%s: will be delivered again %s: %s", name, _when(outcome.delay_ms), reason)

    def _again(self, jobs: list[HeldLease], error: TopicsError) -> float:
        """Outcomes of jobs that are still held are sent again; other jobs become ready by themselves."""
        for held in jobs:
            if self._leases.is_alive(held):
                self._waiting.append(held)
            else:
                self._leases.let_go(held)
        if not self._waiting:
            return 0.0
        log.info("%s: the outcome of %d jobs will be sent again: %s", self._topic, len(self._waiting), error)
        return self._pauses.after(error)

    def _rest(self, outcome: JobOutcome, jobs: list[HeldLease]) -> None:
        """Keep the rejected jobs of a queue without a dead-letter topic."""
        log.error(
            "%s has no dead_letter topic: %d rejected jobs are delayed by %d s and tried again. Configure dead_letter.",
            self._topic,
            len(jobs),
            REJECTED_REST_MS // 1000,
        )
        for held in jobs:
            self.put(held, JobOutcome(delay_ms=REJECTED_REST_MS, error=outcome.error))


def _batches(jobs: list[HeldLease]) -> Iterator[list[HeldLease]]:
    """As many as one call may report, with their results."""
    batch: list[HeldLease] = []
    size = 0
    for held in jobs:
        more = len(held.result or b"null")
        if batch and (len(batch) == BATCH_MAX or size + more > ACK_RESULTS_BYTES_MAX):
            yield batch
            batch, size = [], 0
        batch.append(held)
        size += more
    if batch:
        yield batch


def _needs_config(held: HeldLease) -> bool:
    return _has_failed(held) or held.result is not None


def _has_failed(held: HeldLease) -> bool:
    assert held.outcome is not None
    return not held.outcome.acked and not held.outcome.released


def _when(delay_ms: int | None) -> str:
    if delay_ms is None:
        return "after the queue's retry_backoff"
    return f"in {delay_ms / 1000:g} s" if delay_ms else "at once"
