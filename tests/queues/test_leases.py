"""Claim, ack, nack and extend: who holds a job, for how long, and what the counters say meanwhile."""

from __future__ import annotations

import pytest

from tests.queues.conftest import OpenRig
from tests.queues.queue_rig import QueueRig
from topics.model.errors import BatchTooLarge, InvalidRequest, NotAQueue, TopicNotFound

# --- claim ---


def test_a_claim_leases_the_oldest_jobs_in_ascending_order(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(5)
    assert rig.claimed(max=3) == [1, 2, 3]
    assert rig.claimed(max=3) == [4, 5]
    assert rig.claimed(max=3) == []


def test_a_claim_without_max_takes_one_job_and_so_does_one_of_zero(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(3)
    assert rig.claimed() == [1]
    assert rig.claimed(max=0) == [2]


def test_a_claim_takes_no_more_than_the_setting_allows(open_rig: OpenRig) -> None:
    rig = open_rig(max_claim=4)
    rig.queue()
    rig.jobs(10)
    assert len(rig.claim(max=4_000_000_000)) == 4


def test_a_claimed_job_shows_its_record_and_its_lease(rig: QueueRig) -> None:
    rig.queue(lease_ms=30_000)
    rig.append("q", {"data": {"n": 1}, "tag": "t", "meta": {"trace": "z9"}, "node": "producer"}, {"data": [1, 2]})
    now = rig.clock.now_ms()
    first, second = rig.claim(max=2)
    assert first.pop("lease_id").startswith("lease_")
    assert int(second.pop("lease_id").removeprefix("lease_"), 16) > 0
    assert first == {
        "$seq": 1,
        "deadline": now + 30_000,
        "$ts": now,
        "$node": "producer",
        "$tag": "t",
        "deliveries": 1,
        "data": {"n": 1},
        "meta": {"trace": "z9"},
    }
    assert second == {"$seq": 2, "deadline": now + 30_000, "$ts": now, "deliveries": 1, "data": [1, 2]}


def test_a_payload_that_looks_like_a_record_is_not_mistaken_for_one(rig: QueueRig) -> None:
    rig.queue()
    rig.append("q", {"data": ',"data":{"x":1}', "tag": ',"data":', "node": ',"data":'})
    (job,) = rig.claim()
    assert (job["data"], job["$tag"], job["$node"]) == (',"data":{"x":1}', ',"data":', ',"data":')


def test_the_claims_own_lease_wins_over_the_queues(rig: QueueRig) -> None:
    rig.queue(lease_ms=30_000)
    rig.jobs(1)
    (job,) = rig.claim(lease_ms=5_000)
    assert job["deadline"] == rig.clock.now_ms() + 5_000


@pytest.mark.parametrize(("asked", "given"), [(0, 100), (99, 100), (100, 100), (86_400_001, 86_400_000)])
def test_a_lease_is_clamped(rig: QueueRig, asked: int, given: int) -> None:
    rig.queue()
    rig.jobs(1)
    (job,) = rig.claim(lease_ms=asked)
    assert job["deadline"] == rig.clock.now_ms() + given


def test_every_delivery_has_a_lease_of_its_own(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(3)
    leases = {job["lease_id"] for job in rig.claim(max=3)}
    rig.nack("w", 1, 2, 3)
    leases |= {job["lease_id"] for job in rig.claim(max=3)}
    assert len(leases) == 6


def test_a_job_that_is_leased_is_nobody_elses(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(1)
    assert rig.claimed("a") == [1]
    assert rig.claimed("b") == []
    assert rig.claimed("a") == []


def test_a_job_is_claimable_only_once_it_is_published(rig: QueueRig) -> None:
    rig.queue(durability="fsync")
    request = b'{"records":[{"data":1}]}'
    from topics.model.requests.records import append_decoder, decode_body

    staged = rig.engine.append("q", decode_body(append_decoder, request))
    assert rig.parts()[1].ready == 0
    rig.finish(staged)
    assert rig.claimed() == [1]


def test_queue_verbs_need_a_topic_that_is_there_and_is_a_queue(rig: QueueRig) -> None:
    rig.append("log", 1)
    for verb in (rig.claim, lambda **more: rig.ack("w", 1, **more), lambda **more: rig.nack("w", 1, **more)):
        with pytest.raises(TopicNotFound):
            verb(name="absent")
        with pytest.raises(NotAQueue):
            verb(name="log")
    with pytest.raises(NotAQueue):
        rig.extend("w", 1, name="log", lease_ms=1000)
    with pytest.raises(NotAQueue):
        rig.pause(paused=True, name="log")
    assert "absent" not in rig.store.state.by_name


@pytest.mark.parametrize("node", ["", "n" * 129])
def test_a_worker_needs_a_name_of_reasonable_length(rig: QueueRig, node: str) -> None:
    rig.queue()
    with pytest.raises(InvalidRequest) as refused:
        rig.claim(node)
    assert refused.value.detail["field"] == "node"


# --- order ---


def test_given_back_jobs_come_before_fresh_ones_and_the_answer_is_ascending(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(6)
    rig.claim(max=4)
    rig.nack("w", 4, 2)
    assert rig.claimed(max=1) == [2]
    assert rig.claimed(max=3) == [4, 5, 6]


def test_jobs_whose_lease_ran_out_come_before_fresh_ones(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000)
    rig.jobs(3)
    rig.claim(max=2)
    rig.clock.advance(1_001)
    assert rig.claimed(max=1) == [1]
    assert rig.claimed(max=9) == [2, 3]


def test_dead_records_between_live_jobs_are_skipped(rig: QueueRig) -> None:
    rig.queue()
    rig.append("q", *[{"data": n, "tag": "odd" if n % 2 else "even"} for n in range(20)])
    rig.delete("q", match="even")
    assert rig.claimed(max=100) == list(range(2, 21, 2))
    assert rig.places() == (0, 10, 0)


def test_jobs_on_disk_only_are_claimed_like_others(open_rig: OpenRig) -> None:
    rig = open_rig(segment_max_events=2, hot_retain_segments=0, hot_retain_bytes=0)
    rig.queue()
    rig.append("q", *[{"data": {"n": n}, "tag": f"t{n}"} for n in range(9)])
    rig.checkpoint()
    rig.checkpoint()
    jobs = [job for _ in range(9) for job in rig.claim(max=2)]
    assert [(job["$seq"], job["data"]["n"], job["$tag"]) for job in jobs] == [(n + 1, n, f"t{n}") for n in range(9)]
    assert rig.ack("w", *range(1, 10)).jobs == list(range(1, 10))
    assert rig.look("q").count == 0


# --- ack ---


def test_an_ack_deletes_the_job_for_good(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(3)
    rig.claim(max=3)
    assert rig.ack("w", 1, 3).jobs == [1, 3]
    assert rig.seqs("q") == [2]
    assert rig.places() == (0, 1, 0)
    rig.clock.advance(60_000)
    assert rig.claimed(max=9) == [2]


def test_an_ack_of_a_job_that_is_not_held_is_skipped_and_reported(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(4)
    rig.claim("w", max=1)
    rig.claim("v", max=1)
    held = rig.ack("w", 1, 2, 3, 99)
    assert (held.jobs, held.skipped) == ([1], [2, 3, 99])
    assert rig.seqs("q") == [2, 3, 4]


def test_an_ack_may_be_repeated(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(1)
    rig.claim()
    assert rig.ack("w", 1).jobs == [1]
    held = rig.ack("w", 1)
    assert (held.jobs, held.skipped) == ([], [1])


def test_a_seq_given_twice_in_one_ack_counts_once(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(1)
    rig.claim()
    held = rig.ack("w", 1, 1)
    assert (held.jobs, held.skipped) == ([1], [1])


def test_a_second_ack_in_the_same_tick_is_skipped(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(1)
    rig.claim()
    from tests.queues.queue_rig import request_of
    from topics.model.requests.records import AckRequest

    first = rig.store.queues.ack("q", request_of(AckRequest, node="w", seqs=[1]))
    second = rig.store.queues.ack("q", request_of(AckRequest, node="w", seqs=[1]))
    assert rig.finish(first).result.jobs == [1]
    assert rig.finish(second).result.skipped == [1]


@pytest.mark.parametrize("reclaimed", [False, True])
def test_an_ack_after_the_deadline_is_skipped_whether_reclaimed_or_not(rig: QueueRig, reclaimed: bool) -> None:
    rig.queue(lease_ms=1_000)
    rig.jobs(1)
    rig.claim("slow")
    rig.clock.advance(1_001)
    if reclaimed:
        rig.claim("quick")
    assert rig.ack("slow", 1).skipped == [1]
    assert rig.seqs("q") == [1]


def test_a_lease_still_stands_at_its_deadline(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000)
    rig.jobs(1)
    rig.claim()
    rig.clock.advance(1_000)
    assert rig.places() == (0, 1, 0)
    assert rig.claimed("other") == []
    assert rig.ack("w", 1).jobs == [1]


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_seqs_are_between_one_and_as_many_as_a_claim_may_take(rig: QueueRig, verb: str) -> None:
    rig.queue()
    more = {"lease_ms": 1_000} if verb == "extend" else {}
    with pytest.raises(InvalidRequest) as refused:
        getattr(rig, verb)("w", **more)
    assert refused.value.detail["field"] == "seqs"
    with pytest.raises(BatchTooLarge):
        getattr(rig, verb)("w", *range(1, 1002), **more)
    assert getattr(rig, verb)("w", *range(1, 1001), **more).jobs == []


# --- fences ---


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
def test_a_stale_token_fences_its_worker_off(rig: QueueRig, verb: str) -> None:
    rig.queue(lease_ms=1_000)
    rig.jobs(2)
    stale = [job["lease_id"] for job in rig.claim(max=2)]
    rig.clock.advance(1_001)
    current = [job["lease_id"] for job in rig.claim(max=2)]
    more = {"lease_ms": 1_000} if verb == "extend" else {}
    held = getattr(rig, verb)("w", 1, 2, lease_ids=[stale[0], current[1]], **more)
    assert (held.jobs, held.skipped) == ([2], [1])


@pytest.mark.parametrize("verb", ["ack", "nack", "extend"])
@pytest.mark.parametrize("tokens", [[], ["lease_1"], ["lease_1", "lease_2", "lease_3"]])
def test_tokens_are_as_many_as_seqs(rig: QueueRig, verb: str, tokens: list[str]) -> None:
    rig.queue()
    more = {"lease_ms": 1_000} if verb == "extend" else {}
    with pytest.raises(InvalidRequest) as refused:
        getattr(rig, verb)("w", 1, 2, lease_ids=tokens, **more)
    assert refused.value.detail["field"] == "lease_ids"


def test_an_extended_lease_keeps_its_token(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(1)
    token = rig.claim()[0]["lease_id"]
    rig.extend("w", 1, lease_ms=5_000)
    assert rig.ack("w", 1, lease_ids=[token]).jobs == [1]


# --- nack ---


def test_a_nack_makes_the_job_claimable_at_once(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(1)
    rig.claim("a")
    assert rig.nack("a", 1).jobs == [1]
    assert rig.places() == (1, 0, 0)
    (job,) = rig.claim("b")
    assert job["deliveries"] == 2
    assert rig.ack("a", 1).skipped == [1]


def test_a_nack_with_a_delay_counts_in_neither_until_the_delay_is_over(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(2)
    rig.claim(max=2)
    rig.nack("w", 1, delay_ms=500)
    assert rig.places() == (0, 1, 1)
    rig.clock.advance(499)
    assert rig.claimed() == []
    rig.clock.advance(1)
    assert rig.places() == (1, 1, 0)
    assert rig.claimed() == [1]


def test_a_nack_of_what_is_not_held_is_skipped(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(2)
    rig.claim("w")
    held = rig.nack("other", 1, 2, 77)
    assert (held.jobs, held.skipped) == ([], [1, 2, 77])
    assert rig.places() == (1, 1, 0)


def test_a_delay_is_at_most_a_day(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(1)
    rig.claim()
    rig.nack("w", 1, delay_ms=10**12)
    rig.clock.advance(86_400_000)
    assert rig.claimed() == [1]


# --- extend ---


def test_extend_sets_the_deadline_from_now_and_does_not_add(rig: QueueRig) -> None:
    rig.queue(lease_ms=30_000)
    rig.jobs(1)
    rig.claim()
    rig.clock.advance(1_000)
    held = rig.extend("w", 1, lease_ms=2_000)
    assert held.deadline == rig.clock.now_ms() + 2_000
    rig.clock.advance(2_001)
    (job,) = rig.claim("other")
    assert job["deliveries"] == 2, "extending is not a delivery"


def test_extend_keeps_a_long_job_with_its_worker(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000)
    rig.jobs(1)
    rig.claim()
    for _ in range(5):
        rig.clock.advance(900)
        assert rig.extend("w", 1, lease_ms=1_000).jobs == [1]
        assert rig.claimed("other") == []
    assert rig.ack("w", 1).jobs == [1]


def test_what_ran_out_or_is_not_held_cannot_be_extended(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000)
    rig.jobs(2)
    rig.claim("w")
    rig.clock.advance(1_001)
    held = rig.extend("w", 1, 2, 9, lease_ms=1_000)
    assert (held.jobs, held.skipped) == ([], [1, 2, 9])


@pytest.mark.parametrize(("asked", "given"), [(0, 100), (86_400_001, 86_400_000)])
def test_an_extension_is_clamped(rig: QueueRig, asked: int, given: int) -> None:
    rig.queue()
    rig.jobs(1)
    rig.claim()
    assert rig.extend("w", 1, lease_ms=asked).deadline == rig.clock.now_ms() + given


# --- jobs that one claim took together ---


def test_one_object_stands_for_all_jobs_of_a_claim_until_something_happens_to_one_alone(rig: QueueRig) -> None:
    rig.queue(lease_ms=30_000)
    rig.jobs(8)
    tokens = [job["lease_id"] for job in rig.claim(max=8)]
    _, queue = rig.parts()
    (run,) = set(queue.jobs.values())
    rig.clock.advance(10_000)
    assert rig.extend("w", 3, lease_ms=60_000).jobs == [3]
    assert rig.nack("w", 5, delay_ms=1_000, error="no").jobs == [5]
    assert rig.delete("q", before_seq=2) == 1
    assert [seq for seq, job in queue.jobs.items() if job is run] == [2, 4, 6, 7, 8]
    assert rig.places() == (0, 6, 1)
    assert rig.ack("w", 6, 7, lease_ids=[tokens[5], tokens[6]]).jobs == [6, 7]
    assert rig.ack("w", 1, 2, 3, 4, 5, lease_ids=tokens[:5]).skipped == [1, 5]
    assert rig.places() == (0, 1, 1)
    rig.clock.advance(1_000)
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim(max=8)] == [(5, 2)]
    assert rig.ack("w", 8, lease_ids=[tokens[6]]).skipped == [8]
    assert rig.ack("w", 8, lease_ids=[tokens[7]]).jobs == [8]


def test_what_is_left_of_a_claim_expires_together(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000)
    rig.jobs(6)
    first = rig.claim(max=5)
    assert rig.ack("w", 2, 3).jobs == [2, 3]
    rig.clock.advance(1_001)
    assert rig.places() == (4, 0, 0)
    assert rig.ack("w", 1).skipped == [1]
    again = rig.claim(max=6)
    assert [(job["$seq"], job["deliveries"]) for job in again] == [(1, 2), (4, 2), (5, 2), (6, 1)]
    assert not {job["lease_id"] for job in first} & {job["lease_id"] for job in again}


@pytest.mark.parametrize("delay_ms", [0, 700])
def test_neighbours_that_are_given_back_together_keep_the_error_and_are_redelivered(
    rig: QueueRig, delay_ms: int
) -> None:
    rig.queue(lease_ms=30_000)
    rig.jobs(6)
    rig.claim(max=5)
    assert rig.nack("w", 2, 3, 4, delay_ms=delay_ms, error="no").jobs == [2, 3, 4]
    assert rig.places() == ((4, 2, 0) if not delay_ms else (1, 2, 3))
    assert rig.nack("w", 2, 3, 4).skipped == [2, 3, 4], "they are not held any more"
    assert rig.delete("q", before_seq=3) == 2, "one that is held, and one that was given back"
    assert rig.places() == ((3, 1, 0) if not delay_ms else (1, 1, 2))
    rig.clock.advance(delay_ms)
    _, queue = rig.parts()
    assert [queue.jobs[seq].error for seq in (3, 4, 5)] == ["no", "no", ""]
    assert [(job["$seq"], job["deliveries"]) for job in rig.claim("v", max=9)] == [(3, 2), (4, 2), (6, 1)]
    assert queue.jobs[3].error == "no"
    assert rig.ack("v", 3, 4, 6).jobs == [3, 4, 6]
    assert rig.places() == (0, 1, 0)


def test_neighbours_that_are_extended_together_outlive_the_rest_of_their_claim(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000)
    rig.jobs(4)
    tokens = [job["lease_id"] for job in rig.claim(max=4)]
    assert rig.extend("w", 2, 3, lease_ms=1_000, lease_ids=tokens[1:3]).jobs == [2, 3], "to the same deadline"
    assert rig.extend("w", 2, 3, lease_ms=5_000, lease_ids=tokens[1:3]).jobs == [2, 3]
    rig.clock.advance(1_001)
    assert rig.places() == (2, 2, 0)
    assert rig.ack("w", 2, 3, lease_ids=tokens[1:3]).jobs == [2, 3]
    assert rig.claimed(max=4) == [1, 4]


def test_a_lease_of_the_same_millisecond_as_one_that_was_acked_expires_too(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000)
    rig.jobs(2)
    assert rig.claimed() == [1]
    rig.ack("w", 1)
    assert rig.claimed() == [2]
    rig.clock.advance(1_001)
    assert rig.places() == (1, 0, 0)


@pytest.mark.parametrize("seqs", [(1, 2, 3), (3, 2, 1), (1, 3), (2,), (1, 2, 4), (1, 1, 2)])
def test_an_ack_takes_the_jobs_of_a_claim_in_any_order_and_number(rig: QueueRig, seqs: tuple[int, ...]) -> None:
    rig.queue()
    rig.jobs(4)
    rig.claim(max=3)
    rig.claim("other")
    held = rig.ack("w", *seqs)
    acked = {seq for seq in seqs if seq < 4}
    assert sorted(held.jobs) == sorted(acked)
    assert sorted(held.skipped) == sorted([4] * seqs.count(4) + [1] * (seqs.count(1) - 1 if 1 in seqs else 0))
    assert [record["$seq"] for record in rig.records("q")] == sorted({1, 2, 3, 4} - acked)
    assert rig.places() == (0, 4 - len(acked), 0)


def test_jobs_of_one_claim_show_their_own_time_producer_and_tag(rig: QueueRig) -> None:
    rig.queue()
    sent = [("a%d%%", None), (None, "t"), (None, None), ("a%d%%", "50%"), ("é", "é")]
    for number, (node, tag) in enumerate(sent):
        rig.append("q", {"data": {"n": number}, "node": node, "tag": tag})
        rig.clock.advance(number)
    times = [record["$ts"] for record in rig.records("q")]
    jobs = rig.claim(max=5)
    shown = [(job["$seq"], job["data"]["n"], job["$ts"], job.get("$node"), job.get("$tag")) for job in jobs]
    assert shown == [(number + 1, number, times[number], *sent[number]) for number in range(5)]
    leases = [int(job["lease_id"].removeprefix("lease_"), 16) for job in jobs]
    assert leases == list(range(leases[0], leases[0] + 5))


# --- counters, and what else happens to records ---


def test_ready_and_in_flight_add_up_to_the_live_jobs(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000)
    rig.jobs(10)
    rig.claim(max=4)
    rig.ack("w", 1)
    rig.nack("w", 2)
    rig.nack("w", 3, delay_ms=100)
    assert rig.places() == (7, 1, 1)
    assert rig.look("q").count == 9
    rig.clock.advance(1_001)
    assert rig.places() == (9, 0, 0)


@pytest.mark.parametrize("when", ["fresh", "leased", "released", "delayed"])
def test_a_deleted_job_vanishes_from_every_counter(rig: QueueRig, when: str) -> None:
    rig.queue()
    rig.append("q", {"data": 1, "tag": "gone"}, {"data": 2, "tag": "kept"})
    if when != "fresh":
        rig.claim(max=2)
    if when in ("released", "delayed"):
        rig.nack("w", 1, 2, delay_ms=50 if when == "delayed" else 0)
    assert rig.delete("q", match="gone") == 1
    assert sum(rig.places()) == 1
    assert rig.ack("w", 1).skipped == [1]
    rig.clock.advance(60_000)
    assert rig.claimed(max=9) == [2]


def test_a_job_that_expires_vanishes_even_from_its_worker(rig: QueueRig) -> None:
    rig.queue(ttl_ms=5_000)
    rig.jobs(2)
    rig.claim("w")
    rig.clock.advance(5_001)
    assert rig.places() == (0, 0, 0)
    assert rig.ack("w", 1).skipped == [1]
    assert rig.claimed() == []


def test_a_cap_that_drops_old_jobs_drops_them_from_the_counters(rig: QueueRig) -> None:
    rig.queue(cap_records=3)
    rig.jobs(3)
    rig.claim(max=2)
    rig.jobs(2)
    assert rig.places() == (3, 0, 0)
    assert rig.claimed(max=9) == [3, 4, 5]
    assert rig.ack("w", 1, 2).skipped == [1, 2]


def test_a_queue_that_rejects_never_drops_work(rig: QueueRig) -> None:
    from topics.model.errors import TopicFull

    rig.queue(cap_records=3, discard="reject")
    rig.jobs(3)
    rig.claim(max=2)
    with pytest.raises(TopicFull):
        rig.jobs(1)
    assert rig.places() == (1, 2, 0)
    rig.ack("w", 1)
    rig.jobs(1)
    assert rig.places() == (2, 1, 0)


def test_reading_a_queue_claims_nothing(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(3)
    rig.claim()
    assert rig.seqs("q") == [1, 2, 3]
    assert rig.places() == (2, 1, 0)


def test_a_queue_made_again_starts_from_nothing(rig: QueueRig) -> None:
    rig.queue(max_deliveries=1, dead_letter="dead")
    rig.jobs(2)
    rig.claim()
    rig.nack("w", 1)
    rig.claimed(max=1)
    assert rig.counters().dead_lettered == 1
    rig.drop("q")
    rig.queue()
    assert rig.counters().dead_lettered == 0
    assert rig.places() == (0, 0, 0)


def test_a_log_has_no_queue_in_its_state(rig: QueueRig) -> None:
    rig.append("log", 1)
    assert rig.look("log").queue is None


def test_a_paused_queue_hands_out_nothing_and_takes_acks(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(3)
    rig.claim()
    rig.pause(paused=True)
    assert rig.claimed() == []
    assert rig.counters().paused
    assert rig.ack("w", 1).jobs == [1]
    rig.reopen()
    assert rig.claimed() == []
    rig.pause(paused=False)
    assert rig.claimed() == [2]
