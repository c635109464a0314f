"""Every verb, in both halves, against a live server."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.client.conftest import Connect
from tests.serving import ServerProcess, free_port
from topics.client import (
    InvalidRequest,
    Json,
    NotAQueue,
    Outgoing,
    Record,
    Tombstone,
    TopicExistsIncompatible,
    TopicNotEmpty,
    TopicNotFound,
)

# --- topics ---


def test_create_creates_or_confirms_and_never_changes(client: Any, topic: str) -> None:
    assert client.create(topic, cap_records=500).created
    client.append_many(topic, range(100))
    assert not client.create(topic, cap_records=500).created
    with pytest.raises(TopicExistsIncompatible, match="cap_records is 500, not 5") as refused:
        client.create(topic, cap_records=5)
    assert refused.value.detail["changes"] == {"cap_records": {"from": 500, "to": 5}}
    with pytest.raises(TopicExistsIncompatible, match="cap_records is 500, not 0"):
        client.create(topic)
    assert client.state(topic).count == 100


def test_create_replaces_on_purpose(client: Any, topic: str) -> None:
    client.create(topic, cap_records=500, durability="memory")
    again = client.create(topic, cap_records=7, replace=True)
    assert (again.created, again.config.cap_records, again.config.durability) == (False, 7, "disk")


def test_edit_changes_the_fields_given(client: Any, topic: str) -> None:
    client.create(topic, cap_records=500, durability="memory", priority=3)
    client.append_many(topic, range(10))
    dry = client.edit(topic, cap_records=4, dry_run=True)
    assert (dry.dry_run, dry.evicts, client.state(topic).count) == (True, 6, 10)
    edited = client.edit(topic, cap_records=4, priority=None)
    assert {name: (change.before, change.after) for name, change in edited.changes.items()} == {
        "cap_records": (500, 4),
        "priority": (3, None),
    }
    assert (edited.config.durability, edited.evicts, client.state(topic).count) == ("memory", 6, 4)
    assert client.edit(topic).changes == {}
    with pytest.raises(TopicNotFound):
        client.edit(f"{topic}-absent", cap_records=1)
    with pytest.raises(InvalidRequest, match='did you mean "cap_records"'):
        client.edit(topic, cap_record=1)


@pytest.mark.parametrize(
    "one", [{"order": 1}, "a text", b'{"data": 1}', bytearray(b"[]"), Outgoing(1)], ids=lambda one: type(one).__name__
)
def test_a_single_record_is_not_taken_for_many(client: Any, topic: str, one: Any) -> None:
    for attempt in (lambda: client.append_many(topic, one), lambda: client.append_all({topic: one})):
        with pytest.raises(InvalidRequest, match=r"records .*must be .*; use append for one record") as caught:
            attempt()
        assert caught.value.detail["field"] == "records"
    with pytest.raises(TopicNotFound):
        client.state(topic)
    assert client.append_many(topic, b' [{"data": 1}]').count == 1


def test_the_state_tells_where_a_topic_is(client: Any, topic: str) -> None:
    client.append_many(topic, [1, 2, 3])
    state = client.state(topic, touch=False)
    assert (state.head_seq, state.count, state.next_seq, state.type, state.queue) == (3, 3, 4, "log", None)
    assert state.last_read_ts is None
    assert client.state(topic).last_read_ts is None
    assert client.state(topic).last_read_ts is not None


def test_a_list_fetches_as_many_pages_as_there_are(client: Any, topic: str) -> None:
    names = [f"{topic}.{number}" for number in range(5)]
    for name in names:
        client.create(name)
    assert [item.topic for item in client.list(f"{topic}.", page_size=2)] == names
    assert list(client.list("no-such-prefix")) == []


def test_dropping_tells_whether_there_was_something(client: Any, topic: str) -> None:
    client.append(topic, 1)
    with pytest.raises(TopicNotEmpty):
        client.drop(topic, if_empty=True)
    assert client.drop(topic) is True
    assert client.drop(topic) is False


def test_records_are_deleted_by_seq_and_by_tag(client: Any, topic: str) -> None:
    client.append_many(topic, [Outgoing(number, tag=f"t{number}") for number in range(1, 6)])
    assert client.delete(topic, before_seq=3) == 2
    assert client.delete(topic, match="t3") == 1
    assert client.delete(topic, match=("tag", "Glob", "t*"), before_seq=5) == 1
    assert [record.data for record in client.read(topic)] == [5]


def test_names_with_signs_reach_the_server_as_they_are(client: Any, topic: str) -> None:
    name = f"{topic}:p1.a_b-c"
    client.append(name, 1)
    assert client.state(name).topic == name
    with pytest.raises(InvalidRequest, match="topic"):
        client.create("not a/name?")


# --- records ---


def test_an_append_keeps_everything_it_was_given(client: Any, topic: str) -> None:
    appended = client.append(topic, {"a": [1, None, "ü"]}, tag="t", node="n", meta={"k": "v"})
    assert (appended.first_seq, appended.seqs, appended.created, appended.deduped) == (1, [1], True, False)
    (record,) = client.diff(topic).records
    assert (record.seq, record.tag, record.node, record.meta) == (1, "t", "n", {"k": "v"})
    assert record.data == {"a": [1, None, "ü"]}
    assert record.data is record.data


def test_ready_made_json_is_sent_byte_for_byte(client: Any, topic: str) -> None:
    client.append(topic, Json(b'{"a" : 1.50}'))
    client.append_many(topic, b'[{"data" : [ 1 ],"tag":"x"},{"data":2}]')
    assert [record.raw for record in client.read(topic)] == [b'{"a" : 1.50}', b"[ 1 ]", b"2"]


def test_a_repeated_key_appends_once(client: Any, topic: str) -> None:
    first = client.append(topic, 1, idempotency_key="k")
    second = client.append(topic, 2, idempotency_key="k")
    assert second.deduped
    assert second.seqs == first.seqs
    assert [record.data for record in client.read(topic)] == [1]


def test_two_appends_without_a_key_are_two_records(client: Any, topic: str) -> None:
    client.append(topic, 1)
    client.append(topic, 1)
    assert client.state(topic).count == 2


def test_an_append_may_refuse_to_create(client: Any, topic: str) -> None:
    with pytest.raises(TopicNotFound) as caught:
        client.append(topic, 1, create=False)
    assert (caught.value.code, caught.value.detail) == ("topic_not_found", {"topic": topic})


def test_an_append_brings_a_configuration_for_a_new_topic(client: Any, topic: str) -> None:
    client.append(topic, 1, config={"ttl_ms": 60_000})
    assert client.state(topic).config.ttl_ms == 60_000


def test_a_diff_goes_on_where_the_last_one_ended(client: Any, topic: str) -> None:
    client.append_many(topic, list(range(5)))
    first = client.diff(topic, limit=2)
    rest = client.diff(topic, first.next_from_seq)
    assert [record.data for record in [*first.records, *rest.records]] == [0, 1, 2, 3, 4]
    assert (first.caught_up, rest.caught_up) == (False, True)


def test_reading_pages_through_everything(client: Any, topic: str) -> None:
    client.append_many(topic, list(range(25)))
    assert [record.data for record in client.read(topic, page_records=10)] == list(range(25))
    assert [record.data for record in client.read(topic, 20)] == [20, 21, 22, 23, 24]
    assert [record.data for record in client.read(topic, 3, to_seq=5)] == [3, 4]


def test_reading_leaves_out_what_a_node_wrote_itself(client: Any, topic: str) -> None:
    client.append(topic, "mine", node="me")
    client.append(topic, "theirs", node="them")
    assert [record.data for record in client.read(topic, node="me")] == ["theirs"]
    assert [record.data for record in client.read(topic, node=["me", "them"])] == []


def test_what_was_lost_is_a_tombstone_in_its_place(client: Any, topic: str) -> None:
    client.create(topic, cap_records=2)
    client.append_many(topic, [1, 2, 3, 4])
    gap, *records = client.read(topic)
    assert isinstance(gap, Tombstone)
    assert (gap.gap_from, gap.gap_to, gap.reason) == (1, 2, "cap")
    assert [record.data for record in records] == [3, 4]


def test_following_gets_what_comes_later(client: Any, connect: Connect, url: str, topic: str) -> None:
    client.append(topic, 1)
    reading = iter(client.read(topic, follow=True))
    assert next(reading).data == 1
    connect(url).append(topic, 2)
    found = next(reading)
    assert isinstance(found, Record)
    assert found.data == 2


def test_a_long_poll_waits_no_longer_than_requested(client: Any, topic: str) -> None:
    client.create(topic)
    began_s = time.monotonic()
    assert client.diff(topic, wait_ms=80).records == []
    assert time.monotonic() - began_s >= 0.08


# --- queues ---


@pytest.fixture
def queue(client: Any, topic: str) -> str:
    client.create(topic, type="queue", max_deliveries=2, dead_letter=f"{topic}.dead")
    return topic


def test_a_job_is_claimed_and_acked(client: Any, queue: str) -> None:
    client.append(queue, {"to": "ada"}, tag="mail", meta={"k": 1})
    (job,) = client.claim(queue, "w1", max=5)
    assert (job.data, job.tag, job.meta, job.deliveries) == ({"to": "ada"}, "mail", {"k": 1}, 1)
    assert client.claim(queue, "w2") == []
    assert client.ack(queue, job, "w1").acked == 1
    assert client.state(queue).queue.ready == 0


def test_jobs_are_acked_by_seq_as_well(client: Any, queue: str) -> None:
    client.append_many(queue, [1, 2, 3])
    jobs = client.claim(queue, "w", max=3)
    assert client.ack(queue, jobs[0].seq, "w").acked == 1
    acked = client.ack(queue, [jobs[1], jobs[2].seq, 99], "w")
    assert (acked.acked, acked.skipped) == (2, [99])


def test_a_stale_lease_touches_nothing(client: Any, queue: str) -> None:
    client.append(queue, 1)
    (old,) = client.claim(queue, "w")
    client.nack(queue, old, "w")
    (new,) = client.claim(queue, "w")
    assert client.ack(queue, old, "w").skipped == [new.seq]
    assert client.ack(queue, new, "w").acked == 1


def test_a_nack_gives_back_later_or_for_good(client: Any, queue: str) -> None:
    client.append_many(queue, [1, 2])
    first, second = client.claim(queue, "w", max=2)
    assert client.nack(queue, first, "w", delay_ms=60_000).nacked == 1
    assert client.nack(queue, second, "w", dead_letter=True, error="no").nacked == 1
    assert client.claim(queue, "w") == []
    assert client.state(queue).queue.delayed == 1
    (dead,) = client.read(f"{queue}.dead")
    assert dead.meta["$dead_letter_error"] == "no"
    assert client.redrive(f"{queue}.dead", dry_run=True).moved == 1
    assert client.redrive(f"{queue}.dead").to == {queue: 1}


def test_a_lease_is_extended(client: Any, queue: str) -> None:
    client.append(queue, 1)
    (job,) = client.claim(queue, "w", lease_ms=1_000)
    extended = client.extend(queue, job, 60_000, "w")
    assert extended.deadlines[job.seq] > job.deadline
    (lease,) = client.leases(queue)
    assert (lease.seq, lease.node, lease.lease_id) == (job.seq, "w", job.lease_id)


def test_a_paused_queue_hands_out_nothing(client: Any, queue: str) -> None:
    client.append(queue, 1)
    assert client.pause(queue).paused
    assert client.claim(queue, "w") == []
    assert not client.resume(queue).paused
    assert len(client.claim(queue, "w")) == 1


def test_a_claim_waits_for_a_job(client: Any, connect: Connect, url: str, queue: str) -> None:
    began_s = time.monotonic()
    assert client.claim(queue, "w", wait_ms=60) == []
    assert time.monotonic() - began_s >= 0.06


def test_a_job_with_a_unique_key_is_there_once(client: Any, queue: str) -> None:
    client.append(queue, 1, unique_key="u")
    again = client.append(queue, 2, unique_key="u")
    assert again.deduped
    assert again.seqs == [1]


def test_pushed_jobs_come_as_room_is_made(client: Any, queue: str) -> None:
    client.append_many(queue, [1, 2, 3])
    with client.work(queue, "w", max=1) as work:
        done: list[int] = []
        for job in work:
            done.append(job.data)
            client.ack(queue, job, "w")
            if len(done) == 3:
                break
    assert done == [1, 2, 3]
    assert client.state(queue).queue.in_flight == 0


def test_jobs_of_a_stream_that_ends_go_back_at_once(client: Any, queue: str) -> None:
    client.append(queue, 1)
    with client.work(queue, "w") as work:
        next(iter(work))
    (job,) = client.claim(queue, "other", wait_ms=30_000)
    assert job.deliveries == 2


@pytest.mark.slow
def test_pushed_jobs_go_on_after_a_restart(connect: Connect, tmp_path: Path) -> None:
    port = free_port()
    server = ServerProcess(tmp_path, port=port).ready()
    client = connect(f"http://127.0.0.1:{port}")
    client.create("q", type="queue")
    client.append_many("q", [1, 2])
    with client.work("q", "w") as work:
        first = next(iter(work))
        server.kill()
        server = ServerProcess(tmp_path, port=port).ready()
        try:
            again = next(iter(work))
            assert (first.data, again.data, work.connections) == (1, 1, 2)
            client.ack("q", again, "w")
            assert next(iter(work)).data == 2
        finally:
            server.kill()


def test_a_log_is_no_queue(client: Any, topic: str) -> None:
    client.append(topic, 1)
    with pytest.raises(NotAQueue):
        client.claim(topic)
    with pytest.raises(NotAQueue):
        next(iter(client.work(topic)))


# --- routers, admin ---


def test_a_router_copies_and_is_removed(client: Any, topic: str) -> None:
    client.append(topic, 1, tag="a")
    name = f"{topic}->copy"
    router = client.route(name, topic, f"{topic}.copy", filter="a", backfill=True)
    assert (router.created, router.filter) == (True, "a")
    (copy,) = client.diff(f"{topic}.copy", wait_ms=30_000).records
    assert copy.data == 1
    assert client.router(name).forwarded_total == 1
    assert [found.router for found in client.routers(source=topic)] == [name]
    assert client.unroute(name) is True
    assert client.unroute(name) is False


@pytest.mark.needs_server("health and metrics")
def test_the_server_tells_how_it_is(client: Any) -> None:
    assert client.health().status == "ok"
    assert client.ready().wal_replay_complete
    assert "topics_uptime_ms" in client.metrics()
    assert client.openapi()["openapi"].startswith("3.")


def test_what_the_server_warns_of_is_logged(client: Any, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    made = client.create(topic, type="queue", max_deliveries=3)
    routed = client.route(f"{topic}.r", topic, f"{topic}.copy", filter="public:*")
    told = [record.getMessage() for record in caplog.records if record.name in ("topics.client", "topics.embedded")]
    assert told == [*made.warnings, *routed.warnings]
    assert ("max_deliveries" in told[0], "public:*" in told[1], len(told)) == (True, True, 2)
