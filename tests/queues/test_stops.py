"""What a queue whose leases are not durable knows after a stop, and what a crash makes it forget."""

from pathlib import Path

import pytest

from tests.queues.queue_rig import QueueRig
from tests.serving import serving


def test_a_clean_stop_keeps_how_often_jobs_were_delivered(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000, max_deliveries=3, dead_letter="dead")
    rig.jobs(3)
    rig.nack("w", *rig.claimed(max=3), error="first try")
    assert rig.claimed(max=1) == [1]
    rig.reopen()
    assert rig.places() == (3, 0, 0)
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim(max=3)] == [(1, 3), (2, 2), (3, 2)]
    rig.nack("w", 1, 2, 3)
    rig.reopen()
    assert rig.claimed(max=3) == [2, 3]
    (letter,) = rig.records("dead")
    assert letter["meta"]["$dead_letter_deliveries"] == 3
    assert letter["meta"]["$dead_letter_error"] == "first try"


def test_a_clean_stop_keeps_delays_of_nacks(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(2)
    rig.nack("w", *rig.claimed(), delay_ms=60_000)
    rig.close()
    rig.clock.advance(20_000)
    rig.open()
    assert rig.places() == (1, 0, 1)
    rig.clock.advance(39_999)
    assert rig.claimed(max=2) == [2]
    rig.clock.advance(1)
    assert rig.claimed(max=2) == [1]


def test_a_clean_stop_keeps_the_rest_after_a_lease_that_ran_out(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000, retry_backoff={"initial_ms": 60_000, "jitter": 0})
    rig.jobs(1)
    assert rig.claimed() == [1]
    rig.clock.advance(1_001)
    assert rig.places() == (0, 0, 1)
    rig.reopen()
    assert rig.places() == (0, 0, 1)


def test_a_stop_without_any_write_before_it_counts(rig: QueueRig) -> None:
    """Claims and nacks alone are nothing that a checkpoint would have to look at."""
    rig.queue()
    rig.jobs(1)
    rig.checkpoint()
    rig.nack("w", *rig.claimed(), delay_ms=60_000)
    rig.reopen()
    assert rig.places() == (0, 0, 1)


def test_a_lease_that_is_not_durable_ends_with_the_process(rig: QueueRig) -> None:
    rig.queue(lease_ms=60_000)
    rig.jobs(1)
    assert rig.claimed("before") == [1]
    rig.reopen()
    assert rig.ack("before", 1).skipped == [1]
    assert rig.claim("after")[0]["deliveries"] == 2


def test_a_crash_after_a_clean_stop_forgets_only_what_came_after_it(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(3)
    rig.nack("w", *rig.claimed(max=2))
    rig.reopen()
    assert [job["deliveries"] for job in rig.claim(max=3)] == [2, 2, 1]
    rig.ack("w", 1)
    rig.crash()
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim(max=3)] == [(2, 2), (3, 1)]


def test_a_crash_forgets_deliveries_and_delays_of_nacks_but_no_job(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(2)
    rig.append("q", {"data": "later", "delay_ms": 1_000})
    rig.nack("w", *rig.claimed(max=2), delay_ms=60_000)
    rig.checkpoint()
    rig.crash()
    assert rig.places() == (2, 0, 1)
    assert [job["deliveries"] for job in rig.claim(max=2)] == [1, 1]


def test_an_ephemeral_queue_forgets_its_jobs_with_a_clean_stop(rig: QueueRig) -> None:
    rig.queue(durability="ephemeral")
    rig.jobs(2)
    rig.nack("w", *rig.claimed())
    rig.reopen()
    assert rig.places() == (0, 0, 0)
    rig.jobs(1)
    assert [job["deliveries"] for job in rig.claim()] == [1]


def test_durable_leases_stand_after_a_clean_stop(rig: QueueRig) -> None:
    rig.queue(leases_durable=True)
    rig.jobs(1)
    assert rig.claimed() == [1]
    rig.reopen()
    assert rig.ack("w", 1).jobs == [1]


@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_server(tmp_path: Path, *, clean: bool) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        client.put("/v0/topics/q", {"type": "queue"})
        client.append("q", 1, 2)
        client.post("/v0/topics/q/claim", {"node": "w", "max": 2})
        client.post("/v0/topics/q/nack", {"node": "w", "seqs": [1], "delay_ms": 86_400_000})
        assert client.state("q")["queue"]["delayed"] == 1
        client.close()
        if clean:
            server.terminate()
        else:
            server.kill()
    with serving(tmp_path) as server:
        client = server.client()
        assert client.state("q")["queue"]["delayed"] == clean
        jobs = client.post("/v0/topics/q/claim", {"node": "w", "max": 2}).json["claimed"]
        assert [(job["$seq"], job["deliveries"]) for job in jobs] == ([(2, 2)] if clean else [(1, 1), (2, 1)])
        client.close()
