"""The worker: jobs run elsewhere in order, their outcome comes back to the owner."""

import threading
from collections.abc import Iterator

import pytest

from tests.faults import WAIT_S_MAX
from topics.model.errors import Throttled
from topics.storage.worker import Worker, WorkerJob


class Bell:
    """Counts what the worker says, so that a test can wait for it."""

    def __init__(self) -> None:
        self.rung = threading.Semaphore(0)

    def __call__(self) -> None:
        self.rung.release()

    def wait(self, times: int = 1) -> None:
        for _ in range(times):
            assert self.rung.acquire(timeout=WAIT_S_MAX)


@pytest.fixture
def bell() -> Bell:
    return Bell()


@pytest.fixture
def worker(bell: Bell) -> Iterator[Worker]:
    worker = Worker(bell, jobs_max=3)
    worker.start()
    yield worker
    worker.stop()


def test_a_job_runs_in_another_thread_and_its_result_comes_back(worker: Worker, bell: Bell) -> None:
    job = worker.submit(threading.get_ident)
    bell.wait()

    assert job.done
    assert job.error is None
    assert job.result() != threading.get_ident()


def test_what_a_job_raises_is_raised_where_its_result_is_asked_for(worker: Worker, bell: Bell) -> None:
    job = worker.submit(lambda: 1 // 0)
    bell.wait()

    assert isinstance(job.error, ZeroDivisionError)
    with pytest.raises(ZeroDivisionError):
        job.result()
    after = worker.submit(lambda: "still alive")
    bell.wait()
    assert after.result() == "still alive"


def test_jobs_are_delivered_in_order_by_the_owner_who_polls(worker: Worker, bell: Bell) -> None:
    seen: list[tuple[int, int]] = []

    def then(job: WorkerJob[int]) -> None:
        seen.append((job.result(), threading.get_ident()))

    for number in range(3):
        worker.submit(lambda number=number: number, then)
    bell.wait(3)

    assert seen == []
    assert worker.poll() == 3
    assert seen == [(number, threading.get_ident()) for number in range(3)]
    assert worker.poll() == 0


def test_the_queue_is_bounded(worker: Worker, bell: Bell) -> None:
    started, blocked = threading.Event(), threading.Event()

    def block() -> bool:
        started.set()
        return blocked.wait(WAIT_S_MAX)

    worker.submit(block)
    assert started.wait(WAIT_S_MAX)
    for _ in range(3):
        worker.submit(lambda: None)

    with pytest.raises(Throttled):
        worker.submit(lambda: None)

    blocked.set()
    bell.wait(4)
    worker.submit(lambda: None)
    bell.wait()


def test_stopping_runs_what_is_queued(bell: Bell) -> None:
    worker = Worker(bell)
    worker.start()
    jobs = [worker.submit(lambda number=number: number) for number in range(50)]

    worker.stop()
    worker.stop()

    assert [job.result() for job in jobs] == list(range(50))
    assert worker.poll() == 50
    assert not worker._thread.is_alive()
