"""Writers, workers and a router at whichever server is primary; every answer is kept, and compared with what is there.

In the topics `r` (replicated) and `d` (disk) writers put numbers, each with a key until it is acknowledged; `rc` and
`dc` are their copies, by exactly-once routers. In the queue `q` (replicated) workers ack what they claim.
"""

from __future__ import annotations

import threading
import time
from http.client import HTTPException
from typing import Any, NamedTuple

from tests.bucket.standbys import until
from tests.patience import PATIENCE_S
from tests.serving import Client, Reply

DAY_MS = 86_400_000
REPLICATED = {"durability": "replicated", "idempotency_window_ms": DAY_MS}
TOPICS: dict[str, dict[str, Any]] = {
    "r": REPLICATED,
    "d": {"idempotency_window_ms": DAY_MS},
    "rc": REPLICATED,
    "dc": {},
    "q": {"type": "queue", "lease_ms": 2_000, **REPLICATED},
}
ROUTERS = {"rc": "r", "dc": "d"}
# What a server answers that is not primary, or has no bucket for the moment, or none of both yet.
ELSEWHERE = {"not_primary", "not_replicated", "not_ready", "shutting_down", "bucket_away"}
TIMEOUT_S = 20.0
CLAIMED_MAX = 5


def make_topics(client: Client) -> None:
    for name, config in TOPICS.items():
        assert client.put(f"/v0/topics/{name}", config).status == 201
    for copy, source in ROUTERS.items():
        made = client.put(f"/v0/routers/to-{copy}", {"source": source, "dest": copy, "guarantee": "exactly_once"})
        assert made.status == 201, made


class Anywhere:
    """Sends to one server after the other, until one of them is primary."""

    def __init__(self, ports: list[int]) -> None:
        self._clients = [Client(port, timeout_s=TIMEOUT_S) for port in ports]
        self._at = 0

    def post(self, path: str, body: Any) -> Reply | None:
        """One attempt; None if there was no answer, or one that says to try elsewhere."""
        try:
            reply = self._clients[self._at].post(path, body)
        except (OSError, HTTPException):
            reply = None
        if reply is not None and reply.status in (200, 201):
            return reply
        assert reply is None or reply.code in ELSEWHERE, reply
        self._at = (self._at + 1) % len(self._clients)
        # Others have work to do while there is no primary.
        time.sleep(0.02)
        return None

    def close(self) -> None:
        for client in self._clients:
            client.close()


