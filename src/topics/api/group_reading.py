"""One consume request from its arrival to its answer: its partitions, how they share the limit, and its waiting.

look ─▶ something? ─▶ claim, answer
  ▲         └─ nothing ─▶ wait: an append, a reset, another consumer's claim that runs out, or time is up ─┐
  └────────────────────────────────────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable

from topics.api.call import Call
from topics.api.waiting import Deadline, Deadlines, Turns
from topics.engine.consuming import Consuming, Portion
from topics.engine.topic import Topic
from topics.engine.waiters import Waiter, Waiters
from topics.model.consuming import Number, clamp_limit, wait_ms
from topics.model.errors import TopicNotFound

BATCH_BYTES_MAX = 8 * 1024 * 1024

Place = tuple[int, Topic, int]


class Reading:
    """Where reading starts is settled when the request arrives, however often it has to look."""

    __slots__ = ("_deadline", "_expiry", "_waiters", "every", "group_id", "limit", "partitions", "topic_id", "wait_ms")

    def __init__(
        self, topic_id: str, group_id: str | None, every: bool, limit: Number | None, timeout_seconds: Number | None
    ) -> None:
        self.topic_id = topic_id
        self.group_id = group_id
        self.every = every
        self.limit = clamp_limit(limit)
        self.wait_ms = wait_ms(timeout_seconds)
        self.partitions: list[Place] = []
        # while it waits
        self._waiters: list[Waiter] = []
        self._deadline: Deadline | None = None
        self._expiry: Deadline | None = None

    @property
    def may_wait(self) -> bool:
        return self.wait_ms > 0

    def look(self, consuming: Consuming) -> list[Portion]:
        """What there is in each partition, cut so that together they keep to the limit."""
        bytes_max = BATCH_BYTES_MAX // len(self.partitions)
        portions: list[Portion] = []
        for _, topic, start_seq in self.partitions:
            if consuming.topic(topic.name) is not topic:
                raise TopicNotFound(topic.name)
            portions.append(consuming.look(topic, self.group_id, start_seq, self.limit, bytes_max))
        if len(portions) > 1:
            share(portions, self.limit)
        return portions

    # --- waiting ---

    def wait(self, call: Call, consuming: Consuming, waiters: Waiters, turns: Turns, deadlines: Deadlines) -> None:
        """Look again when something may have changed. The tick's end runs it, so that what it claims is written."""

        def look_again() -> None:
            turns.again(call)

        def give_up() -> None:
            self.wait_ms = 0
            turns.again(call)

        def leave() -> None:
            for waiter in self._waiters:
                waiters.remove(waiter)
            for deadline in (self._deadline, self._expiry):
                if deadline is not None:
                    deadlines.remove(deadline)
            # They lead back here, and a collector seldom runs.
            self._waiters, self._deadline, self._expiry = [], None, None

        if self._deadline is None:
            self._deadline = deadlines.add(self.wait_ms, give_up)
            self._waiters = [waiters.add(topic, look_again) for _, topic, _ in self.partitions]
            call.on_end = leave
            call.may_be_abandoned()
        if self.group_id is not None:
            self._await_expiry(consuming, deadlines, look_again)

    def _await_expiry(self, consuming: Consuming, deadlines: Deadlines, look_again: Callable[[], None]) -> None:
        assert self.group_id is not None
        if self._expiry is not None:
            deadlines.remove(self._expiry)
            self._expiry = None
        times = [consuming.next_expiry_ms(topic, self.group_id) for _, topic, _ in self.partitions]
        soonest = min((time for time in times if time is not None), default=None)
        if soonest is not None and soonest <= self.wait_ms:
            self._expiry = deadlines.add(soonest, look_again)


def share(portions: list[Portion], limit: int) -> None:
    """Divide the limit: a partition with little gives what it leaves to those with more."""
    left = limit
    by_count = sorted(portions, key=_count)
    for number, portion in enumerate(by_count):
        fair = -(-left // (len(by_count) - number))
        portion.keep(min(portion.count, fair))
        left -= portion.count


def _count(portion: Portion) -> int:
    return portion.count
