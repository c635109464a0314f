"""The end of a loop iteration, with a loop and a clock that the test moves."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

import pytest

from topics.http.loop.pace import LONG_S, PUT_OFF_MAX, Pace
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
        loop = cast("asyncio.AbstractEventLoop", self.loop)
        self.pace = Pace(loop)
        self.tick = Tick(loop, Watchdog(clock), self.pace, clock)
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


def test_after_long_work_an_iteration_only_sends_the_replies_that_are_ready(bench: Bench) -> None:
    bench.large("a", LONG_S)
    assert bench.iteration() == ["a"]
    # The poll after it reads a small request, and its reply is ready: it is sent at the end of the next iteration.
    bench.tick.unflushed.append(Connection(bench))
    assert bench.iteration() == ["reply"]
    assert bench.iteration() == ["end"]
    bench.tick.arm()
    bench.tick.unflushed.append(Connection(bench))
    assert bench.iteration() == ["end", "reply"], "one write for all replies of a connection"


def test_two_pieces_of_long_work_never_share_an_iteration_nor_follow_each_other(bench: Bench) -> None:
    def work() -> None:
        if not bench.pace.puts_off(work):
            bench.happened.append("turn")
            bench.now_s += LONG_S
            bench.pace.took(LONG_S)

    bench.large("a", LONG_S)
    bench.loop.call_soon(work)
    assert [bench.iteration() for _ in range(4)] == [["a"], [], ["end", "turn"], []]


def test_a_loop_that_is_always_busy_still_gets_to_work_that_was_put_off(bench: Bench) -> None:
    def work() -> None:
        if not bench.pace.puts_off(work):
            bench.happened.append("turn")

    bench.pace.took(LONG_S)
    bench.loop.call_soon(work)
    happened: list[str] = []
    for _ in range(PUT_OFF_MAX + 1):
        bench.pace.took(LONG_S)
        happened += bench.iteration()
    assert happened == ["turn"]
    bench.pace.took(LONG_S)
    bench.large("a", 0.0)
    happened.clear()
    for _ in range(PUT_OFF_MAX + 1):
        bench.pace.took(LONG_S)
        happened += bench.iteration()
    assert happened == ["a", "end"]


def test_short_work_is_never_put_off(bench: Bench) -> None:
    bench.pace.took(LONG_S / 2)
    assert not bench.pace.is_resting
    bench.large("a", 0.0)
    assert bench.iteration() == ["a", "end"]
