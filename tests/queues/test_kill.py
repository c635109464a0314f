"""Workers continue while the server is killed repeatedly: every job is done, and an acked one never comes back."""

from __future__ import annotations

import http.client
import json
import os
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE_S
from tests.serving import ServerProcess

KILLS = 6 * int(os.environ.get("TOPICS_TORTURE", "1"))
WORKERS = 6
BATCH = 20


class Fleet:
    """One producer and some workers that know nothing of kills but broken connections."""

    def __init__(self) -> None:
        self.port = 0
        self.over = threading.Event()
        self.full = threading.Event()
        self._lock = threading.Lock()
        # acknowledged to the producer, delivered to a worker, acked to a worker
        self.produced: set[int] = set()
        self.delivered: Counter[int] = Counter()
        self.acked: set[int] = set()
        self.came_back: list[int] = []

    def call(self, path: str, body: Any) -> Any:
        """The answer, or None if the server went away meanwhile."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            content = response.read()
            return json.loads(content) if response.status in (200, 201) else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()

    def produce(self) -> None:
        first = 0
        while not self.full.is_set():
            numbers = list(range(first, first + BATCH))
            body = {"records": [{"data": number} for number in numbers], "idempotency_key": f"batch {first}"}
            if self.call("/v0/topics/q", body) is None:
                time.sleep(0.01)
                continue
            with self._lock:
                self.produced.update(numbers)
            first += BATCH
            time.sleep(0.002)

    def work(self, node: str) -> None:
        chance = random.Random(node)
        while not self.over.is_set():
            answer = self.call("/v0/topics/q/claim", {"node": node, "max": 8, "lease_ms": 3_000, "wait_ms": 100})
            if answer is None:
                time.sleep(0.01)
                continue
            jobs = {job["$seq"]: job["data"] for job in answer["claimed"]}
            with self._lock:
                self.delivered.update(jobs.values())
                self.came_back += [number for number in jobs.values() if number in self.acked]
            if not jobs or chance.random() < 0.05:
                continue
            if chance.random() < 0.1:
                self.call("/v0/topics/q/nack", {"node": node, "seqs": list(jobs)})
                continue
            told = self.call("/v0/topics/q/ack", {"node": node, "seqs": list(jobs)})
            if told is not None:
                with self._lock:
                    self.acked.update(number for seq, number in jobs.items() if seq not in told["skipped"])


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("durability", ["disk", "fsync"])
@pytest.mark.parametrize("leases_durable", [False, True])
def test_no_job_is_lost_and_no_acked_job_comes_back(tmp_path: Path, durability: str, leases_durable: bool) -> None:
    fleet = Fleet()
    server = ServerProcess(tmp_path).ready()
    fleet.port = server.port
    config = {"type": "queue", "durability": durability, "leases_durable": leases_durable}
    assert server.client().put("/v0/topics/q", config).status == 201
    threads = [threading.Thread(target=fleet.produce)]
    threads += [threading.Thread(target=fleet.work, args=(f"w{number}",)) for number in range(WORKERS)]
    for thread in threads:
        thread.start()
    chance = random.Random(7)
    try:
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.2, 0.8))
            server.kill()
            server = ServerProcess(tmp_path).ready()
            fleet.port = server.port
        fleet.full.set()
        client = server.client()
        give_up_s = time.monotonic() + PATIENCE_S
        while client.state("q")["count"]:
            assert time.monotonic() < give_up_s, client.state("q")
            time.sleep(0.05)
    finally:
        fleet.full.set()
        fleet.over.set()
        for thread in threads:
            thread.join()
        server.kill()
    assert fleet.produced
    assert fleet.produced <= set(fleet.delivered), "every job was delivered at least once"
    assert fleet.came_back == [], "an acked job stays gone"
