"""Queues, consumer groups, transactions, routers and pipelines, the same over HTTP and in a program."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

import topics
from tests.both.conftest import WAIT_S
from topics.client import (
    JobCancelled,
    JobFailed,
    JobGroup,
    JobGroupConflict,
    JobGroupNotFound,
    JobNotFound,
    ResultTimeout,
)
from topics.client.values import Outgoing

Beside = Callable[[Callable[[], Any]], Any]


# --- queues ---


@pytest.fixture
def queue(verbs: Any, topic: str) -> str:
    verbs.create(topic, type="queue", max_deliveries=2, dead_letter=f"{topic}.dead", lease_ms=60_000)
    return topic


def test_a_job_is_claimed_and_acked(verbs: Any, queue: str) -> None:
    verbs.append(queue, {"n": 1}, tag="t", meta={"m": 1})
    (job,) = verbs.claim(queue, "w", 5)
    assert (job.seq, job.data, job.tag, job.meta, job.deliveries) == (1, {"n": 1}, "t", {"m": 1}, 1)
    (lease,) = verbs.leases(queue)
    assert (lease.seq, lease.node, lease.lease_id, lease.deadline) == (1, "w", job.lease_id, job.deadline)
    assert lease.claimed_ts is not None
    extended = verbs.extend(queue, job, 120_000, "w")
    assert (extended.extended, extended.skipped) == (1, [])
    assert extended.deadlines[1] > job.deadline
    other = verbs.ack(queue, job, "another")
    assert (other.topic, other.acked, other.skipped, other.ready, other.in_flight) == (queue, 0, [1], 0, 1)
    done = verbs.ack(queue, [job], "w")
    assert (done.acked, done.skipped, done.ready, done.in_flight) == (1, [], 0, 0)
    assert verbs.ack(queue, [1], "w").skipped == [1]
    assert verbs.claim(queue) == []


def test_jobs_are_cancelled_whatever_their_state(verbs: Any, queue: str) -> None:
    verbs.append_many(queue, list(range(4)))
    first, second = verbs.claim(queue, "w", max=2)
    done = verbs.cancel(queue, [first, 3, 99])
    assert (done.topic, done.cancelled, done.skipped, done.ready, done.in_flight) == (queue, 2, [99], 1, 1)
    extended = verbs.extend(queue, [first, second], 60_000, "w")
    assert (extended.extended, extended.skipped, extended.cancelled) == (1, [first.seq], [first.seq])
    assert verbs.extend(queue, second, 60_000, "w").cancelled == []
    assert verbs.cancel(queue, first).cancelled == 0


def test_what_became_of_a_job_is_kept(verbs: Any, queue: str, beside: Any) -> None:
    verbs.edit(queue, keep_results_ms=60_000)
    jobs = [verbs.enqueue(queue, {"n": n}, tag="t", job_priority=n) for n in range(3)]
    assert [job.seq for job in jobs] == [1, 2, 3]
    status = jobs[0].status()
    assert (status.topic, status.seq, status.state, status.deliveries, status.ended) == (queue, 1, "ready", 0, False)
    assert verbs.job(queue, 3).job_priority == 2
    with pytest.raises(ResultTimeout, match="still ready"):
        jobs[0].result(timeout=0)
    waiting = beside(lambda: jobs[0].result(timeout=WAIT_S))
    leased = {job.seq: job for job in verbs.claim(queue, "w", max=3)}
    verbs.extend(queue, leased[1], 60_000, "w", progress={"half": True})
    shown = jobs[0].status()
    assert (shown.state, shown.worker, shown.progress, shown.result) == ("leased", "w", {"half": True}, None)
    assert shown.deadline is not None
    assert verbs.ack(queue, leased[1], "w", result={"sum": 1}).warnings == []
    assert waiting.result() == {"sum": 1}
    done = jobs[0].status()
    assert (done.state, done.ended, done.result, done.progress, done.worker) == (
        "done",
        True,
        {"sum": 1},
        {"half": True},
        "w",
    )
    assert done.forgotten_ts == done.ended_ts + 60_000
    verbs.nack(queue, leased[2], "w", dead_letter=True, error="no luck")
    with pytest.raises(JobFailed, match="no luck"):
        jobs[1].result()
    assert jobs[2].cancel()
    assert not jobs[2].cancel()
    with pytest.raises(JobCancelled):
        verbs.job_handle(queue, 3).result(timeout=WAIT_S)
    with pytest.raises(JobNotFound):
        verbs.job(queue, 4)
    several = [verbs.enqueue(queue, n) for n in range(2)]
    verbs.ack(queue, verbs.claim(queue, "w", max=2), "w", results=["a", None])
    assert [job.result() for job in several] == ["a", None]


def test_a_queue_that_keeps_no_results_says_so(verbs: Any, queue: str) -> None:
    job = verbs.enqueue(queue, 1, unique_key="k")
    assert verbs.enqueue(queue, 2, unique_key="k").seq == job.seq
    assert "keep_results_ms" in verbs.ack(queue, verbs.claim(queue, "w"), "w", result=1).warnings[0]
    with pytest.raises(JobNotFound):
        job.result()


def test_a_group_of_jobs_ends_in_one_record(verbs: Any, queue: str) -> None:
    group = JobGroup("all", 3, f"{queue}.ends")
    verbs.append(queue, 1, group=group)
    verbs.append_many(queue, [Outgoing(n, group=group) for n in range(2)])
    status = verbs.job_group(queue, "all")
    assert (status.topic, status.group, status.added, status.done, status.complete) == (queue, "all", 3, 0, False)
    with pytest.raises(JobGroupConflict):
        verbs.append(queue, 1, group=group)
    with pytest.raises(JobGroupNotFound):
        verbs.job_group(queue, "other")
    verbs.cancel(queue, 3)
    verbs.ack(queue, verbs.claim(queue, "w", max=2), "w")
    verbs.create(f"{queue}.ends")
    page = verbs.diff(f"{queue}.ends", wait_ms=30_000)
    counts = {"queue": queue, "group": "all", "size": 3, "done": 2, "dead": 0, "cancelled": 1, "removed": 0}
    assert [record.data for record in page.records] == [counts]
    status = verbs.job_group(queue, "all")
    assert (status.complete, status.notified_seq, status.error) == (True, 1, None)


def test_who_claims_need_not_say_who_it_is(verbs: Any, queue: str) -> None:
    verbs.append(queue, 1)
    assert verbs.ack(queue, verbs.claim(queue)).acked == 1


def test_jobs_are_given_back_and_become_dead_letters(verbs: Any, queue: str) -> None:
    verbs.append_many(queue, [Outgoing(1, tag="a"), Outgoing(2, tag="b")])
    back = verbs.nack(queue, verbs.claim(queue, max=2), error="later")
    assert (back.nacked, back.ready, back.in_flight) == (2, 2, 0)
    jobs = verbs.claim(queue, max=2)
    assert [job.deliveries for job in jobs] == [2, 2]
    assert [lease.error for lease in verbs.leases(queue, page_size=1)] == ["later", "later"]
    verbs.nack(queue, jobs[:1], dead_letter=True, error="broken")
    verbs.nack(queue, jobs[1:], delay_ms=0)
    # A claim of the other one finds that it has used up its deliveries.
    assert verbs.claim(queue) == []
    dead = list(itertools.islice(verbs.read(f"{queue}.dead", follow=True), 2))
    assert sorted(record.data for record in dead) == [1, 2]
    counters = verbs.state(queue).queue
    assert (counters.dead_lettered, counters.dead) == (2, 2)
    tried = verbs.redrive(f"{queue}.dead", dry_run=True)
    assert (tried.moved, tried.to, tried.skipped, tried.more, tried.dry_run) == (2, {queue: 2}, 0, False, True)
    driven = verbs.redrive(f"{queue}.dead", match="a")
    assert (driven.topic, driven.moved, driven.warnings) == (f"{queue}.dead", 1, [])
    assert verbs.redrive(f"{queue}.dead", match="b*").warnings
    assert verbs.state(queue).queue.dead == 1
    assert [job.data for job in verbs.claim(queue, max=5)] == [1]


def test_a_paused_queue_hands_out_nothing(verbs: Any, queue: str, beside: Beside) -> None:
    verbs.append(queue, 1)
    assert verbs.pause(queue).paused is True
    assert verbs.claim(queue) == []
    waiting = beside(lambda: verbs.claim(queue, wait_ms=30_000))
    assert verbs.resume(queue).paused is False
    assert [job.data for job in waiting.result()] == [1]


def test_a_claim_waits_for_a_job(verbs: Any, queue: str, beside: Beside) -> None:
    waiting = beside(lambda: verbs.claim(queue, "w", 2, wait_ms=30_000))
    verbs.append(queue, "late")
    assert [job.data for job in waiting.result()] == ["late"]
    assert verbs.claim(queue, wait_ms=1) == []


def test_a_claim_waits_for_a_lease_or_a_delay_to_run_out(verbs: Any, queue: str) -> None:
    verbs.append(queue, "leased")
    verbs.claim(queue, "one", lease_ms=1_000)
    (job,) = verbs.claim(queue, "two", wait_ms=30_000)
    assert (job.data, job.deliveries) == ("leased", 2)
    verbs.ack(queue, job, "two")
    verbs.append(queue, "delayed", delay_ms=100)
    assert verbs.claim(queue) == []
    assert [job.data for job in verbs.claim(queue, wait_ms=30_000)] == ["delayed"]


def test_claimers_that_come_together_share_what_there_is(verbs: Any, topic: str, beside: Beside) -> None:
    verbs.create(topic, type="queue", claim_jitter_ms=20)
    verbs.append_many(topic, range(4))
    waiting = [beside(lambda node=node: verbs.claim(topic, node, 4)) for node in ("a", "b")]
    taken = [job.seq for one in waiting for job in one.result()]
    assert sorted(taken) == [1, 2, 3, 4]


def test_a_queue_that_goes_ends_waiting_claims(verbs: Any, queue: str, beside: Beside) -> None:
    waiting = beside(lambda: verbs.claim(queue, wait_ms=30_000))
    verbs.drop(queue)
    with pytest.raises(topics.TopicNotFound):
        waiting.result()


def test_what_is_not_a_queue_has_no_jobs(verbs: Any, topic: str) -> None:
    verbs.append(topic, 1)
    for call in (verbs.claim, verbs.pause, lambda name: verbs.ack(name, 1), lambda name: list(verbs.leases(name))):
        with pytest.raises(topics.NotAQueue):
            call(topic)
    verbs.create(f"{topic}.q", type="queue")
    with pytest.raises(topics.InvalidRequest):
        verbs.ack(f"{topic}.q", [])
    with pytest.raises(topics.InvalidRequest):
        verbs.claim(f"{topic}.q", max=-1)


def test_durable_leases_are_claimed_and_acked(verbs: Any, topic: str, beside: Beside) -> None:
    verbs.create(topic, type="queue", durability="fsync", leases_durable=True)
    waiting = beside(lambda: verbs.claim(topic, "w", wait_ms=30_000))
    verbs.append(topic, 1)
    (job,) = waiting.result()
    assert verbs.extend(topic, job, 90_000, "w").extended == 1
    assert verbs.nack(topic, job, "w").nacked == 1
    assert verbs.ack(topic, verbs.claim(topic, "w"), "w").acked == 1


def test_work_comes_by_itself(verbs: Any, queue: str) -> None:
    verbs.append_many(queue, range(5))
    seen: list[int] = []
    with verbs.work(queue, "w", max=2) as work:
        for job in work:
            seen.append(job.data)
            if len(seen) == 2:
                assert verbs.state(queue).queue.in_flight == 2
            verbs.ack(queue, job, "w")
            if len(seen) == 5:
                break
    assert seen == [0, 1, 2, 3, 4]
    assert work.connections == 1


def test_work_that_ends_gives_back_what_it_holds(verbs: Any, queue: str) -> None:
    verbs.append_many(queue, range(3))
    with verbs.work(queue, "w", max=3) as work:
        assert next(work).data == 0
    assert len(verbs.claim(queue, "other", 3, wait_ms=30_000)) > 0


# --- consumer groups ---


def test_a_group_consumes_and_commits(verbs: Any, topic: str) -> None:
    verbs.append_many(topic, [Outgoing({"n": number}, tag=f"k{number}", node="me") for number in range(5)])
    batch = verbs.consume(topic, "g", start="Earliest", limit=3)
    assert [message.data["n"] for message in batch.messages] == [0, 1, 2]
    assert (batch.next_offset, batch.has_more, batch.partitions) == (3, True, [])
    message = batch.messages[0]
    assert (message.topic, message.partition, message.offset, message.seq) == (topic, 0, 0, 1)
    assert (message.key, message.user, message.op, message.raw) == ("k0", "me", "Insert", b'{"n":0}')
    rest = verbs.consume(topic, "g", start="Earliest")
    assert [message.data["n"] for message in rest.messages] == [3, 4]
    held = verbs.commit_batch(topic, "g", rest)[0]
    assert (held.acknowledged_offset, held.committed_offset) == (None, None)
    assert [(each.from_offset, each.to_offset) for each in held.held_back] == [(0, 2)]
    done = verbs.commit(topic, "g", 1)
    assert (done.success, done.acknowledged_offset, done.held_back) == (True, 1, [])
    assert verbs.commit(topic, "g", 10**6).acknowledged_offset == 4
    (standing,) = verbs.groups(topic, "g")
    assert (standing.topic, standing.group, standing.committed_offset, standing.lag) == (topic, "g", 4, 0)
    assert (standing.next_offset, standing.last_offset, standing.open_claims) == (5, 4, 0)
    assert verbs.groups(topic, "other") == []


def test_a_consumer_waits_for_a_message(verbs: Any, topic: str, beside: Beside) -> None:
    verbs.create(topic)
    assert verbs.consume(topic, "g").messages == []
    verbs.append(topic, 1)
    assert [message.data for message in verbs.consume(topic, "g").messages] == [1]
    waiting = beside(lambda: verbs.consume(topic, "g", timeout_s=20))
    verbs.append(topic, 2)
    assert [message.data for message in waiting.result().messages] == [2]
    empty = verbs.consume(topic, "g", timeout_s=0.01)
    assert (empty.messages, empty.has_more) == ([], False)


def test_reading_without_a_group_takes_nothing(verbs: Any, topic: str) -> None:
    verbs.append_many(topic, range(3))
    for _ in range(2):
        assert [message.data for message in verbs.consume(topic, start=1, limit=5).messages] == [1, 2]
    assert verbs.consume(topic).next_offset == 3


def test_partitions_are_consumed_together(verbs: Any, topic: str) -> None:
    verbs.append_many(topic, range(3))
    verbs.append_many(f"{topic}:p1", range(10, 13))
    batch = verbs.consume(topic, "g", partition="all", start="Earliest")
    assert sorted(message.data for message in batch.messages) == [0, 1, 2, 10, 11, 12]
    assert [(place.partition, place.next_offset) for place in batch.partitions] == [(0, 3), (1, 3)]
    committed = verbs.commit_batch(topic, "g", batch)
    assert {number: done.acknowledged_offset for number, done in committed.items()} == {0: 2, 1: 2}
    offsets = verbs.latest_offsets([(topic, 0), (topic, 1)])
    assert [(each.topic, each.partition, each.next_offset, each.last_offset) for each in offsets] == [
        (topic, 0, 3, 2),
        (topic, 1, 3, 2),
    ]
    assert verbs.reset_group(topic, "g", 1) == {0: 1, 1: 1}
    assert len(verbs.consume(topic, "g", partition=1).messages) == 2
    assert verbs.reset_group(topic, "g", forget=True) == {0: 0, 1: 0}
    assert verbs.groups(topic) == []
    with pytest.raises(topics.InvalidRequest):
        verbs.reset_group(topic, "g")


def test_wrong_acks_are_refused(verbs: Any, topic: str) -> None:
    verbs.append(topic, 1)
    with pytest.raises(topics.InvalidRequest):
        verbs.commit(topic, "g", 1, from_offset=2)
    with pytest.raises(topics.InvalidRequest):
        verbs.commit(topic, "", 1)
    with pytest.raises(topics.TopicNotFound):
        verbs.latest_offsets(f"{topic}.absent")
    with pytest.raises(topics.InvalidRequest):
        verbs.consume(topic, limit=-1)


# --- transactions ---


def test_a_version_is_committed_once(verbs: Any, topic: str) -> None:
    a, b = f"{topic}.a", f"{topic}.b"
    staged = verbs.stage(topic, 1, "s", 0, [1, Outgoing(2, tag="t", topic=b)], a)
    assert (staged.stage, staged.part, staged.records, staged.done) == ("s", 0, 2, False)
    assert staged.expires_ms > 0
    verbs.stage(topic, 1, "s", 1, b'[{"data":[ 3 ]}]', a)
    (stage,) = verbs.txn(topic).stages
    assert (stage.version, stage.stage, stage.parts, stage.records) == (1, "s", 2, 3)
    done = verbs.commit_txn(topic, 1, ["s"])
    assert (done.committed, done.version, done.deduped) == (True, 1, False)
    assert {name: (span.first_seq, span.last_seq, span.records) for name, span in done.topics.items()} == {
        a: (1, 2, 2),
        b: (1, 1, 1),
    }
    assert verbs.commit_txn(topic, 1, ["s"]).deduped
    assert [record.raw for record in verbs.read(a)] == [b"1", b"[ 3 ]"]
    assert verbs.stage(topic, 1, "s", 2, [1], a).done
    assert topic in [item.app for item in verbs.txns(page_size=1)]
    assert verbs.forget_txn(topic) is True
    assert verbs.forget_txn(topic) is False
    assert (verbs.txn(topic).version, verbs.txn(topic).fence) == (None, 0)


def test_stages_are_thrown_away_and_old_owners_shut_out(verbs: Any, topic: str) -> None:
    old = verbs.take_fence(topic, "one")
    assert verbs.take_fence(topic, "one") == old
    new = verbs.take_fence(topic, "two")
    assert new > old
    with pytest.raises(topics.Fenced):
        verbs.stage(topic, 1, "s", 0, [1], f"{topic}.a", old)
    with pytest.raises(topics.Fenced):
        verbs.take_fence(topic, "one")
    verbs.stage(topic, 1, "s", 0, [1], f"{topic}.a", new)
    assert verbs.abort_txn(topic, 1, ["s"], new) == 1
    with pytest.raises(topics.StageNotFound):
        verbs.commit_txn(topic, 1, ["s"], new)
    with pytest.raises(topics.InvalidRequest):
        verbs.commit_txn(topic, -1, [], new)


def test_a_large_transaction_is_committed_while_others_write(verbs: Any, topic: str, beside: Beside) -> None:
    for part in range(5):
        verbs.stage(topic, 1, "s", part, [{"n": number, "pad": "x" * 100} for number in range(2_000)], f"{topic}.a")
    committing = beside(lambda: verbs.commit_txn(topic, 1, ["s"]))
    for number in range(20):
        verbs.append(f"{topic}.b", number)
    assert committing.result().topics[f"{topic}.a"].records == 10_000
    assert verbs.state(f"{topic}.a").count == 10_000


# --- routers and pipelines ---


def test_a_router_copies(verbs: Any, topic: str) -> None:
    a, b = f"{topic}.a", f"{topic}.b"
    made = verbs.route(topic, a, b, filter=("tag", "Glob", "x*"), guarantee="exactly_once")
    assert (made.router, made.source, made.dest, made.guarantee, made.created) == (topic, a, b, "exactly_once", True)
    assert (made.filter, made.preserve_node, made.preserve_tag) == (["tag", "Glob", "x*"], True, True)
    verbs.append_many(a, [Outgoing(1, tag="x1"), Outgoing(2, tag="y"), Outgoing(3, tag="x2")])
    assert [record.data for record in itertools.islice(verbs.read(b, follow=True), 2)] == [1, 3]
    router = verbs.router(topic)
    assert (router.forwarded_total, router.lag, router.last_error) == (2, 0, None)
    (listed,) = verbs.routers(a, prefix=topic, page_size=1)
    assert (listed.router, listed.dest, listed.guarantee, listed.forwarded_total) == (topic, b, "exactly_once", 2)
    assert list(verbs.routers(dest=f"{topic}.none")) == []
    with pytest.raises(topics.RouterCycle):
        verbs.route(f"{topic}.back", b, a)
    assert verbs.route(topic, a, b, filter="x*").warnings
    assert verbs.unroute(topic) is True
    assert verbs.unroute(topic) is False


def test_a_pipeline_is_kept(verbs: Any, topic: str) -> None:
    definition = {"sources": {"s": {"topic": topic}}, "sql": "SELECT * FROM s", "sink": {"topic": f"{topic}.out"}}
    made = verbs.put_pipeline(topic, definition)
    assert (made.pipeline, made.created, made.status) == (topic, True, None)
    assert made.definition["sql"] == "SELECT * FROM s"
    assert not verbs.put_pipeline(topic, definition).created
    told = verbs.report_pipeline(topic, {"state": "running", "runner": "r"})
    assert told.status is not None
    assert told.status["state"] == "running"
    assert verbs.pipeline(topic).status == told.status
    assert [found.pipeline for found in verbs.pipelines(topic, page_size=1)] == [topic]
    assert verbs.drop_pipeline(topic) is True
    assert verbs.drop_pipeline(topic) is False
    with pytest.raises(topics.InvalidRequest):
        verbs.put_pipeline(topic, {"sql": 5})


def test_many_dead_letters_go_home_in_one_call(verbs: Any, topic: str) -> None:
    verbs.create(topic, type="queue", dead_letter=f"{topic}.dead")
    verbs.append_many(topic, range(600))
    verbs.nack(topic, verbs.claim(topic, max=600), dead_letter=True)
    assert verbs.state(topic).queue.dead == 600
    driven = verbs.redrive(f"{topic}.dead", limit=550)
    assert (driven.moved, driven.to, driven.more) == (550, {topic: 550}, True)
    assert (verbs.state(topic).queue.ready, verbs.state(topic).queue.dead) == (550, 50)
