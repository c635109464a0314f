"""A cancelled job: its handler is ended, as a coroutine or in its thread, and nothing else is."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path

import pytest

from tests.serving import serving
from tests.workers.rig import counters, empty, eventually, running, wait
from topics.client import Client
from topics.workers import App, Cancelled, Job
from topics.workers.threads import Threads


def test_a_coroutine_is_cancelled(client: Client, queue: str, url: str) -> None:
    app, seen = App(url), list[tuple[str, bool, bool]]()
    begun = threading.Event()

    @app.worker(queue, lease_ms=900, concurrency=2)
    async def handle(job: Job) -> None:
        if job.data == "other":
            return
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            seen.append((str(error), job.cancelled, job.lost))
            raise

    client.append(queue, "long")
    with running(app):
        wait(begun)
        assert client.cancel(queue, 1).cancelled == 1
        eventually(lambda: bool(seen))
        client.append(queue, "other")
        empty(client, queue)
    assert seen == [("the job was cancelled", True, True)]
    assert counters(client, queue).in_flight == 0


def test_a_function_gets_an_exception_and_its_thread_the_next_job(client: Client, queue: str, url: str) -> None:
    app, seen, done = App(url), list[tuple[bool, bool]](), list[object]()
    begun = threading.Event()

    @app.worker(queue, lease_ms=900, concurrency=1)
    def handle(job: Job) -> None:
        if job.data != "long":
            done.append(job.data)
            return
        begun.set()
        try:
            while True:
                time.sleep(0.001)
        except Cancelled:
            seen.append((job.cancelled, job.lost))
            raise

    client.append(queue, "long")
    with running(app):
        wait(begun)
        client.cancel(queue, 1)
        client.append_many(queue, list(range(20)))
        empty(client, queue)
    assert seen == [(True, True)]
    assert done == list(range(20))


def test_a_function_may_catch_it_and_nothing_is_reported(client: Client, queue: str, url: str) -> None:
    app, ended, begun = App(url), threading.Event(), threading.Event()

    @app.worker(queue, lease_ms=900)
    def handle(job: Job) -> None:
        begun.set()
        try:
            while not job.cancelled:
                time.sleep(0.001)
        except Cancelled:
            pass
        ended.set()

    client.append(queue, 1)
    with running(app):
        wait(begun)
        client.cancel(queue, 1)
        wait(ended)
    assert client.state(queue).count == 0
    assert counters(client, queue).dead == 0


@pytest.mark.parametrize("kind", ["function", "coroutine"])
def test_other_jobs_that_are_extended_with_it_go_on(kind: str, client: Client, queue: str, url: str) -> None:
    app, begun, seen, ended = App(url), list[object](), list[object](), list[object]()
    may_end = threading.Event()

    def handle(job: Job) -> None:
        begun.append(job.data)
        try:
            while not may_end.is_set():
                time.sleep(0.001)
        except Cancelled:
            seen.append(job.data)
            raise
        ended.append(job.data)

    async def handle_async(job: Job) -> None:
        begun.append(job.data)
        try:
            while not may_end.is_set():  # noqa: ASYNC110 - set by another thread
                await asyncio.sleep(0.001)
        except asyncio.CancelledError:
            seen.append(job.data)
            raise
        ended.append(job.data)

    app.worker(queue, lease_ms=900, concurrency=5)(handle if kind == "function" else handle_async)
    client.append_many(queue, list(range(5)))
    with running(app):
        eventually(lambda: len(begun) == 5)
        client.cancel(queue, 4)
        eventually(lambda: bool(seen))
        may_end.set()
        empty(client, queue)
    assert seen == [3]
    # A busy machine may have lost a lease in between: then that job was delivered again.
    assert set(map(str, ended)) == set("0124")


def test_a_worker_stops_a_cancelled_job_after_the_server_was_killed(tmp_path: Path) -> None:
    """The restarted server does not know that it was cancelled, but it does not have the job either."""
    from tests.serving import free_port

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
