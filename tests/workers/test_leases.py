"""Leases: kept alive while a handler runs, and what happens to whoever loses one."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any, cast

from tests.workers.rig import counters, empty, eventually, running, wait
from topics.client import AsyncClient, Client
from topics.client import Job as Leased
from topics.client.jobs import Extended
from topics.workers import App, Job
from topics.workers.leases import Leases


def test_a_function_may_outlive_its_lease_many_times_over(url: str, client: Client, queue: str) -> None:
    deliveries: list[int] = []

    def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        time.sleep(1.0)

    first, second = App(url), App(url)
    first.worker(queue, lease_ms=200)(handle)
    second.worker(queue, lease_ms=200)(handle)
    client.append(queue, 1)
    with running(first), running(second):
        empty(client, queue)
    assert deliveries == [1]


def test_a_coroutine_may_outlive_its_lease_many_times_over(url: str, client: Client, queue: str) -> None:
    app, deliveries = App(url), list[int]()

    @app.worker(queue, lease_ms=200, concurrency=20)
    async def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        await asyncio.sleep(1.0)

    client.append_many(queue, list(range(10)))
    with running(app):
        empty(client, queue)
    assert deliveries == [1] * 10


def test_a_coroutine_that_lost_its_lease_is_cancelled_and_the_job_delivered_again(
    url: str, client: Client, queue: str
) -> None:
    app, deliveries, jobs, cancelled = App(url), list[int](), list[Job](), list[bool]()

    @app.worker(queue, lease_ms=300)
    async def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        jobs.append(job)
        if job.deliveries == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(job.lost)
                raise

    client.append(queue, 1)
    with running(app):
        eventually(lambda: len(jobs) == 1)
        # As if the lease had run out while this process was stopped.
        assert client.nack(queue, jobs[0].seq, node=app.node, delay_ms=0).nacked == 1
        empty(client, queue)
    assert (deliveries, cancelled) == ([1, 2], [True])


def test_a_function_that_lost_its_lease_is_told_and_its_end_is_not_acked(url: str, client: Client, queue: str) -> None:
    app, jobs, told, may_end = App(url), list[Job](), threading.Event(), threading.Event()

    @app.worker(queue, lease_ms=300)
    def handle(job: Job) -> None:
        jobs.append(job)
        if job.deliveries == 1:
            eventually(lambda: job.lost)
            told.set()
            wait(may_end)

    client.append(queue, 1)
    with running(app):
        eventually(lambda: len(jobs) == 1)
        client.nack(queue, jobs[0].seq, node=app.node, delay_ms=0)
        wait(told)
        assert counters(client, queue).ready == 1, "its slot is not free, so nobody has the job"
        may_end.set()
        empty(client, queue)
    assert [job.deliveries for job in jobs] == [1, 2]


class Counting:
    """A server that extends all but one job, and counts how often it is asked."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    async def extend(self, topic: str, jobs: list[Leased], lease_ms: int, node: str) -> Extended:
        self.calls.append(len(jobs))
        return Extended(topic=topic, extended=len(jobs) - 1, skipped=[7], deadlines={})


def test_many_leases_are_renewed_by_few_calls_and_only_when_it_is_time() -> None:
    async def renew() -> None:
        server = Counting()
        leases = Leases(cast("AsyncClient", server), "node", "q", 10_000)
        held = [leases.take(Job("q", leased(seq))) for seq in range(2_500)]
        await leases.renew()
        assert server.calls == [], "all are fresh"
        for one in held:
            one.deadline_s -= 4
        await leases.renew()
        assert server.calls == [1_000, 1_000, 500]
        assert [one.job.seq for one in held if one.job.lost] == [7]
        await leases.renew()
        assert server.calls == [1_000, 1_000, 500], "all are fresh again"
        held[0].deadline_s = 0
        await leases.renew()
        assert held[0].job.lost, "its deadline has passed without an answer"

    asyncio.run(renew())


def leased(seq: int) -> Leased:
    fields: dict[str, Any] = {"payload": b"1", "lease_id": f"lease_{seq:x}", "deadline": 0, "deliveries": 1}
    return Leased(seq=seq, ts=0, **fields)
