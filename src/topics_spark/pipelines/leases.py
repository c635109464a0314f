"""Which runner runs which pipeline: one job per pipeline on a queue, held by its runner.

    runner A ── claim ──▶ job "errors" (lease) ── extend, extend, … ─┐ killed
    runner B ── claim ────────────────────────────────────────────────┴─▶ job "errors", once the lease has expired

A lease alone does not stop a runner that is late; the fencing token taken with it does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from topics.client import Client, Job, Outgoing
from topics_spark.pipelines.assignment import app_of

LEASES = "pipelines.leases"
LEASE_MS = 15_000
RENEW_S = LEASE_MS / 1000 / 3


@dataclass(slots=True)
class Held:
    """A pipeline that this runner holds until `until_s`, by its own clock: the server's deadline is a little later."""

    job: Job
    fence: int
    until_s: float


class Leases:
    """One thread claims and releases; another may `extend` meanwhile, because starting a query takes long."""

    def __init__(self, client: Client, runner: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._runner = runner
        self._clock = clock
        self._offered: frozenset[str] = frozenset()
        self._renewed_s = clock()
        self._extending = threading.Lock()
        self.held: dict[str, Held] = {}

    def acquire(self, wanted: Collection[str], mine: Collection[str] | None = None) -> list[str]:
        """Claim free pipelines; returns the names of the new ones, each with a fencing token.

        `mine`: those of the wanted ones that are this runner's share; others are left to other runners.
        """
        self._offer(frozenset(wanted))
        own = self._offered if mine is None else self._offered & frozenset(mine)
        missing = len(self._offered) - len(self.held)
        if missing <= 0 or own <= self.held.keys():
            return []
        asked_s = self._clock()
        taken: list[str] = []
        for job in self._client.claim(LEASES, self._runner, missing, LEASE_MS):
            name = job.tag or ""
            if name in self._offered - own:
                self._client.nack(LEASES, job, self._runner, delay_ms=0)
            elif name in own and name not in self.held:
                fence = self._client.take_fence(app_of(name))
                self.held[name] = Held(job, fence, asked_s + LEASE_MS / 1000)
                taken.append(name)
            else:
                self._client.ack(LEASES, job, self._runner)
        return taken

    def _offer(self, wanted: frozenset[str]) -> None:
        """A job for every pipeline; existing ones are unchanged."""
        if not self._offered:
            self._client.create(LEASES, type="queue", lease_ms=LEASE_MS, leases_durable=True, replace=True)
        jobs = [Outgoing({"pipeline": name}, tag=name, unique_key=name) for name in sorted(wanted - self.held.keys())]
        if jobs:
            self._client.append_many(LEASES, jobs)
        self._offered = wanted

    def renew(self) -> list[str]:
        """Check the held leases; returns the names of those that were lost."""
        self.extend()
        return self.expired()

    def extend(self) -> None:
        """Extend leases of which a third has passed."""
        with self._extending:
            now_s = self._clock()
            by_seq = {held.job.seq: held for held in self.held.copy().values()}
            if not by_seq or now_s - self._renewed_s < RENEW_S:
                return
            extended = self._client.extend(LEASES, [held.job for held in by_seq.values()], LEASE_MS, self._runner)
            self._renewed_s = now_s
            for seq in extended.deadlines:
                by_seq[seq].until_s = now_s + LEASE_MS / 1000
            for seq in extended.skipped:
                by_seq[seq].until_s = 0.0

    def expired(self) -> list[str]:
        """Leases that another runner may have by now, as far as our own clock can tell."""
        lost = [name for name, held in self.held.items() if held.until_s <= self._clock()]
        for name in lost:
            del self.held[name]
        return lost

    def release(self, name: str, *, done: bool = False) -> None:
        """Release it for another runner at once; `done`: it need not run any more."""
        held = self.held.pop(name, None)
        if held is None:
            return
        if done:
            self._client.ack(LEASES, held.job, self._runner)
        else:
            self._client.nack(LEASES, held.job, self._runner, delay_ms=0)
