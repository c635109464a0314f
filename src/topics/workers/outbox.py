"""What became of jobs, told to the server: gathered while a call is under way, repeated as long as the leases live."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable

from topics.client import AsyncClient
from topics.client.errors import ConnectionFailed, InvalidRequest, Timeout, TopicsError
from topics.workers.job import Outcome
from topics.workers.leases import BATCH_MAX, Held, Leases
from topics.workers.pauses import Pauses

log = logging.getLogger("topics.workers")

# How long a rejected job rests if its queue has no place for dead letters.
REJECTED_REST_MS = 60_000


class Outbox:
    def __init__(self, client: AsyncClient, node: str, topic: str, leases: Leases, on_told: Callable[[], None]) -> None:
        self._client = client
        self._node = node
        self._topic = topic
        self._leases = leases
        self._on_told = on_told
        self._waiting: list[Held] = []
        self._sending = 0
        self._news = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self._pauses = Pauses()

    def __len__(self) -> int:
        return len(self._waiting) + self._sending

    def put(self, held: Held, outcome: Outcome) -> None:
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
            by_outcome: dict[Outcome, list[Held]] = {}
            for held in waiting:
                assert held.outcome is not None
                by_outcome.setdefault(held.outcome, []).append(held)
            pause_s = 0.0
            for outcome, jobs in by_outcome.items():
                for start in range(0, len(jobs), BATCH_MAX):
                    pause_s = max(pause_s, await self._send(outcome, jobs[start : start + BATCH_MAX]))
            self._sending = 0
            self._on_told()
            if pause_s:
                await asyncio.sleep(pause_s)
                self._news.set()
            elif not self._waiting:
                self._empty.set()

    async def _send(self, outcome: Outcome, jobs: list[Held]) -> float:
        """How long to wait before the next attempt, if there has to be one."""
        try:
            await self._tell(outcome, jobs)
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

    async def _tell(self, outcome: Outcome, jobs: list[Held]) -> None:
        leased = [held.job.leased for held in jobs]
        if outcome.acked:
            skipped = (await self._client.ack(self._topic, leased, self._node)).skipped
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
            log.info("%s: %d leases had run out before the outcome was told", self._topic, len(skipped))

    def _again(self, jobs: list[Held], error: TopicsError) -> float:
        """What is still ours is told again; the rest comes back by itself."""
        now_s = time.monotonic()
        for held in jobs:
            if held.job.lease_id in self._leases and held.deadline_s > now_s:
                self._waiting.append(held)
            else:
                self._leases.let_go(held)
        if not self._waiting:
            return 0.0
        log.info("%s: the outcome of %d jobs is told again: %s", self._topic, len(self._waiting), error)
        return self._pauses.after(error)

    def _rest(self, outcome: Outcome, jobs: list[Held]) -> None:
        """Nothing is thrown away because nobody said where to."""
        log.error(
            "%s has no dead_letter topic: %d rejected jobs rest for %d s and come back. Configure dead_letter.",
            self._topic,
            len(jobs),
            REJECTED_REST_MS // 1000,
        )
        for held in jobs:
            self.put(held, Outcome(delay_ms=REJECTED_REST_MS, error=outcome.error))
