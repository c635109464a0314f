"""What counts as a read: every stream and every claim moves `last_read_ts` and with it the effective priority."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.live.rig import EventSource, Watcher
from tests.live.test_websocket import open_socket
from tests.serving import Client, ServerProcess

Read = Callable[[Client, ServerProcess, str], Any]


def watch(client: Client, server: ServerProcess, topic: str) -> None:
    del client
    watcher = Watcher(server)
    assert watcher.watch({topic: {}}).event().seqs == [1]
    watcher.close()


def watch_the_end(client: Client, server: ServerProcess, topic: str) -> None:
    del client
    watcher = Watcher(server)
    assert watcher.watch({topic: {"tail": True}}).event().event == "caught-up"
    watcher.close()


def subscribe(client: Client, server: ServerProcess, topic: str) -> None:
    del client
    with open_socket(server) as socket:
        socket.ask("subscribe", topic=topic, from_seq=0)
        assert socket.next()["op"] == "record"


def work(client: Client, server: ServerProcess, topic: str) -> None:
    del client
    stream = EventSource(server.port, f"/v0/topics/{topic}/work?node=w")
    assert stream.event().data["$seq"] == 1
    stream.close()


def claim(client: Client, server: ServerProcess, topic: str) -> None:
    del server
    assert client.post(f"/v0/topics/{topic}/claim", {"node": "w"}).json["count"] == 1


def claim_together(client: Client, server: ServerProcess, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"claim_jitter_ms": 1})
    claim(client, server, topic)


@pytest.mark.parametrize("read", [watch, watch_the_end, subscribe, work, claim, claim_together])
def test_a_backlog_that_is_read_counts(client: Client, server: ServerProcess, topic: str, read: Read) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    written = client.append(topic, 1)
    assert written.status == 200
    before = untouched(client, topic)
    assert (before["last_read_ts"], before["effective_priority"]) == (None, 0)
    read(client, server, topic)
    after = untouched(client, topic)
    assert after["last_read_ts"] >= after["last_write_ts"]
    assert after["effective_priority"] > 0


def test_a_claim_that_finds_nothing_counts(client: Client, topic: str) -> None:
    client.put(f"/v0/topics/{topic}", {"type": "queue"})
    assert client.post(f"/v0/topics/{topic}/claim", {"node": "w"}).json["count"] == 0
    assert untouched(client, topic)["last_read_ts"] is not None


def untouched(client: Client, topic: str) -> Any:
    return client.get(f"/v0/topics/{topic}?touch=false").json
