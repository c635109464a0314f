"""The runner: steps continue when their event has happened, a few milliseconds per turn, and can be cancelled."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest

from topics.engine.core.pending import Busy, PendingChange, settled
from topics.engine.core.waiting.deadlines import Deadlines, PolledTimers
from topics.engine.core.waiting.runner import Runner, Signal, Steps, attempt, published
from topics.engine.log.block import Block
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.log.topic import Topic
from topics.engine.log.waiters import Waiters
from topics.model.clock import ManualClock
from topics.model.errors import StorageError, TopicNotFound, TopicsError
from topics.model.requests.config import TopicConfig
from topics.storage.pack import Extent


class Outcome:
    """An owner that remembers what became of its task."""

    def __init__(self) -> None:
        self.wanted = True
        self.results: list[Any] = []
        self.errors: list[Exception] = []
        self.cancels = 0

    def done(self, result: Any) -> None:
        self.results.append(result)

    def failed(self, error: Exception) -> None:
        self.errors.append(error)

    def cancelled(self) -> None:
        self.cancels += 1


class Disk:
    """Reads when the test says so."""

    def __init__(self) -> None:
        self.asked: list[tuple[ColdMiss, Callable[[TopicsError | None], None]]] = []

    def fetch(self, miss: ColdMiss, then: Callable[[TopicsError | None], None]) -> None:
        self.asked.append((miss, then))


class Turns:
    """A runner by hand: its time is the test's."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.wakes = 0
        self.clock = ManualClock()
        self.timers = PolledTimers(self.clock, lambda: None)
        self.waiters = Waiters(self._wake)
        self.runner = Runner(self.waiters, Deadlines(self.timers), self._wake, lambda: self.now_s)
        self.disk = self.runner.reader = Disk()

    def _wake(self) -> None:
        self.wakes += 1

    def turn(self) -> bool:
        return self.runner.run(self.now_s + 0.004)

    def pass_ms(self, ms: int) -> None:
        self.clock.advance(ms)
        self.timers.poll()


@pytest.fixture
def turns() -> Turns:
    return Turns()


def change() -> PendingChange:
    return PendingChange(None, 1, gated=False)


def a_topic() -> Topic:
    return Topic(1, "a", 1, TopicConfig(), 0)


def test_steps_that_need_not_wait_make_no_task(turns: Turns) -> None:
    def steps() -> Steps[int]:
        return (yield from published(settled(1, "done"))).topic_id

    owner = Outcome()
    assert turns.runner.start(steps(), owner) is None
    assert (owner.results, turns.wakes) == ([1], 0)


def test_a_task_goes_on_when_its_change_is_published(turns: Turns) -> None:
    pending, owner = change(), Outcome()
    turns.runner.start(published(pending), owner)
    assert not turns.turn()
    pending.finish()
    assert not owner.results, "not in the middle of the publishing"
    assert turns.wakes == 1
    assert turns.turn()
    assert owner.results == [pending]


def test_a_change_that_fails_is_raised_to_the_task_that_waits_for_it(turns: Turns) -> None:
    pending, owner = change(), Outcome()
    turns.runner.start(published(pending), owner)
    pending.finish(StorageError("full"))
    turns.turn()
    assert [type(error) for error in owner.errors] == [StorageError]


def test_a_verb_that_is_busy_is_run_again_whatever_became_of_the_change(turns: Turns) -> None:
    pending, owner, runs = change(), Outcome(), 0

    def verb() -> str:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise Busy(pending)
        return "decided"

    turns.runner.start(attempt(verb), owner)
    pending.finish(StorageError("full"))
    turns.turn()
    assert (owner.results, owner.errors) == (["decided"], [])


def test_a_cold_miss_is_read_and_a_failure_is_thrown_into_the_steps(turns: Turns) -> None:
    owner, caught = Outcome(), []
    miss = ColdMiss(Block(1, 0, 0), Extent(1, 2, 3))

    def steps() -> Steps[str]:
        yield miss
        try:
            yield miss
        except TopicsError as error:
            caught.append(error)
        return "went on"

    turns.runner.start(steps(), owner)
    for error in (None, StorageError("unreadable")):
        _, then = turns.disk.asked.pop()
        then(error)
        turns.turn()
    assert [type(error) for error in caught] == [StorageError]
    assert owner.results == ["went on"]


def test_news_of_a_topic_that_come_before_the_wait_are_not_lost(turns: Turns) -> None:
    owner, topic, looks = Outcome(), a_topic(), []

    def steps() -> Steps[None]:
        news = turns.runner.news([topic], 1_000)
        try:
            while not news.expired:
                looks.append(news.expired)
                if len(looks) == 1:
                    turns.waiters.moved(topic)
                    turns.waiters.wake()
                yield news
        finally:
            news.close()

    turns.runner.start(steps(), owner)
    turns.turn()
    assert looks == [False, False]
    assert not turns.turn(), "it waits for the next news"
    turns.waiters.moved(topic)
    turns.waiters.wake()
    turns.turn()
    assert looks == [False] * 3
    turns.pass_ms(1_005)
    turns.turn()
    assert owner.results == [None]
    assert topic.waiters is None
    assert not len(turns.runner.deadlines)


def test_a_pause_ends_by_the_clock(turns: Turns) -> None:
    owner = Outcome()
    turns.runner.start(turns.runner.pause(100), owner)
    turns.pass_ms(50)
    assert not turns.turn()
    turns.pass_ms(60)
    assert turns.turn()
    assert owner.results == [None]


