"""Consumer groups through the client: logging in, batches, commits, and tokens that end."""

from __future__ import annotations

from typing import Any

import pytest

from tests.client.conftest import SECRET, Connect
from tests.client.scripted import ScriptedServer, answer
from tests.groups.consumers import token
from topics.client import Forbidden, InvalidRequest, Outgoing, TopicNotFound, Unauthorized


@pytest.fixture
def consumer(connect: Connect, url: str) -> Any:
    return connect(url, user="root", password="opensesame")


def test_a_group_goes_on_where_it_committed(consumer: Any, topic: str) -> None:
    consumer.append_many(topic, [Outgoing({"n": n}, tag=f"k{n}", node="w", meta={"op": "Update"}) for n in range(5)])
    batch = consumer.consume(topic, "workers", start="Earliest", limit=2)
    message = batch.messages[1]
    assert (message.offset, message.seq, message.key, message.user, message.op) == (1, 2, "k1", "w", "Update")
    assert (message.data, message.raw, batch.has_more, batch.next_offset) == ({"n": 1}, b'{"n":1}', True, 2)
    assert consumer.commit(topic, "workers", 1).acknowledged_offset == 1
    assert [found.offset for found in consumer.consume(topic, "workers").messages] == [2, 3, 4]
    (standing,) = consumer.groups(topic)
    assert (standing.group, standing.committed_offset, standing.lag, standing.open_claims) == ("workers", 1, 3, 1)
    assert consumer.reset_group(topic, "workers", 0) == {0: 0}
    assert len(consumer.consume(topic, "workers").messages) == 5
    assert consumer.reset_group(topic, "workers", forget=True) == {0: 0}
    assert consumer.groups(topic) == []


def test_a_batch_is_committed_without_what_another_was_handed(consumer: Any, topic: str) -> None:
    consumer.append_many(topic, [1, 2, 3, 4])
    first = consumer.consume(topic, "g", start="Earliest", limit=2)
    second = consumer.consume(topic, "g", start="Earliest", limit=2)
    (committed,) = consumer.commit_batch(topic, "g", second).values()
    assert (committed.acknowledged_offset, committed.committed_offset) == (None, None)
    assert [(held.from_offset, held.to_offset) for held in committed.held_back] == [(0, 1)]
    (committed,) = consumer.commit_batch(topic, "g", first).values()
    assert (committed.acknowledged_offset, committed.held_back) == (3, [])


def test_a_commit_covers_everything_below(consumer: Any, topic: str) -> None:
    consumer.append_many(topic, [1, 2, 3, 4])
    consumer.consume(topic, "g", start="Earliest", limit=2)
    consumer.consume(topic, "g", start="Earliest", limit=2)
    assert consumer.commit(topic, "g", 3).acknowledged_offset == 3
    assert consumer.commit(topic, "g", 1).acknowledged_offset == 3


def test_a_batch_of_all_partitions_is_committed_partition_by_partition(consumer: Any, topic: str) -> None:
    for name, payloads in ((topic, [1, 2]), (f"{topic}:p1", [3, 4, 5])):
        consumer.append_many(name, payloads)
    batch = consumer.consume(topic, "g", partition="all", start="Earliest")
    assert {number: (done.from_offset, done.to_offset) for number, done in batch.ranges().items()} == {
        0: (0, 1),
        1: (0, 2),
    }
    done = consumer.commit_batch(topic, "g", batch)
    assert {number: committed.acknowledged_offset for number, committed in done.items()} == {0: 1, 1: 2}
    assert consumer.commit_batch(topic, "g", consumer.consume(topic, "g")) == {}


def test_reading_without_a_group_leaves_no_trace(consumer: Any, topic: str) -> None:
    consumer.append_many(topic, [1, 2, 3])
    for _ in range(2):
        assert [message.data for message in consumer.consume(topic, start=1).messages] == [2, 3]
    assert consumer.groups(topic) == []
    assert consumer.consume(topic).messages == []


def test_the_latest_offsets_of_partitions_are_returned(consumer: Any, topic: str) -> None:
    consumer.append(topic, 1)
    consumer.append_many(f"{topic}:p1", [1, 2])
    assert [end.next_offset for end in consumer.latest_offsets(topic)] == [1]
    assert [end.last_offset for end in consumer.latest_offsets([(topic, 0), (topic, 1)])] == [0, 1]


def test_logging_in_tells_who_it_is(consumer: Any) -> None:
    assert consumer.login().user["role"] == "system"
    assert consumer.login("ada", "opensesame").user["id"] == "ada"


def test_a_wrong_password_is_unauthorized(connect: Connect, url: str, topic: str) -> None:
    with pytest.raises(Unauthorized):
        connect(url, user="ada", password="wrong").consume(topic)
    with pytest.raises(Unauthorized):
        connect(url).consume(topic)


def test_a_token_that_was_refused_is_replaced_by_logging_in(connect: Connect, url: str, topic: str) -> None:
    expired = token(secret=SECRET, exp=1)
    with pytest.raises(Unauthorized, match=r"(?i)expired"):
        connect(url, token=expired).consume(topic)
    client = connect(url, token=expired, user="ada", password="opensesame")
    client.append(topic, 1)
    assert len(client.consume(topic, start="Earliest").messages) == 1


def test_a_refresh_comes_before_the_password(connect: Connect) -> None:
    granted = {"user": {}, "access_token": "one", "refresh_token": "r1"}
    renewed = {"user": {}, "access_token": "two", "refresh_token": "r2"}
    refused = answer(401, {"status": "error", "error": {"code": "TOKEN_EXPIRED", "message": "expired"}})
    consumed = answer(200, {"messages": [], "next_offset": 0, "has_more": False})
    with ScriptedServer(answer(200, granted), consumed, refused, answer(200, renewed), consumed) as server:
        client = connect(server.url, user="ada", password="pw")
        client.consume("t")
        client.consume("t")
    paths = [seen.path.rpartition("/")[2] for seen in server.seen]
    assert paths == ["login", "consume", "consume", "refresh", "consume"]
    assert server.seen[3].json == {"refresh_token": "r1"}
    assert [seen.headers.get("authorization") for seen in server.seen] == [
        *(None, "Bearer one", "Bearer one", None, "Bearer two"),
    ]


def test_errors_of_groups_are_the_usual_classes(consumer: Any, connect: Connect, url: str, topic: str) -> None:
    with pytest.raises(TopicNotFound):
        consumer.consume("never-made", "g")
    with pytest.raises(InvalidRequest):
        consumer.commit("never-made", "", 1)
    consumer.append(topic, 1)
    with pytest.raises(Forbidden):
        connect(url, token=token(secret=SECRET)).reset_group(topic, "g", "Earliest")
