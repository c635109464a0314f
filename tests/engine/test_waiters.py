"""Waking: a reader that finds nothing and registers never misses what is published afterwards."""

from __future__ import annotations

import pytest

from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig
from tests.engine.test_append import request
from tests.faults import FaultyDisk
from topics.engine.log.waiters import WOKEN_AT_ONCE
from topics.model.errors import TopicNotFound


def waiting(rig: Rig, topic: str) -> list[int]:
    """A list that gets the head of the topic at every wake-up."""
    woken: list[int] = []
    found = rig.store.state.by_name[topic]
    rig.engine.waiters.add(found, lambda: woken.append(found.head_seq))
    return woken


def test_an_append_wakes_waiters_and_is_visible_by_then(rig: Rig) -> None:
    rig.configure("a")
    woken = waiting(rig, "a")
    rig.append("a", 1, 2)
    assert woken == [2]


def test_an_append_submitted_before_the_look_wakes_a_reader_registered_after_it(rig: Rig) -> None:
    rig.configure("a")
    rig.engine.append("a", request(1))
    assert rig.diff("a").caught_up
    woken = waiting(rig, "a")
    rig.store.commit_log.flush()
    assert woken == [1]


def test_many_appends_of_a_tick_are_one_wake_up(rig: Rig) -> None:
    rig.configure("a")
    woken = waiting(rig, "a")
    for _ in range(5):
        rig.engine.append("a", request(1))
    rig.store.commit_log.flush()
    assert woken == [5]


def test_the_longest_waiting_is_woken_first(rig: Rig) -> None:
    rig.configure("a")
    found = rig.store.state.by_name["a"]
    order: list[int] = []
    for number in range(100):
        rig.engine.waiters.add(found, lambda number=number: order.append(number))
    rig.append("a", 1)
    assert order == list(range(100))


def test_an_fsync_record_wakes_only_when_it_is_durable(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("a", durability="fsync")
    woken = waiting(rig, "a")
    gate = disk.hold("fdatasync", path=".log")
    change = rig.engine.append("a", request(1))
    rig.store.commit_log.flush()
    rig.store.settle()
    assert woken == []
    assert rig.diff("a").count == 0
    gate.open()
    rig.finish(change)
    assert woken == [1]


def test_every_waiter_is_woken_and_one_that_left_is_not(rig: Rig) -> None:
    rig.configure("a")
    topic = rig.store.state.by_name["a"]
    woken: list[str] = []
    first = rig.engine.waiters.add(topic, lambda: woken.append("first"))
    rig.engine.waiters.add(topic, lambda: woken.append("second"))
    rig.engine.waiters.remove(first)
    rig.engine.waiters.remove(first)
    rig.append("a", 1)
    assert woken == ["second"]


def test_a_waiter_may_leave_and_come_back_while_it_is_woken(rig: Rig) -> None:
    rig.configure("a")
    topic = rig.store.state.by_name["a"]
    woken: list[int] = []

    def again() -> None:
        rig.engine.waiters.remove(waiter[0])
        woken.append(topic.head_seq)
        waiter[0] = rig.engine.waiters.add(topic, again)

    waiter = [rig.engine.waiters.add(topic, again)]
    rig.append("a", 1)
    rig.append("a", 2)
    assert woken == [1, 2]


def test_a_waiter_that_writes_when_woken_loses_no_wake_up(rig: Rig) -> None:
    rig.configure("a")
    topic = rig.store.state.by_name["a"]
    woken: list[int] = []

    def echo() -> None:
        woken.append(topic.head_seq)
        if topic.head_seq < 3:
            rig.engine.append("a", request("echo"))
            rig.store.commit_log.flush()

    rig.engine.waiters.add(topic, echo)
    rig.append("a", 1)
    assert woken[-1] == 3
    assert topic.head_seq == 3


def test_of_thousands_only_some_are_woken_in_each_tick(rig: Rig) -> None:
    rig.configure("a")
    rig.configure("b")
    woken: list[int] = []
    for number in range(2 * WOKEN_AT_ONCE + 1):
        rig.engine.waiters.add(rig.store.state.by_name["a"], lambda number=number: woken.append(number))
    other = waiting(rig, "b")
    ticks = 0
    for _ in range(2):
        rig.engine.append("a", request(1))
        rig.engine.append("b", request(1))
        before = len(woken)
        rig.store.commit_log.flush()
        ticks += 1
        assert len(woken) - before <= WOKEN_AT_ONCE
        assert rig.engine.waiters.pending
        assert not rig.store.is_quiet
    while rig.engine.waiters.pending:
        before = len(woken)
        rig.store.commit_log.flush()
        ticks += 1
        assert len(woken) - before <= WOKEN_AT_ONCE
    everyone = list(range(2 * WOKEN_AT_ONCE + 1))
    assert woken == everyone * 2, "two rounds, and the second not before the first is over"
    assert other == [2], "many appends are one wake-up"
    assert ticks == 5


def test_another_topic_wakes_nobody(rig: Rig) -> None:
    rig.configure("a")
    woken = waiting(rig, "a")
    rig.append("b", 1)
    assert woken == []


def test_a_drop_wakes_so_that_the_reader_learns_of_it(rig: Rig) -> None:
    rig.configure("a")
    woken = waiting(rig, "a")
    rig.drop("a")
    rig.store.commit_log.flush()
    assert len(woken) == 1
    with pytest.raises(TopicNotFound):
        rig.diff("a")


def test_a_write_that_failed_wakes_nobody(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("a")
    woken = waiting(rig, "a")
    disk.fail("pwritev", path=".log")
    rig.engine.append("a", request(1))
    rig.store.commit_log.flush()
    assert woken == []
