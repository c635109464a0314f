"""What goes beyond the contract: delays at append, backoff, unique keys. Off unless asked for."""

from __future__ import annotations

import msgspec
import pytest

from tests.queues.queue_rig import QueueRig
from topics.engine.core.pending import Busy
from topics.model.errors import InvalidRequest
from topics.model.requests.records import append_decoder, decode_body

# --- delays ---


def test_a_delayed_job_is_readable_at_once_and_claimable_later(rig: QueueRig) -> None:
    rig.queue()
    rig.append("q", {"data": "later", "delay_ms": 1_000}, "now")
    assert rig.seqs("q") == [1, 2]
    assert rig.places() == (1, 0, 1)
    assert rig.claimed(max=9) == [2]
    rig.clock.advance(999)
    assert rig.claimed(max=9) == []
    rig.clock.advance(1)
    (job,) = rig.claim(max=9)
    assert (job["$seq"], job["deliveries"]) == (1, 1)


def test_a_batch_of_delayed_jobs_only(rig: QueueRig) -> None:
    rig.queue()
    rig.append("q", *[{"data": n, "delay_ms": 100 * (n + 1)} for n in range(5)])
    rig.jobs(2)
    assert rig.places() == (2, 0, 5)
    assert rig.claimed(max=9) == [6, 7]
    rig.clock.advance(300)
    assert rig.claimed(max=9) == [1, 2, 3]
    assert rig.places() == (0, 5, 2)


@pytest.mark.parametrize("durable", [False, True])
@pytest.mark.parametrize("how", ["crash", "reopen"])
def test_a_delay_survives_a_restart(rig: QueueRig, durable: bool, how: str) -> None:
    rig.queue(leases_durable=durable)
    rig.append("q", {"data": 1, "delay_ms": 1_000}, {"data": 2})
    getattr(rig, how)()
    assert rig.places() == (1, 0, 1)
    rig.checkpoint()
    rig.crash()
    assert rig.claimed(max=9) == [2]
    rig.clock.advance(1_000)
    assert rig.claimed(max=9) == [1]


def test_a_delayed_job_that_is_deleted_is_gone(rig: QueueRig) -> None:
    rig.queue()
    rig.append("q", {"data": 1, "delay_ms": 1_000, "tag": "x"}, "now")
    rig.delete("q", match="x")
    assert rig.places() == (1, 0, 0)
    rig.clock.advance(2_000)
    assert rig.claimed(max=9) == [2]


@pytest.mark.parametrize("field", [{"delay_ms": 5}, {"unique_key": "k"}])
def test_a_log_takes_no_job_fields(rig: QueueRig, field: dict[str, object]) -> None:
    rig.append("log", 1)
    for topic in ("log", "new"):
        with pytest.raises(InvalidRequest) as refused:
            rig.append(topic, 1, {"data": 1, **field})
        assert refused.value.detail["field"] == f"records[1].{next(iter(field))}"
    assert "new" not in rig.store.state.by_name


# --- backoff ---

BACKOFF = {"initial_ms": 100, "factor": 2.0, "max_ms": 1_000}


def test_a_nack_without_a_delay_rests_longer_each_time(rig: QueueRig) -> None:
    rig.queue(retry_backoff=BACKOFF)
    rig.jobs(1)
    for rest_ms in (100, 200, 400, 800, 1_000, 1_000):
        rig.claim()
        rig.nack("w", 1)
        rig.clock.advance(rest_ms - 1)
        assert rig.places() == (0, 0, 1)
        rig.clock.advance(1)
        assert rig.places() == (1, 0, 0)


def test_a_nacks_own_delay_wins_over_the_backoff(rig: QueueRig) -> None:
    rig.queue(retry_backoff=BACKOFF)
    rig.jobs(1)
    rig.claim()
    rig.nack("w", 1, delay_ms=0)
    assert rig.places() == (1, 0, 0)


