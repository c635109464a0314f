"""`job_priority`: higher first, reclaimed before fresh within one, across restarts and through dead letters."""

from __future__ import annotations

from typing import Any

import pytest

from tests.serving import serving
from topics.client import Client, InvalidRequest, Outgoing
from topics.testing import engine


def claimed(client: Client, count: int = 1, queue: str = "q") -> list[Any]:
    return [job.data for job in client.claim(queue, max=count)]


def one_by_one(client: Client, queue: str = "q") -> list[Any]:
    """The order in which they are handed out; an answer itself is ascending by seq."""
    order: list[Any] = []
    while jobs := client.claim(queue):
        order.append(jobs[0].data)
        client.ack(queue, jobs)
    return order


def test_a_higher_priority_comes_first_and_equal_ones_in_order() -> None:
    with engine() as rig:
        client = rig.client()
        client.create("q", type="queue")
        client.append_many(
            "q",
            [Outgoing(f"{priority}.{number}", job_priority=priority) for number in (1, 2) for priority in (0, 5, 9, 1)],
        )
        client.append("q", "9.3", job_priority=9)
        client.append("q", "0.3")
        assert one_by_one(client) == ["9.1", "9.2", "9.3", "5.1", "5.2", "1.1", "1.2", "0.1", "0.2", "0.3"]
        assert client.state("q").count == 0


def test_an_answer_is_ascending_by_seq_whatever_was_chosen() -> None:
    with engine() as rig:
        client = rig.client()
        client.create("q", type="queue")
        client.append_many("q", [Outgoing(number, job_priority=number % 10) for number in range(20)])
        first, second = claimed(client, 4), claimed(client, 4)
        assert first == [8, 9, 18, 19]
        assert second == [6, 7, 16, 17]


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_restarts_keep_priorities(durable: bool, checkpointed: bool) -> None:
    with engine() as rig:
        client = rig.client()
        client.create("q", type="queue", leases_durable=durable)
        client.append_many(
            "q", [Outgoing(number, job_priority=number, delay_ms=5_000 * (number == 7)) for number in range(10)]
        )
        assert claimed(client) == [9]
        if checkpointed:
            assert rig._server.store.checkpoint()
        rig.restart()
        rig.advance(10_000)
        order = one_by_one(client)
        assert order == ([8, 7, 6, 5, 4, 3, 2, 1, 0] if durable else [9, 8, 7, 6, 5, 4, 3, 2, 1, 0])
        counters = client.state("q").queue
        assert counters is not None
        assert (counters.ready, counters.delayed, counters.in_flight) == (0, 0, int(durable))


def test_a_failed_job_comes_before_fresh_ones_of_its_priority_and_after_higher_ones() -> None:
    with engine() as rig:
        client = rig.client()
        client.create("q", type="queue")
        client.append_many(
            "q", [Outgoing("a", job_priority=3), Outgoing("b", job_priority=3), Outgoing("c", job_priority=4)]
        )
        (c,) = client.claim("q")
        (a,) = client.claim("q")
        assert (c.data, a.data) == ("c", "a")
        client.append("q", "d", job_priority=4)
        client.nack("q", [a])
        assert one_by_one(client) == ["d", "a", "b"]
        rig.advance(60_000)
        assert one_by_one(client) == ["c"], "an expired lease keeps its priority"


def test_a_dead_letter_comes_back_with_its_priority() -> None:
    with engine() as rig:
        client = rig.client()
        client.create("q", type="queue", dead_letter="dead", max_deliveries=1)
        client.append_many("q", [Outgoing("low"), Outgoing("high", job_priority=7)])
        for job in client.claim("q", max=2):
            client.nack("q", [job], dead_letter=True, error="no")
        letters = {record.data: record.meta or {} for record in client.diff("dead").records}
        assert letters["high"]["$dead_letter_priority"] == 7
        assert "$dead_letter_priority" not in letters["low"]
        client.redrive("dead")
        assert [job.job_priority for job in client.jobs("q", "ready")] == [0, 7]
        assert one_by_one(client) == ["high", "low"]


@pytest.mark.parametrize("wrong", [-1, 10, 2**70])
def test_anything_but_0_to_9_is_refused(wrong: int) -> None:
    with engine() as rig:
        client = rig.client()
        client.create("q", type="queue")
        with pytest.raises(InvalidRequest) as refused:
            client.append_many("q", [Outgoing(1), Outgoing(2, job_priority=wrong)])
        assert refused.value.detail["field"] == "records[1].job_priority"
        assert client.state("q").count == 0


def test_a_log_and_a_transaction_refuse_it() -> None:
    with engine() as rig:
        client = rig.client()
        client.create("log")
        client.create("q", type="queue")
        with pytest.raises(InvalidRequest, match="is for queues"):
            client.append("log", 1, job_priority=1)
        client.append("log", 1, job_priority=0)
        with pytest.raises(InvalidRequest, match="job_priority"):
            client.stage("app", 1, "s", 0, [Outgoing(1, topic="q", job_priority=1)])


def test_large_batches_and_unique_keys_have_it_too() -> None:
    with engine() as rig:
        client = rig.client()
        client.create("q", type="queue")
        jobs = [Outgoing(number, job_priority=number % 2, unique_key=str(number)) for number in range(3_000)]
        client.append_many("q", jobs)
        client.append("q", "again", job_priority=9, unique_key="0")
        assert claimed(client, 3) == [1, 3, 5], "a pending job keeps the priority it has"
        assert claimed(client) == [7]


def test_a_kill_keeps_priorities_and_loses_no_job(tmp_path: Any) -> None:
    with serving(tmp_path) as server:
        client = server.client()
        assert client.put("/v0/topics/q", {"type": "queue", "durability": "fsync"}).status == 201
        records = [{"data": number, "job_priority": number % 10} for number in range(200)]
        for first in range(0, 200, 7):
            assert client.post("/v0/topics/q", {"records": records[first : first + 7]}).status == 200
        held = client.post("/v0/topics/q/claim", {"node": "w", "max": 25}).json["claimed"]
        assert {job["data"] % 10 for job in held} == {9, 8}
        done = {"node": "w", "seqs": [job["$seq"] for job in held[:5]]}
        assert client.post("/v0/topics/q/ack", done).status == 200
    with serving(tmp_path) as server:
        client = server.client()
        order: list[int] = []
        while jobs := client.post("/v0/topics/q/claim", {"node": "w", "max": 1}).json["claimed"]:
            order.append(jobs[0]["data"])
        left = set(range(200)) - {job["data"] for job in held[:5]}
        assert sorted(order) == sorted(left)
        assert [number % 10 for number in order] == sorted((number % 10 for number in left), reverse=True)
