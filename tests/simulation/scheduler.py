"""Simulated time and threads: fibers that run one at a time, and the order in which they do, drawn from a seed.

    events (when, number, call) ─▶ run(): the earliest first; time jumps to it
    fiber ─▶ park() ─▶ other events ─▶ unpark(), or the time is up ─▶ the fiber goes on

A fiber gives way only where the real program could be made to wait: in a lock, a sleep, a call of the disk. Reading the
clock moves it a little, so that work which looks at the time comes to an end, and once in a while a lot, as on a
machine that does something else in between.
"""

from __future__ import annotations

import asyncio
import heapq
import random
from collections import deque
from collections.abc import Callable
from typing import Any

from greenlet import getcurrent, greenlet

# What reading the clock costs, and how long the processor is away now and then.
READ_S = 2e-6
STALL_READS_MIN, STALL_READS_MAX = 500, 20_000
STALL_S_MAX = 0.03
# A program that looks at the clock this often within a second does nothing else: it waits without giving way.
SPIN_READS, SPIN_S = 200_000, 1.0
# How many events a world may need; more are a loop without an end.
EVENTS_MAX = 3_000_000


class Killed(BaseException):
    """Ends a fiber whose process was killed; nothing in the product catches it."""


class Stuck(AssertionError):
    """Nothing is left to happen, or things happen without an end."""


class Host:
    """What a process sees of its machine: its name, and how its clocks differ from the world's time."""

    def __init__(self, name: str = "simulated") -> None:
        self.name = name
        # How far the wall clock is from where it should be, and when the monotonic one began: with the machine.
        self.skew_s = self.boot_s = 0.0


class Process:
    """What fibers belong to; once it is dead, none of them gets any further."""

    def __init__(self, name: str, host: Host | None = None) -> None:
        self.name = name
        self.host = host or Host()
        self.dead = False
        # Until then none of its fibers runs (SIGSTOP).
        self.paused_until_s = 0.0
        self.fibers: list[Fiber] = []


class Fiber:
    """A thread of the simulation."""

    def __init__(self, scheduler: Scheduler, process: Process, target: Callable[[], object], name: str) -> None:
        self.name = name
        self.process = process
        self._target = target
        self.ended = False
        self.joined: list[Fiber] = []
        # It waits for nothing but timers that come again and again.
        self.idle = False
        self.wait_number = 0
        self.woken = False
        self.greenlet = greenlet(self._run, parent=scheduler.hub)
        process.fibers.append(self)

    def _run(self) -> None:
        try:
            if not self.process.dead:
                self._target()
        except Killed:
            pass
        finally:
            self.ended = True
            self.process.fibers.remove(self)


