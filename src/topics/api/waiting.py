"""Calls that live across ticks: run again when what they wait for has happened, ended in time, and on a drain.

    handler raises Busy(staged)  ─▶ staged is done              ─┐
    handler raises ColdMiss      ─▶ worker has read the extent  ─┼─▶ ready ─▶ after the tick's flush: handler again
    handler parks a long-poll    ─▶ its topic moved, time is up ─┘

A handler therefore decides everything anew each time it runs, or keeps what it has in `call.started`.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from time import perf_counter
from typing import Protocol

from topics.api.call import Call
from topics.engine.cold import ColdMiss
from topics.engine.staged import Busy, Staged
from topics.http.refusal import Refusal
from topics.model.errors import InvalidRequest, TopicsError

DEADLINE_GRAIN_MS = 5

Arrived = Callable[[], TopicsError | None]


class Reader(Protocol):
    """Reads what a verb missed, away from the loop."""

    def fetch(self, miss: ColdMiss, then: Callable[[TopicsError | None], None]) -> None: ...


class Turns:
    """Runs handlers, at once and again; whatever they raise becomes the answer."""

    def __init__(self, reader: Reader, wake: Callable[[], None], clock: Callable[[], float] = perf_counter) -> None:
        self._reader = reader
        self._wake = wake
        self._clock = clock
        self._ready: deque[Call] = deque()

    def run(self, call: Call) -> None:
        try:
            call.bound.handler(call)
        except TopicsError as error:
            call.fail(error)
        except Busy as busy:
            busy.staged.then(lambda _: self.again(call))
        except ColdMiss as miss:
            self._fetch(miss, call)
        except Refusal as refusal:
            call.fail(InvalidRequest(refusal.message, **(refusal.detail or {})))
        except Exception as bug:  # noqa: BLE001 - a bug is answered, not passed on to whoever published the change
            call.fail_by_bug(bug)

    def again(self, call: Call) -> None:
        """Run the call's handler once more when the current tick has published what it has."""
        self._ready.append(call)
        self._wake()

    def run_ready(self, until_s: float) -> bool:
        """Whether there was anything to run before `until_s`; the rest, and what is added meanwhile, waits its turn."""
        ran = False
        ready, self._ready = self._ready, deque()
        while ready and self._clock() < until_s:
            self.resume(ready.popleft())
            ran = True
        if ready:
            ready.extend(self._ready)
            self._ready = ready
            self._wake()
        return ran

    def resume(self, call: Call) -> None:
        """Run a call that has waited, unless nobody waits for its answer any more."""
        if call.open:
            self.run(call)
        else:
            call.end()

    def _fetch(self, miss: ColdMiss, call: Call) -> None:
        def arrived(error: TopicsError | None) -> None:
            if error is None:
                self.again(call)
            else:
                call.fail(error)

        try:
            self._reader.fetch(miss, arrived)
        except TopicsError as error:
            call.fail(error)


def answering(call: Call, answer: Callable[[Call, Staged], None]) -> Callable[[Staged], None]:
    """The callback of a staged change: its failure, or a bug in `answer`, is this call's alone."""

    def published(staged: Staged) -> None:
        try:
            if staged.error is not None:
                call.fail(staged.error)
            else:
                answer(call, staged)
        except TopicsError as error:
            call.fail(error)
        except Exception as bug:  # noqa: BLE001 - it must not reach the loop that publishes the others' changes
            call.fail_by_bug(bug)

    return published


class Deadline:
    __slots__ = ("bucket", "expired")

    def __init__(self, bucket: int, expired: Callable[[], None]) -> None:
        self.bucket = bucket
        self.expired = expired


class Deadlines:
    """Many deadlines, one timer: they are kept in buckets a few milliseconds wide."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._buckets: dict[int, dict[Deadline, None]] = {}
        self._order: list[int] = []
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return sum(map(len, self._buckets.values()))

    def add(self, wait_ms: int, expired: Callable[[], None]) -> Deadline:
        due = self._loop.time() * 1000 + wait_ms
        deadline = Deadline(-int(-due // DEADLINE_GRAIN_MS), expired)
        bucket = self._buckets.get(deadline.bucket)
        if bucket is None:
            bucket = self._buckets[deadline.bucket] = {}
            heapq.heappush(self._order, deadline.bucket)
            self._arm()
        bucket[deadline] = None
        return deadline

    def remove(self, deadline: Deadline) -> None:
        bucket = self._buckets.get(deadline.bucket)
        if bucket is not None:
            bucket.pop(deadline, None)

    def expire_all(self) -> None:
        """Time is up for everyone: the server is going down."""
        order, self._order = sorted(self._order), []
        for number in order:
            self._expire(number)

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._order:
            self._timer = self._loop.call_at(self._order[0] * DEADLINE_GRAIN_MS / 1000, self._turn)

    def _turn(self) -> None:
        now = self._loop.time() * 1000 / DEADLINE_GRAIN_MS
        # A timer may fire a hair early; a deadline must not.
        while self._order and self._order[0] <= now + 0.2:
            self._expire(heapq.heappop(self._order))
        self._arm()

    def _expire(self, number: int) -> None:
        for deadline in self._buckets.pop(number, {}):
            deadline.expired()
