"""Threads for handlers that are plain functions: as many as may run at once, none of which keeps the process alive.

    loop: run(fn, job) ──▶ queue ──▶ thread: fn(job)
          _done ◀── call_soon_threadsafe ◀──┘
            └── lock ──▶ thread: the next one

A pool of the standard library waits for its threads when the interpreter ends; a handler that does not end within the
grace period must not delay that.

A handler is interrupted by an exception that the interpreter raises in its thread, anywhere, and so perhaps after the
handler has ended. Until the loop has released it, a thread therefore expects that exception everywhere, and the
loop takes back one that was not raised yet.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import Context, copy_context
from queue import SimpleQueue

from topics.workers.job import Cancelled, Job, Release

# How often a thread checks that the loop it reports to still exists.
LOOK_S = 1.0


class _Task:
    """A handler to run. The thread sets `thread` to `error`, the loop the rest."""

    __slots__ = (
        "begun",
        "context",
        "ended",
        "error",
        "future",
        "handler",
        "interrupted",
        "job",
        "lock",
        "loop",
        "over",
        "result",
        "thread",
    )

    def __init__(self, handler: Callable[[Job], object], job: Job, loop: asyncio.AbstractEventLoop) -> None:
        self.handler = handler
        self.job = job
        self.context: Context = copy_context()
        self.loop = loop
        self.future: asyncio.Future[object] = loop.create_future()
        self.thread = 0
        self.begun = self.ended = False
        self.error: Exception | None = None
        self.result: object = None
        self.interrupted = self.over = False
        # Held until it is over.
        self.lock = threading.Lock()
        self.lock.acquire()


class Threads:
    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        self._running: dict[Job, _Task] = {}
        self._started = 0

    def run(self, handler: Callable[[Job], object], job: Job) -> asyncio.Future[object]:
        """What the handler returns, or raises. Cancelling it does not stop the handler."""
        task = self._running[job] = _Task(handler, job, asyncio.get_running_loop())
        if len(self._running) > self._started and self._started < self._threads_max:
            self._started += 1
            threading.Thread(target=self._work, name=f"{self._name}-{self._started}", daemon=True).start()
        self._tasks.put(task)
        return task.future

    def interrupt(self, job: Job) -> None:
        """Raise `Cancelled` in the handler of the job, when it runs Python code next."""
        task = self._running.get(job)
        if task is not None and task.thread and not task.interrupted:
            # A second one could come while the first is dealt with.
            task.interrupted = True
            _raise_in(task.thread, Cancelled)

    def close(self) -> None:
        """Idle threads end now, the others when their handlers are done."""
        for _ in range(self._started):
            self._tasks.put(None)

    # --- in a thread ---

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            while True:
                try:
                    if not self._go_on(task):
                        return
                    break
                except Cancelled:
                    # It came after the handler, or before: go on where this was.
                    continue

    def _go_on(self, task: _Task) -> bool:
        """Run the handler, report it, and wait until the loop knows; each once. False: there is no loop any more."""
        if not task.begun:
            task.thread = threading.get_ident()
            task.begun = True
            if not task.job.cancelled:
                task.error = _outcome(task)
        if not task.ended:
            try:
                task.loop.call_soon_threadsafe(self._done, task)
            except RuntimeError:
                # The loop is closed: the app no longer waited for this handler.
                return False
            task.ended = True
        while not task.over:
            task.lock.acquire(timeout=LOOK_S)
            if task.loop.is_closed():
                return False
        return True

    # --- in the loop ---

    def _done(self, task: _Task) -> None:
        if task.over:
            return
        del self._running[task.job]
        _raise_in(task.thread, None)
        task.over = True
        task.lock.release()
        if task.future.cancelled():
            return
        if task.error is None:
            task.future.set_result(task.result)
        else:
            task.future.set_exception(task.error)


def _outcome(task: _Task) -> Exception | None:
    try:
        task.result = task.context.run(task.handler, task.job)
    except Cancelled:
        return Release("the job was cancelled")
    except Exception as raised:  # noqa: BLE001 - whatever it is, it is the outcome of the job
        return raised
    except BaseException as raised:  # noqa: BLE001 - a handler that exits ends its job, not the worker
        return RuntimeError(f"the handler raised {type(raised).__name__}")
    return None


def _raise_in(thread: int, kind: type[BaseException] | None) -> None:
    """Have the interpreter raise this in a thread; None takes back what it has not raised yet."""
    import ctypes

    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), None if kind is None else ctypes.py_object(kind))
