"""Sharing: what claimers get in one pass, round-robin one by one, and when a pass is made."""

from __future__ import annotations

import gc
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tests.queues.queue_rig import QueueRig
from topics.engine.core.waiting.deadlines import PolledTimers
from topics.engine.queues.claims import Claim, Grant, deal
from topics.engine.queues.waiting_claims import Claimers


def shares(rig: QueueRig, wanted: list[int]) -> list[list[int]]:
    topic, queue = rig.parts()
    claims = [Claim(f"w{number}", count, 30_000) for number, count in enumerate(wanted)]
    queues = rig.store.queues
    return [grant.seqs for grant in queues.serve(topic, queue, claims, queues.bring_up(topic, queue))]


def test_ten_claimers_of_ten_on_fifty_jobs_get_five_each(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(50)
    assert [len(share) for share in shares(rig, [10] * 10)] == [5] * 10
    assert rig.places() == (0, 50, 0)


def test_a_claimer_with_enough_is_skipped_and_the_others_share_the_rest(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(10)
    assert shares(rig, [1, 9, 3]) == [[1], [2, 4, 6, 8, 9, 10], [3, 5, 7]]


def test_enough_jobs_satisfy_everyone_and_the_rest_stays(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(10)
    assert [len(share) for share in shares(rig, [2, 3, 1])] == [2, 3, 1]
    assert rig.places() == (4, 6, 0)


def test_each_share_is_ascending_although_given_back_jobs_are_dealt_first(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(8)
    rig.claim(max=6)
    rig.nack("w", 5, 6)
    for share in shares(rig, [2, 2]):
        assert share == sorted(share)
        assert len(share) == 2


@given(wanted=st.lists(st.integers(1, 9), min_size=1, max_size=9), jobs=st.integers(0, 60))
def test_no_two_shares_differ_by_more_than_one_unless_one_had_enough(wanted: list[int], jobs: int) -> None:
    claims = [Claim("w", count, 1_000) for count in wanted]
    dealt = deal([(seq, None, b"", None) for seq in range(min(jobs, sum(wanted)))], claims)
    sizes = [len(share) for share in dealt]
    assert sum(sizes) == min(jobs, sum(wanted))
    assert all(size <= count for size, count in zip(sizes, wanted, strict=True))
    hungry = [size for size, count in zip(sizes, wanted, strict=True) if size < count]
    assert not hungry or max(sizes) <= max(hungry) + 1 or min(hungry) >= max(sizes) - 1
    assert sorted(seq for share in dealt for seq, *_ in share) == list(range(sum(sizes)))


def test_a_pass_over_jobs_that_are_all_taken_gives_nothing(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(2)
    rig.claim(max=2)
    assert shares(rig, [1, 1]) == [[], []]


class Asking:
    """A claimer that takes one job and goes."""

    def __init__(self) -> None:
        self.got: list[int] = []

    def claim(self) -> Claim:
        return Claim("w", 1, 1_000)

    def granted(self, grant: Grant) -> bool:
        self.got += grant.seqs
        return not grant.seqs

    def failed(self, error: Any) -> bool:
        raise error


def turn(rig: QueueRig) -> None:
    """What the host does when the clock has moved or a task can continue."""
    assert isinstance(rig.store.timers, PolledTimers)
    rig.store.timers.poll()
    rig.store.flush()


def test_claimers_of_a_queue_are_served_when_their_window_is_over(rig: QueueRig) -> None:
    rig.queue(claim_jitter_ms=100, lease_ms=1_000)
    rig.jobs(4)
    topic, queue = rig.parts()
    claimers, asking = rig.store.claims.claimers(topic, queue), [Asking() for _ in range(3)]
    for one in asking:
        claimers.add(one)
    turn(rig)
    assert [one.got for one in asking] == [[], [], []]
    rig.clock.advance(110)
    turn(rig)
    assert [one.got for one in asking] == [[1], [2], [3]]


def test_a_claimer_that_waits_gets_a_job_when_its_lease_expires(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000)
    rig.jobs(1)
    rig.claim()
    topic, queue = rig.parts()
    asking = Asking()
    rig.store.claims.claimers(topic, queue).add(asking)
    turn(rig)
    assert not asking.got
    rig.clock.advance(1_010)
    turn(rig)
    assert asking.got == [1]


def test_claimers_that_nobody_needs_any_more_are_freed_without_a_collection(rig: QueueRig) -> None:
    rig.queue(claim_jitter_ms=100, lease_ms=1_000)
    rig.jobs(2)
    topic, queue = rig.parts()
    gc.collect()
    gc.disable()
    try:
        claimers, asking = rig.store.claims.claimers(topic, queue), Asking()
        claimers.add(asking)
        del claimers
        turn(rig)
        rig.clock.advance(110)
        turn(rig)
        assert asking.got == [1]
        assert (len(rig.store.claims), topic.waiters, len(rig.store.deadlines)) == (0, None, 0)
        assert not [thing for thing in gc.get_objects() if isinstance(thing, Claimers)]
    finally:
        gc.enable()
