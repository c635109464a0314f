"""The elastic throttle: under pressure, requests for the topics of lowest priority are refused for a while.

    loop lag ────┐ worse of both,                        lowest priority shed
    journal debt ┴─ smoothed ──▶ level 0 … 1 ──▶ 0.5: none   0.75: below 0   1: below 1000

A topic with priority 1000 is never shed. A writer that opts out of refusals waits here instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from topics.api.call import Call
from topics.api.waiting import answering
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Signal, Steps, attempt, published
from topics.model.errors import Throttled
from topics.model.requests.config import PRIORITY_BOUND

SAMPLE_MS = 50
# The values of full pressure.
LAG_MS_FULL = 400.0
DEBT_BYTES_FULL = 64 * 1024 * 1024
SHED_FROM = 0.5
NO_LEVEL = 0.05
# The weight of one sample in the level: a single hiccup sheds no topic, four in a row do.
RISE, FALL = 0.2, 0.1
RETRY_MS_MIN, RETRY_MS_MAX = 250, 2_000
PARKED_MAX = 10_000
PARKED_BYTES_MAX = 256 * 1024 * 1024
PARKED_MS_MAX = 30_000

Reply = Callable[[Call, PendingChange], None]


class Pressure:
    """Fed with a sample every SAMPLE_MS; asked only while something is being shed."""

    def __init__(self, debt_bytes: Callable[[], int], clock_s: Callable[[], float]) -> None:
        self._debt_bytes = debt_bytes
        self._clock_s = clock_s
        self.level = 0.0
        # Topics below this priority are shed; None: no topic is.
        self.floor: int | None = None
        # writes that opted out of being refused
        self._parked: deque[tuple[Call, Signal]] = deque()
        self._parked_bytes = 0

    def sample(self, lag_ms: float) -> None:
        """Record how late the loop was, and resume the calls that the new level allows."""
        now = max(min(1.0, lag_ms / LAG_MS_FULL), min(1.0, self._debt_bytes() / DEBT_BYTES_FULL))
        self.level += (now - self.level) * (RISE if now > self.level else FALL)
        if self.level < SHED_FROM:
            self.floor = None
        else:
            self.floor = int(-PRIORITY_BOUND + 2 * PRIORITY_BOUND * (self.level - SHED_FROM) / (1 - SHED_FROM))
        parked, self._parked = self._parked, deque()
        self._parked_bytes = 0
        for call, go_on in parked:
            call.throttled_s += self._clock_s() - call.parked_s
            go_on.set()

    @property
    def is_none(self) -> bool:
        """Whether nothing is shed or waits, and nothing makes it likely."""
        return self.level < NO_LEVEL and not self._parked

    @property
    def retry_ms(self) -> int:
        return int(RETRY_MS_MIN + (RETRY_MS_MAX - RETRY_MS_MIN) * self.level)

    def sheds(self, call: Call, priority: int) -> bool:
        if self.floor is None or priority >= self.floor:
            return False
        return call.throttled_s * 1000 < PARKED_MS_MAX

    def refusal(self) -> Throttled:
        return Throttled("throttled under pressure; try again later", retry_after_ms=self.retry_ms)

    @staticmethod
    def passes(error: Throttled) -> bool:
        """Whether a refusal is for pressure, which passes; a cap stands until there is room."""
        return "retry_after_ms" in error.detail

    def submit_later(
        self, call: Call, refused: Throttled, verb: Callable[[], PendingChange], reply: Reply, *, opted_out: bool
    ) -> Steps[None]:
        """Run a write again that was refused under pressure, if it opted out of that; otherwise raise the refusal."""
        if not opted_out or not self.passes(refused):
            raise refused
        return self._retry(call, verb, reply)

    def submit_drafted(
        self, call: Call, verb: Callable[[], PendingChange], reply: Reply, *, opted_out: bool
    ) -> Steps[None]:
        """Run a write in steps, as often as it has to wait; publishing and answering a large one are turns apart."""
        try:
            change = yield from attempt(verb)
        except Throttled as error:
            refused = error
        else:
            reply(call, (yield from published(change)))
            return
        yield from self.submit_later(call, refused, verb, reply, opted_out=opted_out)

    def _retry(self, call: Call, verb: Callable[[], PendingChange], reply: Reply) -> Steps[None]:
        while True:
            yield self.park(call)
            try:
                change = yield from attempt(verb)
            except Throttled as error:
                if not self.passes(error):
                    raise
            else:
                change.answer(answering(call, reply))
                return

    def park(self, call: Call) -> Signal:
        """Keep a write until the next sample; refused only if too many wait already."""
        size = len(call.request.body)
        if len(self._parked) >= PARKED_MAX or self._parked_bytes + size > PARKED_BYTES_MAX:
            raise self.refusal()
        call.parked_s = self._clock_s()
        go_on = Signal()
        self._parked.append((call, go_on))
        self._parked_bytes += size
        return go_on
