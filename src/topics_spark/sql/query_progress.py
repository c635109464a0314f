"""Progress of a query, from Spark's status tracker: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Generator
from types import FrameType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO, cast

from topics.cli.output import say

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAINT_EVERY_S: Final = 0.2
PLAIN_EVERY_S: Final = 5.0
# Queries that end sooner need no bar.
QUIET_S: Final = 0.5
BAR_CELLS: Final = 30
CLEARED: Final = "\r\x1b[K"


class Tasks(NamedTuple):
    """How many tasks of a query are done, of those known so far."""

    done: int
    total: int


@contextlib.contextmanager
def watched(spark: SparkSession) -> Generator[Watcher]:
    """While this is open, the thread's Spark jobs are watched; an interrupt ends them on Spark as well."""
    context = spark.sparkContext
    group = uuid.uuid4().hex
    context.setJobGroup(group, "topics sql", interruptOnCancel=True)
    watcher = Watcher(lambda: tasks_of(cast("Any", context.statusTracker()), group), sys.stderr)
    try:
        with _interrupts_noted() as interrupts:
            try:
                yield watcher
            except Exception as error:
                # Java gets the same signal at a terminal: that it is gone may be met before the interrupt, or instead.
                if interrupts:
                    raise KeyboardInterrupt from error
                raise
    except (KeyboardInterrupt, BrokenPipeError):
        with contextlib.suppress(Exception):
            context.cancelJobGroup(group)
        raise
    finally:
        watcher.stop()


@contextlib.contextmanager
def _interrupts_noted() -> Generator[list[int]]:
    """The signals of Ctrl-C so far; only the main thread gets any."""
    noted: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        noted.append(number)
        signal.default_int_handler(number, frame)

    if threading.current_thread() is not threading.main_thread():
        yield noted
        return
    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def tasks_of(tracker: Any, group: str) -> Tasks:
    jobs = [info for info in map(tracker.getJobInfo, tracker.getJobIdsForGroup(group)) if info is not None]
    stages: set[int] = {stage for job in jobs for stage in job.stageIds}
    infos = [info for info in map(tracker.getStageInfo, stages) if info is not None]
    return Tasks(sum(info.numCompletedTasks for info in infos), sum(info.numTasks for info in infos))


class Watcher:
    """Draws until it is stopped, to make room for rows on the same terminal."""

    def __init__(self, tasks: Callable[[], Tasks], out: TextIO) -> None:
        self._tasks = tasks
        self._out = out
        self._over = threading.Event()
        self._begun_s = time.monotonic()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The bar is gone when this returns. May be called more than once."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        on_terminal = self._out.isatty()
        painted = False
        wait_s = QUIET_S if on_terminal else PLAIN_EVERY_S
        while not self._over.wait(wait_s):
            try:
                tasks = self._tasks()
            except Exception:  # noqa: BLE001 - without Java the query fails as well, and reports why
                break
            spent_s = time.monotonic() - self._begun_s
            if on_terminal:
                self._out.write(f"{CLEARED}{bar(tasks, spent_s)}")
                self._out.flush()
                painted, wait_s = True, PAINT_EVERY_S
            else:
                say(plain(tasks, spent_s))
        if painted:
            self._out.write(CLEARED)
            self._out.flush()


def bar(tasks: Tasks, spent_s: float) -> str:
    if not tasks.total:
        return f"query: planning {spent_s:.0f} s"
    full = BAR_CELLS * tasks.done // tasks.total
    return f"query {'━' * full}{'╌' * (BAR_CELLS - full)} {tasks.done}/{tasks.total} tasks {spent_s:.0f} s"


def plain(tasks: Tasks, spent_s: float) -> str:
    if not tasks.total:
        return f"query: planning, {spent_s:.0f} s so far"
    return f"query: {tasks.done} of {tasks.total} tasks after {spent_s:.0f} s"
