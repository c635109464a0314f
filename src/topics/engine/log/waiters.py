"""Readers that wait for a topic to change, for long-polls and streams.

A reader looks first and registers second, both in the owner's thread and without interruption; anything published
after the look therefore finds the waiter. Waking means only "look again": the reader runs its verb once more and
finds new records, a deletion, or nothing for it yet.

topic moved ─▶ end of the tick: its waiters in line ─▶ the first of the line are woken ─▶ next tick: the others
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics.engine.log.topic import Topic

# Waking one takes about a microsecond; what it does then is in the hands of the runner.
WOKEN_AT_ONCE = 1_000


class Waiter:
    """One registration; stays until removed."""

    __slots__ = ("topic", "wake")

    def __init__(self, topic: Topic, wake: Callable[[], None]) -> None:
        self.topic = topic
        self.wake = wake


class Waiters:
    """Topics that changed are collected; at the end of the tick their waiters are woken, the longest waiting first.

    Of thousands, only some are woken in one tick; `again` requests the next one.
    """

    def __init__(self, again: Callable[[], None]) -> None:
        self._again = again
        self._moved: dict[Topic, None] = {}
        # Waiters of topics that have moved. While there are some, no other topic's are added: it stays that short.
        self._line: deque[Waiter] = deque()

    @property
    def pending(self) -> bool:
        """Whether a waiter is left to be woken."""
        return bool(self._line or self._moved)

    def add(self, topic: Topic, wake: Callable[[], None]) -> Waiter:
        waiter = Waiter(topic, wake)
        if topic.waiters is None:
            topic.waiters = {}
        topic.waiters[waiter] = None
        return waiter

    def remove(self, waiter: Waiter) -> None:
        """It is not woken any more, unless it is in line already."""
        waiters = waiter.topic.waiters
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                waiter.topic.waiters = None

    def moved(self, topic: Topic) -> None:
        if topic.waiters:
            self._moved[topic] = None

    def wake(self) -> None:
        line, left = self._line, WOKEN_AT_ONCE
        while line or self._moved:
            if not line:
                topic = next(iter(self._moved))
                del self._moved[topic]
                line.extend(topic.waiters or ())
                continue
            if not left:
                self._again()
                return
            left -= 1
            line.popleft().wake()
