"""Deadlines: many of them on one timer, none early, none lost."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.patience import PATIENCE_S
from topics.engine.core.waiting.deadlines import Deadlines


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
    assert all(after_ms >= wait_ms - 1 for wait_ms, after_ms in expired)


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