def test_a_lease_that_runs_out_is_followed_by_the_rest(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000, retry_backoff=BACKOFF)
    rig.jobs(1)
    rig.claim()
    rig.clock.advance(1_001)
    assert rig.places() == (0, 0, 1)
    rig.clock.advance(99)
    assert rig.claimed() == []
    rig.clock.advance(1)
    assert rig.claimed() == [1]


def test_jitter_makes_rests_shorter_and_different(rig: QueueRig) -> None:
    rig.queue(retry_backoff={**BACKOFF, "initial_ms": 1_000, "jitter": 0.5})
    rig.jobs(64)
    rig.claim(max=64)
    rig.nack("w", *range(1, 65))
    rig.clock.advance(500)
    early = rig.counters().ready
    rig.clock.advance(250)
    middle = rig.counters().ready
    rig.clock.advance(250)
    assert early < middle < 64
    assert rig.counters().ready == 64


def test_backoff_is_not_shown_unless_it_was_asked_for(rig: QueueRig) -> None:
    from topics.model.requests.config import encode_config

    rig.queue()
    assert b"retry_backoff" not in encode_config(rig.look("q").config)
    rig.queue(retry_backoff={"initial_ms": 10**12, "factor": 0.1, "max_ms": 5, "jitter": 7})
    assert b'"retry_backoff":{"initial_ms":86400000,"factor":1.0,"max_ms":5,"jitter":1.0}' in encode_config(
        rig.look("q").config
    )
    rig.crash()
    assert rig.look("q").config.retry_backoff.jitter == 1.0  # pyright: ignore[reportAttributeAccessIssue]


# --- unique keys ---


def test_a_job_whose_key_is_pending_is_not_added_twice(rig: QueueRig) -> None:
    rig.queue()
    first = rig.append("q", {"data": 1, "unique_key": "k"})
    again = rig.append("q", {"data": 2, "unique_key": "k"})
    assert (first.deduped, again.deduped, again.first_seq, again.count) == (False, True, 1, 1)
    rig.claim()
    assert rig.append("q", {"data": 3, "unique_key": "k"}).deduped, "in flight is still pending"
    rig.ack("w", 1)
    after = rig.append("q", {"data": 4, "unique_key": "k"})
    assert (after.deduped, after.first_seq) == (False, 2)


def test_only_the_repeated_jobs_of_a_batch_are_left_out(rig: QueueRig) -> None:
    rig.queue()
    rig.append("q", {"data": 1, "unique_key": "a"})
    change = rig.append(
        "q",
        {"data": 2, "unique_key": "b"},
        {"data": 3, "unique_key": "a"},
        {"data": 4},
        {"data": 5, "unique_key": "b"},
    )
    assert (change.deduped, change.first_seq, change.count, change.result) == (False, 2, 2, [2, 1, 3, 2])
    assert [record["data"] for record in rig.records("q")] == [1, 2, 4]


def test_two_writes_of_one_key_in_the_same_tick_make_one_job(rig: QueueRig) -> None:
    rig.queue(durability="fsync")
    body = b'{"records":[{"data":1,"unique_key":"k"}]}'
    first = rig.engine.append("q", decode_body(append_decoder, body))
    with pytest.raises(Busy):
        rig.engine.append("q", decode_body(append_decoder, body))
    rig.finish(first)
    assert rig.append("q", {"data": 2, "unique_key": "k"}).deduped


@pytest.mark.parametrize("end", ["ack", "delete", "expire", "dead_letter"])
def test_a_key_is_free_when_its_job_is_gone(rig: QueueRig, end: str) -> None:
    rig.queue(dead_letter="dead", ttl_ms=5_000 if end == "expire" else 0)
    rig.append("q", {"data": 1, "unique_key": "k", "tag": "t"})
    rig.claim()
    match end:
        case "ack":
            rig.ack("w", 1)
        case "delete":
            rig.delete("q", match="t")
        case "expire":
            rig.clock.advance(5_001)
        case _:
            rig.nack("w", 1, dead_letter=True)
    assert not rig.append("q", {"data": 2, "unique_key": "k"}).deduped


