"""Results: what became of a job is in the op that ends it, is kept for its time, and survives what its queue does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from tests.engine.rig import Outcome
from tests.queues.queue_rig import QueueRig, request_of
from topics.engine.queues.feature import QueuesFeature
from topics.engine.queues.part import results_of
from topics.engine.queues.results import ended as ended_jobs
from topics.engine.queues.results.lookup import JobReport
from topics.model.errors import BatchTooLarge, InvalidRequest, JobNotFound, RecordTooLarge, TopicNotFound, TopicsError
from topics.model.requests.jobs import ACK_RESULTS_BYTES_MAX, PROGRESS_BYTES_MAX, RESULT_BYTES_MAX, CancelRequest

KEEP_MS = 60_000
RESTARTS: list[Callable[[QueueRig], object]] = [
    QueueRig.reopen,
    QueueRig.crash,
    lambda rig: (rig.checkpoint(), rig.crash()),
]


def job(rig: QueueRig, seq: int, name: str = "q") -> JobReport:
    return rig.drive(rig.store.job_lookup.waiting(name, seq, 0))


def cancel(rig: QueueRig, *seqs: int, name: str = "q") -> None:
    rig.drive(rig.store.queues.job_actions.cancel(name, request_of(CancelRequest, seqs=seqs), lambda: None))


def forgotten(rig: QueueRig, seq: int, name: str = "q") -> bool:
    try:
        job(rig, seq, name)
    except JobNotFound:
        return True
    return False


# --- while it exists ---


def test_a_job_is_followed_from_its_append_to_its_end(rig: QueueRig) -> None:
    rig.queue(keep_results_ms=KEEP_MS, lease_ms=30_000)
    rig.clock.advance(1_000)
    appended_ms = rig.clock.now_ms()
    rig.append("q", {"data": 1, "job_priority": 3}, {"data": 2, "delay_ms": 5_000})
    assert job(rig, 1) == JobReport(1, "ready", appended_ms, 0, 3)
    assert job(rig, 2) == JobReport(2, "delayed", appended_ms, 0, due=appended_ms + 5_000)
    rig.clock.advance(10)
    assert rig.claimed("w") == [1]
    claimed_ms = rig.clock.now_ms()
    leased = JobReport(1, "leased", appended_ms, 1, 3, "w", claimed_ms, claimed_ms + 30_000)
    assert job(rig, 1) == leased
    rig.extend("w", 1, lease_ms=40_000, progress={"done": 7})
    assert job(rig, 1) == leased._replace(deadline=claimed_ms + 40_000, progress=b'{"done":7}')
    rig.clock.advance(10)
    rig.nack("w", 1, error="not yet")
    assert job(rig, 1) == JobReport(1, "ready", appended_ms, 1, 3, error="not yet", progress=b'{"done":7}')
    assert rig.claimed("v") == [1]
    rig.clock.advance(500)
    rig.ack("v", 1, result=[1, None])
    now_ms = rig.clock.now_ms()
    assert job(rig, 1) == JobReport(
        1,
        "done",
        appended_ms,
        2,
        worker="v",
        claimed_ts=now_ms - 500,
        ended_ts=now_ms,
        forgotten_ts=now_ms + KEEP_MS,
        error="not yet",
        progress=b'{"done":7}',
        result=b"[1,null]",
    )


def test_without_keep_results_a_job_is_known_until_it_ends(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(2)
    assert [job(rig, seq).state for seq in (1, 2)] == ["ready", "ready"]
    rig.claim(max=2)
    held = rig.ack("w", 1, result="lost")
    assert (held.jobs, held.results_kept) == ([1], False)
    assert rig.ack("w", 2).results_kept
    assert results_of(rig.parts()[0]) is None, "nothing is kept, nothing is made"
    for seq in (1, 2, 3, 2**64 - 1):
        assert forgotten(rig, seq)


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_what_became_of_jobs_survives(rig: QueueRig, durability: str, restart: Callable[[QueueRig], object]) -> None:
    rig.queue(keep_results_ms=KEEP_MS, durability=durability, dead_letter="dead")
    rig.jobs(6)
    rig.claim(max=4)
    rig.ack("w", 1, 2, results=[{"n": 1}, None])
    rig.nack("w", 3, dead_letter=True, error="broken")
    cancel(rig, 4, 5)
    before = [job(rig, seq) for seq in range(1, 6)]
    assert [(report.state, report.result, report.error) for report in before] == [
        ("done", b'{"n":1}', ""),
        ("done", b"", ""),
        ("dead", b"", "broken"),
        ("cancelled", b"", ""),
        ("cancelled", b"", ""),
    ]
    restart(rig)
    assert [job(rig, seq) for seq in range(1, 6)] == before
    assert job(rig, 6).state == "ready"
    restart(rig)
    assert [job(rig, seq) for seq in range(1, 6)] == before


def test_an_ephemeral_queue_forgets_them_with_its_jobs(rig: QueueRig) -> None:
    rig.queue(keep_results_ms=KEEP_MS, durability="ephemeral")
    rig.jobs(1)
    rig.claim()
    rig.ack("w", 1, result=1)
    assert job(rig, 1).result == b"1"
    rig.checkpoint()
    rig.reopen()
    assert forgotten(rig, 1)


def test_a_job_that_dies_of_too_many_deliveries_says_why(rig: QueueRig) -> None:
    rig.queue(keep_results_ms=KEEP_MS, max_deliveries=1, dead_letter="dead")
    rig.jobs(1)
    rig.claim("w")
    rig.nack("w", 1, error="no luck")
    assert rig.claimed() == []
    assert (job(rig, 1).state, job(rig, 1).error, job(rig, 1).worker) == ("dead", "no luck", "w")
    assert len(rig.records("dead")) == 1


def test_records_that_are_deleted_or_expire_leave_nothing(rig: QueueRig) -> None:
    rig.queue(keep_results_ms=KEEP_MS, ttl_ms=1_000)
    rig.jobs(3)
    rig.delete("q", before_seq=2)
    assert forgotten(rig, 1)
    rig.clock.advance(1_001)
    assert forgotten(rig, 2)


# --- for how long ---


def test_they_are_kept_for_their_time_by_the_clock_of_the_engine(rig: QueueRig) -> None:
    rig.queue(keep_results_ms=KEEP_MS, lease_ms=2 * KEEP_MS)
    rig.jobs(2)
    rig.claim(max=2)
    rig.ack("w", 1, result=1)
    rig.clock.advance(KEEP_MS - 1)
    rig.ack("w", 2, result=2)
    assert job(rig, 1).result == b"1"
    rig.clock.advance(1)
    assert forgotten(rig, 1)
    assert job(rig, 2).result == b"2"
    rig.crash()
    assert forgotten(rig, 1), "the log still has it"
    assert job(rig, 2).result == b"2"
    rig.edit("q", keep_results_ms=0)
    assert forgotten(rig, 2)


def test_what_has_been_kept_long_enough_leaves_memory(rig: QueueRig) -> None:
    rig.queue(keep_results_ms=KEEP_MS)
    rig.jobs(1_500)
    rig.claim(max=1_000)
    rig.ack("w", *range(1, 1_001))
    results = results_of(rig.parts()[0])
    assert results is not None
    assert len(results.ended) == 1_000
    rig.store.flush()
    rig.clock.advance(KEEP_MS)
    while rig.work() or len(results.ended):
        rig.store.flush()
    kept = rig.store.state.feature(QueuesFeature).kept
    assert kept.for_a_time == {}, "nothing is looked at again and again for nothing"


@pytest.mark.parametrize(("name", "most"), [("ENDED_MAX", 3), ("ENDED_BYTES_MAX", 3 * 400)])
def test_too_many_push_the_oldest_out(rig: QueueRig, monkeypatch: pytest.MonkeyPatch, name: str, most: int) -> None:
    monkeypatch.setattr(ended_jobs, name, most)
    rig.queue(keep_results_ms=KEEP_MS)
    rig.jobs(5)
    rig.claim(max=5)
    for seq in (2, 1, 3, 5, 4):
        rig.ack("w", seq, result="x" * 140)
    assert [seq for seq in range(1, 6) if forgotten(rig, seq)] == [1, 2]
    rig.crash()
    assert [seq for seq in range(1, 6) if forgotten(rig, seq)] == [1, 2]


# --- limits ---


@pytest.mark.parametrize(
    ("fields", "error", "field"),
    [
        ({"result": "x" * (RESULT_BYTES_MAX - 1)}, RecordTooLarge, "result"),
        ({"results": [1, 2]}, InvalidRequest, "results"),
        ({"result": 1, "results": [1]}, InvalidRequest, "result"),
    ],
)
def test_results_that_are_refused(rig: QueueRig, fields: dict[str, Any], error: type[TopicsError], field: str) -> None:
    rig.queue(keep_results_ms=KEEP_MS)
    rig.jobs(1)
    rig.claim()
    with pytest.raises(error) as refused:
        rig.ack("w", 1, **fields)
    assert refused.value.detail["field"] == field
    assert rig.places() == (0, 1, 0), "the worker still has it"


def test_one_result_is_not_for_several_jobs_and_all_of_an_ack_have_a_limit(rig: QueueRig) -> None:
    rig.queue(keep_results_ms=KEEP_MS)
    rig.jobs(5)
    rig.claim(max=5)
    with pytest.raises(InvalidRequest, match="results, one for each"):
        rig.ack("w", 1, 2, result=1)
    each = "x" * (ACK_RESULTS_BYTES_MAX // 5)
    with pytest.raises(BatchTooLarge):
        rig.ack("w", 1, 2, 3, 4, 5, results=[each] * 5)
    assert rig.ack("w", 1, 2, 3, 4, results=[each] * 4).jobs == [1, 2, 3, 4]


def test_progress_has_a_limit_and_goes_with_the_job(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(2)
    rig.claim(max=2)
    with pytest.raises(RecordTooLarge):
        rig.extend("w", 1, lease_ms=1_000, progress="x" * PROGRESS_BYTES_MAX)
    rig.extend("w", 1, 2, 9, lease_ms=1_000, progress=50)
    results = results_of(rig.parts()[0])
    assert results is not None
    assert results.progress == {1: b"50", 2: b"50"}
    rig.ack("w", 1)
    assert results.progress == {2: b"50"}


@pytest.mark.parametrize("restart", RESTARTS)
def test_progress_is_as_durable_as_leases(rig: QueueRig, restart: Callable[[QueueRig], object]) -> None:
    rig.queue(leases_durable=True)
    rig.jobs(2)
    rig.claim(max=2)
    rig.extend("w", 1, lease_ms=1_000_000, progress={"step": 2})
    restart(rig)
    assert job(rig, 1).progress == b'{"step":2}'
    assert job(rig, 2).progress == b""


def test_a_result_is_kept_byte_for_byte(rig: QueueRig) -> None:
    rig.queue(keep_results_ms=KEEP_MS)
    rig.jobs(1)
    rig.claim()
    text = b'{"a" : 12345678901234567890123.10,\n "a":"\\u00e9"}'
    rig.ack("w", 1, result=msgspec.Raw(text))
    assert job(rig, 1).result == text


# --- waiting ---


def test_a_caller_waits_for_the_end_of_its_job_alone(rig: QueueRig) -> None:
    rig.queue(keep_results_ms=KEEP_MS)
    rig.jobs(3)
    rig.claim(max=3)
    # All who can go on do so in one flush, however slow the machine is.
    rig.store.runner.clock_s = lambda: 0.0
    outcomes: list[Outcome[JobReport]] = [Outcome(), Outcome(), Outcome()]
    for seq, outcome in zip((1, 1, 2), outcomes, strict=True):
        rig.store.runner.start(rig.store.job_lookup.waiting("q", seq, 20_000), outcome)
    rig.ack("w", 3)
    rig.store.flush()
    assert not any(outcome.over for outcome in outcomes)
    rig.ack("w", 1, result="done")
    rig.store.flush()
    assert [outcome.over for outcome in outcomes] == [True, True, False]
    assert outcomes[0].values[0].result == b'"done"'
    rig.clock.advance(20_001)
    rig.work()
    rig.store.flush()
    assert outcomes[2].values[0].state == "leased", "its time is up"
    results = results_of(rig.parts()[0])
    assert results is not None
    assert results.awaited == {}


@pytest.mark.parametrize("end", ["delete", "drop", "ack"])
def test_a_caller_whose_job_leaves_nothing_is_told(rig: QueueRig, end: str) -> None:
    rig.queue()
    rig.jobs(1)
    rig.claim()
    outcome: Outcome[JobReport] = Outcome()
    rig.store.runner.start(rig.store.job_lookup.waiting("q", 1, 20_000), outcome)
    match end:
        case "delete":
            rig.delete("q", before_seq=2)
        case "drop":
            rig.drop("q")
        case _:
            rig.ack("w", 1)
    rig.store.flush()
    assert isinstance(outcome.error, TopicNotFound if end == "drop" else JobNotFound)
