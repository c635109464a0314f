"""Background threads for I/O jobs: packs, snapshots, cold reads. Jobs of a thread run in the order of submission.

    owner thread: submit(fn, then) ──▶ queue ──▶ thread: fn()
                  poll(): then(job) ◀── finished ◀── notify()

A job must spend its time in calls that release the GIL; time that it computes is taken from the owner.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import Any, Generic, TypeVar

from topics.model.errors import Throttled

T = TypeVar("T")

JOBS_MAX = 4096


class WorkerJob(Generic[T]):
    """A job of the worker. `done` is set last, so a thread that sees it also sees the outcome."""

    __slots__ = ("_fn", "_then", "_value", "done", "error")

    def __init__(self, fn: Callable[[], T], then: Callable[[WorkerJob[T]], None] | None) -> None:
        self._fn = fn
        self._then = then
        self._value: list[T] = []
        self.done = False
        self.error: BaseException | None = None

    def result(self) -> T:
        """What the job returned, or raises what it raised."""
        assert self.done
        if self.error is not None:
            raise self.error
        return self._value[0]

    def run(self) -> None:
        try:
            self._value.append(self._fn())
        except Exception as error:  # noqa: BLE001  it is the owner who judges it, in `result`
            self.error = error
        self.done = True

    def deliver(self) -> None:
        if self._then is not None:
            self._then(self)


class Worker:
    """The thread and its queue. `submit`, `poll` and `stop` are for the owner thread."""

    def __init__(self, notify: Callable[[], None], name: str = "topics-worker", jobs_max: int = JOBS_MAX) -> None:
        self._notify = notify
        self._jobs_max = jobs_max
        self._waiting: deque[WorkerJob[Any]] = deque()
        self._finished: deque[WorkerJob[Any]] = deque()
        # submitted and not yet delivered
        self.pending = 0
        self._changed = Condition()
        self._stopping = False
        self._thread = Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self, wait_s: float | None = None) -> None:
        """Run the queued jobs, then end the thread. The last results are delivered by `poll`.

        A thread that takes longer than `wait_s` is left to the end of the process.
        """
        if not self._thread.is_alive():
            return
        with self._changed:
            self._stopping = True
            self._changed.notify()
        self._thread.join(wait_s)

    def submit(self, fn: Callable[[], T], then: Callable[[WorkerJob[T]], None] | None = None) -> WorkerJob[T]:
        """Queue `fn`; the `poll` that finds it finished calls `then` with the job."""
        if len(self._waiting) >= self._jobs_max:
            raise Throttled("too many background jobs are waiting", limit="jobs", max=self._jobs_max)
        job = WorkerJob(fn, then)
        self.pending += 1
        with self._changed:
            self._waiting.append(job)
            self._changed.notify()
        return job

    def poll(self) -> int:
        """Deliver the jobs that finished since the last call; returns how many."""
        delivered = 0
        while self._finished:
            self.pending -= 1
            self._finished.popleft().deliver()
            delivered += 1
        return delivered

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopping:
                    self._changed.wait()
                if not self._waiting:
                    return
                job = self._waiting.popleft()
            job.run()
            self._finished.append(job)
            self._notify()


class Workers:
    """Several threads for jobs that wait for other machines, made when they are needed; for the owner thread."""

    def __init__(self, notify: Callable[[], None], name: str, threads_max: int) -> None:
        self._notify = notify
        self._name = name
        self._threads_max = threads_max
        self._workers: list[Worker] = []

    def submit(self, fn: Callable[[], T], then: Callable[[WorkerJob[T]], None] | None = None) -> WorkerJob[T]:
        """Queue `fn` where the fewest jobs wait."""
        least = min(self._workers, key=lambda worker: worker.pending, default=None)
        if least is None or (least.pending and len(self._workers) < self._threads_max):
            least = Worker(self._notify, f"{self._name}-{len(self._workers)}")
            least.start()
            self._workers.append(least)
        return least.submit(fn, then)

    def poll(self) -> None:
        for worker in self._workers:
            worker.poll()

    def stop(self, wait_s: float) -> None:
        for worker in self._workers:
            worker.stop(wait_s)
