"""A mixed load that leaves a server as large as it was: capped topics, a queue, a router, transactions."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

from tests.serving import Client, Reply, ServerProcess

CAP_RECORDS = 20_000
PAUSE_S = 0.01
PAYLOAD = "x" * 200


class Throttled(Exception):
    """The server is under pressure, and has said when to come back."""


def accepted(reply: Reply) -> None:
    if reply.status == 429:
        raise Throttled(reply.json["error"]["detail"]["retry_after_ms"])
    assert reply.status in (200, 201, 204), reply


class Load:
    """Threads that call until `stop`; `latencies_ms` of the appends since they were last taken."""

    def __init__(self, server: ServerProcess) -> None:
        self._server = server
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._latencies_ms: list[float] = []
        self.calls = self.throttled = 0
        self.failures: list[str] = []
        self._threads = [
            threading.Thread(target=self._repeat, args=(step, number))
            for number, step in enumerate(
                (self._append, self._append, self._read, self._work, self._work, self._commit, self._churn)
            )
        ]

    def start(self) -> None:
        client = self._server.client()
        for topic in ("log", "source", "copies", "txn"):
            assert client.put(f"/v0/topics/{topic}", {"cap_records": CAP_RECORDS}).status in (200, 201)
        assert client.put("/v0/topics/jobs", {"type": "queue", "lease_ms": 5_000}).status in (200, 201)
        assert client.put("/v0/routers/copying", {"source": "source", "dest": "copies"}).status in (200, 201)
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def take_latencies_ms(self) -> list[float]:
        with self._lock:
            taken, self._latencies_ms = self._latencies_ms, []
        return taken

    def _repeat(self, step: Callable[[Client, random.Random, int], None], number: int) -> None:
        client, rng = Client(self._server.port), random.Random(number)
        turn = 0
        try:
            while not self._over.is_set():
                turn += 1
                try:
                    step(client, rng, turn)
                except Throttled as throttled:
                    self.throttled += 1
                    self._over.wait(throttled.args[0] / 1_000)
                self.calls += 1
                time.sleep(PAUSE_S)
        except Exception as error:  # noqa: BLE001  it is told with the verdict
            self.failures.append(f"{step.__name__} {turn}: {error!r}")
        finally:
            client.close()

    # --- what they do ---

    def _append(self, client: Client, rng: random.Random, turn: int) -> None:
        topic = rng.choice(("log", "source"))
        payloads = [f"{turn}{PAYLOAD[: rng.randrange(200)]}" for _ in range(rng.choice((1, 1, 1, 20)))]
        began_s = time.perf_counter()
        reply = client.append(topic, *payloads, idempotency_key=f"{threading.get_ident()}-{turn}")
        with self._lock:
            self._latencies_ms.append((time.perf_counter() - began_s) * 1_000)
        accepted(reply)

    def _read(self, client: Client, rng: random.Random, turn: int) -> None:
        topic = rng.choice(("log", "copies", "txn"))
        head = client.state(topic)["head_seq"]
        client.diff(topic, from_seq=max(0, head - rng.choice((10, 1_000, CAP_RECORDS))), limit=100)
        if turn % 50 == 0:
            accepted(client.get("/v0/metrics"))

    def _work(self, client: Client, rng: random.Random, turn: int) -> None:
        if turn % 2:
            accepted(client.append("jobs", *range(8)))
            return
        node = f"worker-{rng.randrange(4)}"
        jobs = client.post("/v0/topics/jobs/claim", {"node": node, "max": 10}).json["claimed"]
        if jobs:
            body = {"node": node, "seqs": [job["$seq"] for job in jobs]}
            accepted(client.post("/v0/topics/jobs/ack", body))

    def _commit(self, client: Client, rng: random.Random, turn: int) -> None:
        path = f"/v0/txns/endurance/{turn}"
        records = [{"topic": "txn", "data": PAYLOAD[: rng.randrange(200)]} for _ in range(5)]
        accepted(client.post(f"{path}/stage", {"stage": "s", "part": 0, "records": records}))
        accepted(client.post(f"{path}/commit", {"stages": ["s"]}))

    def _churn(self, client: Client, rng: random.Random, turn: int) -> None:
        topic = f"passing-{turn}"
        accepted(client.append(topic, PAYLOAD, rng.random()))
        accepted(client.delete(f"/v0/topics/{topic}"))
