"""Time, threads and randomness of the whole process, taken from a world instead of the machine.

`install` must run before anything of `topics` is imported: from then on `time.monotonic`, `threading.Lock`,
`secrets.token_hex` and the others are the world's, under whatever name a module imports them. Product code that starts
to use one of them is simulated without knowing it; `what_escaped` finds modules that got hold of a real one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import functools
import logging
import os
import random
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from tests.simulation.scheduler import Killed, Scheduler, SimulatedCondition, SimulatedLock, SimulatedThread

# Imported for their side effect: they keep the real threads, having them before `install`.
_KEPT = (asyncio, concurrent.futures.thread, logging)

REAL_PERF_COUNTER = time.perf_counter
REAL_PROCESS_TIME = time.process_time
WALL_START_S = 1_700_000_000.0
PID = 4711


class Surroundings:
    """What stands in for the machine while a world runs."""

    def __init__(self) -> None:
        # Until a world begins, one in which nothing happens: modules use locks while they are imported.
        self._scheduler = Scheduler(0)
        self._rng = random.Random(0)
        # How far the wall clock is from where it should be.
        self.skew_s = 0.0
        # The monotonic clock starts anew when the machine does.
        self.boot_s = 0.0

    def enter(self, scheduler: Scheduler, seed: int) -> None:
        self._scheduler = scheduler
        self._rng = random.Random(f"secrets {seed}")
        self.skew_s = self.boot_s = 0.0
        random.seed(f"random {seed}")

    def scheduler(self) -> Scheduler:
        return self._scheduler

    def monotonic(self) -> float:
        return self._scheduler.read_s() - self.boot_s

    def wall(self) -> float:
        return WALL_START_S + self.skew_s + self._scheduler.read_s()

    def sleep(self, seconds: float) -> None:
        self._scheduler.sleep(seconds)

    def random_bytes(self, count: int) -> bytes:
        return self._rng.randbytes(count)


SURROUNDINGS = Surroundings()


def install() -> Surroundings:
    """Put the substitutes in place, for the rest of this process."""
    assert "topics" not in sys.modules, "topics was imported before its surroundings were simulated"
    around = SURROUNDINGS
    replaced: dict[Any, dict[str, Callable[..., Any]]] = {
        time: {
            "monotonic": around.monotonic,
            "perf_counter": around.monotonic,
            "monotonic_ns": lambda: int(around.monotonic() * 1e9),
            "perf_counter_ns": lambda: int(around.monotonic() * 1e9),
            "clock_gettime": lambda _: around.monotonic(),
            "clock_gettime_ns": lambda _: int(around.monotonic() * 1e9),
            "time": around.wall,
            "time_ns": lambda: int(around.wall() * 1e9),
            "sleep": around.sleep,
        },
        threading: {
            "Lock": functools.partial(SimulatedLock, around.scheduler),
            "Condition": functools.partial(SimulatedCondition, around.scheduler),
            "Thread": functools.partial(SimulatedThread, around.scheduler),
        },
        secrets: {
            "token_bytes": lambda count=32: around.random_bytes(count),
            "token_hex": lambda count=32: around.random_bytes(count).hex(),
            "token_urlsafe": lambda count=32: around.random_bytes(count).hex(),
        },
        os: {"urandom": around.random_bytes, "getpid": lambda: PID},
    }
    for module, names in replaced.items():
        for name, substitute in names.items():
            _real_ones.append((f"{module.__name__}.{name}", getattr(module, name)))
            setattr(module, name, substitute)
    # A generator that a killed process leaves behind is collected some time later, and gets no further either.
    hook = sys.unraisablehook
    sys.unraisablehook = lambda found: None if found.exc_type is Killed else hook(found)
    return around


_real_ones: list[tuple[str, object]] = []


def what_escaped() -> Iterator[str]:
    """Where a module of the product holds one of the real functions, in a global or as the default of an argument."""
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] != "topics":
            continue
        for key, value in vars(module).items():
            held = [value, *_defaults(value)]
            for real_name, real in _real_ones:
                if any(one is real for one in held):
                    yield f"{name}.{key} holds {real_name}"


def _defaults(value: object) -> list[object]:
    functions = [value, *(vars(value).values() if isinstance(value, type) else ())]
    found: list[object] = []
    for function in functions:
        found += getattr(function, "__defaults__", None) or ()
        found += (getattr(function, "__kwdefaults__", None) or {}).values()
    return found
