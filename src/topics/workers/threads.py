"""Threads for handlers that are plain functions: as many as may run at once, none of which keeps the process alive.

    loop: run(fn, job) ──▶ queue ──▶ thread: fn(job)
          future ◀── call_soon_threadsafe ◀──┘

A pool of the standard library waits for its threads when the interpreter ends; a handler that does not end within the
grace period must not delay that.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue
from typing import NamedTuple

from topics.workers.job import Job


class _Task(NamedTuple):
    handler: Callable[[Job], object]
    job: Job
    context: Context
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[None]


class Threads:
    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._started = 0
        self._busy = 0

    def run(self, handler: Callable[[Job], object], job: Job) -> asyncio.Future[None]:
        """Done when the handler has returned or raised. Cancelling it does not stop the handler."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        self._busy += 1
        if self._busy > self._started and self._started < self._threads_max:
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        self._tasks.put(_Task(handler, job, copy_context(), loop, future))
        return future

    def close(self) -> None:
        """Idle threads end now, the others when their handlers are done."""
        for _ in range(self._started):
            self._tasks.put(None)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            error: Exception | None = None
            try:
                task.context.run(task.handler, task.job)
            except Exception as raised:  # noqa: BLE001 - whatever it is, it is the outcome of the job
                error = raised
            except BaseException as raised:  # noqa: BLE001 - a handler that exits ends its job, not the worker
                error = RuntimeError(f"the handler raised {type(raised).__name__}")
            try:
                task.loop.call_soon_threadsafe(self._done, task.future, error)
            except RuntimeError:
                # The loop is closed: the app no longer waited for this handler.
                return

    def _done(self, future: asyncio.Future[None], error: Exception | None) -> None:
        self._busy -= 1
        if future.cancelled():
            return
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
