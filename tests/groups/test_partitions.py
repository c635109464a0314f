"""Partitions are topics: one by one, all of them fairly, and waiting for any."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.groups.consumers import Consumer, token
from tests.serving import Client, ServerProcess


def fill(client: Client, topic: str, *counts: int) -> None:
    for partition, count in enumerate(counts):
        name = f"{topic}:p{partition}" if partition else topic
        client.put(f"/v0/topics/{name}")
        if count:
            client.append(name, *({"p": partition, "n": number} for number in range(count)))


def places(batch: Any) -> list[tuple[int, int]]:
    return [(message["partition_id"], message["offset"]) for message in batch["messages"]]


def test_partition_k_is_the_topic_with_that_suffix(client: Client, consumer: Consumer, topic: str) -> None:
    fill(client, topic, 1, 2, 3)
    assert places(consumer.batch()) == [(0, 0)]
    assert places(consumer.batch(partition_id=1)) == [(1, 0), (1, 1)]
    assert places(consumer.batch(partition_id=2)) == [(2, 0), (2, 1), (2, 2)]
    assert {message["topic_id"] for message in consumer.batch(group_id=None, partition_id=2)["messages"]} == {topic}


def test_acks_are_tracked_by_partition(client: Client, consumer: Consumer, topic: str) -> None:
    fill(client, topic, 3, 3)
    consumer.batch()
    consumer.batch(partition_id=1)
    consumer.ack(1, partition_id=1)
    listed = consumer.client.get(f"/v1/api/topics/groups?topic_id={topic}").json["groups"]
    assert [(group["partition_id"], group["committed_offset"], group["lag"]) for group in listed] == [
        (0, None, 3),
        (1, 1, 1),
    ]


@pytest.mark.parametrize("partition", [1, 99, 10**12])
def test_a_partition_without_a_topic_is_not_found(
    client: Client, consumer: Consumer, topic: str, partition: int
) -> None:
    fill(client, topic, 1)
    ack = {"topic_id": topic, "group_id": "workers", "upto_offset": 0, "partition_id": partition}
    for reply in (
        consumer.ask(partition_id=partition),
        consumer.client.post("/v1/api/topics/ack", ack),
    ):
        assert (reply.status, reply.json["code"]) == (404, "NOT_FOUND")


@pytest.mark.parametrize("body", [{"partition_id": "all"}, {"partition_id": "ALL"}, {"all_partitions": True}])
def test_all_partitions_are_read_in_one_request(
    client: Client, consumer: Consumer, topic: str, body: dict[str, Any]
) -> None:
    fill(client, topic, 2, 0, 3)
    client.append(f"{topic}:prices", {"not": "ours"})
    batch = consumer.batch(**body)
    assert sorted(places(batch)) == [(0, 0), (0, 1), (2, 0), (2, 1), (2, 2)]
    assert batch["partitions"] == [
        {"partition_id": 0, "next_offset": 2},
        {"partition_id": 1, "next_offset": 0},
        {"partition_id": 2, "next_offset": 3},
    ]
    assert consumer.batch(**body)["messages"] == []


def test_a_partition_named_wins_over_the_switch_for_all(client: Client, consumer: Consumer, topic: str) -> None:
    fill(client, topic, 1, 1)
    assert places(consumer.batch(partition_id=1, all_partitions=True)) == [(1, 0)]


def test_a_full_partition_does_not_starve_the_others(client: Client, consumer: Consumer, topic: str) -> None:
    fill(client, topic, 100, 2, 100)
    batch = consumer.batch(partition_id="all", limit=20)
    counts = [sum(partition == number for partition, _ in places(batch)) for number in range(3)]
    assert (counts, batch["has_more"]) == ([9, 2, 9], True)


def test_with_a_small_limit_every_partition_has_its_turn(client: Client, consumer: Consumer, topic: str) -> None:
    fill(client, topic, 50, 50, 50)
    seen = [place for _ in range(9) for place in places(consumer.batch(partition_id="all", limit=1))]
    assert {partition for partition, _ in seen} == {0, 1, 2}
    assert len(seen) == len(set(seen)) == 9


def test_claims_of_all_partitions_are_kept_apart(
    client: Client, consumer: Consumer, another: Consumer, topic: str
) -> None:
    fill(client, topic, 4, 4)
    first = places(consumer.batch(partition_id="all", limit=4))
    second = places(another.batch(partition_id="all", limit=4))
    assert sorted(first + second) == [(partition, offset) for partition in (0, 1) for offset in range(4)]


def test_a_reset_of_all_partitions(server: ServerProcess, client: Client, consumer: Consumer, topic: str) -> None:
    fill(client, topic, 2, 2)
    consumer.batch(partition_id="all")
    body = {"topic_id": topic, "group_id": "workers", "start": {"Offset": 1}, "partition_id": "all"}
    reply = server.client(token("system")).post("/v1/api/topics/groups/reset", body)
    assert reply.json["partitions"] == [{"partition_id": number, "next_offset": 1} for number in (0, 1)]
    assert sorted(places(consumer.batch(partition_id="all"))) == [(0, 1), (1, 1)]


# --- waiting ---


class Waiting:
    """A consume that was sent, and whose answer is read later."""

    def __init__(self, consumer: Consumer, **body: Any) -> None:
        self._consumer = consumer
        consumer.begin(**body)

    def join(self) -> Any:
        return self._consumer.client.end()

    def started(self, server: ServerProcess) -> Waiting:
        """Until it has come to wait at the server."""
        server.settle()
        return self


def test_a_consumer_waits_for_the_next_append(
    server: ServerProcess, client: Client, consumer: Consumer, topic: str
) -> None:
    fill(client, topic, 1)
    waiting = Waiting(consumer, start="Latest", timeout_seconds=25).started(server)
    client.append(topic, {"n": "new"})
    assert places(waiting.join().json) == [(0, 1)]


def test_the_wait_ends_with_an_empty_answer(client: Client, consumer: Consumer, topic: str) -> None:
    fill(client, topic, 1)
    started = time.monotonic()
    batch = consumer.batch(start="Latest", timeout_seconds=0.3)
    assert time.monotonic() - started >= 0.24
    assert batch == {"messages": [], "next_offset": 1, "has_more": False}


def test_what_is_there_is_answered_at_once(
    server: ServerProcess, client: Client, consumer: Consumer, topic: str
) -> None:
    fill(client, topic, 1)
    asked = Waiting(consumer, timeout_seconds=30).started(server)
    assert consumer.client.is_answered
    assert places(asked.join().json) == [(0, 0)]


@pytest.mark.parametrize("timeout", [0, -5, None])
def test_no_timeout_means_no_wait(client: Client, consumer: Consumer, topic: str, timeout: Any) -> None:
    fill(client, topic, 0)
    assert consumer.batch(timeout_seconds=timeout)["messages"] == []


def test_a_wait_without_a_group(server: ServerProcess, client: Client, consumer: Consumer, topic: str) -> None:
    fill(client, topic, 1)
    waiting = Waiting(consumer, group_id=None, start="Latest", timeout_seconds=25).started(server)
    client.append(topic, {"n": "new"})
    assert places(waiting.join().json) == [(0, 1)]


def test_a_wait_for_any_partition(server: ServerProcess, client: Client, consumer: Consumer, topic: str) -> None:
    fill(client, topic, 0, 0, 0)
    waiting = Waiting(consumer, partition_id="all", timeout_seconds=25).started(server)
    client.append(f"{topic}:p2", {"n": "new"})
    assert places(waiting.join().json) == [(2, 0)]


def test_of_many_waiting_consumers_one_gets_the_record(server: ServerProcess, client: Client, topic: str) -> None:
    fill(client, topic, 0)
    crowd = [Waiting(Consumer(server.client(token()), topic), timeout_seconds=25) for _ in range(4)]
    server.settle()
    client.append(topic, {"n": 0}, {"n": 1})
    server.settle()
    client.delete(f"/v0/topics/{topic}")
    replies = [waiting.join() for waiting in crowd]
    assert [places(reply.json) for reply in replies if reply.status == 200] == [[(0, 0), (0, 1)]]
    assert sorted(reply.status for reply in replies) == [200, 404, 404, 404], "the others had nothing until the end"


def test_a_wait_ends_when_the_topic_is_deleted(
    server: ServerProcess, client: Client, consumer: Consumer, topic: str
) -> None:
    fill(client, topic, 0)
    waiting = Waiting(consumer, timeout_seconds=25).started(server)
    client.delete(f"/v0/topics/{topic}")
    reply = waiting.join()
    assert (reply.status, reply.json["code"]) == (404, "NOT_FOUND")


def test_a_wait_ends_when_the_group_is_put_back(
    server: ServerProcess, client: Client, consumer: Consumer, topic: str
) -> None:
    fill(client, topic, 2)
    consumer.batch()
    consumer.ack(1)
    waiting = Waiting(consumer, timeout_seconds=25).started(server)
    body = {"topic_id": topic, "group_id": "workers", "start": "Earliest"}
    assert server.client(token("dba")).post("/v1/api/topics/groups/reset", body).status == 200
    assert places(waiting.join().json) == [(0, 0), (0, 1)]


def test_a_waiting_consumer_gets_what_another_did_not_ack_in_time(hasty_server: ServerProcess, topic: str) -> None:
    client = hasty_server.stranger()
    fill(client, topic, 2)
    first, second = (Consumer(hasty_server.client(token()), topic) for _ in range(2))
    started = time.monotonic()
    assert first.offsets() == [0, 1]
    assert places(second.batch(timeout_seconds=25)) == [(0, 0), (0, 1)]
    assert time.monotonic() - started >= 1


def test_a_consumer_that_left_while_waiting_takes_nothing_with_it(
    server: ServerProcess, client: Client, consumer: Consumer, topic: str
) -> None:
    fill(client, topic, 0)
    leaver = Consumer(Client(server.port, token(), timeout_s=0.3), topic)
    with pytest.raises(TimeoutError):
        leaver.ask(timeout_seconds=25)
    leaver.client.close()
    server.settle()
    client.append(topic, {"n": 0})
    assert consumer.offsets() == [0]
