"""A start that meets a bucket without an answer asks again: for a while, or, of a server that joins again, for ever."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from topics.model.errors import TopicsError
from topics.storage.bucket.bucket import BucketError, Changed, Exists, Unreachable

logger = logging.getLogger("topics.bucket")

T = TypeVar("T")

# For how long after its first failure a call is repeated, and the pause before that.
START_S = 10.0
PAUSE_S = 0.5


class GivenUp(TopicsError):
    """Nobody waits for the start any more."""


class Patience(NamedTuple):
    """`pause` raises when the start is given up. With `for_ever` a refusal, too, may be one that passes."""

    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    for_ever: bool = False

    def ask(self, attempt: Callable[[], T]) -> T:
        """Repeat what had no answer. What an earlier attempt has written may be found by a later one."""
        failed_s: float | None = None
        while True:
            try:
                found = attempt()
            except BucketError as error:
                passes = self.for_ever or isinstance(error, Unreachable | Changed | Exists)
                if not passes:
                    raise
                if failed_s is None:
                    failed_s = self.clock()
                    logger.warning("the bucket does not answer, and is asked again: %s", error.message)
                elif not self.for_ever and self.clock() - failed_s >= START_S:
                    raise
            else:
                if failed_s is not None:
                    logger.info("the bucket answers again, after %.1f s", self.clock() - failed_s)
                return found
            self.pause(PAUSE_S)