class Scheduler:
    """One world's time and its fibers."""

    def __init__(self, seed: str) -> None:
        self.rng = random.Random(f"scheduler {seed}")
        self.hub = getcurrent()
        self.now_s = 1_000.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0
        self.current: Fiber | None = None
        self._reads_left = STALL_READS_MAX
        self._spin_reads, self._spin_since_s = 0, 0.0
        self.events_total = 0
        # Looking at the clock takes no time for now.
        self.frozen = False

    # --- time ---

    def read_s(self) -> float:
        """The time, for a program that looks at it."""
        if self.frozen:
            return self.now_s
        self._reads_left -= 1
        if not self._reads_left:
            self._reads_left = self.rng.randint(STALL_READS_MIN, STALL_READS_MAX)
            self.now_s += self.rng.random() ** 3 * STALL_S_MAX
        self.now_s += READ_S
        self._spin_reads += 1
        if self.now_s - self._spin_since_s > SPIN_S:
            self._spin_reads, self._spin_since_s = 0, self.now_s
        elif self._spin_reads > SPIN_READS:
            self._spin_reads = 0
            raise Stuck(f"the clock was read {SPIN_READS} times within {SPIN_S:g} s: something waits and does not rest")
        return self.now_s

    # --- events ---

    def at(self, when_s: float, call: Callable[..., object], *args: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (when_s, self._number, call, args))

    def after(self, delay_s: float, call: Callable[..., object], *args: Any) -> None:
        self.at(self.now_s + delay_s, call, *args)

    def run(self, until: Callable[[], bool]) -> None:
        """Let things happen until `until` says that it is enough."""
        while not until():
            if not self._events:
                raise Stuck("nothing is left to happen")
            self.events_total += 1
            if self.events_total > EVENTS_MAX:
                raise Stuck(f"{EVENTS_MAX} events and no end")
            when_s, _, call, args = heapq.heappop(self._events)
            if when_s > self.now_s:
                self.now_s = when_s
            call(*args)

    def next_s(self) -> float | None:
        """When the next event is that still means something."""
        events = self._events
        while events and events[0][2] == self._resume and events[0][3][0].wait_number != events[0][3][1]:
            heapq.heappop(events)
        if events and events[0][2] == self._resume and events[0][3][0].idle:
            # Another process that does nothing either.
            return min((when_s for when_s, _, call, args in events if self._means_something(call, args)), default=None)
        return events[0][0] if events else None

    def _means_something(self, call: Callable[..., object], args: tuple[Any, ...]) -> bool:
        return call != self._resume or (not args[0].idle and args[0].wait_number == args[1])

    # --- fibers ---

    def start(self, process: Process, target: Callable[[], object], name: str) -> Fiber:
        fiber = Fiber(self, process, target, name)
        self.after(self.rng.random() * 1e-4, self._switch_to, fiber)
        return fiber

    def park(self, timeout_s: float | None = None) -> bool:
        """Wait until somebody calls `unpark`, or for so long; whether it was the former."""
        fiber = self.current
        assert fiber is not None, "only a fiber can wait"
        if fiber.process.dead:
            raise Killed
        fiber.wait_number += 1
        fiber.woken = False
        if timeout_s is not None:
            self.after(max(0.0, timeout_s), self._resume, fiber, fiber.wait_number)
        # For asyncio all fibers are one thread: the loop that runs is that of the process.
        running = asyncio._get_running_loop()
        self.hub.switch()
        asyncio._set_running_loop(running)
        if fiber.process.dead:
            raise Killed
        return fiber.woken

    def unpark(self, fiber: Fiber) -> None:
        if not fiber.woken and not fiber.ended:
            fiber.woken = True
            self.after(self.rng.random() * 2e-5, self._resume, fiber, fiber.wait_number)

    def sleep(self, seconds: float) -> None:
        if self.current is None:
            self.now_s += seconds
            return
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.park(until_s - self.now_s)

    def give_way(self) -> None:
        """Let others go first, sometimes: where threads of the real program could be switched."""
        if self.current is not None and self.rng.random() < 0.05:
            self.park(self.rng.random() * 1e-4)

    def join(self, fiber: Fiber, timeout_s: float | None) -> None:
        waiting = self.current
        if fiber.ended or waiting is None:
            return
        fiber.joined.append(waiting)
        until_s = None if timeout_s is None else self.now_s + timeout_s
        while not fiber.ended and (until_s is None or self.now_s < until_s):
            self.park(None if until_s is None else until_s - self.now_s)

    def kill(self, process: Process) -> None:
        """Every fiber of it ends where it is. The calling fiber, if it is one of them, must raise Killed itself."""
        process.dead = True
        for fiber in list(process.fibers):
            if fiber is not self.current:
                self.after(0.0, self._switch_to, fiber)

    def pause(self, process: Process, seconds: float) -> None:
        """SIGSTOP, and SIGCONT that much later."""
        process.paused_until_s = self.now_s + seconds

    def _resume(self, fiber: Fiber, wait_number: int) -> None:
        if fiber.wait_number == wait_number:
            if self._is_paused(fiber.process):
                self.at(fiber.process.paused_until_s, self._resume, fiber, wait_number)
            else:
                self._switch_to(fiber)

    def _is_paused(self, process: Process) -> bool:
        return process.paused_until_s > self.now_s and not process.dead

    def _switch_to(self, fiber: Fiber) -> None:
        if fiber.ended:
            return
        if self._is_paused(fiber.process):
            self.at(fiber.process.paused_until_s, self._switch_to, fiber)
            return
        # Whatever it waited for is over: what was meant to end that wait must not end the next one.
        fiber.wait_number += 1
        before, self.current = self.current, fiber
        try:
            fiber.greenlet.switch()
        finally:
            self.current = before
        if fiber.ended:
            for waiting in fiber.joined:
                self.unpark(waiting)


