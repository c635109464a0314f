"""What a handler returns is the result of its job where the queue keeps results; progress is seen while it runs."""

from __future__ import annotations

import threading

import pytest

from tests.patience import PATIENCE_S
from tests.workers.rig import empty, eventually, running, wait
from topics.client import Client, JobFailed, JobNotFound
from topics.model.requests.jobs import RESULT_BYTES_MAX
from topics.workers import App, Job, Reject

KEEP_MS = 600_000


@pytest.fixture
def keeping(client: Client, queue: str) -> str:
    client.edit(queue, keep_results_ms=KEEP_MS, dead_letter=f"{queue}.dead")
    return queue


def test_a_coroutine_and_a_function_return_results(client: Client, url: str, keeping: str) -> None:
    client.create(f"{keeping}.2", type="queue", keep_results_ms=KEEP_MS)
    app = App(url)

    @app.worker(keeping, concurrency=4)
    async def double(job: Job) -> int:
        return 2 * job.data

    @app.worker(f"{keeping}.2", concurrency=2)
    def triple(job: Job) -> dict[str, int]:
        return {"triple": 3 * job.data}

    with running(app):
        jobs = [client.enqueue(keeping, n) for n in range(20)]
        others = [client.enqueue(f"{keeping}.2", n) for n in range(5)]
        assert [job.result(timeout=PATIENCE_S) for job in jobs] == [2 * n for n in range(20)]
        assert [job.result(timeout=PATIENCE_S) for job in others] == [{"triple": 3 * n} for n in range(5)]


def test_a_job_that_fails_raises_where_its_result_is_asked_for(client: Client, url: str, keeping: str) -> None:
    app = App(url)

    @app.worker(keeping)
    async def handle(job: Job) -> None:
        raise Reject(f"{job.data} is not for me")

    with running(app), pytest.raises(JobFailed, match="7 is not for me") as failed:
        client.enqueue(keeping, 7).result(timeout=PATIENCE_S)
    assert failed.value.detail["deliveries"] == 1


def test_a_queue_that_keeps_none_takes_what_handlers_return(client: Client, url: str, queue: str) -> None:
    app = App(url)

    @app.worker(queue)
    async def handle(job: Job) -> object:
        return {"ignored": job.seq}

    with running(app):
        job = client.enqueue(queue, 1)
        empty(client, queue)
    assert app.counts.done == 1
    with pytest.raises(JobNotFound):
        job.status()


@pytest.mark.parametrize("returned", [1j, "x" * RESULT_BYTES_MAX, float("nan"), object()])
def test_what_cannot_be_kept_does_not_undo_the_job(client: Client, url: str, keeping: str, returned: object) -> None:
    app = App(url)

    @app.worker(keeping)
    async def handle(_job: Job) -> object:
        return returned

    with running(app):
        job = client.enqueue(keeping, 1)
        eventually(lambda: job.status().ended)
    assert job.status().state == "done"
    assert app.counts.done == 1


def test_large_results_are_sent_in_several_calls(client: Client, url: str, keeping: str) -> None:
    app = App(url)

    @app.worker(keeping, concurrency=20)
    async def handle(job: Job) -> str:
        return str(job.data) * 200_000

    jobs = [client.enqueue(keeping, n) for n in range(10)]
    with running(app):
        assert [job.result(timeout=PATIENCE_S)[:1] for job in jobs] == [str(n) for n in range(10)]


def test_progress_is_seen_while_the_handler_runs(client: Client, url: str, keeping: str) -> None:
    app = App(url)
    seen, asked = threading.Event(), threading.Event()

    @app.worker(keeping)
    def handle(job: Job) -> str:
        for step in range(50):
            job.progress({"step": step})
        asked.set()
        wait(seen)
        with pytest.raises(ValueError, match="at most 4096"):
            job.progress("x" * 5_000)
        return "end"

    with running(app):
        job = client.enqueue(keeping, 1)
        wait(asked)
        eventually(lambda: job.status().progress == {"step": 49})
        seen.set()
        assert job.result(timeout=PATIENCE_S) == "end"
    assert job.status().progress == {"step": 49}


def test_a_handler_that_appends_is_a_chain(client: Client, url: str, keeping: str) -> None:
    """The example of WORKERS.md: the next step is appended by the one before it, and the end is waited for."""
    client.create(f"{keeping}.2", type="queue", keep_results_ms=KEEP_MS)
    app = App(url)

    @app.worker(keeping)
    def first(job: Job) -> int:
        key = f"{job.topic}/{job.seq}"
        return client.enqueue(f"{keeping}.2", job.data + 1, idempotency_key=key).seq

    @app.worker(f"{keeping}.2")
    def second(job: Job) -> int:
        return 10 * job.data

    with running(app):
        seq = client.enqueue(keeping, 4).result(timeout=PATIENCE_S)
        assert client.job_handle(f"{keeping}.2", seq).result(timeout=PATIENCE_S) == 50
