"""Apps in tests: their real workers run until nothing is left to do, by a clock moved by hand."""

from __future__ import annotations

import asyncio

import pytest

from topics import testing
from topics.client import Client
from topics.testing import Engine, run_until_idle
from topics.workers import App, Job, Reject, Retry


def test_every_job_is_done_and_counted(topics_engine: Engine, topics_client: Client) -> None:
    app, seen = App(), list[int]()
    app.worker("q", concurrency=4)(lambda job: seen.append(job.data))
    topics_client.create("q", type="queue")
    topics_client.append_many("q", list(range(50)))
    assert run_until_idle(app, topics_engine) == 50
    assert sorted(seen) == list(range(50))
    assert topics_client.state("q").count == 0
    assert run_until_idle(app, topics_engine) == 0


def test_what_rests_is_left_until_the_clock_is_moved(topics_engine: Engine, topics_client: Client) -> None:
    app, deliveries = App(), list[int]()

    @app.worker("q")
    async def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        if job.deliveries == 1:
            raise Retry(delay=60)

    topics_client.create("q", type="queue")
    topics_client.append("q", 1)
    assert run_until_idle(app, topics_engine) == 1
    topics_engine.advance(59_999)
    assert run_until_idle(app, topics_engine) == 0
    topics_engine.advance(1)
    assert run_until_idle(app, topics_engine) == 1
    assert deliveries == [1, 2]


def test_jobs_that_handlers_add_are_done_as_well(topics_engine: Engine, topics_client: Client) -> None:
    app, done = App(), list[str]()

    @app.worker("first")
    def first(job: Job) -> None:
        topics_client.append("second", f"from {job.data}")

    app.worker("second")(lambda job: done.append(job.data))
    topics_client.create("first", type="queue")
    topics_client.create("second", type="queue")
    topics_client.append_many("first", [1, 2])
    assert run_until_idle(app, topics_engine) == 4
    assert done == ["from 1", "from 2"]


def test_rejected_jobs_are_dead_letters(topics_engine: Engine, topics_client: Client) -> None:
    app = App()

    @app.worker("q")
    def handle(job: Job) -> None:
        raise Reject("never")

    topics_client.create("q", type="queue", dead_letter="dead")
    topics_client.append("q", 1)
    run_until_idle(app, topics_engine)
    meta = topics_client.diff("dead").records[0].meta
    assert meta is not None
    assert meta["$dead_letter_error"] == "never"


def test_a_handler_that_takes_longer_than_its_lease_is_not_acked(topics_engine: Engine, topics_client: Client) -> None:
    app, deliveries = App(), list[int]()

    @app.worker("q", lease_ms=30_000)
    def handle(job: Job) -> None:
        deliveries.append(job.deliveries)
        if job.deliveries == 1:
            topics_engine.advance(31_000)

    topics_client.create("q", type="queue")
    topics_client.append("q", 1)
    run_until_idle(app, topics_engine)
    assert deliveries == [1, 2], "its lease had expired by then, so it was delivered again"


def test_a_job_that_fails_for_ever_ends_the_run(topics_engine: Engine, topics_client: Client) -> None:
    app = App()

    @app.worker("q")
    def handle(job: Job) -> None:
        raise Retry(delay=0)

    topics_client.create("q", type="queue")
    topics_client.append("q", 1)
    with pytest.raises(AssertionError, match="still not idle after 11 deliveries"):
        run_until_idle(app, topics_engine, deliveries_max=10)


def test_coroutines_run_apps_the_same_way(topics_engine: Engine, topics_client: Client) -> None:
    app, seen = App(), list[int]()
    app.worker("q")(lambda job: seen.append(job.data))
    topics_client.create("q", type="queue")
    topics_client.append("q", 7)
    assert asyncio.run(testing.until_idle(app, topics_engine)) == 1
    assert seen == [7]