class Part(threading.Thread):
    """One client of the load; what breaks it is raised by `end`."""

    def __init__(self, load: Load) -> None:
        super().__init__(daemon=True)
        self.load = load
        self.at = Anywhere(load.ports)
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.live()
        except BaseException as error:  # noqa: BLE001  raised again by `end`
            self.error = error
        finally:
            self.at.close()

    def live(self) -> None:
        raise NotImplementedError

    def end(self) -> None:
        self.join(PATIENCE_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


class Writer(Part):
    """Each number until it is acknowledged, at whichever server; `seqs` of those that were."""

    def __init__(self, load: Load, topic: str, number: int) -> None:
        super().__init__(load)
        self.topic, self.number = topic, number
        self.seqs: dict[int, int] = {}

    @property
    def progress(self) -> int:
        return len(self.seqs)

    def live(self) -> None:
        value = 0
        while not self.load.over:
            body = {"records": [{"data": [self.number, value]}], "idempotency_key": f"{self.number}-{value}"}
            reply = self.at.post(f"/v0/topics/{self.topic}", body)
            if reply is not None:
                self.seqs[value] = reply.json["first_seq"]
                value += 1


class Worker(Part):
    """Claims and acks; `acked` has the jobs of whose ack it was told, and when."""

    def __init__(self, load: Load, number: int) -> None:
        super().__init__(load)
        self.node = f"worker-{number}"
        self.acked: dict[int, float] = {}

    @property
    def progress(self) -> int:
        return len(self.acked)

    def live(self) -> None:
        while not self.load.over:
            self.work()

    def work(self) -> int:
        """One round; how many jobs it got."""
        asked_s = time.monotonic()
        reply = self.at.post("/v0/topics/q/claim", {"node": self.node, "max": CLAIMED_MAX, "wait_ms": 200})
        jobs = reply.json["claimed"] if reply is not None else []
        self.load.check_claimed([job["$seq"] for job in jobs], asked_s)
        if jobs:
            seqs = [job["$seq"] for job in jobs]
            done = self.at.post("/v0/topics/q/ack", {"node": self.node, "seqs": seqs})
            if done is not None:
                skipped = set(done.json["skipped"])
                self.acked.update((seq, time.monotonic()) for seq in seqs if seq not in skipped)
        return len(jobs)


class Counts(NamedTuple):
    """What was accounted for."""

    replicated: int
    disk: int
    disk_lost: int
    jobs: int
    jobs_acked: int
    copies: int


class Load:
    """Runs until `end`; `check` compares."""

    def __init__(self, ports: list[int]) -> None:
        self.ports = ports
        self.over = False
        self.writers = [Writer(self, topic, number) for number, topic in enumerate(("r", "r", "r", "d", "d", "q"))]
        self.workers = [Worker(self, number) for number in range(3)]
        self.parts: list[Writer | Worker] = [*self.writers, *self.workers]
        for part in self.parts:
            part.start()

    def until_progress(self, count: int) -> None:
        """Each has had so many more successes."""
        before = [part.progress for part in self.parts]

        def progressed() -> bool:
            assert all(part.error is None for part in self.parts), [part.error for part in self.parts]
            return all(part.progress >= old + count for part, old in zip(self.parts, before, strict=True))

        until(progressed, "every writer and worker goes on")

    def check_claimed(self, seqs: list[int], asked_s: float) -> None:
        """A job whose ack was acknowledged is not delivered again."""
        for worker in self.workers:
            again = [seq for seq in seqs if worker.acked.get(seq, asked_s) < asked_s]
            assert not again, f"jobs {again} were acked by {worker.node}, and are there again"

    def end(self) -> None:
        self.over = True
        for part in self.parts:
            part.end()

    def check(self, client: Client) -> Counts:
        """Everything acknowledged is there once, or announced as lost if its class allows it."""
        jobs, acked = self._drain(client)
        lost = {topic: self._check_topic(client, topic) for topic in ("r", "d")}
        assert not lost["r"]
        copies = sum(self._check_copies(client, copy, source) for copy, source in ROUTERS.items())
        count = {topic: sum(len(one.seqs) for one in self.writers if one.topic == topic) for topic in ("r", "d")}
        return Counts(count["r"], count["d"], lost["d"], jobs, acked, copies)

    def _drain(self, client: Client) -> tuple[int, int]:
        """What no worker has acked is still there, and gets acked now; how many jobs there were, and were acked."""
        last = Worker(self, len(self.workers))
        acked = [seq for worker in self.workers for seq in worker.acked]
        assert len(acked) == len(set(acked)), "a job was acked twice"

        def is_empty() -> bool:
            last.work()
            return client.state("q")["count"] == 0

        until(is_empty, "the queue is empty")
        last.at.close()
        (writer,) = (one for one in self.writers if one.topic == "q")
        head_seq = client.state("q")["head_seq"]
        assert sorted(writer.seqs.values()) == list(range(1, len(writer.seqs) + 1)), "no seq is skipped or used twice"
        assert head_seq - len(writer.seqs) in (0, 1)
        return len(writer.seqs), len(acked)

    def _check_topic(self, client: Client, topic: str) -> int:
        found = read_all(client, topic)
        values = list(found.values.values())
        assert len({tuple(value) for value in values}) == len(values), f"{topic}: a record is there twice"
        if topic == "r":
            assert not found.gaps
            assert sorted(found.values) == list(range(1, len(values) + 1))
        missing = 0
        for writer in self.writers:
            if writer.topic != topic:
                continue
            for value, seq in writer.seqs.items():
                if found.values.get(seq) == [writer.number, value]:
                    continue
                missing += 1
                assert topic == "d", f"{value} of writer {writer.number} was acknowledged at {seq} and is lost"
                assert seq not in found.values, f"seq {seq} was acknowledged for {value} and is another record"
                assert any(first <= seq <= last for first, last in found.gaps), f"seq {seq} is lost in silence"
        return missing

    def _check_copies(self, client: Client, copy: str, source: str) -> int:
        """Copies are those of the source, in its order, each once."""
        until(lambda: not client.get(f"/v0/routers/to-{copy}").json["lag"], "everything is copied")
        wanted = list(read_all(client, source).values.values())
        copies = read_all(client, copy, "lost", "source_trim")
        assert list(copies.values.values()) == wanted, f"{copy} is not what {source} is"
        if source == "r":
            assert not copies.gaps
        return len(wanted)


class Found(NamedTuple):
    """A topic: its records by seq, and the gaps that readers are told of."""

    values: dict[int, Any]
    gaps: list[tuple[int, int]]


def read_all(client: Client, topic: str, *reasons: str) -> Found:
    """All of it; `reasons` of the gaps that it may have, `lost` if there are none."""
    found = Found({}, [])
    cursor, caught_up = 0, False
    while not caught_up:
        page = client.diff(topic, from_seq=cursor, limit=1000)
        if page["tombstone"]:
            assert page["tombstone"]["reason"] in (reasons or ("lost",))
            found.gaps.append((page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]))
        for record in page["records"]:
            assert record["$seq"] not in found.values
            found.values[record["$seq"]] = record["data"]
        cursor, caught_up = page["next_from_seq"], page["caught_up"]
    return found
