"""Threads that go on with something while a test does other things, and how far they are."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tests.patience import PATIENCE_S


class Progress:
    """How far a thread is; its failure is that of who waits for it."""

    def __init__(self) -> None:
        self.done: list[Any] = []
        self._failure: Exception | None = None
        self._news = threading.Condition()

    def add(self, *values: Any) -> None:
        with self._news:
            self.done += values
            self._news.notify_all()

    def fail(self, error: Exception) -> None:
        with self._news:
            self._failure = error
            self._news.notify_all()

    def wait_for(self, count: int) -> None:
        with self._news:
            assert self._news.wait_for(lambda: len(self.done) >= count or self._failure, PATIENCE_S)
            if self._failure is not None:
                raise self._failure


@contextmanager
def going_on(*loops: Callable[[Progress, threading.Event], None]) -> Iterator[list[Progress]]:
    """Each loop in a thread, until the block ends: it is given its progress, and the event that ends it."""
    ended = threading.Event()
    progress = [Progress() for _ in loops]

    def run(loop: Any, own: Progress) -> None:
        try:
            loop(own, ended)
        except Exception as error:  # noqa: BLE001 - raised in the test
            own.fail(error)

    threads = [
        threading.Thread(target=run, args=(loop, own), daemon=True) for loop, own in zip(loops, progress, strict=True)
    ]
    for thread in threads:
        thread.start()
    try:
        yield progress
    finally:
        ended.set()
        for thread in threads:
            thread.join(PATIENCE_S)
