"""A mutant runs in a fork, with limits of time and memory, in which nothing is printed."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

# How many times as long as without a change the tests of a mutant may take, on a busy machine; one that loops or waits
# for ever is noticed by that.
TIMES_AS_LONG, LONGER_S = 10, 20
# And how long it may do nothing at all, besides twice what the longest of its tests takes.
IDLE_S = 5
# What a mutant may take besides what is there: one that gathers for ever is noticed by that.
MUTANT_BYTES_MAX = 2 << 30


class Usual(NamedTuple):
    """What tests take without a change."""

    together_s: float
    longest_s: float


class Child:
    """A process that is asked now and then whether it has ended; one that loops, or waits for nothing, is killed."""

    def __init__(self, pid: int, usual: Usual) -> None:
        self._pid = pid
        self._idle_s_max = 2 * usual.longest_s + IDLE_S
        self._until_s = time.monotonic() + TIMES_AS_LONG * usual.together_s + 2 * LONGER_S
        self._ticks = -1
        self._last_tick_s = time.monotonic()

    @property
    def result(self) -> int | None:
        """Its exit code, once it has ended or had its time."""
        ended, status = os.waitpid(self._pid, os.WNOHANG)
        if ended:
            return status
        now_s = time.monotonic()
        ticks = self._ticks_used()
        if ticks != self._ticks:
            self._ticks, self._last_tick_s = ticks, now_s
        if now_s < min(self._until_s, self._last_tick_s + self._idle_s_max):
            return None
        os.killpg(self._pid, signal.SIGKILL)
        return os.waitpid(self._pid, 0)[1]

    def _ticks_used(self) -> int:
        """Of all its threads; one more each time while it could run and a busy machine does not let it."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return self._ticks + 1 if fields[0] == "R" else int(fields[11]) + int(fields[12])


def forked(run: Callable[[], int], usual: Usual) -> Child:
    """A process of its own, with limits, in which nothing is printed."""
    child = os.fork()
    if child:
        return Child(child, usual)
    code = 1
    with contextlib.suppress(BaseException):
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        cpu_s_max = int(used_s + TIMES_AS_LONG * usual.together_s) + LONGER_S
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s_max, cpu_s_max))
        bytes_now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        bytes_max = bytes_now + MUTANT_BYTES_MAX
        resource.setrlimit(resource.RLIMIT_AS, (bytes_max, bytes_max))
        code = run()
    os._exit(code)
