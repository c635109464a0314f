"""The event loop of a simulated process: asyncio's tasks and timers on simulated time, and input from the network.

network, other threads ─▶ inbox ─▶ iteration: input, due timers, callbacks ─▶ park until there is more
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, cast

from tests.simulation.network import Network
from tests.simulation.scheduler import Fiber, Killed, Process, Scheduler

# How late a timer may be, and what an iteration takes.
LATE_S_MAX = 0.0005
ITERATION_S = 5e-6
# Timers that come again and again and do nothing while nothing happens. With nothing else to come for long, they are as
# late as on a machine that was suspended; they are on time again this long before something happens.
PERIODIC = frozenset({"Server._turn_timed", "Sampler._sample", "Connections._turn"})
IDLE_S_MIN, AWAKE_S = 0.015, 0.3
# How often the end of a coroutine may wait for something.
AWAITS_MAX = 20


class SimulatedLoop(asyncio.AbstractEventLoop):
    """As much of a loop as the server uses, run by the first fiber of its process."""

    def __init__(self, scheduler: Scheduler, network: Network, process: Process) -> None:
        self._scheduler = scheduler
        self._network = network
        self._process = process
        self._ready: deque[asyncio.Handle] = deque()
        self._timers: list[asyncio.TimerHandle] = []
        # Input of this iteration comes before everything else, as a poll does.
        self._inbox: deque[asyncio.Handle] = deque()
        self._fiber: Fiber | None = None
        self._parked = False
        # How late periodic timers may be while nothing happens.
        self.idle_s_max = float("inf")
        self._signals: dict[int, Callable[[], object]] = {}
        self.failures: list[str] = []
        self._tasks: list[asyncio.Task[Any]] = []

    # --- what asyncio and the server call ---

    def time(self) -> float:
        return self._scheduler.now_s

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._inbox.append(handle)
        self._wake()
        return handle

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        heapq.heappush(self._timers, handle)
        return handle

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Left where it is, and passed over when its time comes."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.append(task)
        return task

    def add_signal_handler(self, sig: int, callback: Callable[..., object], *args: Any) -> None:
        self._signals[sig] = lambda: callback(*args)

    async def create_server(self, protocol_factory: Any, *_: Any, **__: Any) -> Any:
        return self._network.listen(self, protocol_factory)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        """In a fiber of its own, which takes a while."""
        future = self.create_future()

        def run() -> None:
            self._scheduler.sleep(self._scheduler.rng.random() * 0.005)
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001  the caller judges it
                self.call_soon_threadsafe(_set, future, None, error)
            else:
                self.call_soon_threadsafe(_set, future, result, None)

        self._scheduler.start(self._process, run, "executor")
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, Killed):
            self.failures.append(f"{context.get('message')}: {error!r}")

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)

    # --- what the world calls ---

    def deliver(self, callback: Callable[..., object], *args: Any) -> None:
        """Input from the network."""
        self.call_soon_threadsafe(callback, *args)

    def signal(self, number: int) -> None:
        """Send a signal; one without a handler does nothing here."""
        handler = self._signals.get(number)
        if handler is not None:
            self.call_soon_threadsafe(handler)

    def run_main(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run until the coroutine has ended; Killed if the process was."""
        self._fiber = self._scheduler.current
        asyncio._set_running_loop(self)
        task = self.create_task(coroutine)
        try:
            while not task.done():
                self._run_once()
            return task.result()
        except Killed:
            self._end_tasks()
            raise
        finally:
            asyncio._set_running_loop(None)

    def _end_tasks(self) -> None:
        """End the coroutines of a killed process now, and not whenever they are collected. None of them gets far."""
        for task in self._tasks:
            coroutine = cast("Coroutine[Any, Any, Any]", task.get_coro())
            for _ in range(AWAITS_MAX):
                try:
                    coroutine.throw(Killed())
                except BaseException:  # noqa: BLE001  it has ended
                    break

    def _run_once(self) -> None:
        scheduler, ready, timers = self._scheduler, self._ready, self._timers
        while not ready and not self._inbox:
            while timers and timers[0].cancelled():
                heapq.heappop(timers)
            wait_s = None if not timers else timers[0].when() - scheduler.now_s
            if wait_s is not None and wait_s <= 0:
                break
            if wait_s is not None and wait_s > IDLE_S_MIN:
                wait_s = max(wait_s, min(self._idle_s(), self.idle_s_max))
            self._park(wait_s)
        scheduler.now_s += ITERATION_S
        while self._inbox:
            self._run_handle(self._inbox.popleft())
        while timers and (timers[0].when() <= scheduler.now_s or timers[0].cancelled()):
            ready.append(heapq.heappop(timers))
        for _ in range(len(ready)):
            self._run_handle(ready.popleft())

    def _park(self, wait_s: float | None) -> None:
        fiber, scheduler = self._fiber, self._scheduler
        assert fiber is not None
        self._parked, fiber.idle = True, wait_s is not None and _is_periodic(self._timers[0])
        scheduler.park(None if wait_s is None else wait_s + scheduler.rng.random() * LATE_S_MAX)
        self._parked = fiber.idle = False

    def _idle_s(self) -> float:
        """How long nothing will happen, apart from what is periodic."""
        nows = [handle.when() for handle in self._timers if not _is_periodic(handle)]
        next_s = self._scheduler.next_s()
        if next_s is not None:
            nows.append(next_s)
        return min(nows) - AWAKE_S - self._scheduler.now_s if nows else 0.0

    def _run_handle(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            handle._run()
        if self._process.dead:
            # A task keeps what ended it to itself.
            raise Killed

    def _wake(self) -> None:
        if self._parked and self._fiber is not None:
            self._scheduler.unpark(self._fiber)


def _is_periodic(handle: asyncio.TimerHandle) -> bool:
    return handle.cancelled() or getattr(handle._callback, "__qualname__", "") in PERIODIC


def _set(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
