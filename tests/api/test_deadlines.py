"""Deadlines: many of them on one timer, none early, none lost."""

import asyncio
import math
from collections.abc import Callable
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.patience import PATIENCE_S
from topics.engine.core.waiting.deadlines import DEADLINE_GRAIN_MS, Deadlines
from topics.http.loop.timers import LoopTimers


def test_deadlines_expire_in_order_and_never_early() -> None:
    async def main() -> list[tuple[int, float]]:
        loop = asyncio.get_running_loop()
        deadlines = Deadlines(loop)
        expired: list[tuple[int, float]] = []
        started_s = loop.time()
        for wait_ms in (40, 5, 20, 20, 0):
            deadlines.add(wait_ms, lambda wait_ms=wait_ms: expired.append((wait_ms, (loop.time() - started_s) * 1000)))
        over = asyncio.Event()
        deadlines.add(60, over.set)
        await over.wait()
        return expired

    expired = asyncio.run(main())
    assert [wait_ms for wait_ms, _ in expired] == [0, 5, 20, 20, 40]
    assert all(after_ms >= wait_ms - 0.001 for wait_ms, after_ms in expired)


class StaleLoop(asyncio.AbstractEventLoop):
    """As uvloop: its time is that of the start of an iteration, and its timers count in whole milliseconds of it."""

    def __init__(self) -> None:
        self.delays_ms: list[float] = []
        self.callbacks: list[Callable[..., object]] = []

    def get_debug(self) -> bool:
        return False

    def time(self) -> float:
        return 0.1

    def call_later(self, delay: float, callback: Callable[..., object], *args: object, **_: object) -> Any:
        self.delays_ms.append(delay * 1000)
        self.callbacks.append(callback)
        return asyncio.Handle(callback, args, self)


def test_a_wait_is_counted_from_when_it_begins_not_from_the_start_of_the_iteration() -> None:
    now_ms = 120.75
    loop, expired = StaleLoop(), list[float]()
    deadlines = Deadlines(LoopTimers(loop, lambda: now_ms))
    deadlines.add(500, lambda: expired.append(now_ms))
    assert loop.delays_ms == [625 - 120], "the end of its bucket, rounded up"
    for now_ms in (600.0, 620.0, 624.5):
        loop.callbacks.pop()()
        assert not expired, "a timer that runs early is set again"
        assert loop.delays_ms[-1] == math.ceil(625 - now_ms) > 0, "and does not spin"
    now_ms = 625.0
    loop.callbacks.pop()()
    assert 620.75 <= expired[0] < 620.75 + DEADLINE_GRAIN_MS


def test_a_removed_deadline_does_not_expire() -> None:
    async def main() -> list[str]:
        deadlines = Deadlines(asyncio.get_running_loop())
        expired: list[str] = []
        gone = deadlines.add(5, lambda: expired.append("gone"))
        deadlines.add(5, lambda: expired.append("kept"))
        deadlines.remove(gone)
        deadlines.remove(gone)
        over = asyncio.Event()
        deadlines.add(10, over.set)
        await over.wait()
        return expired

    assert asyncio.run(main()) == ["kept"]


def test_a_deadline_that_an_earlier_one_removes_does_not_expire() -> None:
    async def main() -> list[str]:
        deadlines = Deadlines(asyncio.get_running_loop())
        expired: list[str] = []

        def remove_both() -> None:
            deadlines.remove(same)
            deadlines.remove(later)

        deadlines.add(0, remove_both)
        same = deadlines.add(0, lambda: expired.append("same"))
        later = deadlines.add(20, lambda: expired.append("later"))
        deadlines.expire_all()
        return expired

    assert asyncio.run(main()) == []


@settings(max_examples=examples(20))
@given(st.lists(st.integers(0, 30_000), max_size=200))
def test_expiring_all_ends_each_exactly_once(waits_ms: list[int]) -> None:
    async def main() -> list[int]:
        deadlines = Deadlines(asyncio.get_running_loop())
        expired: list[int] = []
        for number, wait_ms in enumerate(waits_ms):
            deadlines.add(wait_ms, lambda number=number: expired.append(number))
        deadlines.expire_all()
        assert not len(deadlines)
        return expired

    assert sorted(asyncio.run(main())) == list(range(len(waits_ms)))


def test_one_that_fails_does_not_keep_later_ones_from_expiring() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _loop, _context: failed.set())
        deadlines = Deadlines(loop)
        failed, over = asyncio.Event(), asyncio.Event()

        def fail() -> None:
            raise RuntimeError("a bug")

        deadlines.add(0, fail)
        await failed.wait()
        deadlines.add(0, over.set)
        await asyncio.wait_for(over.wait(), PATIENCE_S)

    asyncio.run(main())
