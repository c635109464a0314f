"""Calls that are run again: a few milliseconds of them in each tick, the others in the next."""

from types import SimpleNamespace
from typing import Any, cast

from topics.api.waiting import Turns


def test_calls_that_were_woken_together_are_run_over_several_ticks() -> None:
    now_s = 0.0
    ran: list[int] = []
    wakes: list[None] = []

    def call_of(number: int) -> Any:
        def handler(_: Any) -> None:
            nonlocal now_s
            now_s += 0.001
            ran.append(number)

        return SimpleNamespace(open=True, bound=SimpleNamespace(handler=handler))

    turns = Turns(cast("Any", None), lambda: wakes.append(None), lambda: now_s)
    for number in range(10):
        turns.again(call_of(number))
    in_tick: list[int] = []
    while len(ran) < 10:
        before = len(ran)
        wakes.clear()
        assert turns.run_ready(now_s + 0.004)
        in_tick.append(len(ran) - before)
        assert len(ran) == 10 or wakes, "the rest is run in a tick that nobody else causes"
    assert ran == list(range(10))
    assert max(in_tick) <= 5
    assert not turns.run_ready(now_s + 1)


def test_a_call_that_is_run_again_is_measured() -> None:
    """The watchdog names its route: a large body is decoded in slices, and its call is run after them."""
    now_s = 0.0

    def handler(_: Any) -> None:
        nonlocal now_s
        now_s += 0.25

    turns = Turns(cast("Any", None), lambda: None, lambda: now_s)
    measured: list[tuple[Any, float]] = []
    turns.on_ran = lambda request, took_s: measured.append((request, took_s))
    request = object()
    turns.again(cast("Any", SimpleNamespace(open=True, request=request, bound=SimpleNamespace(handler=handler))))
    turns.run_ready(1.0)
    assert measured == [(request, 0.25)]
