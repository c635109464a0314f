"""What a store does in one tick and in one turn, by a clock that the test moves."""

from __future__ import annotations

from tests.engine.conftest import OpenRig
from tests.engine.rig import NEWS_S_MAX, Outcome, Rig
from tests.engine.test_append import request
from tests.faults import FaultyDisk
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Steps, published
from topics.engine.opening.store import READY_S_MAX


class Clock:
    """Seconds, as the runner of a store reads them."""

    def __init__(self, rig: Rig) -> None:
        self.now_s = 0.0
        rig.store.runner.clock_s = lambda: self.now_s


def appending(rig: Rig, clock: Clock, took_s: float, decided: list[PendingChange]) -> Steps[None]:
    """A task that takes so long to decide an append."""
    yield None
    clock.now_s += took_s
    decided.append(rig.engine.append("t", request(1)))
    yield from published(decided[-1])


def test_what_a_long_task_has_submitted_is_published_in_the_next_tick(rig: Rig) -> None:
    rig.append("t", 0)
    clock = Clock(rig)
    decided: list[PendingChange] = []
    rig.store.runner.start(appending(rig, clock, READY_S_MAX, decided), Outcome())
    rig.store.tick()
    assert [change.done for change in decided] == [False]
    rig.store.tick()
    assert [change.done for change in decided] == [True]


def test_what_a_short_task_has_submitted_is_published_in_the_same_tick(rig: Rig) -> None:
    rig.append("t", 0)
    decided: list[PendingChange] = []
    rig.store.runner.start(appending(rig, Clock(rig), READY_S_MAX / 2, decided), Outcome())
    rig.store.tick()
    assert [change.done for change in decided] == [True]


def test_tasks_wait_one_tick_after_a_change_that_took_long_and_no_more(rig: Rig) -> None:
    rig.append("t", 0)
    clock = Clock(rig)
    decided: list[PendingChange] = []

    def slow(_: PendingChange) -> None:
        clock.now_s += READY_S_MAX

    rig.store.runner.start(appending(rig, clock, 0.0, decided), Outcome())
    for ticks in (0, 1):
        assert len(decided) == 0, ticks
        rig.engine.append("t", request(1)).then(slow)
        rig.store.tick()
    assert len(decided) == 1


def test_a_turn_beside_ticks_leaves_the_tasks_to_them(rig: Rig) -> None:
    rig.append("t", 0)
    decided: list[PendingChange] = []
    rig.store.runner.start(appending(rig, Clock(rig), 0.0, decided), Outcome())
    assert rig.store.turn(ticks=True) == 0.0
    assert decided == []
    rig.store.tick()
    assert len(decided) == 1


def test_changes_that_waited_for_one_sync_are_published_over_several_turns(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("t", durability="fsync")
    clock = Clock(rig)
    gate = disk.hold("fdatasync", path=".log")
    changes = [rig.engine.append("t", request(n)) for n in range(6)]
    for change in changes:
        change.then(lambda _: setattr(clock, "now_s", clock.now_s + READY_S_MAX / 2))
    rig.store.commit_log.flush()
    gate.open()
    done = [0]
    while done[-1] < len(changes):
        if not rig.store.has_work:
            assert done[-1] == 0, "a turn that has not published everything is repeated"
            rig.news.wait(NEWS_S_MAX)
        rig.store.turn(ticks=True)
        done.append(sum(change.done for change in changes))
    assert [count for count in done if count] == [2, 4, 6]
