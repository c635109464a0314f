"""Showing that Spark is starting: seconds on a terminal, two plain lines elsewhere."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Generator
from typing import TextIO

TICK_S = 0.2


@contextlib.contextmanager
def waiting(what: str, done: str) -> Generator[None]:
    """Print `what` with the seconds that pass, then `done` with their number. Nothing goes to standard output."""
    out: TextIO = sys.stderr
    begun_s = time.monotonic()
    over = threading.Event()
    ticker: threading.Thread | None = None
    if out.isatty():
        ticker = threading.Thread(target=tick, args=(what, begun_s, over, out), daemon=True)
        ticker.start()
    else:
        out.write(f"{what}\n")
        out.flush()
    try:
        yield
    finally:
        over.set()
        if ticker is not None:
            ticker.join()
            out.write("\r\x1b[K")
            out.flush()
    out.write(f"{done} after {time.monotonic() - begun_s:.1f} s\n")
    out.flush()


def tick(what: str, begun_s: float, over: threading.Event, out: TextIO) -> None:
    while not over.wait(TICK_S):
        out.write(f"\r{what} {time.monotonic() - begun_s:.0f} s")
        out.flush()
