"""The WebSocket: publish, subscribe, and both again after a lost connection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.client.conftest import Connect
from tests.serving import ServerProcess, free_port
from topics.client import (
    Arrived,
    CaughtUp,
    Client,
    Closed,
    Forbidden,
    InvalidRequest,
    Json,
    TopicDeleted,
    TopicNotFound,
    Unauthorized,
)

pytestmark = pytest.mark.needs_server("a WebSocket")


@pytest.fixture
def socket(client: Any) -> Iterator[Any]:
    with client.socket() as socket:
        yield socket


def arrived(socket: Any, count: int) -> list[Any]:
    found: list[Any] = []
    for event in socket:
        found += [record.data for record in event.records]
        if len(found) >= count:
            return found
    raise AssertionError(f"the socket ended after {found}")


def test_what_is_published_is_appended(client: Any, socket: Any, topic: str) -> None:
    appended = socket.publish(topic, {"a": 1}, tag="t", node="n", meta={"k": 1})
    assert (appended.topic, appended.seqs, appended.created) == (topic, [1], True)
    assert socket.publish_many(topic, [Json(b"[ 2 ]"), 3], return_seqs=False).seqs == [2, 3]
    first, second, third = client.read(topic)
    assert (first.data, first.tag, first.node, first.meta) == ({"a": 1}, "t", "n", {"k": 1})
    assert (second.raw, third.data) == (b"[ 2 ]", 3)


def test_what_is_subscribed_to_arrives(client: Any, socket: Any, topic: str) -> None:
    client.append_many(topic, [1, 2])
    watched = socket.subscribe({topic: 1})
    assert watched[topic].head_seq == 2
    first = next(socket)
    assert isinstance(first, Arrived)
    assert [record.data for record in first.records] == [2]
    assert isinstance(next(socket), CaughtUp)
    socket.publish(topic, 3)
    assert arrived(socket, 1) == [3]
    assert socket.positions == {topic: 3}


def test_events_wait_while_answers_are_awaited(client: Any, socket: Any, topic: str) -> None:
    client.create(topic)
    socket.subscribe(topic, tail=True)
    for number in range(20):
        socket.publish(topic, number)
    assert arrived(socket, 20) == list(range(20))


def test_after_unsubscribing_nothing_comes(client: Any, socket: Any, topic: str) -> None:
    client.create(topic)
    socket.subscribe(topic)
    assert isinstance(next(socket), CaughtUp)
    socket.unsubscribe(topic)
    client.append(topic, 1)
    socket.ping()
    assert socket.receive(0.05) is None


def test_a_deleted_topic_is_reported(client: Any, socket: Any, topic: str) -> None:
    client.create(topic)
    socket.subscribe(topic)
    client.drop(topic)
    assert any(isinstance(event, TopicDeleted) for event in (next(socket), next(socket)))


def test_a_wrong_command_fails_alone(socket: Any, topic: str) -> None:
    with pytest.raises(TopicNotFound) as caught:
        socket.subscribe("never-made")
    assert caught.value.detail == {"topic": "never-made"}
    with pytest.raises(TopicNotFound):
        socket.publish("never-made", 1, create=False)
    assert socket.publish(topic, 1).seqs == [1]
    assert socket.connections == 1


def test_a_socket_is_closed_from_elsewhere(client: Any, socket: Any, topic: str) -> None:
    client.create(topic)
    socket.subscribe(topic)
    assert isinstance(next(socket), CaughtUp)
    closing = threading.Timer(0.1, socket.close)
    closing.start()
    assert list(socket) == []
    closing.join()
    with pytest.raises(Closed):
        socket.publish(topic, 1)


def test_a_client_without_a_network_has_no_socket(topic: str) -> None:
    plugged = httpx2.MockTransport(lambda request: httpx2.Response(200, json={}))
    with Client(transport=plugged) as client, pytest.raises(InvalidRequest, match="transport"):
        client.socket()


def test_many_threads_share_a_socket(url: str, topic: str) -> None:
    with Client(url) as client, client.socket() as socket:
        client.create(topic)
        socket.subscribe(topic)
        seqs: list[int] = []

        def publish() -> None:
            seqs.extend(socket.publish(topic, "x").first_seq for _ in range(25))

        threads = [threading.Thread(target=publish) for _ in range(4)]
        for thread in threads:
            thread.start()
        assert len(arrived(socket, 100)) == 100
        for thread in threads:
            thread.join()
        assert sorted(seqs) == list(range(1, 101))


def test_the_key_is_asked_for(connect: Connect, guarded_server: ServerProcess) -> None:
    url = f"http://127.0.0.1:{guarded_server.port}"
    with pytest.raises(Unauthorized):
        connect(url, "wrong").socket().ping()
    with connect(url, "reader").socket() as socket, pytest.raises(Forbidden):
        socket.publish("one", 1)


@pytest.mark.slow
def test_publishes_and_subscriptions_survive_a_kill(connect: Connect, tmp_path: Path) -> None:
    port = free_port()
    server = ServerProcess(tmp_path, port=port).ready()
    client = connect(f"http://127.0.0.1:{port}")
    client.create("t")
    client.create("gone")
    with client.socket() as socket:
        socket.subscribe(["t", "gone"])
        socket.publish("t", 1)
        assert arrived(socket, 1) == [1]
        server.kill()
        server = ServerProcess(tmp_path, port=port).ready()
        try:
            client.append("t", 2)
            client.drop("gone")
            assert socket.publish("t", 3).seqs == [3]
            events = [next(socket) for _ in range(4)]
            assert [record.data for event in events for record in event.records] == [2, 3]
            assert any(isinstance(event, TopicDeleted) and event.topic == "gone" for event in events)
            assert socket.connections == 2
        finally:
            server.kill()
