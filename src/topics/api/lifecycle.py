"""The state of the server: recovering, serving, draining."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from topics.model.errors import NotReady, ShuttingDown, TopicsError

# Not by import: the root of the package also leads to the embedded engine, which this layer must not import.
VERSION: str = sys.modules["topics"].__version__


class Lifecycle:
    def __init__(self, progress: Callable[[], float], clock_s: Callable[[], float] = time.monotonic) -> None:
        self._progress = progress
        self._clock_s = clock_s
        self._started_s = clock_s()
        self.serving = False
        self.draining = False
        # With a bucket: raises an error while this server may not change anything.
        self.check_primary: Callable[[], None] | None = None
        # What is refused with instead, if the server goes down only to start again as a standby.
        self.rejoins: Callable[[], TopicsError] | None = None

    def opened(self) -> None:
        self.serving = True

    def drain(self) -> None:
        self.serving = False
        self.draining = True

    @property
    def progress(self) -> float:
        return self._progress()

    @property
    def uptime_ms(self) -> int:
        return int((self._clock_s() - self._started_s) * 1000)

    def refusal(self) -> TopicsError:
        if self.rejoins is not None:
            return self.rejoins()
        if self.draining:
            return ShuttingDown("the server is shutting down")
        return NotReady("the log is being replayed", replay_progress=round(self.progress, 4))