class SimulatedLock:
    """As `threading.Lock`."""

    def __init__(self, scheduler: Callable[[], Scheduler]) -> None:
        self._scheduler = scheduler
        self._held = False
        self._waiting: deque[Fiber] = deque()
        # A lock of a module belongs to the interpreter rather than to the server: whether it is used at all may depend
        # on Python's version, and the world must not.
        self._gives_way = scheduler().current is not None

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler = self._scheduler()
        if self._gives_way:
            scheduler.give_way()
        if not self._held:
            self._held = True
            return True
        if not blocking:
            return False
        fiber = scheduler.current
        assert fiber is not None, "a lock that nobody can release is waited for"
        until_s = None if timeout < 0 else scheduler.now_s + timeout
        while self._held:
            left_s = None if until_s is None else until_s - scheduler.now_s
            if left_s is not None and left_s <= 0:
                return False
            self._waiting.append(fiber)
            try:
                scheduler.park(left_s)
            finally:
                if fiber in self._waiting:
                    self._waiting.remove(fiber)
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        if self._waiting:
            self._scheduler().unpark(self._waiting.popleft())

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        # A lock that a killed fiber leaves is never wanted again.
        if self._held:
            self.release()


class SimulatedCondition:
    """As `threading.Condition`."""

    def __init__(self, scheduler: Callable[[], Scheduler], lock: SimulatedLock | None = None) -> None:
        self._scheduler = scheduler
        self._lock = lock or SimulatedLock(scheduler)
        self._waiting: deque[Fiber] = deque()

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

    def wait(self, timeout: float | None = None) -> bool:
        scheduler = self._scheduler()
        fiber = scheduler.current
        assert fiber is not None
        self._lock.release()
        self._waiting.append(fiber)
        try:
            woken = scheduler.park(timeout)
        finally:
            if fiber in self._waiting:
                self._waiting.remove(fiber)
        self._lock.acquire()
        return woken

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        scheduler = self._scheduler()
        until_s = None if timeout is None else scheduler.now_s + timeout
        while not predicate():
            left_s = None if until_s is None else until_s - scheduler.now_s
            if left_s is not None and left_s <= 0:
                return False
            self.wait(left_s)
        return True

    def notify(self, count: int = 1) -> None:
        for _ in range(min(count, len(self._waiting))):
            self._scheduler().unpark(self._waiting.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class SimulatedThread:
    """As `threading.Thread`: a fiber of the process that starts it."""

    def __init__(
        self,
        scheduler: Callable[[], Scheduler],
        target: Callable[[], object],
        name: str = "thread",
        daemon: bool = True,
    ) -> None:
        del daemon
        self._scheduler = scheduler
        self._target = target
        self._name = name
        self._fiber: Fiber | None = None

    def start(self) -> None:
        scheduler = self._scheduler()
        assert scheduler.current is not None, "a thread is started by a process"
        self._fiber = scheduler.start(scheduler.current.process, self._target, self._name)

    def join(self, timeout: float | None = None) -> None:
        assert self._fiber is not None
        self._scheduler().join(self._fiber, timeout)

    def is_alive(self) -> bool:
        return self._fiber is not None and not self._fiber.ended


class SimulatedFuture:
    """As `concurrent.futures.Future`, as far as the product uses it."""

    def __init__(self, scheduler: Callable[[], Scheduler], call: Callable[[], Any], name: str) -> None:
        self._call = call
        self._result: Any = None
        self._error: Exception | None = None
        self._thread = SimulatedThread(scheduler, self._run, name)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._result = self._call()
        except Exception as error:  # noqa: BLE001  whoever asks for the result gets it
            self._error = error

    def result(self) -> Any:
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._result


class SimulatedPool:
    """As `concurrent.futures.ThreadPoolExecutor`, with as many threads as calls."""

    def __init__(
        self, scheduler: Callable[[], Scheduler], max_workers: int | None = None, thread_name_prefix: str = "pool"
    ) -> None:
        del max_workers
        self._scheduler = scheduler
        self._name = thread_name_prefix
        self._futures: list[SimulatedFuture] = []

    def submit(self, call: Callable[..., Any], *args: Any) -> SimulatedFuture:
        future = SimulatedFuture(self._scheduler, lambda: call(*args), self._name)
        self._futures.append(future)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        del cancel_futures
        for future in self._futures if wait else ():
            future._thread.join()

    def __enter__(self) -> SimulatedPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
