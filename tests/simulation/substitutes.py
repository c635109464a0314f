"""Time, threads and randomness of the whole process, taken from a world instead of the machine.

`install` must run before anything of `topics` is imported: from then on `time.monotonic`, `threading.Lock`,
`secrets.token_hex` and the others are the world's, under whatever name a module imports them. Product code that starts
to use one of them is simulated without knowing it; `what_escaped` finds modules that got hold of a real one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
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

from tests.simulation.scheduler import (
    Host,
    Killed,
    Scheduler,
    SimulatedCondition,
    SimulatedLock,
    SimulatedPool,
    SimulatedThread,
)

# Imported for their side effect: they keep the real threads, having them before `install`.
_KEPT = (asyncio, concurrent.futures.thread, logging)

REAL_PERF_COUNTER = time.perf_counter
REAL_PROCESS_TIME = time.process_time
REAL_UNAME = tuple(os.uname())
WALL_START_S = 1_700_000_000.0
PID = 4711


class Surroundings:
    """What stands in for the machines while a world runs: each process sees its own."""

    def __init__(self) -> None:
        # Until a world begins, one in which nothing happens: modules use locks while they are imported.
        self._scheduler = Scheduler("0")
        self._rng = random.Random(0)
        self._nowhere = Host()

    def enter(self, scheduler: Scheduler, seed: str) -> None:
        self._scheduler = scheduler
        self._rng = random.Random(f"secrets {seed}")
        random.seed(f"random {seed}")

    def scheduler(self) -> Scheduler:
        return self._scheduler

    @property
    def host(self) -> Host:
        """That of the process that asks."""
        fiber = self._scheduler.current
        return self._nowhere if fiber is None else fiber.process.host

    def monotonic(self) -> float:
        return self._scheduler.read_s() - self.host.boot_s

    def wall(self) -> float:
        return WALL_START_S + self.host.skew_s + self._scheduler.read_s()

    def uname(self) -> os.uname_result:
        return os.uname_result((REAL_UNAME[0], self.host.name, *REAL_UNAME[2:]))

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
        concurrent.futures: {"ThreadPoolExecutor": functools.partial(SimulatedPool, around.scheduler)},
        os: {"urandom": around.random_bytes, "getpid": lambda: PID, "uname": around.uname},
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
