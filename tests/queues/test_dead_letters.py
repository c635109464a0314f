"""Jobs delivered too often: moved to another topic in one step, with their stamps, and sent home again."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from tests.faults import FaultyDisk
from tests.patience import PATIENCE_S
from tests.queues.conftest import OpenRig
from tests.queues.queue_rig import QueueRig, request_of
from topics.engine.core.appended import Appended
from topics.engine.core.pending import Busy
from topics.engine.log.block import Block
from topics.model.errors import DamagedData, InvalidRequest, NotAQueue
from topics.model.requests.batch import render
from topics.model.requests.records import AppendRequest, ClaimRequest, RecordRequest


def fail_until_dead(rig: QueueRig, deliveries: int, name: str = "q") -> None:
    """Claim and give back everything so often that the next claim must not deliver it."""
    for _ in range(deliveries):
        seqs = rig.claimed(name=name, max=100)
        assert seqs
        rig.nack("w", *seqs, name=name)
    assert rig.claimed(name=name, max=100) == []


def test_a_job_is_moved_instead_of_being_delivered_once_too_often(rig: QueueRig) -> None:
    rig.queue(max_deliveries=3, dead_letter="dead")
    rig.append("q", {"data": {"n": 1}, "tag": "t", "node": "producer", "meta": {"trace": "z"}})
    fail_until_dead(rig, 3)
    (letter,) = rig.records("dead", include_tags=True)
    assert letter == {
        "$seq": 1,
        "$ts": rig.clock.now_ms(),
        "$node": "producer",
        "$tag": "t",
        "data": {"n": 1},
        "meta": {
            "trace": "z",
            "$dead_letter_from": "q",
            "$dead_letter_deliveries": 3,
            "$dead_letter_src_seq": 1,
        },
    }
    assert rig.look("q").count == 0
    assert rig.counters().dead_lettered == 1
    assert rig.places() == (0, 0, 0)


def test_a_log_that_holds_dead_letters_is_still_a_log(rig: QueueRig) -> None:
    rig.queue(max_deliveries=1, dead_letter="dead")
    rig.jobs(1)
    fail_until_dead(rig, 1)
    assert rig.look("dead").queue is None
    with pytest.raises(NotAQueue):
        rig.claim(name="dead")
    with pytest.raises(InvalidRequest, match="this topic is a log"):
        rig.append("dead", {"data": 1, "delay_ms": 5})


def test_leases_that_run_out_count_as_deliveries(rig: QueueRig) -> None:
    rig.queue(lease_ms=1_000, max_deliveries=2, dead_letter="dead")
    rig.jobs(1)
    for deliveries in (1, 2):
        assert rig.claim()[0]["deliveries"] == deliveries
        rig.clock.advance(1_001)
    assert rig.claimed() == []
    assert rig.look("dead").count == 1


@pytest.mark.parametrize("config", [{"max_deliveries": 0, "dead_letter": "dead"}, {"max_deliveries": 1}])
def test_without_a_limit_or_a_topic_a_job_comes_back_for_ever(rig: QueueRig, config: dict[str, Any]) -> None:
    rig.queue(**config)
    rig.jobs(1)
    for deliveries in range(1, 8):
        assert rig.claim()[0]["deliveries"] == deliveries
        rig.nack("w", 1)
    assert rig.counters().dead_lettered == 0


def test_a_claim_goes_on_to_the_next_jobs_when_it_meets_dead_ones(rig: QueueRig) -> None:
    rig.queue(max_deliveries=1, dead_letter="dead")
    rig.jobs(6)
    rig.claim(max=3)
    rig.nack("w", 1, 2, 3)
    assert rig.claimed(max=2) == [4, 5]
    assert rig.seqs("q") == [4, 5, 6]
    assert [record["meta"]["$dead_letter_src_seq"] for record in rig.records("dead")] == [1, 2, 3]


def test_a_dead_letter_topic_may_be_a_queue_with_dead_letters_of_its_own(rig: QueueRig) -> None:
    rig.queue(max_deliveries=1, dead_letter="second")
    rig.queue("second", max_deliveries=1, dead_letter="third")
    rig.append("q", {"data": 1, "meta": {"own": True}})
    fail_until_dead(rig, 1)
    fail_until_dead(rig, 1, "second")
    (letter,) = rig.records("third")
    assert letter["meta"] == {
        "own": True,
        "$dead_letter_from": "second",
        "$dead_letter_deliveries": 1,
        "$dead_letter_src_seq": 1,
    }
    assert rig.look("second").count == 0


@pytest.mark.parametrize("source", ["ephemeral", "memory", "disk", "fsync"])
@pytest.mark.parametrize("destination", ["ephemeral", "memory", "disk", "fsync"])
def test_a_move_survives_a_restart_as_both_classes_promise(rig: QueueRig, source: str, destination: str) -> None:
    rig.queue(durability=source, max_deliveries=1, dead_letter="dead")
    rig.configure("dead", durability=destination)
    rig.jobs(2)
    fail_until_dead(rig, 1)
    assert (rig.look("q").count, rig.look("dead").count) == (0, 2)
    rig.crash()
    assert rig.look("q").count == 0
    assert rig.look("dead").count == (0 if destination == "ephemeral" else 2)
    rig.append("dead", "later")
    assert rig.records("dead")[-1]["data"] == "later"


def test_a_crash_at_any_byte_leaves_each_job_in_exactly_one_place(open_rig: OpenRig, tmp_path: Path) -> None:
    rig = open_rig()
    rig.queue(max_deliveries=1, dead_letter="dead")
    rig.configure("dead")
    rig.jobs(5)
    rig.claim(max=5)
    rig.nack("w", 1, 2, 3, 4, 5)
    written = rig.store.wal.written_to
    rig.claim(max=5)
    frame_bytes = rig.store.wal.written_to - written
    rig.abandon()
    (log,) = (rig.path / "shard-00" / "wal").glob("*.log")
    end = len(log.read_bytes().rstrip(b"\0"))
    seen: set[tuple[int, int]] = set()
    for cut in range(end - frame_bytes, end + 40, 40):
        left = tmp_path / f"cut{cut}"
        shutil.copytree(rig.path, left)
        # As if the crash had come before the sync.
        (left / "shard-00" / "wal" / "synced").unlink(missing_ok=True)
        with (left / log.relative_to(rig.path)).open("r+b") as file:
            file.seek(cut)
            file.write(bytes(max(0, end - cut)))
        with QueueRig(left) as after:
            seen.add((after.look("q").count, after.look("dead").count))
    assert seen == {(5, 0), (0, 5)}


def test_a_full_dead_letter_topic_leaves_the_job_where_it_is_and_is_asked_again(rig: QueueRig) -> None:
    rig.queue(max_deliveries=1, dead_letter="dead")
    rig.configure("dead", cap_records=1, discard="reject")
    rig.append("dead", "full")
    rig.jobs(1)
    fail_until_dead(rig, 1)
    assert rig.look("q").count == 1
    assert rig.places() == (0, 0, 1), "undelivered, and not on offer"
    rig.clock.advance(1_000)
    assert rig.claimed() == []
    rig.delete("dead", before_seq=2)
    rig.clock.advance(2_000)
    assert rig.claimed() == []
    assert rig.look("q").count == 0
    assert rig.look("dead").count == 1


def test_a_dead_letter_topic_that_cannot_be_made_leaves_the_job_where_it_is(open_rig: OpenRig) -> None:
    rig = open_rig(max_topics=1)
    rig.queue(max_deliveries=1, dead_letter="dead")
    rig.jobs(1)
    fail_until_dead(rig, 1)
    assert rig.look("q").count == 1
    assert rig.counters().dead_lettered == 0


def test_a_write_that_fails_leaves_the_job_in_its_queue(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.queue(max_deliveries=1, dead_letter="dead")
    rig.configure("dead")
    rig.jobs(1)
    rig.claim()
    rig.nack("w", 1)
    disk.fail("pwritev", path=".log")
    assert rig.claimed() == []
    disk.heal()
    assert (rig.look("q").count, rig.places()) == (1, (0, 0, 1))
    assert rig.look("dead").count == 0
    rig.clock.advance(2_000)
    assert rig.claimed() == []
    assert rig.look("dead").count == 1


# --- given up by hand ---


def test_a_worker_may_give_a_job_up_and_say_why(rig: QueueRig) -> None:
    rig.queue(dead_letter="dead")
    rig.jobs(2)
    rig.claim(max=2)
    held = rig.nack("w", 1, dead_letter=True, error="cannot parse")
    assert held.jobs == [1]
    (letter,) = rig.records("dead")
    assert letter["meta"] == {
        "$dead_letter_from": "q",
        "$dead_letter_deliveries": 1,
        "$dead_letter_src_seq": 1,
        "$dead_letter_error": "cannot parse",
    }
    assert rig.places() == (0, 1, 0)


@pytest.mark.parametrize("keep_results_ms", [0, 60_000])
def test_a_cap_holds_for_letters_as_soon_as_they_are_there(rig: QueueRig, keep_results_ms: int) -> None:
    rig.configure("dead", cap_records=2)
    rig.queue(dead_letter="dead", keep_results_ms=keep_results_ms)
    rig.jobs(3)
    rig.claim(max=3)
    rig.nack("w", 1, 2, 3, dead_letter=True)
    assert rig.look("dead").count == 2


def test_the_last_error_stays_with_the_job_until_it_dies(rig: QueueRig) -> None:
    rig.queue(max_deliveries=2, dead_letter="dead")
    rig.jobs(1)
    rig.claim()
    rig.nack("w", 1, error="first")
    rig.claim()
    rig.clock.advance(60_000)
    assert rig.claimed() == []
    assert rig.records("dead")[0]["meta"]["$dead_letter_error"] == "first"


def test_a_queue_without_a_dead_letter_topic_takes_no_job_that_is_given_up(rig: QueueRig) -> None:
    rig.queue()
    rig.jobs(1)
    rig.claim()
    with pytest.raises(InvalidRequest) as refused:
        rig.nack("w", 1, dead_letter=True)
    assert refused.value.detail["field"] == "dead_letter"
    assert rig.places() == (0, 1, 0)


# --- sent home ---


def dead(rig: QueueRig, count: int = 4, **config: Any) -> None:
    rig.queue(max_deliveries=1, dead_letter="dead")
    if config:
        rig.configure("dead", **config)
    rig.append("q", *[{"data": n, "tag": "odd" if n % 2 else "even", "meta": {"n": n}} for n in range(count)])
    fail_until_dead(rig, 1)


@pytest.mark.parametrize("kind", ["log", "queue"])
def test_a_redrive_sends_jobs_home_as_they_were(rig: QueueRig, kind: str) -> None:
    dead(rig, type=kind)
    driven = rig.redrive("dead")
    assert (driven.moved, driven.homes, driven.skipped, driven.more) == (4, {"q": 4}, 0, False)
    assert rig.look("dead").count == 0
    jobs = rig.claim(max=9)
    assert [(job["data"], job["meta"], job["deliveries"]) for job in jobs] == [(n, {"n": n}, 1) for n in range(4)]
    rig.crash()
    assert (rig.look("q").count, rig.look("dead").count) == (4, 0)


def test_a_redrive_may_choose_by_tag_and_by_number(rig: QueueRig) -> None:
    dead(rig, 6)
    assert rig.redrive("dead", match="odd", limit=2).moved == 2
    assert [record["data"] for record in rig.records("dead")] == [0, 2, 4, 5]
    assert rig.redrive("dead", match=["tag", "Glob", "e*"]).moved == 3


def test_a_dry_run_moves_nothing(rig: QueueRig) -> None:
    dead(rig)
    driven = rig.redrive("dead", dry_run=True)
    assert (driven.moved, driven.homes) == (4, {"q": 4})
    assert (rig.look("q").count, rig.look("dead").count) == (0, 4)


def test_a_rate_spreads_when_the_jobs_become_claimable(rig: QueueRig) -> None:
    dead(rig)
    rig.redrive("dead", rate_per_s=2)
    assert rig.places() == (1, 0, 3)
    for ready in (2, 3, 4):
        rig.clock.advance(500)
        assert rig.counters().ready == ready


def test_records_without_a_home_stay(rig: QueueRig) -> None:
    dead(rig, 1)
    rig.append("dead", "not from a queue", {"data": 1, "meta": {"$dead_letter_from": 7}})
    rig.append("dead", {"data": 2, "meta": {"$dead_letter_from": "absent"}})
    driven = rig.redrive("dead")
    assert (driven.moved, driven.skipped) == (1, 3)
    assert rig.look("dead").count == 3
    assert "absent" not in rig.store.state.by_name


def test_a_leased_dead_letter_is_not_moved_back(rig: QueueRig) -> None:
    dead(rig, 3, type="queue")
    assert rig.claimed("inspector", "dead", max=1) == [1]
    assert rig.redrive("dead").moved == 2
    assert rig.places("dead") == (0, 1, 0)


# --- a dead-letter topic that is not there ---


def test_a_queue_that_may_not_create_topics_keeps_the_job_and_says_why(rig: QueueRig) -> None:
    rig.queue(max_deliveries=1, dead_letter="dead", auto_create=False)
    rig.jobs(1)
    fail_until_dead(rig, 1)
    assert "dead" not in rig.store.state.by_name
    assert rig.places() == (0, 0, 1)
    reason = rig.counters().dead_letter_error
    assert reason is not None
    assert '"dead"' in reason
    assert "auto_create" in reason
    rig.configure("dead")
    rig.clock.advance(1_000)
    assert rig.claimed() == []
    assert rig.look("dead").count == 1
    state = rig.counters()
    assert (state.dead_letter_error, state.dead, state.dead_lettered) == (None, 1, 1)


def test_a_job_that_is_given_up_stays_if_the_topic_may_not_be_created(rig: QueueRig) -> None:
    rig.queue(dead_letter="dead", auto_create=False)
    rig.jobs(2)
    rig.nack("w", *rig.claimed(max=2), dead_letter=True)
    assert "dead" not in rig.store.state.by_name
    assert rig.look("q").count == 2
    assert rig.counters().dead_letter_error is not None
    rig.delete("q", before_seq=3)
    assert rig.counters().dead_letter_error is None


def test_a_job_that_may_be_delivered_again_after_all_is_no_reason_to_complain(rig: QueueRig) -> None:
    rig.queue(max_deliveries=1, dead_letter="dead", auto_create=False)
    rig.jobs(1)
    fail_until_dead(rig, 1)
    rig.queue()
    rig.clock.advance(1_000)
    assert rig.claimed() == [1]
    assert rig.counters().dead_letter_error is None


def test_a_full_dead_letter_topic_is_told_in_the_state(rig: QueueRig) -> None:
    rig.queue(max_deliveries=1, dead_letter="dead")
    rig.configure("dead", cap_records=1, discard="reject")
    rig.append("dead", "full")
    rig.jobs(1)
    fail_until_dead(rig, 1)
    reason = rig.counters().dead_letter_error
    assert reason is not None
    assert "cap_records" in reason


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_dead_letter_topic_is_created_in_the_class_of_its_queue(rig: QueueRig, durability: str) -> None:
    rig.queue(durability=durability, max_deliveries=1, dead_letter="dead")
    rig.jobs(1)
    fail_until_dead(rig, 1)
    config = rig.look("dead").config
    assert (config.durability, config.durable) == (durability, durability == "fsync")


def test_the_next_dead_letter_waits_while_its_topic_is_there_and_the_first_one_is_not(rig: QueueRig) -> None:
    """Both are changes of their own, and one of them may be published in an earlier turn than the other."""
    rig.queue(durability="fsync", dead_letter="dead")
    rig.jobs(2)
    first, second = rig.claimed(max=2)
    topic, queue = rig.parts()
    verbs, store = rig.store.queues, rig.store
    moved = verbs.move_to_dead_letters(topic, [queue.job_for(first)])
    store.commit_log.flush()
    while "dead" not in store.state.by_name:
        rig.news.wait(PATIENCE_S)
        store.commit_log.settle(lambda: True)
    assert not moved.done
    with pytest.raises(Busy):
        verbs.move_to_dead_letters(topic, [queue.job_for(second)])
    rig.finish(moved)
    rig.finish(verbs.move_to_dead_letters(topic, [queue.job_for(second)]))
    assert rig.seqs("dead") == [1, 2]


# --- a record that cannot be looked into ---

DEEP = b'{"nested":%b%b}' % (b"[" * 50_000, b"]" * 50_000)


def append_unchecked(rig: QueueRig, *metas: bytes) -> None:
    """As version 0.1 took them: nested more deeply than anything here can follow."""
    topic, _ = rig.parts()
    records = [RecordRequest(Raw(b"1"), meta=Raw(meta)) for meta in metas]
    batch = render(AppendRequest(records), topic.assigned_seq + 1, rig.clock.now_ms(), bare=False)
    rig.finish(rig.store.commit_log.submit_append(Appended(topic.id, 1, b"", batch), "disk"))


def test_a_record_that_cannot_be_parsed_takes_no_other_with_it(rig: QueueRig) -> None:
    rig.queue(max_deliveries=1, dead_letter="dead")
    append_unchecked(rig, b'{"n":1}', DEEP, b'{"n":3}')
    rig.nack("w", *claimed_unread(rig, 3))
    assert claimed_unread(rig, 3) == []
    assert rig.places() == (0, 0, 0)
    assert (rig.counters().dead, rig.look("dead").count) == (3, 3)
    records = bytes(rig.diff("dead").records())
    assert DEEP[1:] in records
    assert records.count(b'"$dead_letter_src_seq":') == 3
    driven = rig.redrive("dead")
    assert (driven.moved, driven.skipped) == (2, 1)
    assert rig.places() == (2, 0, 0)


def claimed_unread(rig: QueueRig, count: int) -> list[int]:
    request = request_of(ClaimRequest, node="w", max=count)
    _, grant = rig.drive(rig.store.claims.claim("q", request))
    rig.finish_all()
    return grant.seqs


def test_damage_takes_no_readable_job_with_it(open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = open_rig(segment_max_events=2)
    rig.queue(dead_letter="dead")
    rig.jobs(2)
    rig.jobs(2)
    rig.nack("w", *rig.claimed(max=4))
    damage(rig, monkeypatch, "q", 3)
    assert rig.claimed(max=4) == [1, 2]
    with pytest.raises(DamagedData):
        rig.claimed(max=4)
    assert rig.places() == (2, 2, 0)
    assert rig.ack("w", 1, 2).jobs == [1, 2]


def test_damage_keeps_no_readable_letter_from_going_home(open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = open_rig(segment_max_events=2)
    rig.queue(dead_letter="dead")
    for _ in range(3):
        rig.jobs(2)
        rig.nack("w", *rig.claimed(max=2), dead_letter=True)
    damage(rig, monkeypatch, "dead", 3)
    driven = rig.redrive("dead")
    assert (driven.moved, driven.skipped) == (4, 2)
    assert (rig.places(), rig.counters().dead) == ((4, 0, 0), 2)


def damage(rig: QueueRig, monkeypatch: pytest.MonkeyPatch, name: str, seq: int) -> None:
    """The block of this record cannot be read any more."""
    topic, load = rig.store.state.by_name[name], rig.store.state.cold.load
    bad = topic.blocks[topic.block_after(seq - 1)]

    def refuse(block: Block) -> None:
        if block is bad:
            raise DamagedData("a flipped bit")
        load(block)

    monkeypatch.setattr(rig.store.state.cold, "load", refuse)
