"""The end of a loop iteration, with a loop and a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import pytest

from topics.http.loop.tick import LARGE_S, Tick
from topics.http.loop.watchdog import Watchdog


class Loop:
    """Runs what was scheduled before an iteration began."""

    def __init__(self) -> None:
        self._soon: deque[Callable[[], None]] = deque()

    def call_soon(self, callback: Callable[[], None]) -> None:
        self._soon.append(callback)

    def iterate(self) -> None:
        for _ in range(len(self._soon)):
            self._soon.popleft()()


class Bench:
    def __init__(self) -> None:
        self.now_s = 0.0
        self.happened: list[str] = []
        self.loop = Loop()
        clock = lambda: self.now_s  # noqa: E731
        self.tick = Tick(cast("asyncio.AbstractEventLoop", self.loop), Watchdog(clock), clock)
        self.tick.on_end(lambda: self.happened.append("end"))

    def large(self, name: str, took_s: float) -> None:
        def handle() -> None:
            self.happened.append(name)
            self.now_s += took_s

        self.tick.queue_large(handle)

    def iteration(self) -> list[str]:
        self.happened.clear()
        self.loop.iterate()
        return list(self.happened)


class Connection:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def flush(self) -> None:
        self._bench.happened.append("reply")


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_quick_ones_are_handled_together_and_the_tick_ends_with_them(bench: Bench) -> None:
    for name in "abc":
        bench.large(name, LARGE_S / 4)
    assert bench.iteration() == ["a", "b", "c", "end"]
    assert bench.iteration() == []


def test_after_one_that_takes_long_the_tick_ends_in_the_next_iteration(bench: Bench) -> None:
    for name in "abc":
        bench.large(name, LARGE_S)
    assert [bench.iteration() for _ in range(7)] == [["a"], ["end"], ["b"], ["end"], ["c"], ["end"], []]


def test_requests_that_keep_coming_do_not_keep_the_end_away(bench: Bench) -> None:
    ended = 0
    for number in range(10):
        bench.large(f"{number}", LARGE_S)
        ended += "end" in bench.iteration()
    assert ended == 5


def test_after_a_long_tick_replies_that_are_ready_leave_before_anything_else(bench: Bench) -> None:
    bench.large("a", LARGE_S)
    assert bench.iteration() == ["a"]
    # The next iteration reads a small request, and its reply is ready.
    bench.tick.unflushed.append(Connection(bench))
    assert bench.iteration() == ["reply", "end"]
    bench.tick.arm()
    bench.tick.unflushed.append(Connection(bench))
    assert bench.iteration() == ["end", "reply"], "one write for all replies of a connection"
