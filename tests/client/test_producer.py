"""Producers: batches, order, limits, partitions, and what a failure does to whom."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import pytest

from tests.client.conftest import SECRET, Connect
from tests.client.scripted import ScriptedServer, Seen, answer, error
from tests.groups.consumers import token
from tests.patience import PATIENCE_S
from topics.client import Closed, InvalidRequest, Timeout, TopicFull
from topics.client.batching import Gathering
from topics.model.requests.groups import partition_for, partition_name


def test_records_arrive_in_the_order_they_were_given(client: Any, topic: str) -> None:
    with client.producer(topic, batch_records_max=7) as producer:
        tickets = [producer.append(number, tag=str(number)) for number in range(100)]
        assert tickets[50].result(PATIENCE_S) == 51
    assert all(ticket.done() for ticket in tickets)
    assert [ticket.result() for ticket in tickets] == list(range(1, 101))
    assert [record.data for record in client.read(topic)] == list(range(100))


def test_a_lone_record_does_not_wait_for_company(client: Any, topic: str) -> None:
    producer = client.producer(topic, linger_ms=1)
    assert producer.append("alone").result(PATIENCE_S) == 1
    producer.close()


def test_what_comes_together_is_sent_together(connect: Connect) -> None:
    def taken(seen: Seen) -> bytes:
        count = len(seen.json["records"])
        fields = {"first_seq": 1, "last_seq": count, "head_seq": count, "count": count}
        return answer(200, {"topic": "t", **fields, "created": False, "deduped": False})

    with ScriptedServer(taken) as server:
        with connect(server.url).producer("t", linger_ms=10_000, batch_records_max=40) as producer:
            for number in range(100):
                producer.append(number)
        sizes = [len(seen.json["records"]) for seen in server.seen]
        assert sizes == [40, 40, 20]
        assert len({seen.json["idempotency_key"] for seen in server.seen}) == 3


def test_a_failed_batch_tells_its_tickets_and_the_next_flush(client: Any, topic: str) -> None:
    client.create(topic, cap_records=2, discard="reject")
    producer = client.producer(topic, linger_ms=10_000)
    fits = producer.append(1)
    producer.flush()
    lost = [producer.append(number) for number in range(5)]
    with pytest.raises(TopicFull):
        producer.flush()
    assert fits.result() == 1
    for ticket in lost:
        with pytest.raises(TopicFull):
            ticket.result()
    fits_too = producer.append(2)
    producer.close()
    assert fits_too.result() == 2
    with pytest.raises(Closed):
        producer.append(3)


def test_a_record_that_cannot_be_taken_fails_alone(client: Any, topic: str) -> None:
    producer = client.producer(topic, linger_ms=10_000)
    tickets = [producer.append("x", tag="t" * (300 if number == 5 else 3)) for number in range(9)]
    with pytest.raises(InvalidRequest, match="tag"):
        producer.flush()
    with pytest.raises(InvalidRequest, match="tag"):
        tickets.pop(5).result()
    assert [ticket.result() for ticket in tickets] == list(range(1, 9))
    producer.close()


def test_a_full_buffer_makes_the_writer_wait(connect: Connect) -> None:
    held = 0.2

    def slow(seen: Seen) -> bytes:
        time.sleep(held)
        count = len(seen.json["records"])
        fields = {"first_seq": 1, "last_seq": count, "head_seq": count, "count": count}
        return answer(200, {"topic": "t", **fields, "created": False, "deduped": False})

    with ScriptedServer(slow) as server:
        producer = connect(server.url).producer("t", linger_ms=0, buffer_records_max=10)
        began_s = time.monotonic()
        for number in range(11):
            producer.append(number)
        assert time.monotonic() - began_s >= held * 0.9
        producer.close()


def test_a_ticket_can_be_asked_with_a_limit(connect: Connect) -> None:
    asked = threading.Event()

    def held(seen: Seen) -> bytes:
        assert asked.wait(PATIENCE_S)
        return error(429, "throttled")

    with ScriptedServer(held) as server:
        producer = connect(server.url, retries_max=0).producer("t", linger_ms=0)
        with pytest.raises(Timeout):
            producer.append(1).result(0.05)
        asked.set()
        with pytest.raises(Exception, match="throttled"):
            producer.close()


def test_batches_are_cut_by_bytes_and_by_records() -> None:
    gathering = Gathering(linger_s=1.0, batch_records_max=3, batch_bytes_max=10)
    for record in (b"12345", b"1234", b"123456789", b"1", b"1", b"1"):
        gathering.add("t", record, 0.0)
    taken = [batch.records for batch in iter(lambda: gathering.take(0.0), None)]
    assert taken == [[b"12345", b"1234"], [b"123456789"], [b"1", b"1", b"1"]]


def test_what_lingers_is_due_when_its_time_is_over() -> None:
    gathering = Gathering(linger_s=1.0, batch_records_max=3, batch_bytes_max=10)
    assert gathering.due_s(0.0) is None
    gathering.add("t", b"1", 5.0)
    assert gathering.take(5.9) is None
    assert gathering.due_s(5.75) == 0.25
    batch = gathering.take(6.0)
    assert batch is not None
    gathering.settle(batch)
    assert (gathering.records, gathering.size) == (0, 0)


# --- partitions ---


def test_a_tag_always_goes_to_its_partition(client: Any, topic: str) -> None:
    with client.producer(topic, partitions=3) as producer:
        tickets = {tag: producer.append(0, tag=tag).partition for tag in map(str, range(30))}
    assert tickets == {tag: partition_for(tag, 3) for tag in tickets}
    counts = [client.state(partition_name(topic, number)).count for number in range(3)]
    assert counts == [list(tickets.values()).count(number) for number in range(3)]


def test_records_without_a_tag_take_turns(client: Any, topic: str) -> None:
    with client.producer(topic, partitions=2) as producer:
        for number in range(10):
            producer.append(number)
    assert [client.state(partition_name(topic, number)).count for number in range(2)] == [5, 5]


def test_partitions_have_bounds(client: Any, topic: str) -> None:
    with pytest.raises(InvalidRequest, match="partitions"):
        client.producer(topic, partitions=0)


def test_a_group_reads_all_partitions_and_each_tag_in_order(connect: Connect, url: str, topic: str) -> None:
    client = connect(url, token=token(secret=SECRET))
    sent = [(f"user-{number % 7}", number) for number in range(210)]
    with client.producer(topic, partitions=4, batch_records_max=16) as producer:
        for tag, number in sent:
            producer.append(number, tag=tag)
    got: list[Any] = []
    while len(got) < len(sent):
        batch = client.consume(topic, "workers", partition="all", start="Earliest", limit=50, timeout_s=5)
        got += batch.messages
        for partition, offset in batch.last_offsets().items():
            client.commit(topic, "workers", offset, partition)
    assert Counter((message.key, message.data) for message in got) == Counter(sent)
    assert {message.partition for message in got} == {partition_for(tag, 4) for tag, _ in sent}
    for tag in {tag for tag, _ in sent}:
        assert [message.data for message in got if message.key == tag] == [n for t, n in sent if t == tag]
    assert sum(standing.lag for standing in client.groups(topic)) == 0
