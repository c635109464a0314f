"""A server that is killed again and again while it forwards: nothing is lost, doubled or renumbered."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess

ROUNDS = 5 * int(os.environ.get("TOPICS_TORTURE", "1"))
WRITERS = 3
LOAD_S = 0.8
BATCHES_MIN = 10
WAIT_S_MAX = PATIENCE_S
# destination: (source, fields of its router, configuration)
DESTINATIONS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "plain": ("source", {}, {}),
    "once": ("source", {"guarantee": "exactly_once"}, {}),
    "synced": ("source", {"guarantee": "exactly_once"}, {"durability": "fsync"}),
    "chained": ("once", {}, {}),
    "some": ("source", {"filter": ["tag", "Glob", "w0*"]}, {}),
}


class Writer(threading.Thread):
    """Appends until the server dies; remembers what was acknowledged and what it does not know about."""

    def __init__(self, port: int, number: int, next_item: int) -> None:
        super().__init__(daemon=True)
        self.client = Client(port)
        self.number = number
        self.next_item = next_item
        self.acknowledged: list[int] = []
        self.stop = threading.Event()

    def run(self) -> None:
        with (
            contextlib.closing(self.client),
            contextlib.suppress(OSError, http.client.HTTPException, json.JSONDecodeError),
        ):
            while not self.stop.is_set():
                items = [self.next_item, self.next_item + 1, self.next_item + 2]
                self.next_item += 3
                tag = f"w{self.number}"
                body = {"records": [{"data": [self.number, item], "tag": tag} for item in items]}
                if self.client.post("/v0/topics/source", body).status == 200:
                    self.acknowledged += items


@pytest.mark.crash
@pytest.mark.timeout(600 + 60 * ROUNDS)
def test_kills_under_load_lose_nothing_double_nothing_and_renumber_nothing(tmp_path: Path) -> None:
    items = [0] * WRITERS
    acknowledged: list[set[int]] = [set() for _ in range(WRITERS)]
    seen: dict[str, dict[int, Any]] = {name: {} for name in DESTINATIONS}
    for round_number in range(ROUNDS):
        server = ServerProcess(tmp_path, checkpoint_ms=150, segment_max_events=200, checkpoint_bytes=1 << 20).ready()
        try:
            client = server.client()
            if not round_number:
                for name, (source, fields, config) in DESTINATIONS.items():
                    client.put(f"/v0/topics/{name}", config)
                    made = client.put(f"/v0/routers/to-{name}", {"source": source, "dest": name, **fields})
                    assert made.status == 201
            writers = [Writer(server.port, number, items[number]) for number in range(WRITERS)]
            for writer in writers:
                writer.start()
            until_s = time.monotonic() + LOAD_S
            while time.monotonic() < until_s or any(len(one.acknowledged) < 3 * BATCHES_MIN for one in writers):
                look(client, seen)
        finally:
            server.kill()
        for writer in writers:
            writer.stop.set()
            writer.join()
            items[writer.number] = writer.next_item
            acknowledged[writer.number].update(writer.acknowledged)
    server = ServerProcess(tmp_path).ready()
    try:
        client = server.client()
        settle(client)
        look(client, seen)
        source = everything(client, "source")
        check_source(source, acknowledged)
        for name in ("plain", "once", "synced", "chained"):
            assert [data for _, data in everything(client, name)] == [data for _, data in source], name
        assert [data for _, data in everything(client, "some")] == [data for _, data in source if data[0] == 0]
        total = client.get("/v0/routers/to-once").json["forwarded_total"]
        assert total == len(source) > 0
    finally:
        server.kill()


def check_source(source: list[tuple[int, Any]], acknowledged: list[set[int]]) -> None:
    for number, wanted in enumerate(acknowledged):
        found = [item for _, (writer, item) in source if writer == number]
        assert len(found) == len(set(found))
        assert wanted <= set(found)


def look(client: Client, seen: dict[str, dict[int, Any]]) -> None:
    """Read on where the last look ended; whatever was seen once is never anything else."""
    for name, records in seen.items():
        behind = max(0, max(records, default=0) - 50)
        for record in client.diff(name, from_seq=behind, limit=1000)["records"]:
            fact = record["$ts"], record["data"]
            assert records.setdefault(record["$seq"], fact) == fact, (name, record)


def everything(client: Client, topic: str) -> list[tuple[int, Any]]:
    found: list[tuple[int, Any]] = []
    cursor = 0
    while True:
        diff = client.diff(topic, from_seq=cursor, limit=1000)
        assert diff["tombstone"] is None, (topic, diff["tombstone"])
        found += [(record["$seq"], record["data"]) for record in diff["records"]]
        cursor = diff["next_from_seq"]
        if diff["caught_up"]:
            return found


def settle(client: Client) -> None:
    deadline_s = time.monotonic() + WAIT_S_MAX
    while any(client.get(f"/v0/routers/to-{name}").json["lag"] for name in DESTINATIONS):
        assert time.monotonic() < deadline_s, "the routers do not catch up"
        time.sleep(0.01)
