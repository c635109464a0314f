"""The job of all worker libraries: it records the time at which it ran."""

from __future__ import annotations

import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

MARK = struct.Struct("d")


def mark(path: str) -> None:
    """Append the time, eight bytes in one write: workers share the file."""
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, MARK.pack(time.monotonic()))
    os.close(file)


def times(path: Path) -> list[float]:
    data = path.read_bytes() if path.exists() else b""
    return sorted(moment for (moment,) in MARK.iter_unpack(data[: len(data) // MARK.size * MARK.size]))


def wait_for_go(directory: Path) -> None:
    """Report that this worker has finished loading, and wait until all have."""
    (directory / f"ready-{os.getpid()}").touch()
    end_s = time.monotonic() + 60
    while not (directory / "go").exists() and time.monotonic() < end_s:
        time.sleep(0.005)


def enqueue(count: int, one: Callable[[], object]) -> None:
    """Enqueue jobs by a call each, and print the seconds taken; the first call connects and is not counted."""
    one()
    started_s = time.monotonic()
    for _ in range(count - 1):
        one()
    print(time.monotonic() - started_s)


def arguments() -> tuple[str, str, int, Path]:
    """`enqueue` or `work`, the address of the server, the number of jobs, and the directory of the files."""
    what, address, count, directory = sys.argv[1:]
    return what, address, int(count), Path(directory)
