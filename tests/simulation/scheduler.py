"""Simulated time and threads: fibers that run one at a time, and the order in which they do, drawn from a seed.

    events (when, number, call) ─▶ run(): the earliest first; time jumps to it
    fiber ─▶ park() ─▶ other events ─▶ unpark(), or the time is up ─▶ the fiber goes on

A fiber gives way only where the real program could be made to wait: in a lock, a sleep, a call of the disk. Reading the
clock moves it a little, so that work which looks at the time comes to an end, and once in a while a lot, as on a
machine that does something else in between.
"""

from __future__ import annotations

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


class Process:
    """What fibers belong to; once it is dead, none of them gets any further."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.fibers: list[Fiber] = []


class Fiber:
    """A thread of the simulation."""

    def __init__(self, scheduler: Scheduler, process: Process, target: Callable[[], object], name: str) -> None:
        self.name = name
        self.process = process
        self._target = target
        self.ended = False
        self.joined: list[Fiber] = []
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

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(f"scheduler {seed}")
        self.hub = getcurrent()
        self.now_s = 1_000.0
        self._events: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._number = 0
        self.current: Fiber | None = None
        self._reads_left = STALL_READS_MAX
        self._spin_reads, self._spin_since_s = 0, 0.0
        self.events_total = 0

    # --- time ---

    def read_s(self) -> float:
        """The time, for a program that looks at it."""
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
        return events[0][0] if events else None

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
        self.hub.switch()
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

    def _resume(self, fiber: Fiber, wait_number: int) -> None:
        if fiber.wait_number == wait_number:
            self._switch_to(fiber)

    def _switch_to(self, fiber: Fiber) -> None:
        if fiber.ended:
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
