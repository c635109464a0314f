"""What an operator does to many jobs: each job once, as far as the queue goes, in short steps, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.queues.queue_rig import QueueRig, request_of
from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Steps
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.queues.operator import job_pages, redrive
from topics.engine.queues.operator.job_actions import Done
from topics.engine.queues.operator.redrive import Driven
from topics.model.errors import TopicFull, TopicNotFound
from topics.model.requests.jobs import JobsRequest
from topics.model.requests.records import RedriveRequest


def act(rig: QueueRig, on_change: Callable[[], None] = lambda: None, **fields: Any) -> Done:
    return rig.drive(rig.store.queues.job_actions.act("q", request_of(JobsRequest, **fields), on_change))


def step_by_step(rig: QueueRig, steps: Steps[Any]) -> tuple[int, Any]:
    """How many steps there are between pauses, and the result."""
    count = 1
    while True:
        try:
            wait = next(steps)
        except StopIteration as end:
            return count, end.value
        if isinstance(wait, PendingChange):
            rig.finish(wait)
        elif isinstance(wait, ColdMiss):
            rig.fetch(wait)
        else:
            count += 1


def test_a_job_that_is_released_and_claimed_again_keeps_its_new_worker(rig: QueueRig) -> None:
    rig.queue(lease_ms=60_000)
    rig.jobs(600)
    assert len(rig.claimed("gone", max=600)) == 600
    delivered: list[int] = []

    def claim() -> None:
        delivered.extend(rig.claimed("alive", max=1_000))

    done = act(rig, claim, action="release", all=True, limit=10_000)
    assert (done.changed, done.skipped, done.more) == (600, 0, False)
    assert sorted(delivered) == list(range(1, 601))
    assert rig.places() == (0, 600, 0)


def test_a_lease_is_extended_once_however_long_that_takes(rig: QueueRig) -> None:
    rig.queue(lease_ms=60_000)
    rig.jobs(600)
    rig.claim(max=600)
    done = act(rig, lambda: rig.clock.advance(10), action="extend", all=True, limit=10_000, lease_ms=10**12)
    assert (done.changed, done.more) == (600, False)


def test_a_lease_that_its_worker_extends_during_the_search_is_one_job(rig: QueueRig) -> None:
    rig.queue(lease_ms=60_000)
    rig.jobs(600)
    rig.claim(max=600)
    request = request_of(JobsRequest, action="release", all=True)
    steps = rig.store.queues.job_actions.act("q", request, lambda: None)
    assert next(steps) is None, "the search has begun"
    rig.extend("w", *range(1, 100), lease_ms=90_000)
    _, done = step_by_step(rig, steps)
    assert (done.changed, done.skipped, done.more) == (600, 0, False)


def test_a_search_by_tag_reaches_the_end_of_the_queue(rig: QueueRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_pages, "SCAN_MAX", 100)
    monkeypatch.setattr(job_pages, "STEP_MAX", 50)
    rig.queue()
    for batch in range(8):
        rig.append("q", *({"data": number, "tag": f"t{batch}:{number}"} for number in range(100)))
    chosen: dict[str, Any] = {"action": "delete", "state": "ready", "match": ["tag", "Glob", "t6:*"]}
    assert act(rig, **chosen) == Done("ready", 100, 0, more=False)
    assert act(rig, **chosen) == Done("ready", 0, 0, more=False)
    assert rig.places() == (700, 0, 0)


def test_jobs_stay_where_they_are_if_there_is_no_topic_for_dead_letters(rig: QueueRig) -> None:
    rig.queue(lease_ms=60_000, dead_letter="dead", auto_create=False)
    rig.jobs(6)
    held = rig.claimed(max=3)
    for state in ("ready", "leased"):
        with pytest.raises(TopicNotFound, match='topic "dead" does not exist'):
            act(rig, action="bury", state=state, all=True)
    assert rig.places() == (3, 3, 0)
    assert rig.ack("w", *held).skipped == []
    assert rig.claimed(max=9) == [4, 5, 6]


def test_jobs_stay_where_they_are_if_the_topic_for_dead_letters_is_full(rig: QueueRig) -> None:
    rig.configure("dead", cap_records=2, discard="reject")
    rig.queue(lease_ms=60_000, dead_letter="dead")
    rig.jobs(6)
    held = rig.claimed(max=3)
    either: list[dict[str, Any]] = [{"all": True}, {"seqs": held}]
    for chosen in either:
        with pytest.raises(TopicFull):
            act(rig, action="bury", state="leased", **chosen)
    assert (rig.places(), rig.look("dead").count) == ((3, 3, 0), 0)
    assert act(rig, action="bury", state="leased", seqs=held[:2], error="poison").changed == 2
    assert [letter["meta"]["$dead_letter_error"] for letter in rig.records("dead")] == ["poison"] * 2
    assert rig.ack("w", *held[2:]).skipped == []


def test_as_many_doomed_jobs_become_dead_letters_as_there_is_room_for(rig: QueueRig) -> None:
    rig.configure("dead", cap_records=10, discard="reject")
    rig.queue(max_deliveries=1, dead_letter="dead")
    rig.jobs(50)
    rig.nack("w", *rig.claimed(max=50))
    assert rig.claimed(max=50) == []
    assert (rig.look("dead").count, rig.places()) == (10, (0, 0, 40))
    rig.delete("dead", before_seq=11)
    rig.clock.advance(60_000)
    assert rig.claimed(max=50) == []
    assert (rig.look("dead").count, rig.places()) == (10, (0, 0, 30))


def test_a_dead_letter_that_does_not_fit_leaves_room_for_smaller_ones(rig: QueueRig) -> None:
    rig.configure("dead", cap_bytes=2_000, discard="reject")
    rig.queue(max_deliveries=1, dead_letter="dead")
    rig.append("q", "x" * 4_000, 1, 2)
    rig.nack("w", *rig.claimed(max=3))
    rig.claim(max=3)
    assert [letter["data"] for letter in rig.records("dead")] == [1, 2]
    assert rig.places() == (0, 0, 1)


@pytest.fixture
def letters(rig: QueueRig, monkeypatch: pytest.MonkeyPatch) -> QueueRig:
    """A queue, and ten blocks of its dead letters, each with a tag of its own."""
    monkeypatch.setattr(redrive, "BLOCKS_PER_STEP", 2)
    rig.queue(dead_letter="dead")
    stamps = {"$dead_letter_from": "q", "$dead_letter_src_seq": 1, "$dead_letter_deliveries": 3}
    for number in range(10, 50):
        rig.append("dead", {"data": "x" * 60_000, "tag": f"a:{number}", "meta": stamps})
    assert len(rig.store.state.by_name["dead"].blocks) == 10
    return rig


def redriven(rig: QueueRig, **fields: Any) -> tuple[int, Driven]:
    request = request_of(RedriveRequest, **fields)
    return step_by_step(rig, rig.store.queues.redriver.redrive_all("dead", request, lambda _: True))


def test_a_redrive_by_tag_searches_a_few_blocks_at_a_time(letters: QueueRig) -> None:
    steps, driven = redriven(letters, match=["tag", "Glob", "a:48*"])
    assert (steps, driven.moved, driven.more) == (5, 1, False)
    assert letters.places() == (1, 0, 0)
    steps, driven = redriven(letters, match=["tag", "Glob", "a:none*"])
    assert (steps, driven.moved, driven.more) == (5, 0, False)


def test_a_redrive_of_some_seqs_finds_each_of_them(letters: QueueRig) -> None:
    done = act(letters, action="redrive", seqs=[39, 3, 17, 4_000])
    assert (done.changed, done.skipped, done.more) == (3, 1, False)


def test_a_redrive_that_fails_after_blocks_without_a_match_says_why(letters: QueueRig) -> None:
    letters.edit("q", cap_records=1, discard="reject")
    letters.jobs(1)
    with pytest.raises(TopicFull):
        redriven(letters, match=["tag", "Glob", "a:48*"])
