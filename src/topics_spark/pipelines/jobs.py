"""Jobs that end by themselves, run by the runner like a query: in a thread, with progress."""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.client import Client
    from topics_spark.pipelines.assignment import Assignment, RunnerConfig


PROGRESS_KEPT: Final = 100


@dataclass(frozen=True, slots=True)
class Work:
    """The context of a job. It checks `stopping` between steps, and calls `done` with the rows of each."""

    spark: SparkSession
    assignment: Assignment
    config: RunnerConfig
    client: Client
    stopping: threading.Event
    done: Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Progress:
    json: str


class JobQuery:
    """A job in a thread, with the part of StreamingQuery's interface that the runner uses."""

    def __init__(self, work: Callable[[threading.Event, Callable[[int], None]], None], name: str) -> None:
        self._work = work
        self._stopping = threading.Event()
        self._error: BaseException | None = None
        self._stepped_s = time.monotonic()
        self._steps = 0
        self._recent: deque[Progress] = deque(maxlen=PROGRESS_KEPT)
        self._thread = threading.Thread(target=self._run, name=f"pipeline {name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work(self._stopping, self._step)
        except BaseException as error:  # noqa: BLE001 - the runner asks for it
            self._error = error

    def _step(self, rows: int) -> None:
        now_s = time.monotonic()
        told = {
            "batchId": self._steps,
            "timestamp": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "numInputRows": rows,
            "processedRowsPerSecond": rows / max(0.001, now_s - self._stepped_s),
        }
        self._recent.append(Progress(json.dumps(told)))
        self._steps += 1
        self._stepped_s = now_s

    @property
    def isActive(self) -> bool:  # noqa: N802
        return self._thread.is_alive()

    @property
    def recentProgress(self) -> list[Progress]:  # noqa: N802
        return list(self._recent)

    def exception(self) -> BaseException | None:
        return self._error

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()
