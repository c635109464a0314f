"""Reads of a bucket that are asked again while there is no answer: for readers that have nobody else to ask."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from topics.storage.bucket.bucket import Found, Listed, ReadableBucket, Unreachable

T = TypeVar("T")

# How long a read is asked again, and the pause before that, which doubles up to the longest.
PATIENCE_S = 60.0
PAUSE_S, PAUSE_S_MAX = 0.1, 5.0


class PatientReads:
    """A `ReadableBucket` in front of another one."""

    def __init__(self, bucket: ReadableBucket, pause: Callable[[float], None] = time.sleep) -> None:
        self._bucket = bucket
        self._pause = pause

    def read(self, key: str) -> Found | None:
        return self._repeated(lambda: self._bucket.read(key))

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        return self._repeated(lambda: self._bucket.read_range(key, offset, length))

    def listing(self, prefix: str, after: str = "") -> Iterator[Listed]:
        yield from self._repeated(lambda: list(self._bucket.listing(prefix, after)))

    def _repeated(self, ask: Callable[[], T]) -> T:
        give_up_s = time.monotonic() + PATIENCE_S
        pause_s = PAUSE_S
        while True:
            try:
                return ask()
            except Unreachable:
                if time.monotonic() + pause_s > give_up_s:
                    raise
            self._pause(pause_s)
            pause_s = min(2 * pause_s, PAUSE_S_MAX)
