"""wrk, the load generator for small requests: rates, percentiles, and the time that a fixed amount of work takes.

One thread of wrk sends about 80,000 requests per second that are always the same, and about 50,000 that a script builds
from earlier replies; the server is the slower side and therefore measured.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

SCRIPT = Path(__file__).with_suffix(".lua")
SPARE_S = 30.0
NO_HEADERS: Mapping[str, str] = MappingProxyType({})


class WrkFailed(Exception):
    """wrk failed."""


class Run(NamedTuple):
    """The measurements of wrk."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    errors: int
    # Pairs of a CALL that were answered as expected.
    finished: int

    @property
    def per_s(self) -> float:
        return self.requests / self.seconds


class Aim(NamedTuple):
    """Where requests go, and how they are authorized."""

    port: int
    bearer: str = ""
    tls: bool = False


def static(
    aim: Aim,
    path: str,
    body: object = None,
    connections: int = 16,
    seconds: int = 2,
    *,
    method: str = "POST",
    headers: Mapping[str, str] = NO_HEADERS,
) -> Run:
    """The same request on every connection until time is up."""
    environ = {"METHOD": method, **({} if body is None else {"BODY": json.dumps(body)})}
    return _timed(aim, path, connections, seconds, environ, headers)


def scripted(aim: Aim, call: str, topic: str, count: int, connections: int = 16, seconds: int = 2) -> Run:
    """A pair or series that the script knows, until time is up or all items are used."""
    return _timed(aim, "/", connections, seconds, {"CALL": call, "TOPIC": topic, "COUNT": str(count)})


def completed_s(aim: Aim, call: str, topic: str, count: int, body: object = None, connections: int = 16) -> float:
    """Seconds that the script took for all of `count` items."""
    environ = {"CALL": call, "TOPIC": topic, "COUNT": str(count)}
    if body is not None:
        environ["BODY"] = json.dumps(body)
    command = _command(aim, "/", connections, int(SPARE_S))
    process = subprocess.Popen(command, env=_environ(aim, environ), stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("COMPLETE "):
                return int(line.split()[1]) / 1e6
        raise WrkFailed(f"{call} of {count} items did not end within {SPARE_S:.0f} s")
    finally:
        process.kill()
        process.communicate()


def _timed(
    aim: Aim,
    path: str,
    connections: int,
    seconds: int,
    environ: dict[str, str],
    headers: Mapping[str, str] = NO_HEADERS,
) -> Run:
    command = _command(aim, path, connections, seconds, headers)
    done = subprocess.run(
        command,
        env=_environ(aim, environ),
        capture_output=True,
        text=True,
        timeout=seconds + SPARE_S,
        check=False,
    )
    found = re.search(r"RESULT (.*)", done.stdout)
    if not found:
        raise WrkFailed(f"{' '.join(command)}: {done.stdout}{done.stderr}")
    told = json.loads(found[1])
    p50_ms, p99_ms = told["p50_us"] / 1000, told["p99_us"] / 1000
    return Run(told["requests"], told["us"] / 1e6, p50_ms, p99_ms, told["errors"], told["finished"])


def _command(aim: Aim, path: str, connections: int, seconds: int, headers: Mapping[str, str] = NO_HEADERS) -> list[str]:
    url = f"{'https' if aim.tls else 'http'}://127.0.0.1:{aim.port}{path}"
    given = [f"-H{name}: {value}" for name, value in headers.items()]
    return ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", *given, "-s", str(SCRIPT), url]


def _environ(aim: Aim, more: dict[str, str]) -> dict[str, str]:
    return {**os.environ, **more, **({"BEARER": aim.bearer} if aim.bearer else {})}


def cpu_s(pid: int) -> float:
    """Processor time of all threads of a process, in user and system mode, to the nanosecond.

    Of all figures it is the one least affected by other work on the machine.
    """
    return time.clock_gettime(~pid << 3 | 2)
