"""An event loop that is driven by hand: callbacks run in the calling thread, and its time is the engine's clock.

request ─▶ call_soon ─▶ run(): callbacks, due timers, again until there are none ─▶ quiet
commit thread, worker thread ─▶ call_soon_threadsafe ─▶ inbox ─▶ the next run()
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from queue import Empty, SimpleQueue
from typing import Any, TypeVar, TypeVarTuple

from topics.model.clock import Clock

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NEWS_S_MAX = 30.0


class Due(asyncio.TimerHandle):
    """A callback and the time at which it runs."""

    def __init__(
        self, when_s: float, callback: Callable[..., object], args: tuple[Any, ...], loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(when_s, callback, args, loop)
        self._call = callback, args

    def run(self) -> None:
        if not self.cancelled():
            callback, args = self._call
            callback(*args)


class HandLoop(asyncio.AbstractEventLoop):
    """As much of a loop as the server uses. The caller of `run` holds the engine's lock."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._soon: deque[Due] = deque()
        self._timers: list[Due] = []
        # Putting never blocks: the threads of the store hold locks of their own when they do.
        self._inbox: SimpleQueue[Due] = SimpleQueue()
        # calls in a thread pool that have not returned
        self.away = 0

    # --- for the server ---

    def time(self) -> float:
        return self._clock.monotonic_ms() / 1000

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        del context
        due = Due(self.time(), callback, args, self)
        self._soon.append(due)
        return due

    def call_soon_threadsafe(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        del context
        due = Due(0.0, callback, args, self)
        self._inbox.put(due)
        return due

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        del context
        due = Due(when, callback, args, self)
        heapq.heappush(self._timers, due)
        return due

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """The timer stays in the heap and is skipped when it comes up."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def run_in_executor(self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts) -> asyncio.Future[T]:
        assert executor is not None, "this loop has no default thread pool"
        self.away += 1
        future = asyncio.wrap_future(executor.submit(func, *args), loop=self)
        future.add_done_callback(self._came_back)
        return future

    def _came_back(self, _: asyncio.Future[Any]) -> None:
        self.away -= 1

    # --- for the engine ---

    def run(self) -> None:
        """Run everything that can run now, and what that makes ready."""
        while True:
            while not self._inbox.empty():
                self._soon.append(self._inbox.get())
            now_s = self.time()
            while self._timers and (self._timers[0].when() <= now_s or self._timers[0].cancelled()):
                self._soon.append(heapq.heappop(self._timers))
            if not self._soon:
                return
            # Callbacks that these add wait for the next pass, so that a tick ends after all of its requests.
            ready, self._soon = self._soon, deque()
            for due in ready:
                due.run()

    def next_s(self) -> float | None:
        """When the next timer is due."""
        while self._timers and self._timers[0].cancelled():
            heapq.heappop(self._timers)
        return self._timers[0].when() if self._timers else None

    def wait_for_news(self) -> None:
        """Wait until a thread calls back."""
        try:
            self._soon.append(self._inbox.get(timeout=NEWS_S_MAX))
        except Empty:
            raise RuntimeError(f"the threads of the store have not called back for {NEWS_S_MAX} s") from None
