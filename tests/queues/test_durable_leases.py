"""The leases log: what a restart knows of who held what, durable or not, and what a failing disk does to it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Raw

from tests.engine.rig import Outcome
from tests.faults import FaultyDisk
from tests.queues.conftest import OpenRig
from tests.queues.queue_rig import QueueRig, request_of
from topics.engine.opening.repair import drop_damaged
from topics.engine.queues.claims import Claim
from topics.model.errors import TopicNotFound, TopicsError
from topics.model.requests.records import AppendRequest, ClaimRequest, RecordRequest

HOWS = ["crash", "reopen", "checkpoint_and_crash"]


def restart(rig: QueueRig, how: str) -> None:
    if how == "checkpoint_and_crash":
        rig.checkpoint()
        rig.crash()
    else:
        getattr(rig, how)()


@pytest.mark.parametrize("how", HOWS)
def test_without_durable_leases_every_job_in_flight_is_claimable_again(rig: QueueRig, how: str) -> None:
    rig.queue()
    rig.jobs(4)
    rig.claim(max=3)
    rig.ack("w", 2)
    rig.nack("w", 3, delay_ms=60_000)
    restart(rig, how)
    # A clean stop keeps everything but leases: how often a job was delivered, and until when it rests.
    kept = how == "reopen"
    assert rig.places() == ((2, 0, 1) if kept else (3, 0, 0))
    found = [(job["$seq"], job["deliveries"]) for job in rig.claim(max=9)]
    assert found == ([(1, 2), (4, 1)] if kept else [(1, 1), (3, 1), (4, 1)])


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_durable_leases_stand_after_a_restart(rig: QueueRig, how: str, durability: str) -> None:
    rig.queue(leases_durable=True, durability=durability, lease_ms=10_000)
    rig.jobs(6)
    tokens = {job["$seq"]: job["lease_id"] for job in rig.claim("a", max=5)}
    rig.ack("a", 1)
    rig.nack("a", 2)
    rig.nack("a", 3, delay_ms=2_000)
    rig.clock.advance(1_000)
    rig.extend("a", 4, lease_ms=20_000)
    restart(rig, how)
    assert rig.places() == (2, 2, 1)
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim("b", max=1)] == [(2, 2)]
    rig.clock.advance(1_000)
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim("b", max=9)] == [(3, 2), (6, 1)]
    rig.clock.advance(8_001)
    assert rig.claimed("b") == [5], "its lease ran out, that of 4 was extended"
    assert rig.ack("a", 4, lease_ids=[tokens[4]]).jobs == [4]


def test_a_worker_may_ack_after_the_restart_what_it_claimed_before(rig: QueueRig) -> None:
    rig.queue(leases_durable=True)
    rig.jobs(1)
    rig.claim("a")
    rig.crash()
    assert rig.claimed("b") == []
    assert rig.ack("a", 1).jobs == [1]
    rig.crash()
    assert rig.look("q").count == 0


def test_deliveries_are_counted_across_restarts(rig: QueueRig) -> None:
    rig.queue(leases_durable=True, lease_ms=1_000, max_deliveries=3, dead_letter="dead")
    rig.jobs(1)
    for deliveries in (1, 2, 3):
        assert rig.claim()[0]["deliveries"] == deliveries
        rig.clock.advance(1_001)
        rig.crash()
    assert rig.claimed() == []
    assert rig.look("dead").count == 1


def test_a_rest_after_a_lease_that_ran_out_survives_too(rig: QueueRig) -> None:
    rig.queue(leases_durable=True, lease_ms=1_000, retry_backoff={"initial_ms": 5_000})
    rig.jobs(1)
    rig.claim()
    rig.crash()
    rig.clock.advance(1_001)
    assert rig.places() == (0, 0, 1)
    rig.clock.advance(5_000)
    assert rig.places() == (1, 0, 0)


def test_leases_made_durable_later_and_deletes_between_are_sorted_out(rig: QueueRig) -> None:
    rig.queue()
    rig.append("q", *[{"data": n, "tag": f"t{n}"} for n in range(8)])
    rig.claim(max=2)
    rig.queue(leases_durable=True)
    rig.claim(max=3)
    rig.delete("q", match="t3")
    rig.crash()
    assert rig.places() == (5, 2, 0), "1 and 2 are claimable again, 3 and 5 are held, 4 is gone"
    assert rig.claimed("v", max=9) == [1, 2, 6, 7, 8]


def test_a_record_that_expired_without_a_word_in_the_log_needs_no_lease(rig: QueueRig) -> None:
    rig.queue(leases_durable=True, ttl_ms=1_000)
    rig.jobs(3)
    rig.clock.advance(800)
    rig.jobs(2)
    rig.clock.advance(300)
    assert rig.claimed(max=1) == [4]
    rig.crash()
    assert rig.places() == (1, 1, 0)
    assert rig.claimed(max=9) == [5]


@pytest.mark.parametrize("how", HOWS)
def test_a_lease_of_a_job_that_waited_does_not_make_fresh_jobs_look_handed_out(rig: QueueRig, how: str) -> None:
    rig.queue(leases_durable=True)
    rig.jobs(3)
    rig.append("q", *[{"data": n, "delay_ms": 300} for n in range(3)])
    rig.clock.advance(300)
    assert rig.claimed(max=1) == [4]
    restart(rig, how)
    assert rig.places() == (5, 1, 0)
    assert rig.parts()[1].cursor == 0
    assert rig.claimed(max=3) == [1, 5, 6], "those that waited first, then fresh ones"


def test_a_lease_that_the_log_refuses_is_nobodys(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.queue(leases_durable=True)
    rig.jobs(2)
    disk.fail("pwritev", path=".log")
    with pytest.raises(TopicsError):
        rig.claim(max=2)
    disk.heal()
    assert rig.places() == (2, 0, 0)
    assert [job["deliveries"] for job in rig.claim(max=2)] == [1, 1]


def test_an_ack_that_the_log_refuses_leaves_the_job_claimable(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.queue()
    rig.jobs(4)
    rig.claim(max=4)
    disk.fail("pwritev", path=".log")
    with pytest.raises(TopicsError):
        rig.ack("w", 1, 2, 3)
    disk.heal()
    assert rig.seqs("q") == [1, 2, 3, 4]
    assert rig.places() == (3, 1, 0)
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim(max=4)] == [(1, 2), (2, 2), (3, 2)]


def test_an_acked_job_stays_gone_after_a_crash(rig: QueueRig) -> None:
    for durability in ("disk", "fsync"):
        rig.queue(durability, durability=durability)
        rig.jobs(3, durability)
        rig.claim(name=durability, max=3)
        rig.ack("w", 1, 3, name=durability)
    rig.crash()
    assert rig.seqs("disk") == rig.seqs("fsync") == [2]


def test_an_ephemeral_queue_works_and_forgets(rig: QueueRig) -> None:
    rig.queue(durability="ephemeral", leases_durable=True)
    rig.jobs(3)
    rig.claim(max=2)
    rig.nack("w", 1)
    rig.ack("w", 2)
    assert rig.places() == (2, 0, 0)
    rig.crash()
    assert rig.places() == (0, 0, 0)
    rig.jobs(1)
    assert len(rig.claim(max=9)) == 1


def test_jobs_lost_to_a_damaged_pack_are_gone_from_the_counters(open_rig: OpenRig) -> None:
    rig = open_rig(segment_max_events=2, hot_retain_segments=0, hot_retain_bytes=0)
    rig.queue(leases_durable=True)
    for _ in range(3):
        rig.jobs(2)
    rig.claim(max=3)
    rig.checkpoint()
    rig.close()
    for pack in (rig.path / "shard-00" / "packs").glob("*.pack"):
        data = bytearray(pack.read_bytes())
        data[data.index(b'"data"')] ^= 1
        pack.write_bytes(data)
    rig.open()
    assert sum(rig.places()) == 6
    lost = drop_damaged(rig.store.state, rig.store.packs)
    assert lost
    assert 0 < rig.look("q").count < 6
    assert sum(rig.places()) == rig.look("q").count
    held = rig.seqs("q")
    rig.clock.advance(60_000)
    assert rig.claimed(max=9) == held


def test_a_queue_that_is_being_dropped_gives_out_no_jobs(open_rig: OpenRig) -> None:
    """In the log the lease would follow the drop, and a start would look for its queue."""
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.queue(leases_durable=True)
    outcome = Outcome[Any]()
    request = request_of(ClaimRequest, node="w", wait_ms=60_000)
    rig.store.runner.start(rig.store.claims.claim("q", request), outcome)
    gate = disk.hold("fdatasync", path=".log")
    rig.engine.append("q", AppendRequest([RecordRequest(Raw(b"1"))]))
    drop = rig.engine.drop("q")
    rig.store.flush()
    gate.open()
    rig.finish(drop)
    rig.store.flush()
    assert isinstance(outcome.error, TopicNotFound)
    rig.crash()
    assert not rig.store.state.by_name


def test_jobs_that_a_stream_leaves_in_a_queue_that_is_being_dropped_go_with_it(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.queue(leases_durable=True)
    rig.jobs(1)
    topic, queue, now = rig.store.queues.find("q")
    stream = rig.store.queues.open_stream(queue)
    rig.store.queues.serve(topic, queue, [Claim("w", 1, 60_000, stream)], now)
    rig.finish_all()
    gate = disk.hold("fdatasync", path=".log")
    drop = rig.engine.drop("q")
    rig.store.queues.close_stream(topic, queue, stream)
    gate.open()
    rig.finish(drop)
    rig.crash()
    assert not rig.store.state.by_name
