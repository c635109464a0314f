"""A cancelled job: its handler is ended, as a coroutine or in its thread, and nothing else is."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from pathlib import Path

import pytest

from tests.serving import free_port, serving
from tests.workers.rig import counters, running, wait
from topics import testing
from topics.client import Client
from topics.workers import App, Cancelled, Job
from topics.workers.threads import Threads

# By the engine's clock: no lease is lost to a busy machine, and each is renewed when half of it has passed.
LEASE_MS = 3_000


def cancelled_by(engine: testing.Engine, client: Client, seq: int) -> None:
    assert client.cancel("q", seq).cancelled == 1
    engine.advance(LEASE_MS // 2)


def test_a_coroutine_is_cancelled() -> None:
    app, seen, done = App(), list[tuple[str, bool, bool]](), list[object]()
    with testing.engine() as engine:
        client = engine.client()
        client.create("q", type="queue")
        client.append_many("q", ["long", "other"])

        @app.worker("q", lease_ms=LEASE_MS)
        async def handle(job: Job) -> None:
            if job.data != "long":
                done.append(job.data)
                return
            cancelled_by(engine, client, job.seq)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError as error:
                seen.append((str(error), job.cancelled, job.lost))
                raise

        testing.run_until_idle(app, engine)
        assert client.state("q").count == 0
    assert (seen, done) == ([("the job was cancelled", True, True)], ["other"])


def test_a_function_gets_an_exception_and_its_thread_the_next_job() -> None:
    app, seen, done = App(), list[tuple[bool, bool]](), list[object]()
    with testing.engine() as engine:
        client = engine.client()
        client.create("q", type="queue")
        client.append_many("q", ["long", *range(20)])

        @app.worker("q", lease_ms=LEASE_MS, concurrency=1)
        def handle(job: Job) -> None:
            if job.data != "long":
                done.append(job.data)
                return
            try:
                cancelled_by(engine, client, job.seq)
                while True:
                    time.sleep(0.001)
            except Cancelled:
                seen.append((job.cancelled, job.lost))
                raise

        testing.run_until_idle(app, engine)
        assert client.state("q").count == 0
    assert (seen, done) == ([(True, True)], list(range(20)))


def test_a_function_may_catch_it_and_nothing_is_reported() -> None:
    app, ended = App(), threading.Event()
    with testing.engine() as engine:
        client = engine.client()
        client.create("q", type="queue")
        client.append("q", 1)

        @app.worker("q", lease_ms=LEASE_MS)
        def handle(job: Job) -> None:
            with contextlib.suppress(Cancelled):
                cancelled_by(engine, client, job.seq)
                while True:
                    time.sleep(0.001)
            ended.set()

        testing.run_until_idle(app, engine)
        assert (client.state("q").count, counters(client, "q").dead) == (0, 0)
    assert ended.is_set()
    assert (app.counts.done, app.counts.retried) == (0, 0)


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_other_jobs_that_are_extended_with_it_go_on(kind: str) -> None:
    app, begun, seen, ended = App(), list[object](), list[object](), list[object]()
    may_end = threading.Event()
    with testing.engine() as engine:
        client = engine.client()
        client.create("q", type="queue")
        client.append_many("q", list(range(5)))

        def begin(job: Job) -> None:
            begun.append(job.data)
            if len(begun) == 5:
                cancelled_by(engine, client, 4)

        def end(job: Job) -> None:
            seen.append(job.data)
            may_end.set()

        def handle(job: Job) -> None:
            try:
                begin(job)
                while not may_end.is_set():
                    time.sleep(0.001)
            except Cancelled:
                end(job)
                raise
            ended.append(job.data)

        async def handle_async(job: Job) -> None:
            begin(job)
            try:
                while not may_end.is_set():  # noqa: ASYNC110 - set by another thread
                    await asyncio.sleep(0.001)
            except asyncio.CancelledError:
                end(job)
                raise
            ended.append(job.data)

        app.worker("q", lease_ms=LEASE_MS, concurrency=5)(handle if kind == "function" else handle_async)
        testing.run_until_idle(app, engine)
        assert client.state("q").count == 0
    assert (seen, sorted(map(str, ended))) == ([3], ["0", "1", "2", "4"])


def test_a_worker_stops_a_cancelled_job_after_the_server_was_killed(tmp_path: Path) -> None:
    """The restarted server does not know that it was cancelled, but it does not have the job either."""
    port, begun, ended = free_port(), threading.Event(), threading.Event()
    app = App(f"http://127.0.0.1:{port}")

    @app.worker("q", lease_ms=3_000)
    async def handle(job: Job) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with serving(tmp_path, port=port) as server, Client(f"http://127.0.0.1:{port}") as client:
        client.create("q", type="queue", durability="fsync", leases_durable=True)
        client.append("q", 1)
        with running(app):
            wait(begun)
            assert client.cancel("q", 1).cancelled == 1
            server.kill()
            with serving(tmp_path, port=port):
                wait(ended)
                assert client.state("q").count == 0


def test_an_exception_that_comes_late_hits_no_other_job() -> None:
    """Interrupted at any moment around its end, a handler ends once, and its thread handles the next one."""

    class Fake:
        seq, deliveries = 1, 1

    ran = list[int]()

    async def main() -> None:
        threads = Threads("t", 1)
        for number in range(300):
            job = Job("q", Fake())  # type: ignore[arg-type]

            def handle(_: Job, number: int = number) -> None:
                ran.append(number)

            future = threads.run(handle, job)
            while not future.done():
                threads.interrupt(job)
                await asyncio.sleep(0)
            future.exception()
            after = threads.run(lambda _: ran.append(-1), Job("q", Fake()))  # type: ignore[arg-type]
            await after
        threads.close()

    asyncio.run(main())
    assert ran.count(-1) == 300
    numbers = [number for number in ran if number >= 0]
    assert len(numbers) == len(set(numbers))