def test_tasks_that_are_ready_together_are_run_over_several_turns_in_their_order(turns: Turns) -> None:
    ran: list[int] = []

    def steps(number: int) -> Steps[None]:
        yield None
        turns.now_s += 0.001
        ran.append(number)

    for number in range(10):
        turns.runner.start(steps(number), Outcome())
    in_turn: list[int] = []
    while len(ran) < 10:
        before, turns.wakes = len(ran), 0
        assert turns.turn()
        in_turn.append(len(ran) - before)
        assert len(ran) == 10 or turns.wakes, "the rest is run in a turn that the runner requests itself"
    assert ran == list(range(10))
    assert max(in_turn) <= 5
    assert not turns.turn()


def test_a_task_with_much_to_do_leaves_room_for_the_others(turns: Turns) -> None:
    ran: list[str] = []

    def steps(name: str, pieces: int) -> Steps[None]:
        for _ in range(pieces):
            yield None
            turns.now_s += 0.001
            ran.append(name)

    turns.runner.start(steps("long", 9), Outcome())
    turns.runner.start(steps("short", 3), Outcome())
    while turns.turn():
        pass
    assert ran[:6] == ["long", "short"] * 3
    assert ran[6:] == ["long"] * 6


def test_a_cancelled_task_cleans_up_and_is_never_resumed(turns: Turns) -> None:
    owner, topic, went_on = Outcome(), a_topic(), []

    def steps() -> Steps[None]:
        news = turns.runner.news([topic], 1_000)
        try:
            yield news
            went_on.append(1)
        finally:
            news.close()

    task = turns.runner.start(steps(), owner)
    assert task is not None
    task.cancel()
    task.cancel()
    assert (owner.cancels, task.over, topic.waiters, len(turns.runner.deadlines)) == (1, True, None, 0)
    turns.waiters.moved(topic)
    turns.waiters.wake()
    turns.turn()
    assert not went_on


def test_a_task_that_is_cancelled_when_it_is_ready_does_not_run(turns: Turns) -> None:
    owner, pending = Outcome(), change()
    task = turns.runner.start(published(pending), owner)
    assert task is not None
    pending.finish()
    task.cancel()
    turns.turn()
    assert (owner.results, owner.cancels) == ([], 1)


def test_a_task_that_cancels_itself_ends_at_its_next_wait(turns: Turns) -> None:
    owner, cleaned = Outcome(), []

    def steps() -> Steps[None]:
        try:
            yield None
            assert task is not None
            task.cancel()
            yield None
        finally:
            cleaned.append(1)

    task = turns.runner.start(steps(), owner)
    while turns.turn():
        pass
    assert (cleaned, owner.results, owner.cancels) == ([1], [], 1)


def test_a_task_whose_result_nobody_wants_is_cancelled_instead_of_resumed(turns: Turns) -> None:
    owner, pending = Outcome(), change()
    turns.runner.start(published(pending), owner)
    owner.wanted = False
    pending.finish()
    turns.turn()
    assert (owner.results, owner.cancels) == ([], 1)


def test_what_steps_raise_is_their_owners_alone(turns: Turns) -> None:
    def refused() -> Steps[None]:
        yield None
        raise TopicNotFound("a")

    def broken() -> Steps[None]:
        yield None
        raise ZeroDivisionError

    owners = [Outcome(), Outcome(), Outcome()]
    turns.runner.start(refused(), owners[0])
    turns.runner.start(broken(), owners[1])
    turns.runner.start(turns.runner.pause(0), owners[2])
    turns.pass_ms(5)
    turns.turn()
    assert [type(error) for owner in owners for error in owner.errors] == [TopicNotFound, ZeroDivisionError]
    assert owners[2].results == [None]


def test_each_resumed_task_is_measured(turns: Turns) -> None:
    measured: list[tuple[object, float]] = []
    turns.runner.on_ran = lambda owner, took_s: measured.append((owner, took_s))

    def steps() -> Steps[None]:
        yield None
        turns.now_s += 0.25

    owner = Outcome()
    turns.runner.start(steps(), owner)
    turns.turn()
    assert measured == [(owner, 0.25)]


def test_a_task_that_is_over_is_freed_without_a_collection(turns: Turns) -> None:
    topic = a_topic()

    def steps() -> Steps[None]:
        news = turns.runner.news([topic], 1_000)
        try:
            yield news
        finally:
            news.close()

    gc.collect()
    gc.disable()
    try:
        kept, freed = Outcome(), []
        for ends in ("by itself", "cancelled"):
            owner = Outcome()
            task = turns.runner.start(steps(), owner)
            assert task is not None
            freed += [weakref.ref(owner)]
            if ends == "cancelled":
                task.cancel()
            else:
                turns.waiters.moved(topic)
                turns.waiters.wake()
                turns.turn()
            del owner
        assert [ref() for ref in freed] == [None, None], kept
    finally:
        gc.enable()


def test_a_signal_that_is_set_before_it_is_waited_for_is_used_up_once(turns: Turns) -> None:
    signal, owner, passed = Signal(), Outcome(), []

    def steps() -> Steps[None]:
        while True:
            yield signal
            passed.append(1)

    signal.set()
    turns.runner.start(steps(), owner)
    while turns.turn():
        pass
    assert passed == [1]
    signal.set()
    turns.turn()
    assert passed == [1, 1]
