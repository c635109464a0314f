"""A routed topology that is watched: five symmetric nodes write and listen, and none hears itself."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from tests.live.rig import EventSource, Watcher, watching
from tests.serving import ServerProcess, serving

NODES = [f"node-{number}" for number in range(5)]
ROUNDS = 30


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data")) as server:
        yield server


@pytest.fixture
def watcher(server: ServerProcess) -> Iterator[Watcher]:
    with watching(server) as watcher:
        yield watcher


def heard(stream: EventSource, count: int) -> list[list[object]]:
    """The payloads of the next `count` records."""
    found: list[list[object]] = []
    while len(found) < count:
        event = stream.event()
        if event.event == "record":
            found += [record["data"] for record in event.data["records"]]
    return found


def test_five_nodes_write_at_once_and_hear_all_but_themselves(server: ServerProcess, watcher: Watcher) -> None:
    clients = {node: server.client() for node in NODES}
    for node in NODES:
        made = clients[node].put(f"/v0/routers/bus->{node}", {"source": "bus", "dest": f"inbox.{node}"})
        assert made.status == 201
    streams = {node: watcher.watch({f"inbox.{node}": {"from_seq": 0}}, node=node) for node in NODES}

    def write(node: str) -> None:
        for number in range(ROUNDS):
            assert clients[node].append("bus", [node, number], node=node).status == 200

    writers = [threading.Thread(target=write, args=(node,)) for node in NODES]
    for writer in writers:
        writer.start()
    for node, stream in streams.items():
        found = heard(stream, ROUNDS * (len(NODES) - 1))
        for other in NODES:
            expected = [] if other == node else list(range(ROUNDS))
            assert [number for origin, number in found if origin == other] == expected
    for writer in writers:
        writer.join()


def test_a_source_trim_reaches_who_watches(server: ServerProcess, watcher: Watcher) -> None:
    client = server.client()
    client.put("/v0/topics/small", {"cap_records": 2})
    client.append("small", 0)
    client.put("/v0/topics/blocked", {"cap_records": 1, "discard": "reject"})
    client.append("blocked", "full")
    client.put("/v0/routers/trimmed", {"source": "small", "dest": "blocked"})
    client.append("small", 1, 2, 3, 4, 5)
    stream = watcher.watch({"blocked": {"tail": True}})
    stream.until("caught-up")
    client.put("/v0/topics/blocked", {})
    tombstone = stream.until("tombstone")[-1].data
    assert (tombstone["reason"], tombstone["missed_estimate"]) == ("source_trim", 3)
    assert [record["data"] for record in stream.until("record")[-1].data["records"]] == [4, 5]
