"""Contestants: each measures some rows of the table per round; and how to run a contestant's server."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

START_S_MAX = 60.0
STOP_S_MAX = 10.0
CONNECTIONS = 16
PAYLOAD = '{"id":12345,"kind":"resize","url":"s3://bucket/a.png","w":256}'
BATCH = 100
# The work of a row of jobs: appended by 100, claimed and acked by 8.
JOBS = 51_200
JOBS_CLAIM = 8
# Jobs of the worker libraries, each enqueued by a call of its own.
LIBRARY_JOBS = 1_000
RECOVERED = 1_000_000

# The name of a row and its measurement.
Sample = tuple[str, float]


class Missing(Exception):
    """A contestant is not installed; the message says what is needed."""


class Contestant(Protocol):
    name: str
    # What an acknowledgement guarantees, shown with its figures.
    promise: str
    # "own", "limit" or "bar", as in pictures.
    kind: str

    def prepare(self, root: Path) -> None:
        """Prepare once, before the rounds; the directory lasts until the end. Raises Missing."""

    def measure(self, root: Path) -> Iterator[Sample]:
        """One round, in a separate directory."""
        ...


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


@contextlib.contextmanager
def running(
    command: Sequence[str | Path],
    log: Path,
    port: int | None = None,
    *,
    user: str | None = None,
    env: dict[str, str] | None = None,
) -> Iterator[subprocess.Popen[bytes]]:
    """A process and its children: started when its port accepts connections, and ended afterwards."""
    with log.open("ab") as out:
        process = subprocess.Popen(
            [str(each) for each in command],
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            user=user,
            env=env,
        )
    try:
        if port is not None:
            end_s = time.monotonic() + START_S_MAX
            while not answers(port):
                if process.poll() is not None or time.monotonic() > end_s:
                    raise RuntimeError(f"{command[0]} did not start: {log.read_text()[-1000:]}")
                time.sleep(0.02)
        yield process
    finally:
        end(process)


def end(process: subprocess.Popen[bytes], how: int = signal.SIGTERM) -> None:
    """Ends a process that leads its own group, and its children."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, how)
    try:
        process.wait(timeout=STOP_S_MAX)
    except subprocess.TimeoutExpired:
        pass
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(timeout=STOP_S_MAX)


def log_line(log: Path, wanted: str, seconds: float = START_S_MAX) -> str:
    """The first line of a log that contains a text, now or later."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        for line in log.read_text(errors="replace").splitlines():
            if wanted in line:
                return line
        time.sleep(0.005)
    raise RuntimeError(f"{log.name} never said {wanted!r}: {log.read_text(errors='replace')[-1000:]}")
