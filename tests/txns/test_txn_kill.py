"""`kill -9` in the middle of staging and committing: every version is whole, none is there twice, none is lost."""

from __future__ import annotations

import http.client
import random
import threading
from collections import Counter
from pathlib import Path

import pytest

from tests.serving import Client, ServerProcess

pytestmark = pytest.mark.crash

ROUNDS = 5
KILL_S_MAX = 1.2
TOPICS = {"x": 3_000, "y": 1_500, "z": 2}
PART_RECORDS = 1_000


class Driver:
    """A client like Spark's driver: continues with the version after the last one that the server has."""

    def __init__(self) -> None:
        self.acknowledged = 0
        self.begun = 0

    def run(self, client: Client) -> None:
        """Commit one version after the other until the server is gone."""
        try:
            version = (client.get("/v0/txns/app").json["version"] or 0) + 1
            while True:
                self.begun = version
                self._write(client, version)
                version += 1
        except (OSError, http.client.HTTPException, ValueError):
            return

    def _write(self, client: Client, version: int) -> None:
        stage = f"stage-{random.getrandbits(64)}"
        parts = [
            [{"data": version, "topic": topic}] * min(PART_RECORDS, count - first)
            for topic, count in TOPICS.items()
            for first in range(0, count, PART_RECORDS)
        ]
        for number, records in enumerate(parts):
            body = {"stage": stage, "part": number, "records": records}
            reply = client.post(f"/v0/txns/app/{version}/stage", body)
            assert reply.status == 200, reply.body
        reply = client.post(f"/v0/txns/app/{version}/commit", {"stages": [stage]})
        assert reply.status == 200, reply.body
        self.acknowledged = version


def versions_in(client: Client, topic: str) -> Counter[int]:
    found: Counter[int] = Counter()
    if client.get(f"/v0/topics/{topic}").status == 404:
        return found
    cursor = 0
    while True:
        diff = client.diff(topic, from_seq=cursor, limit=1_000)
        assert diff["tombstone"] is None
        found.update(record["data"] for record in diff["records"])
        cursor = diff["next_from_seq"]
        if diff["caught_up"]:
            return found


def check(client: Client, driver: Driver) -> None:
    found = {topic: versions_in(client, topic) for topic in TOPICS}
    committed = client.get("/v0/txns/app").json["version"] or 0
    assert driver.acknowledged <= committed <= driver.begun
    for topic, count in TOPICS.items():
        assert found[topic] == dict.fromkeys(range(1, committed + 1), count)


def test_a_server_killed_again_and_again_keeps_every_transaction_whole(tmp_path: Path) -> None:
    rng = random.Random(7)
    driver = Driver()
    settings = {"checkpoint_bytes": 400_000, "wal_file_bytes": 256 * 1024}
    for _ in range(ROUNDS):
        server = ServerProcess(tmp_path / "data", **settings).ready()
        check(server.client(), driver)
        writing = threading.Thread(target=driver.run, args=(server.client(),))
        writing.start()
        # Not before a commit is under way, on however slow a machine.
        wanted = driver.begun + 1
        while writing.is_alive() and driver.begun < wanted:
            writing.join(0.001)
        writing.join(rng.uniform(0.1, KILL_S_MAX))
        assert writing.is_alive()
        server.process.kill()
        writing.join()
        server.exit_code()
    server = ServerProcess(tmp_path / "data", **settings).ready()
    try:
        check(server.client(), driver)
        assert driver.begun > 1
        hidden = [item["bytes"] for item in server.client().get("/v0/txns").json["apps"]]
        assert len(hidden) == 1
    finally:
        server.terminate()
