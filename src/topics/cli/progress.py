"""Progress of long commands: a bar on a terminal, a line every few seconds elsewhere; always on standard error."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Generator

from topics.cli.output import say
from topics.cli.spans import shown_bytes

PLAIN_EVERY_S = 5.0
PAINT_EVERY_S = 0.1

Step = Callable[[int], None]


@contextlib.contextmanager
def progress(what: str, total: int | None, unit: str = "records", done: int = 0) -> Generator[Step]:
    """`step(n)`: n more are done. `done`: what an earlier run has done already."""
    if sys.stderr.isatty():
        with _bar(what, total, unit, done) as step:
            yield step
    else:
        yield _Lines(what, total, unit, done).step


@contextlib.contextmanager
def _bar(what: str, total: int | None, unit: str, done: int) -> Generator[Step]:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    columns = [TextColumn("{task.description}"), BarColumn(), amount, TimeRemainingColumn(compact=True)]
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=1 / PAINT_EVERY_S) as bars:
        task = bars.add_task(what, total=total, completed=done)
        yield lambda count: bars.advance(task, count)


class _Lines:
    """Without a terminal: a line every few seconds, so that a log shows progress."""

    def __init__(self, what: str, total: int | None, unit: str, done: int) -> None:
        self._what = what
        self._total = total
        self._unit = unit
        self._done = done
        self._next_s = time.monotonic() + PLAIN_EVERY_S

    def step(self, count: int) -> None:
        self._done += count
        if time.monotonic() >= self._next_s:
            self._next_s = time.monotonic() + PLAIN_EVERY_S
            share = f" ({self._done / self._total:.0%})" if self._total else ""
            say(f"{self._what}: {self._amount()}{share}")

    def _amount(self) -> str:
        return shown_bytes(self._done) if self._unit == "bytes" else f"{self._done} {self._unit}"
