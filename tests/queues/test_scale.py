"""Many jobs: what a claim and a deadline may cost must not grow with their number."""

from __future__ import annotations

from tests.queues.conftest import OpenRig
from tests.queues.queue_rig import QueueRig, request_of
from topics.engine.queues.claims import Claim
from topics.engine.queues.due import DueTimes
from topics.model.requests.records import ClaimRequest


def test_ready_jobs_are_no_objects(rig: QueueRig) -> None:
    rig.queue()
    for _ in range(10):
        rig.append("q", *range(2_000))
    _, queue = rig.parts()
    assert (queue.ready, len(queue.jobs)) == (20_000, 0)
    assert rig.claimed(max=8) == list(range(1, 9))
    assert len(queue.jobs) == 8
    rig.ack("w", *range(1, 9))
    assert not queue.jobs


def test_leases_that_run_out_together_are_one_step(open_rig: OpenRig) -> None:
    rig = open_rig(wal_file_bytes=1 << 20)
    rig.queue(lease_ms=1_000)
    for _ in range(10):
        rig.append("q", *range(1_000))
    for _ in range(10):
        rig.claim(max=1_000)
    _, queue = rig.parts()
    leases: DueTimes = queue._leases
    ((_, (group,)),) = leases.groups_from(0)
    assert len(group.jobs) == 10_000
    rig.clock.advance(1_001)
    assert rig.places() == (10_000, 0, 0)
    left = 10_000
    while left:
        left -= len(rig.claim(max=999))
        assert rig.places() == (left, 10_000 - left, 0), "exact after every step"


def test_many_delayed_jobs_do_not_stand_in_the_way(rig: QueueRig) -> None:
    rig.queue()
    for _ in range(5):
        rig.append("q", *[{"data": 1, "delay_ms": 60_000}] * 1_000)
    rig.jobs(1)
    _, queue = rig.parts()
    assert queue.cursor == 5_000, "nothing fresh lies before them"
    assert rig.claimed() == [5_001]
    assert rig.places() == (0, 1, 5_000)


def test_an_answer_has_a_bounded_size(rig: QueueRig) -> None:
    rig.queue()
    for _ in range(9):
        rig.append("q", *["x" * 1_000_000] * 8)
    topic, queue = rig.parts()
    _, grant = rig.drive(rig.store.claims.claim("q", request_of(ClaimRequest, node="w", max=100)))
    assert 64 << 20 < sum(map(len, grant.jobs)) < 66 << 20
    assert (queue.ready, topic.count, grant.more) == (72 - len(grant.seqs), 72, True)


def test_claimers_of_one_pass_do_not_share_the_size_of_one_answer(rig: QueueRig) -> None:
    rig.queue()
    for _ in range(9):
        rig.append("q", *["x" * 1_000_000] * 8)
    topic, queue = rig.parts()
    queues = rig.store.queues
    now = queues.bring_up(topic, queue)
    grants = queues.serve(topic, queue, [Claim("a", 36, 1_000), Claim("b", 36, 1_000)], now)
    assert [(len(grant.seqs), grant.more) for grant in grants] == [(36, False), (36, False)]


def test_distant_deadlines_leave_nothing_once_their_jobs_are_acked(rig: QueueRig) -> None:
    rig.queue(lease_ms=86_400_000)
    _, queue = rig.parts()
    leases: DueTimes = queue._leases
    for _ in range(1_500):
        seqs = rig.jobs(1)
        rig.claim()
        rig.ack("w", *seqs)
        rig.clock.advance(100)
    assert list(leases.groups_from(0)) == []
    assert len(leases._order) <= 1_100
