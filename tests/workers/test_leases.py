"""Leases: renewed while a handler runs, and what happens to a handler that loses one."""

from __future__ import annotations

import asyncio
import threading
from typing import Any, cast

import pytest

from tests.workers.rig import counters, eventually, wait
from topics import testing
from topics.client import AsyncClient
from topics.client import Job as Leased
from topics.client.jobs import Extended
from topics.model.clock import ManualClock
from topics.workers import App, Job
from topics.workers.leases import Leases


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_a_handler_may_outlive_its_leases_many_times_over(kind: str) -> None:
    """By the engine's clock: half a lease at a time, and on as soon as all leases are renewed."""
    app, deliveries, renewals = App(), list[int](), 0
    with testing.engine() as engine:
        client = engine.client()
        client.create("q", type="queue")
        client.append_many("q", list(range(10)))

        def all_are_renewed() -> bool:
            leases = list(client.leases("q"))
            return len(leases) == 10 and all(lease.deadline == engine.clock.now_ms() + 180 for lease in leases)

        def outlive(job: Job) -> None:
            nonlocal renewals
            while job.data == 0 and renewals < 20:
                engine.advance(90)
                eventually(all_are_renewed)
                renewals += 1
                assert client.claim("q", node="other", max=10) == []
            done.set() if job.data == 0 else wait(done)

        def handle(job: Job) -> None:
            deliveries.append(job.deliveries)
            outlive(job)

        async def handle_async(job: Job) -> None:
            deliveries.append(job.deliveries)
            await asyncio.to_thread(outlive, job)

        done = threading.Event()
        app.worker("q", lease_ms=180, concurrency=10)(handle if kind == "function" else handle_async)
        assert testing.run_until_idle(app, engine) == 10
        assert client.state("q").count == 0
    assert (deliveries, renewals) == ([1] * 10, 20)


def test_a_coroutine_that_lost_its_lease_is_cancelled_and_the_job_delivered_again() -> None:
    app, deliveries, cancelled = App(), list[int](), list[bool]()
    with testing.engine() as engine:
        client = engine.client()

        @app.worker("q", lease_ms=300)
        async def handle(job: Job) -> None:
            deliveries.append(job.deliveries)
            if job.deliveries > 1:
                return
            lose(engine, job, app.node)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(job.lost)
                raise

        client.create("q", type="queue")
        client.append("q", 1)
        assert testing.run_until_idle(app, engine) == 2
        assert client.state("q").count == 0
    assert (deliveries, cancelled) == ([1, 2], [True])


def test_a_function_that_lost_its_lease_is_told_and_its_end_is_not_acked() -> None:
    app, deliveries, ready = App(), list[int](), list[int]()
    with testing.engine() as engine:
        client = engine.client()

        @app.worker("q", lease_ms=300)
        def handle(job: Job) -> None:
            deliveries.append(job.deliveries)
            if job.deliveries == 1:
                lose(engine, job, app.node)
                eventually(lambda: job.lost)
                ready.append(counters(client, "q").ready)

        client.create("q", type="queue")
        client.append("q", 1)
        assert testing.run_until_idle(app, engine) == 2
        assert client.state("q").count == 0
    assert deliveries == [1, 2]
    assert ready == [1], "its slot was not free, so no worker had the job"


def lose(engine: testing.Engine, job: Job, node: str) -> None:
    """As if the lease had expired while this process was stopped; it is renewed soon, and reported."""
    assert engine.client().nack(job.topic, job.seq, node=node, delay_ms=0).nacked == 1
    engine.advance(150)


class Counting:
    """A server that extends all but one job, and counts how often it is asked."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    async def extend(self, topic: str, jobs: list[Leased], lease_ms: int, node: str, **_: Any) -> Extended:
        self.calls.append(len(jobs))
        return Extended(topic=topic, extended=len(jobs) - 1, skipped=[7], deadlines={})


def test_many_leases_are_renewed_by_few_calls_and_only_when_it_is_time() -> None:
    async def renew() -> None:
        server, clock = Counting(), ManualClock()
        leases = Leases(cast("AsyncClient", server), "node", "q", 10_000, clock)
        held = [leases.take(Job("q", leased(seq))) for seq in range(2_500)]
        await leases.renew()
        assert server.calls == [], "all are fresh"
        clock.advance(4_000)
        await leases.renew()
        assert server.calls == [1_000, 1_000, 500]
        assert [one.job.seq for one in held if one.job.lost] == [7]
        await leases.renew()
        assert server.calls == [1_000, 1_000, 500], "all are fresh again"
        clock.advance(10_000)
        await leases.renew()
        assert held[0].job.lost, "its deadline has passed without an answer"

    asyncio.run(renew())


def leased(seq: int) -> Leased:
    fields: dict[str, Any] = {"payload": b"1", "lease_id": f"lease_{seq:x}", "deadline": 0, "deliveries": 1}
    return Leased(seq=seq, ts=0, **fields)
