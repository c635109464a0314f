"""A start that meets a bucket without an answer asks again: for a while, or, of a standby that knows it, for ever."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from threading import Event
from typing import NamedTuple, TypeVar

from topics.model.errors import TopicsError
from topics.storage.bucket.bucket import BucketError, Changed, Exists, Found, Listed, RestorableBucket, Unreachable

logger = logging.getLogger("topics.bucket")

T = TypeVar("T")

# For how long after its first failure a call is repeated, and the pause before that.
START_S = 10.0
PAUSE_S = 0.1


class GivenUp(TopicsError):
    """Nobody waits for the start any more."""


class Pauses:
    """The pauses of one start, which end when it is given up."""

    def __init__(self) -> None:
        self._given_up = Event()

    def give_up(self) -> None:
        self._given_up.set()

    def pause(self, seconds: float) -> None:
        if self._given_up.wait(seconds):
            raise GivenUp("the start was given up")


class Patience(NamedTuple):
    """`pause` raises when the start is given up."""

    pause: Callable[[float], None]
    clock: Callable[[], float] = time.monotonic
    for_ever: bool = False

    def ask(self, attempt: Callable[[], T]) -> T:
        """Repeat what had no answer. What an earlier attempt has written may be found by a later one."""
        failed_s: float | None = None
        while True:
            try:
                found = attempt()
            except (Unreachable, Changed, Exists) as error:
                failed_s = self._failed(error, failed_s)
            else:
                if failed_s is not None:
                    logger.info("the bucket answers again, after %.1f s", self.clock() - failed_s)
                return found
            self.pause(PAUSE_S)

    def _failed(self, error: BucketError, failed_s: float | None) -> float:
        """Since when there is no answer; raises the error when that is long enough."""
        if failed_s is None:
            logger.warning("the bucket does not answer, and is asked again: %s", error.message)
            return self.clock()
        if not self.for_ever and self.clock() - failed_s >= START_S:
            raise error
        return failed_s


class PatientBucket:
    """A bucket whose reads are repeated one by one: a restore has thousands, one of which may well fail."""

    def __init__(self, bucket: RestorableBucket, patience: Patience) -> None:
        self._bucket, self._ask = bucket, patience.ask

    def read(self, key: str) -> Found | None:
        return self._ask(lambda: self._bucket.read(key))

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        return self._ask(lambda: self._bucket.read_range(key, offset, length))

    def listing(self, prefix: str, after: str = "") -> Iterator[Listed]:
        yield from self._ask(lambda: list(self._bucket.listing(prefix, after)))

    def download(self, key: str, path: str) -> bool:
        return self._ask(lambda: self._bucket.download(key, path))
