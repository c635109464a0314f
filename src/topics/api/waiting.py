"""Calls that live across ticks: run again when what they wait for has happened, ended in time, and on a drain.

    handler raises Busy(staged)  ─▶ staged is done              ─┐
    handler raises ColdMiss      ─▶ worker has read the extent  ─┼─▶ ready ─▶ after the tick's flush: handler again
    handler parks a long-poll    ─▶ its topic moved, time is up ─┘

A handler therefore decides everything anew each time it runs, or keeps what it has in `call.started`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from time import perf_counter

from topics.api.call import Call
from topics.engine.core.pending import Busy, PendingChange
from topics.engine.log.cold import ColdMiss, Reader
from topics.http.refusal import Refusal
from topics.http.request import Request
from topics.model.errors import InvalidRequest, TopicsError

Arrived = Callable[[], TopicsError | None]


class Turns:
    """Runs handlers, at once and again; whatever they raise becomes the answer."""

    def __init__(self, reader: Reader, wake: Callable[[], None], clock: Callable[[], float] = perf_counter) -> None:
        self._reader = reader
        self._wake = wake
        self._clock = clock
        self._ready: deque[Call] = deque()
        # Given every request that is run again, and how long that took, in seconds.
        self.on_ran: Callable[[Request, float], None] | None = None

    def run(self, call: Call) -> None:
        try:
            call.bound.handler(call)
        except TopicsError as error:
            call.fail(error)
        except Busy as busy:
            busy.change.then(lambda _: self.again(call))
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
            call, began_s = ready.popleft(), self._clock()
            self.resume(call)
            if self.on_ran is not None:
                self.on_ran(call.request, self._clock() - began_s)
            ran = True
        if ready:
            ready.extend(self._ready)
            self._ready = ready
            self._wake()
        return ran

    def resume(self, call: Call) -> None:
        """Run a call that has waited, unless nobody waits for its answer any more."""
        if call.open or call.must_finish:
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


def answering(call: Call, answer: Callable[[Call, PendingChange], None]) -> Callable[[PendingChange], None]:
    """The callback of a staged change: its failure, or a bug in `answer`, is this call's alone."""

    def published(change: PendingChange) -> None:
        try:
            if change.error is not None:
                call.fail(change.error)
            else:
                answer(call, change)
        except TopicsError as error:
            call.fail(error)
        except Exception as bug:  # noqa: BLE001 - it must not reach the loop that publishes the others' changes
            call.fail_by_bug(bug)

    return published
