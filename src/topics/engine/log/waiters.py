"""Readers that wait for a topic to change, for long-polls and streams.

A reader looks first and registers second, both in the owner's thread and without interruption; anything published
after the look therefore finds the waiter. Waking means only "look again": the reader runs its verb once more and
finds new records, a deletion, or nothing for it yet.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics.engine.log.topic import Topic


class Waiter:
    """One registration; stays until removed."""

    __slots__ = ("topic", "wake")

    def __init__(self, topic: Topic, wake: Callable[[], None]) -> None:
        self.topic = topic
        self.wake = wake


class Waiters:
    """Topics that changed are collected; at the end of the tick their waiters are woken, the longest waiting first."""

    def __init__(self) -> None:
        self._moved: dict[Topic, None] = {}

    def add(self, topic: Topic, wake: Callable[[], None]) -> Waiter:
        waiter = Waiter(topic, wake)
        if topic.waiters is None:
            topic.waiters = {}
        topic.waiters[waiter] = None
        return waiter

    def remove(self, waiter: Waiter) -> None:
        waiters = waiter.topic.waiters
        if waiters is not None:
            waiters.pop(waiter, None)
            if not waiters:
                waiter.topic.waiters = None

    def moved(self, topic: Topic) -> None:
        if topic.waiters:
            self._moved[topic] = None

    def wake(self) -> None:
        while self._moved:
            moved, self._moved = self._moved, {}
            for topic in moved:
                for waiter in tuple(topic.waiters or ()):
                    waiter.wake()