@pytest.mark.parametrize("checkpoint", [False, True])
def test_keys_survive_a_crash(rig: QueueRig, checkpoint: bool) -> None:
    rig.queue()
    rig.append("q", {"data": 1, "unique_key": "k"}, {"data": 1, "unique_key": "l"})
    rig.claim()
    rig.ack("w", 1)
    if checkpoint:
        rig.checkpoint()
    rig.crash()
    assert rig.append("q", {"data": 2, "unique_key": "l"}).deduped
    assert not rig.append("q", {"data": 2, "unique_key": "k"}).deduped


PENDING = {"data": 9, "unique_key": "k"}


@pytest.mark.parametrize("durability", ["disk", "fsync", "ephemeral"])
def test_a_retry_of_a_write_of_pending_jobs_adds_nothing_when_they_are_done(rig: QueueRig, durability: str) -> None:
    rig.queue(durability=durability)
    rig.append("q", PENDING, {"data": 2, "unique_key": "l"})
    first = rig.append("q", PENDING, idempotency_key="i")
    rig.claim(max=2)
    rig.ack("w", 1, 2)
    again = rig.append("q", PENDING, idempotency_key="i")
    assert [(each.deduped, each.first_seq, each.count, each.result) for each in (first, again)] == [
        (True, 1, 1, [1])
    ] * 2
    assert not rig.append("q", PENDING).deduped, "without the idempotency key it is another job"


@pytest.mark.parametrize("checkpoint", [False, True])
@pytest.mark.parametrize("others", [[], [{"data": 1}, {"data": 3}]], ids=["pending", "mixed"])
def test_a_retry_is_answered_with_the_same_seqs_after_a_crash(
    rig: QueueRig, others: list[dict[str, object]], checkpoint: bool
) -> None:
    rig.queue()
    rig.append("q", PENDING)
    batch = [*others[:1], PENDING, *others[1:]]
    first = rig.append("q", *batch, idempotency_key="i")
    assert first.result == ([2, 1, 3] if others else [1])
    rig.claim()
    rig.ack("w", 1)
    if checkpoint:
        rig.checkpoint()
    for _ in range(2):
        again = rig.append("q", *batch, idempotency_key="i")
        assert (again.deduped, again.first_seq, again.count) == (True, first.first_seq, first.count)
        assert again.result == first.result
        rig.crash()


def test_a_first_batch_that_repeats_a_key_is_answered_alike_when_retried(rig: QueueRig) -> None:
    batch = {"config": {"type": "queue"}, "idempotency_key": "i"}
    assert rig.append("q", PENDING, PENDING, {"data": 1}, **batch).result == [1, 1, 2]
    assert rig.append("q", PENDING, PENDING, {"data": 1}, **batch).result == [1, 1, 2]


@pytest.mark.parametrize("others", [[], [{"data": 1}]], ids=["pending", "mixed"])
def test_a_retry_that_overtakes_the_sync_gets_the_seqs_of_the_write(
    rig: QueueRig, others: list[dict[str, object]]
) -> None:
    rig.queue(durability="fsync")
    rig.append("q", PENDING)
    requests = [
        decode_body(append_decoder, msgspec.json.encode({"records": [*others, PENDING], "idempotency_key": "i"}))
        for _ in range(2)
    ]
    first, again = (rig.engine.append("q", request) for request in requests)
    assert not first.done
    assert not again.done
    rig.finish(first)
    assert again.done
    assert again.deduped
    assert again.result == first.result == ([2, 1] if others else [1])
    assert rig.look("q").count == 1 + len(others)


@pytest.mark.parametrize("key", ["", "k" * 257])
def test_a_key_has_between_one_and_256_characters(rig: QueueRig, key: str) -> None:
    rig.queue()
    with pytest.raises(InvalidRequest) as refused:
        rig.append("q", {"data": 1, "unique_key": key})
    assert refused.value.detail["field"] == "records[0].unique_key"
