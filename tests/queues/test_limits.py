"""Limits: how many jobs are in flight and how many a second, in all and per tag; what they hold back, and how long."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engine.rig import Outcome
from tests.queues.queue_rig import QueueRig, request_of
from tests.queues.test_results import cancel
from tests.serving import Client, ServerProcess, serving
from topics import testing
from topics.client import Client as PyClient
from topics.client import Outgoing
from topics.engine.queues.claims import Grant
from topics.engine.queues.limits.rate import Rate
from topics.engine.queues.queue import Queue
from topics.model.requests.jobs import JobsRequest
from topics.model.requests.records import ClaimRequest

MINUTE_MS = 60_000


def limit(client: Client, queue: str, **limits: Any) -> None:
    assert client.request("PATCH", f"/v0/topics/{queue}", limits).status == 200


def jobs(client: Client, queue: str, *tags: str | None) -> None:
    records = [{"data": number} | ({"tag": tag} if tag else {}) for number, tag in enumerate(tags)]
    assert client.post(f"/v0/topics/{queue}", {"records": records}).status == 200


def claim(client: Client, queue: str, **fields: Any) -> dict[str, Any]:
    reply = client.post(f"/v0/topics/{queue}/claim", {"node": "w", "max": 10, "lease_ms": MINUTE_MS, **fields})
    assert reply.status == 200, reply
    return reply.json


def seqs(answer: dict[str, Any]) -> list[int]:
    return [job["$seq"] for job in answer["claimed"]]


def said(answer: dict[str, Any]) -> tuple[int, int, bool, str | None]:
    """Claimed, still ready, whether there are more, and why."""
    return answer["count"], answer["ready"], answer.get("more", False), answer.get("limited_by")


def done(client: Client, queue: str, verb: str, *acked: int, **fields: Any) -> None:
    assert client.post(f"/v0/topics/{queue}/{verb}", {"node": "w", "seqs": list(acked), **fields}).status == 200


# --- what an answer says ---


def test_no_more_jobs_than_allowed_are_in_flight(client: Client, queue: str) -> None:
    limit(client, queue, max_in_flight=3)
    jobs(client, queue, *[None] * 5)
    assert said(claim(client, queue, max=2)) == (2, 3, False, None)
    assert said(claim(client, queue)) == (1, 2, True, "max_in_flight")
    assert said(claim(client, queue)) == (0, 2, True, "max_in_flight")
    counters = client.state(queue)["queue"]
    assert (counters["ready"], counters["in_flight"], counters["limited_by"]) == (2, 3, "max_in_flight")
    done(client, queue, "ack", 1, 2)
    assert said(claim(client, queue)) == (2, 0, False, None), "the queue is empty, that is no limit"
    assert client.state(queue)["queue"]["limited_by"] is None


def test_jobs_of_a_tag_come_one_at_a_time_and_in_order(client: Client, queue: str) -> None:
    limit(client, queue, max_in_flight_per_tag=1)
    jobs(client, queue, "a", "a", "b", "a", None, None, "b")
    assert seqs(claim(client, queue)) == [1, 3, 5, 6], "those without a tag are not limited"
    assert said(claim(client, queue)) == (0, 3, True, "max_in_flight_per_tag")
    counters = client.state(queue)["queue"]
    assert (counters["held_back"], counters["limited_by"]) == (3, "max_in_flight_per_tag")
    done(client, queue, "ack", 1)
    assert seqs(claim(client, queue)) == [2]
    done(client, queue, "ack", 2, 3)
    assert seqs(claim(client, queue)) == [4, 7]
    counters = client.state(queue)["queue"]
    assert (counters["held_back"], counters["limited_by"]) == (0, None)


def test_a_job_that_failed_holds_back_later_ones_of_its_tag_until_it_is_done(client: Client, queue: str) -> None:
    limit(client, queue, max_in_flight_per_tag=1)
    jobs(client, queue, "a", "a", "b")
    assert seqs(claim(client, queue, max=1)) == [1]
    done(client, queue, "nack", 1, delay_ms=MINUTE_MS)
    assert seqs(claim(client, queue)) == [3], "it rests"
    assert client.post(f"/v0/topics/{queue}/jobs", {"action": "retry", "state": "delayed", "all": True}).status == 200
    assert seqs(claim(client, queue)) == [1], "it comes before the next one"
    done(client, queue, "nack", 1)
    assert seqs(claim(client, queue)) == [1]
    done(client, queue, "ack", 1)
    assert seqs(claim(client, queue)) == [2]


def test_a_job_that_was_appended_with_a_delay_holds_nothing_back(client: Client, queue: str) -> None:
    limit(client, queue, max_in_flight_per_tag=1)
    later = {"data": 1, "tag": "a", "delay_ms": MINUTE_MS}
    client.post(f"/v0/topics/{queue}", {"records": [later, {"data": 2, "tag": "a"}]})
    assert seqs(claim(client, queue)) == [2]


def test_limits_of_a_log_are_accepted_and_do_nothing(client: Client) -> None:
    reply = client.put("/v0/topics/limited-log", {"max_in_flight": 1, "rate_per_s": 0.5})
    assert (reply.status, reply.json["config"]["rate_per_s"]) == (201, 0.5)
    assert client.append("limited-log", 1, 2, 3).status == 200


def test_a_burst_without_a_rate_is_warned_about(client: Client, queue: str) -> None:
    reply = client.request("PATCH", f"/v0/topics/{queue}", {"burst": 5})
    assert reply.json["warnings"] == ["burst is 5, but rate_per_s sets no rate: it has no effect"]


# --- claims that wait ---


@pytest.mark.parametrize("per_tag", [False, True])
@pytest.mark.parametrize("how", ["ack", "result", "nack", "delete", "cancel", "bury", "release", "limit", "no limit"])
def test_a_waiting_claim_wakes_when_there_is_room(
    server: ServerProcess, client: Client, queue: str, how: str, per_tag: bool
) -> None:
    name = "max_in_flight_per_tag" if per_tag else "max_in_flight"
    # Synced, so that an ack is decided in one tick and published in another.
    limit(client, queue, **{name: 1}, dead_letter=f"{queue}.dead", durability="fsync")
    if how == "result":
        limit(client, queue, keep_results_ms=MINUTE_MS)
    jobs(client, queue, "a", "a")
    claim(client, queue, max=1)
    waiting = server.waiting("POST", f"/v0/topics/{queue}/claim", {"node": "v", "wait_ms": 30_000})
    expected = 1 if how in ("nack", "release") else 2
    match how:
        case "ack" | "nack":
            done(client, queue, how, 1)
        case "result":
            done(client, queue, "ack", 1, result={"done": True})
        case "delete":
            assert client.post(f"/v0/topics/{queue}/delete", {"before_seq": 2}).status == 200
        case "cancel":
            assert client.post(f"/v0/topics/{queue}/cancel", {"seqs": [1]}).status == 200
        case "bury" | "release":
            act = {"action": how, "state": "leased", "all": True}
            assert client.post(f"/v0/topics/{queue}/jobs", act).status == 200
        case "limit":
            limit(client, queue, **{name: 2})
        case _:
            limit(client, queue, **{name: None})
    assert seqs(waiting.end().json) == [expected]


def test_a_waiting_claim_wakes_when_a_lease_expires_and_when_a_rest_is_over() -> None:
    with testing.engine() as engine, engine.client() as client:
        client.create("q", type="queue", max_in_flight_per_tag=1, lease_ms=1_000)
        client.append_many("q", [Outgoing(1, tag="a"), Outgoing(2, tag="a")])
        assert [job.seq for job in client.claim("q")] == [1]
        (job,) = client.claim("q", wait_ms=20_000)
        assert (job.seq, job.deliveries) == (1, 2), "its lease has expired"
        client.nack("q", [job], delay_ms=5_000)
        (job,) = client.claim("q", wait_ms=20_000)
        assert (job.seq, job.deliveries) == (1, 3), "its rest is over"
        client.ack("q", [job])
        assert [job.seq for job in client.claim("q", wait_ms=20_000)] == [2]


def waiting_claim(rig: QueueRig, **fields: Any) -> Outcome[tuple[Queue, Grant]]:
    outcome: Outcome[tuple[Queue, Grant]] = Outcome()
    rig.store.runner.start(rig.store.claims.claim("q", request_of(ClaimRequest, node="v", **fields)), outcome)
    return outcome


def turns(rig: QueueRig) -> None:
    """Whatever can happen now, as an event loop would do it."""
    for _ in range(5):
        rig.work()
        rig.store.settle()
        rig.store.flush()


def test_a_claim_on_a_queue_that_was_paused_in_the_middle_of_one_is_answered(rig: QueueRig) -> None:
    rig.queue(max_in_flight_per_tag=1)
    rig.append("q", *[{"data": 0, "tag": "a"}] * 2_100)
    assert rig.claimed(max=5) == [1]
    assert rig.parts()[1].unfinished, "it has not looked at all of them"
    rig.pause(paused=True)
    outcome = waiting_claim(rig)
    turns(rig)
    assert [grant.seqs for _, grant in outcome.values] == [[]]
    rig.pause(paused=False)
    rig.jobs(1)
    assert rig.claimed(max=5) == [2_101]


def test_a_waiting_claim_wakes_when_a_job_in_flight_expires(rig: QueueRig) -> None:
    rig.queue(ttl_ms=2_000, max_in_flight=1, lease_ms=60_000)
    rig.jobs(1)
    rig.clock.advance(1_500)
    rig.jobs(1)
    assert rig.claimed() == [1]
    outcome = waiting_claim(rig, wait_ms=30_000)
    turns(rig)
    assert not outcome.over
    rig.clock.advance(900)
    turns(rig)
    assert [grant.seqs for _, grant in outcome.values] == [[2]]


@pytest.mark.parametrize("end", ["ack", "dead letter", "cancel", "delete"])
@pytest.mark.parametrize("per_tag", [False, True])
def test_a_waiting_claim_wakes_when_the_end_of_a_job_is_published(rig: QueueRig, end: str, per_tag: bool) -> None:
    limit: dict[str, Any] = {"max_in_flight_per_tag" if per_tag else "max_in_flight": 1}
    rig.queue(dead_letter="dead", durability="fsync", keep_results_ms=MINUTE_MS, **limit)
    rig.append("q", *[{"data": 0, "tag": "a"}] * 2)
    assert rig.claimed() == [1]
    outcome = waiting_claim(rig, wait_ms=30_000)
    turns(rig)
    assert not outcome.over
    match end:
        case "ack":
            rig.ack("w", 1)
        case "cancel":
            cancel(rig, 1)
        case "delete":
            rig.delete("q", before_seq=2)
        case _:
            rig.nack("w", 1, dead_letter=True)
    turns(rig)
    assert [grant.seqs for _, grant in outcome.values] == [[2]]


def test_work_streams_keep_the_limits(server: ServerProcess) -> None:
    with PyClient(f"http://127.0.0.1:{server.port}") as client:
        client.create("limited-work", type="queue", max_in_flight_per_tag=1, max_in_flight=2)
        client.append_many("limited-work", [Outgoing(number, tag="abc"[number % 3]) for number in range(9)])
        seen: list[int] = []
        with client.work("limited-work", max=5, node="w") as work:
            for job in work:
                held = client.state("limited-work").queue
                assert held is not None
                assert held.in_flight <= 2
                seen.append(job.seq)
                client.ack("limited-work", [job], node="w")
                if len(seen) == 9:
                    break
        assert sorted(seen) == list(range(1, 10))
        for first in (1, 2, 3):
            assert [seq for seq in seen if seq % 3 == first % 3] == [first, first + 3, first + 6]


def test_an_embedded_database_keeps_them_too(tmp_path: Path) -> None:
    import topics

    with topics.open(str(tmp_path / "data")) as db:
        db.create("q", type="queue", max_in_flight_per_tag=1)
        db.append_many("q", [Outgoing(1, tag="a"), Outgoing(2, tag="a"), Outgoing(3)])
        held = db.claim("q", max=9)
        assert [job.seq for job in held] == [1, 3]
        assert db.claim("q", max=9) == []
        db.ack("q", held)
        assert [job.seq for job in db.claim("q", max=9)] == [2]


# --- rates ---


def test_a_rate_lets_a_burst_through_and_then_one_by_one() -> None:
    with testing.engine() as engine, engine.client() as client:
        client.create("q", type="queue", rate_per_s=2, burst=3)
        client.append_many("q", [Outgoing(number) for number in range(9)])
        assert len(client.claim("q", max=9)) == 3
        assert client.claim("q", max=9) == []
        state = client.state("q").queue
        assert state is not None
        assert state.limited_by == "rate_per_s"
        before_ms = engine.clock.monotonic_ms()
        assert len(client.claim("q", max=9, wait_ms=30_000)) == 1
        assert 500 <= engine.clock.monotonic_ms() - before_ms <= 600, "woken when the next one is due"
        engine.advance(1_000)
        assert len(client.claim("q", max=9)) == 2


def test_the_rate_of_a_tag_does_not_hold_back_others() -> None:
    with testing.engine() as engine, engine.client() as client:
        client.create("q", type="queue", rate_per_s_per_tag=0.1)
        client.append_many("q", [Outgoing(number, tag="ab"[number // 3]) for number in range(6)])
        held = client.claim("q", max=9)
        assert [job.seq for job in held] == [1, 4]
        client.ack("q", held)
        assert client.claim("q", max=9) == [], "an ack does not make it faster"
        before_ms = engine.clock.monotonic_ms()
        assert [job.seq for job in client.claim("q", max=9, wait_ms=30_000)] == [2, 5]
        assert 10_000 <= engine.clock.monotonic_ms() - before_ms <= 10_100


def test_buckets_are_full_after_a_restart_and_those_of_idle_tags_are_forgotten() -> None:
    with testing.engine() as engine, engine.client() as client:
        client.create("q", type="queue", rate_per_s_per_tag=0.01, burst_per_tag=1)
        client.append_many("q", [Outgoing(1, tag="a"), Outgoing(2, tag="a")])
        client.ack("q", client.claim("q", max=9))
        engine.restart()
        assert [job.seq for job in client.claim("q", max=9)] == [2]
        engine.advance(200_000)
        client.append_many("q", [Outgoing(number, tag=f"t{number}") for number in range(50)])
        client.ack("q", client.claim("q", max=100))
        engine.advance(200_000)
        client.append("q", 1, tag="b")
        for _ in range(40):
            client.claim("q")
        queue: Any = engine._server.store.state.by_name["q"].queue
        assert list(queue.jobs.limits.tags._lines) == [b"b"]


@pytest.mark.parametrize("suffix", ["", "_per_tag"])
def test_a_raised_rate_holds_at_once(rig: QueueRig, suffix: str) -> None:
    rig.queue(**{f"rate_per_s{suffix}": 1 / 60, f"burst{suffix}": 50})
    rig.append("q", *[{"data": 0, "tag": "a"}] * 100)
    assert len(rig.claimed(max=100)) == 50
    raised: dict[str, Any] = {f"rate_per_s{suffix}": 100, f"burst{suffix}": 100}
    rig.edit("q", **raised)
    assert rig.claimed(max=100) == [], "the bucket is empty"
    rig.clock.advance(100)
    assert len(rig.claimed(max=100)) == 10
    rig.clock.advance(1_000)
    assert len(rig.claimed(max=100)) == 40


@given(
    per_s=st.floats(0.01, 5_000),
    burst=st.integers(1, 20),
    waits=st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 30)), min_size=1, max_size=30),
)
def test_a_rate_is_never_exceeded_and_never_holds_back_longer_than_it_says(
    per_s: float, burst: int, waits: list[tuple[int, int]]
) -> None:
    rate, full_ms, now, out = Rate(per_s, burst), 0.0, 1_700_000_000_000, 0
    started = now
    for wait_ms, wanted in waits:
        now += wait_ms
        room = min(wanted, rate.room(full_ms, now))
        full_ms = rate.after(full_ms, now, room)
        out += room
        assert out <= burst + (now - started) * per_s / 1_000 + 0.01
        if not rate.room(full_ms, now):
            due = rate.due_ms(full_ms)
            assert due > now
            assert rate.room(full_ms, due) > 0
            assert not rate.room(full_ms, due - 2)


# --- restarts ---


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("durable", [False, True])
def test_after_a_restart_the_leases_that_survive_count(rig: QueueRig, durable: bool, checkpointed: bool) -> None:
    rig.queue(max_in_flight_per_tag=1, max_in_flight=2, leases_durable=durable, durability="fsync")
    rig.append("q", *[{"data": number, "tag": "abc"[number % 3]} for number in range(9)])
    assert rig.claimed(max=9) == [1, 2]
    rig.ack("w", 2)
    assert rig.claimed(max=9) == [3], "b has jobs before c's next, but 5 comes after 3"
    if checkpointed:
        rig.checkpoint()
    rig.crash()
    assert rig.places() == ((6, 2, 0) if durable else (8, 0, 0))
    assert rig.claimed(max=9) == ([] if durable else [1, 3])
    if durable:
        rig.ack("w", 1)
        assert rig.claimed(max=9) == [4]
        rig.ack("w", 3, 4)
    else:
        rig.ack("w", 1, 3)
    assert rig.claimed(max=9) == ([5, 6] if durable else [4, 5])


def test_a_kill_keeps_the_order_of_each_tag(tmp_path: Path) -> None:
    order: list[int] = []
    config = {"type": "queue", "durability": "fsync", "leases_durable": True, "max_in_flight_per_tag": 1}
    with serving(tmp_path) as server:
        client = server.client()
        assert client.put("/v0/topics/q", config).status == 201
        jobs(client, "q", *["a"] * 30, *["b"] * 30)
        for _ in range(10):
            held = seqs(claim(client, "q"))
            order += held
            done(client, "q", "ack", *held)
        running = seqs(claim(client, "q"))
        assert running == [11, 41]
    with serving(tmp_path) as server:
        client = server.client()
        assert said(claim(client, "q"))[::3] == (0, "max_in_flight_per_tag"), "their leases have survived"
        order += running
        done(client, "q", "ack", *running)
        while held := seqs(claim(client, "q")):
            order += held
            done(client, "q", "ack", *held)
    assert [seq for seq in order if seq <= 30] == list(range(1, 31))
    assert [seq for seq in order if seq > 30] == list(range(31, 61))


# --- many ---


def test_a_million_jobs_of_a_tag_without_room_are_met_once(rig: QueueRig) -> None:
    """Fifty thousand here: it is the number of visits that counts."""
    rig.queue(max_in_flight_per_tag=1)
    for _ in range(50):
        rig.append("q", *[{"data": 1, "tag": "large"}] * 1_000)
    rig.append("q", *[{"data": 1, "tag": f"small{number}"} for number in range(20)])
    topic, queue = rig.parts()
    assert rig.claimed() == [1]
    queues = rig.store.queues
    steps = 0
    while True:
        now = queues.bring_up(topic, queue)
        grant = queues.serve_one(
            topic, queue, queues.read_claim(request_of(ClaimRequest, node="w", lease_ms=1_000)), now
        )
        steps += 1
        if not queue.unfinished:
            break
        assert not grant.seqs
    assert grant.seqs == [50_001], "the first of another tag"
    assert steps == 25, "each step looks at two thousand"
    assert (queue.parked, len(queue.jobs), rig.counters().held_back) == (49_999, 2, 49_999)
    now = queues.bring_up(topic, queue)
    grant = queues.serve_one(topic, queue, queues.read_claim(request_of(ClaimRequest, node="w", max=9)), now)
    assert grant.seqs == list(range(50_002, 50_011))
    assert not queue.unfinished, "and the next claim none of them"
    limits: Any = queue.limits
    waiting: array[int] = limits.tags._lines[b"large"]._seqs
    assert len(waiting) * waiting.itemsize == 49_999 * 8
    assert rig.claimed(max=1) == [50_011]
    rig.ack("w", 1)
    assert rig.claimed(max=1) == [2]


def test_a_claim_that_meets_many_goes_on_in_steps_until_it_has_a_job(rig: QueueRig) -> None:
    rig.queue(max_in_flight_per_tag=1)
    for _ in range(10):
        rig.append("q", *[{"data": 1, "tag": "large"}] * 1_000)
    rig.jobs(1)
    assert rig.claimed(max=2) == [1], "the first part of it"
    assert rig.claimed(max=2) == [10_001]
    assert rig.claimed(max=2) == []
    assert rig.places() == (9_999, 2, 0)


@pytest.mark.parametrize("how", ["purge", "evict", "expire"])
def test_jobs_that_go_while_they_wait_leave_nothing(rig: QueueRig, how: str) -> None:
    rig.queue(max_in_flight_per_tag=1, ttl_ms=10_000, lease_ms=60_000)
    rig.append("q", *[{"data": number, "tag": "a"} for number in range(3_000)])
    assert rig.claimed(max=2) == [1]
    assert rig.claimed(max=2) == []
    match how:
        case "purge":
            rig.delete("q", match="a")
        case "evict":
            rig.edit("q", cap_records=1)
        case _:
            rig.clock.advance(10_001)
    rig.append("q", {"data": "new", "tag": "a"})
    assert rig.claimed(max=2) == [3_001]
    _, queue = rig.parts()
    limits: Any = queue.limits
    assert (queue.ready, queue.parked, limits.tags.waiting) == (0, 0, 0)
    assert len(limits.tags._lines[b"a"]._seqs) == 0


def test_a_line_that_never_opens_does_not_keep_what_retention_removes(rig: QueueRig) -> None:
    rig.queue(rate_per_s_per_tag=0.000_001, cap_records=100)
    for _ in range(100):
        rig.append("q", *[{"data": 1, "tag": "a"}] * 100)
        rig.claim(max=1)
    _, queue = rig.parts()
    limits: Any = queue.limits
    assert len(limits.tags._lines[b"a"]._seqs) <= 2_048
    assert queue.parked == queue.ready == 100


def test_waiting_jobs_keep_their_priorities_and_come_after_those_that_failed(rig: QueueRig) -> None:
    rig.queue(max_in_flight_per_tag=1)
    priorities = [0, 0, 3, 9, 3, 0]
    rig.append("q", *[{"data": 1, "tag": "a", "job_priority": priority} for priority in priorities])
    order: list[int] = []
    assert rig.claimed(max=9) == [4]
    rig.nack("w", 4, delay_ms=100)
    assert rig.claimed(max=9) == []
    rig.clock.advance(101)
    while held := rig.claimed(max=9):
        order += held
        if len(order) == 2:
            rig.nack("w", *held)
        else:
            rig.ack("w", *held)
    assert order == [4, 3, 3, 5, 1, 2, 6]


def test_a_job_with_a_priority_does_not_wait_behind_the_head_its_line_had_before(rig: QueueRig) -> None:
    rig.queue(max_in_flight_per_tag=1)
    rig.append("q", *[{"data": 1, "tag": "a"}] * 2)
    assert rig.claimed(max=5) == [1]
    rig.append("q", {"data": 1, "tag": "a", "job_priority": 9})
    rig.ack("w", 1)
    assert rig.claimed() == [3], "2 is the head of the line now"
    rig.append("q", {"data": 1, "tag": "a", "job_priority": 9}, {"data": 1, "job_priority": 5})
    assert rig.claimed() == [5], "and 4 after this"
    rig.ack("w", 3)
    rig.append("q", *[{"data": 1, "job_priority": 4}] * 2)
    assert [rig.claimed() for _ in range(3)] == [[4], [6], [7]]
    rig.ack("w", 4)
    assert rig.claimed() == [2]


def test_a_change_of_another_field_leaves_the_lines_of_tags_alone(rig: QueueRig) -> None:
    rig.queue(max_in_flight_per_tag=1, rate_per_s_per_tag=5)
    rig.append("q", *[{"data": 1, "tag": "a"}] * 2)
    assert rig.claimed(max=5) == [1]
    limits: Any = rig.parts()[1].limits
    lines = limits.tags._lines
    rig.edit("q", max_in_flight=7)
    assert rig.claimed(max=5) == []
    assert limits.tags._lines is lines
    rig.edit("q", rate_per_s_per_tag=6)
    assert rig.claimed(max=5) == []
    assert limits.tags._lines is not lines
    rig.clock.advance(1_000)
    rig.ack("w", 1)
    assert rig.claimed(max=5) == [2]


def test_dead_letters_leave_and_the_next_of_their_tag_comes(rig: QueueRig) -> None:
    rig.queue(max_in_flight_per_tag=1, max_deliveries=1, dead_letter="dead")
    rig.append("q", *[{"data": number, "tag": "a"} for number in range(3)])
    for expected in (1, 2, 3):
        assert rig.claimed(max=9) == [expected]
        rig.nack("w", expected)
        assert rig.claimed(max=9) == [], "it becomes a dead letter first"
    assert [record["data"] for record in rig.records("dead")] == [0, 1, 2]
    rig.redrive("dead")
    assert rig.claimed(max=9) == [4]


def test_turning_a_limit_off_hands_out_what_it_held_back_first(rig: QueueRig) -> None:
    rig.queue(max_in_flight_per_tag=1)
    rig.append("q", *[{"data": number, "tag": "a"} for number in range(5)])
    assert rig.claimed(max=9) == [1]
    rig.append("q", {"data": "b", "tag": "b"})
    assert rig.claimed(max=9) == [6]
    rig.jobs(1)
    rig.edit("q", max_in_flight_per_tag=None)
    assert rig.claimed(max=2) == [2, 3]
    assert rig.claimed(max=9) == [4, 5, 7]
    _, queue = rig.parts()
    assert queue.limits is None
    rig.edit("q", max_in_flight_per_tag=4)
    rig.append("q", {"data": 1, "tag": "a"}, {"data": 1, "tag": "b"})
    assert rig.claimed(max=9) == [9], "five of a are in flight"


def test_an_operator_may_remove_jobs_that_wait(rig: QueueRig) -> None:
    rig.queue(max_in_flight_per_tag=1, dead_letter="dead")
    rig.append("q", *[{"data": number, "tag": "a", "job_priority": number % 2} for number in range(8)])
    assert rig.claimed(max=9) == [2]
    actions = rig.store.queues.job_actions
    for action, removed in (("bury", [1, 4]), ("delete", [3, 6])):
        request = request_of(JobsRequest, action=action, state="ready", seqs=removed)
        assert rig.drive(actions.act("q", request, lambda: None)).changed == 2
        rig.finish_all()
    assert rig.places() == (3, 1, 0)
    order = [2]
    while held := (rig.ack("w", order[-1]), rig.claimed(max=9))[1]:
        order += held
    assert order == [2, 8, 5, 7]
