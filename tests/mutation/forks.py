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
# What a mutant may take besides what is there: one that gathers for ever is noticed by that.
MUTANT_BYTES_MAX = 2 << 30


class Child(NamedTuple):
    pid: int
    until_s: float

    @property
    def result(self) -> int | None:
        """Its exit code, once it has ended or had its time."""
        ended, status = os.waitpid(self.pid, os.WNOHANG)
        if ended:
            return status
        if time.monotonic() < self.until_s:
            return None
        os.killpg(self.pid, signal.SIGKILL)
        return os.waitpid(self.pid, 0)[1]


def forked(run: Callable[[], int], usual_s: float) -> Child:
    """A process of its own, with limits, in which nothing is printed."""
    child = os.fork()
    if child:
        return Child(child, time.monotonic() + TIMES_AS_LONG * usual_s + 2 * LONGER_S)
    code = 1
    with contextlib.suppress(BaseException):
        os.setpgid(0, 0)
        nowhere = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(nowhere, number)
        used_s = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        cpu_s_max = int(used_s + TIMES_AS_LONG * usual_s) + LONGER_S
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s_max, cpu_s_max))
        bytes_now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        bytes_max = bytes_now + MUTANT_BYTES_MAX
        resource.setrlimit(resource.RLIMIT_AS, (bytes_max, bytes_max))
        code = run()
    os._exit(code)
