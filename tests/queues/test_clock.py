"""A wall clock that is put wrong, and right again: leases and delays last as long as they should, restarts included."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.queues.queue_rig import QueueRig
from topics import testing
from topics.model.clock import ManualClock, Moment, SteadyClock, SystemClock

HOUR_MS = 3_600_000
Restart = Callable[[QueueRig], None]
RESTARTS: list[Any] = [
    pytest.param(QueueRig.reopen, id="stopped"),
    pytest.param(QueueRig.crash, id="killed"),
]


def jump_and_return(rig: QueueRig, name: str = "q") -> None:
    """The clock is an hour ahead for a moment, and a record is written just then: its `$ts` holds up later ones."""
    rig.clock.step(HOUR_MS)
    rig.append(name, "written while the clock was wrong")
    rig.clock.step(-HOUR_MS)


def test_a_lease_ends_on_time_after_the_clock_jumped_ahead_and_back(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000)
    jump_and_return(rig)
    assert rig.claimed() == [1]
    rig.clock.advance(1_001)
    assert rig.claimed() == [1]


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
def test_a_step_of_the_clock_neither_ends_a_lease_nor_prolongs_it(rig: QueueRig, step_ms: int) -> None:
    rig.queue(lease_ms=1_000)
    rig.jobs(1)
    assert rig.claimed() == [1]
    rig.clock.step(step_ms)
    assert rig.places() == (0, 1, 0)
    assert rig.ack("other", 1).skipped == [1]
    rig.clock.advance(1_000)
    assert rig.places() == (0, 1, 0)
    rig.clock.advance(1)
    assert rig.places() == (1, 0, 0)


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS])
def test_a_step_of_the_clock_neither_ends_a_delay_nor_prolongs_it(rig: QueueRig, step_ms: int) -> None:
    rig.queue()
    rig.append("q", {"data": 1, "delay_ms": 5_000})
    rig.append("q", 2)
    assert rig.claimed(max=2) == [2]
    rig.nack("w", 2, delay_ms=7_000)
    rig.clock.step(step_ms)
    rig.clock.advance(4_999)
    assert rig.places() == (0, 0, 2)
    rig.clock.advance(1)
    assert rig.claimed(max=2) == [1]
    rig.clock.advance(2_000)
    assert rig.claimed(max=2) == [2]


def test_a_delay_counts_from_now_even_where_ts_is_held_up(rig: QueueRig) -> None:
    rig.queue()
    jump_and_return(rig)
    rig.append("q", {"data": "later", "delay_ms": 5_000})
    first, second = rig.records("q")
    assert second["$ts"] >= first["$ts"] > rig.clock.now_ms()
    rig.ack("w", *rig.claimed())
    rig.clock.advance(5_000)
    assert rig.claimed() == [2]


def test_jobs_sent_home_at_a_rate_come_on_time_where_ts_is_held_up(rig: QueueRig) -> None:
    rig.queue(dead_letter="dead")
    jump_and_return(rig)
    rig.jobs(2)
    rig.nack("w", *rig.claimed(max=3), dead_letter=True)
    rig.redrive("dead", rate_per_s=1)
    assert rig.places() == (1, 0, 2)
    rig.crash()
    rig.clock.advance(2_000)
    assert rig.places() == (3, 0, 0)


@pytest.mark.parametrize("restart", RESTARTS)
def test_delays_and_durable_leases_end_on_time_after_a_restart(rig: QueueRig, restart: Restart) -> None:
    rig.queue(leases_durable=True, lease_ms=10_000)
    jump_and_return(rig)
    rig.append("q", {"data": "later", "delay_ms": 5_000})
    rig.append("q", "again later")
    assert rig.claimed(max=1) == [1]
    assert rig.claimed(max=1) == [3]
    rig.nack("w", 3, delay_ms=7_000)
    restart(rig)
    rig.clock.advance(5_000)
    assert rig.claimed("x") == [2]
    rig.clock.advance(2_000)
    assert rig.claimed("x") == [3]
    rig.clock.advance(3_001)
    assert rig.claimed("x") == [1]


@pytest.mark.parametrize("restart", RESTARTS)
def test_a_clock_that_was_wrong_at_the_start_and_put_right_while_the_server_is_down(
    rig: QueueRig, restart: Restart
) -> None:
    rig.clock.step(HOUR_MS)
    rig.reopen()
    rig.queue(leases_durable=True, lease_ms=10_000)
    rig.jobs(1)
    assert rig.claimed() == [1]
    rig.clock.step(-HOUR_MS)
    restart(rig)
    assert rig.places() == (0, 1, 0)
    rig.clock.advance(10_001)
    assert rig.claimed() == [1]


@pytest.mark.parametrize("restart", RESTARTS)
def test_a_clock_that_was_wrong_at_the_start_and_put_right_while_it_runs(rig: QueueRig, restart: Restart) -> None:
    rig.clock.step(HOUR_MS)
    rig.reopen()
    rig.queue(leases_durable=True, lease_ms=10_000)
    rig.jobs(2)
    assert rig.claimed() == [1]
    rig.clock.step(-HOUR_MS)
    assert rig.claimed() == [2]
    rig.clock.advance(1_000)
    restart(rig)
    rig.clock.advance(9_000)
    assert rig.places() == (0, 2, 0)
    rig.clock.advance(1_000)
    assert rig.claimed(max=2) == [1, 2]


def test_time_that_a_server_was_down_counts(rig: QueueRig) -> None:
    """Also where the steady clock has long been apart from the wall clock."""
    rig.clock.step(HOUR_MS)
    rig.reopen()
    rig.queue(leases_durable=True, lease_ms=10_000)
    rig.clock.step(-HOUR_MS)
    rig.jobs(1)
    assert rig.claimed() == [1]
    rig.close()
    rig.clock.advance(10_000)
    rig.open()
    assert rig.places() == (0, 1, 0)
    rig.clock.advance(1)
    assert rig.claimed() == [1]


def test_workers_are_shown_deadlines_by_the_wall_clock(rig: QueueRig) -> None:
    rig.queue(lease_ms=10_000)
    rig.jobs(2)
    rig.clock.step(-HOUR_MS)
    assert rig.claim()[0]["deadline"] == rig.clock.now_ms() + 10_000
    rig.clock.step(2 * HOUR_MS)
    assert rig.claim()[0]["deadline"] == rig.clock.now_ms() + 10_000
    assert rig.extend("w", 1, lease_ms=500).deadline == rig.clock.now_ms() + 500


def test_a_waiting_claim_is_answered_when_a_lease_ends_whatever_the_clock_did() -> None:
    clock = ManualClock()
    with testing.engine(clock=clock) as engine, engine.client() as client:
        client.create("q", type="queue", lease_ms=1_000)
        client.append("q", 1)
        assert [job.seq for job in client.claim("q", node="a")] == [1]
        clock.step(HOUR_MS)
        client.append("q", 2)
        clock.step(-HOUR_MS)
        assert [job.seq for job in client.claim("q", node="b")] == [2]
        before_ms = clock.monotonic_ms()
        assert [job.seq for job in client.claim("q", node="c", wait_ms=30_000)] == [1]
        assert clock.monotonic_ms() - before_ms < 2_000


def test_a_look_while_the_clock_is_ahead_does_not_hold_up_ts(rig: QueueRig) -> None:
    rig.queue()
    rig.clock.step(HOUR_MS)
    rig.diff("q")
    rig.claimed()
    rig.counters()
    rig.clock.step(-HOUR_MS)
    rig.jobs(1)
    assert rig.records("q")[0]["$ts"] == rig.clock.now_ms()


def test_records_do_not_expire_early_because_one_of_them_came_from_the_future(rig: QueueRig) -> None:
    rig.configure("log", ttl_ms=60_000)
    rig.append("log", 1)
    jump_and_return(rig, "log")
    assert rig.seqs("log") == [1, 2]
    rig.clock.advance(60_001)
    assert rig.seqs("log") == [2]


# --- the clock itself ---


def test_the_steady_clock_starts_at_the_wall_clocks_time_and_never_jumps() -> None:
    clock = ManualClock(5_000)
    steady = SteadyClock(clock)
    assert steady.now_ms() == 5_000
    clock.step(HOUR_MS)
    clock.advance(10)
    assert steady.now_ms() == 5_010
    assert steady.wall_ms(5_020) == clock.now_ms() + 10


def test_clocks_that_agree_show_the_same_moment() -> None:
    """A millisecond of rounding must not make two answers about one lease differ."""
    clock = ManualClock(5_000)
    steady = SteadyClock(clock)
    clock.step(999)
    assert steady.wall_ms(6_000) == 6_000


@pytest.mark.parametrize(
    ("now_ms", "starts_at_ms"),
    [(70_000, 30_000), (40_000, 10_000), (50_000, 10_000)],
    ids=["20 s later", "the clock went back", "at once"],
)
def test_the_steady_clock_goes_on_where_it_was(now_ms: int, starts_at_ms: int) -> None:
    assert SteadyClock(ManualClock(now_ms), Moment(10_000, 50_000)).now_ms() == starts_at_ms


def test_the_systems_steady_clock_is_the_time() -> None:
    clock = SystemClock()
    before_ms = clock.now_ms()
    assert before_ms - 1 <= SteadyClock(clock).now_ms() <= clock.now_ms() + 1


def test_a_directory_without_a_noted_time_opens(tmp_path: Path) -> None:
    with QueueRig(tmp_path / "data") as rig:
        rig.append("log", 1)
        assert rig.store.state.noted is None
        rig.reopen()
        assert rig.store.state.noted is None
        assert rig.seqs("log") == [1]
