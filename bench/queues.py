"""The queues' figures: jobs from append to ack over HTTP, claims among a million jobs, leases that expire at once."""

from __future__ import annotations

import gc
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.engine import append, fill, kill
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.opening.store import Store
from topics.engine.queues.claims import Grant
from topics.model.clock import ManualClock
from topics.model.requests.config import ConfigRequest
from topics.model.requests.records import AckRequest, ClaimRequest
from topics.model.settings import Settings

JOBS = 300_000
WORKERS = 50
MILLION = 1_000_000
EXPIRING = 100_000
CUSTOMERS = 10_000
ROUNDS = 20
HTTP_CYCLES = 500
# Limits that are looked at and hold nothing back.
QUEUE_LIMITS: dict[str, float] = {"max_in_flight": 100_000, "rate_per_s": 1_000_000, "burst": 1_000_000}
TAG_LIMITS: dict[str, float] = {"max_in_flight_per_tag": 10, "rate_per_s_per_tag": 1_000, "burst_per_tag": 1_000}
SCRIPT = Path(__file__).with_suffix(".lua")


# --- over HTTP ---


class Serving:
    """`topics serve` in a separate process."""

    def __init__(self, data_dir: str) -> None:
        environ = {**os.environ, "TOPICS_PORT": "0", "TOPICS_DATA_DIR": data_dir}
        self.process = subprocess.Popen(
            [Path(sys.executable).parent / "topics", "serve"], env=environ, stderr=subprocess.PIPE, text=True
        )
        assert self.process.stderr is not None
        self.port = 0
        for line in self.process.stderr:
            if found := re.search(r"listening on http://\S+:(\d+)", line):
                self.port = int(found[1])
            if " ready: " in line:
                break
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def post(self, path: str, body: object, method: str = "POST") -> dict[str, object]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port)
        connection.request(method, path, json.dumps(body), {"Content-Type": "application/json"})
        reply = json.loads(connection.getresponse().read())
        connection.close()
        return reply

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def probe(port: int, stop: threading.Event, took_ms: list[float]) -> None:
    """One more worker: how long its claims take under the load of the others."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    headers = {"Content-Type": "application/json"}
    body = json.dumps({"node": "probe", "max": 8})
    while not stop.wait(0.01):
        started = time.perf_counter()
        connection.request("POST", "/v0/topics/bench/claim", body, headers)
        reply = json.loads(connection.getresponse().read())
        took_ms.append((time.perf_counter() - started) * 1000)
        if reply["count"]:
            seqs = [job["$seq"] for job in reply["claimed"]]
            connection.request("POST", "/v0/topics/bench/ack", json.dumps({"node": "probe", "seqs": seqs}), headers)
            connection.getresponse().read()
    connection.close()


def end_to_end(jobs: int = JOBS, *, probed: bool = False) -> tuple[float, float]:
    """Jobs per second from append to ack, and the 99th percentile of a claim in ms if there is a probe."""
    with tempfile.TemporaryDirectory() as root:
        server = Serving(root)
        try:
            server.post("/v0/topics/bench", {"type": "queue"}, "PUT")
            stop, took_ms = threading.Event(), [0.0]
            prober = threading.Thread(target=probe, args=(server.port, stop, took_ms))
            if probed:
                prober.start()
            command = ["wrk", "-t1", f"-c{WORKERS}", "-d30s", "-s", str(SCRIPT), f"http://127.0.0.1:{server.port}"]
            environ = {**os.environ, "JOBS": str(jobs)}
            started = time.perf_counter()
            running = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
            while running.poll() is None and not is_done(server, jobs):
                time.sleep(0.02)
            took = time.perf_counter() - started
            stop.set()
            if probed:
                prober.join()
            running.kill()
            running.wait()
            took_ms.sort()
            return jobs / took, took_ms[int(len(took_ms) * 0.99)]
        finally:
            server.stop()


def is_done(server: Serving, jobs: int) -> bool:
    """wrk builds its first request twice and sends it once, so the last batch is missing."""
    state = server.post("/v0/topics/bench?touch=false", {}, "GET")
    return int(str(state["head_seq"])) >= jobs - 100 and state["count"] == 0


# --- in the engine ---


def claimed_by(store: Store, request: ClaimRequest) -> Grant:
    """The claim that HTTP runs, reads from disk included."""
    steps = store.claims.claim("q", request)
    try:
        while True:
            miss = next(steps)
            assert isinstance(miss, ColdMiss)
            store.state.cold.take(miss, store.state.cold.read(miss))
    except StopIteration as end:
        _, grant = end.value
        return grant


def claim_ms(store: Store, rounds: int) -> float:
    """The mean of claiming eight jobs, reads from disk included."""
    took: list[float] = []
    params = ClaimRequest("w", 8)
    for _ in range(rounds):
        started = time.perf_counter()
        grant = claimed_by(store, params)
        took.append(time.perf_counter() - started)
        assert grant.seqs
    return statistics.mean(took) * 1000


def queue_of(path: Path, jobs: int, clock: ManualClock | None = None, limits: Mapping[str, Any] | None = None) -> Store:
    store = Store(str(path), Settings(checkpoint_bytes=1 << 36, checkpoint_ms=86_400_000), clock=clock)
    for _ in store.opening():
        pass
    change = store.engine.configure("q", ConfigRequest(type="queue", lease_ms=30_000, **limits or {}))
    store.commit_log.flush()
    while not change.done:
        time.sleep(0.0005)
        store.settle()
    fill(store, "q", jobs // 100, 100, 2)
    return store


def among_many() -> tuple[float, float]:
    """Mean of a claim of eight with 1,000 and with a million jobs ready, in ms."""
    found: list[float] = []
    for jobs in (1_000, MILLION):
        with tempfile.TemporaryDirectory() as root:
            store = queue_of(Path(root) / "data", jobs)
            # Together fewer than the smaller queue holds.
            claim_ms(store, 20)
            found.append(claim_ms(store, 100))
            kill(store)
    return found[0], found[1]


class Kind(NamedTuple):
    """A queue of a million jobs: its limits, and whether one job in ten has a priority."""

    name: str
    limits: dict[str, float]
    priorities: bool = False


KINDS: Final = (
    Kind("plain", {}),
    Kind("limits of the queue", QUEUE_LIMITS),
    Kind("limits of the queue and of each tag", QUEUE_LIMITS | TAG_LIMITS),
    Kind("one in ten with a priority", {}, priorities=True),
    Kind("all limits and priorities", QUEUE_LIMITS | TAG_LIMITS, priorities=True),
)


def jobs_of(first: int, count: int, *, tags: int, priorities: bool) -> list[dict[str, object]]:
    """Jobs of so many tags in turn."""
    jobs: list[dict[str, object]] = []
    for number in range(first, first + count):
        job: dict[str, object] = {"data": {"number": number}, "tag": f"customer-{number % tags}"}
        if priorities and number % 10 == 0:
            job["job_priority"] = 1 + number // 10 % 9
        jobs.append(job)
    return jobs


def limited_queue(path: Path, kind: Kind, tags: int = CUSTOMERS) -> Store:
    store = queue_of(path, 0, limits=kind.limits)
    for first in range(0, MILLION, 100):
        records = jobs_of(first, 100, tags=tags, priorities=kind.priorities)
        append(store, "q", json.dumps({"records": records}).encode())
        store.commit_log.flush()
        store.settle()
    return store


def cycle_us(store: Store, rounds: int) -> tuple[float, float]:
    """Processor time of claiming eight jobs, and of acking them."""
    claims = acks = 0.0
    for _ in range(rounds):
        started = time.thread_time()
        grant = claimed_by(store, ClaimRequest("w", 8))
        claimed = time.thread_time()
        assert len(grant.seqs) == 8
        change = store.queues.ack("q", AckRequest("w", grant.seqs))
        store.commit_log.flush()
        while not change.done:
            store.settle()
        acks += time.thread_time() - claimed
        claims += claimed - started
    return claims / rounds * 1e6, acks / rounds * 1e6


def in_the_engine() -> dict[str, tuple[float, float]]:
    """Processor time of a claim of eight and of its ack among a million jobs, each kind in turn, medians, in µs."""
    with tempfile.TemporaryDirectory() as root:
        stores = {kind.name: limited_queue(Path(root) / kind.name, kind) for kind in KINDS}
        took: dict[str, list[tuple[float, float]]] = {name: [] for name in stores}
        for _ in range(ROUNDS):
            for name, store in stores.items():
                took[name].append(cycle_us(store, 100))
        for store in stores.values():
            kill(store)
    return {
        name: (statistics.median(claim for claim, _ in each), statistics.median(ack for _, ack in each))
        for name, each in took.items()
    }


def over_http() -> dict[str, float]:
    """Processor time of the server for eight jobs, claimed and acked, among a million; medians, in µs."""
    with tempfile.TemporaryDirectory() as root:
        server = Serving(root)
        try:
            connection = http.client.HTTPConnection("127.0.0.1", server.port)
            for number, kind in enumerate(KINDS):
                server.post(f"/v0/topics/q{number}", {"type": "queue", **kind.limits}, "PUT")
                for first in range(0, MILLION, 1_000):
                    records = jobs_of(first, 1_000, tags=CUSTOMERS, priorities=kind.priorities)
                    posted(connection, f"/v0/topics/q{number}", {"records": records})
            took: dict[str, list[float]] = {kind.name: [] for kind in KINDS}
            for _ in range(ROUNDS):
                for number, kind in enumerate(KINDS):
                    started, jobs = processor_s(server), 0
                    for _ in range(HTTP_CYCLES):
                        # Fewer than eight if the others are on disk.
                        reply = posted(connection, f"/v0/topics/q{number}/claim", {"node": "w", "max": 8})
                        seqs = [job["$seq"] for job in reply["claimed"]]
                        posted(connection, f"/v0/topics/q{number}/ack", {"node": "w", "seqs": seqs})
                        jobs += len(seqs)
                    took[kind.name].append((processor_s(server) - started) / jobs * 8e6)
            return {name: statistics.median(each) for name, each in took.items()}
        finally:
            server.stop()


def posted(connection: http.client.HTTPConnection, path: str, body: object) -> dict[str, Any]:
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    return json.loads(connection.getresponse().read())


def processor_s(server: Serving) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def behind_one_tag() -> tuple[float, float]:
    """A million jobs of a tag without room, before those of others: the longest step in ms, a later claim in µs."""
    with tempfile.TemporaryDirectory() as root:
        store = limited_queue(Path(root) / "data", Kind("one tag", {"max_in_flight_per_tag": 1}), tags=1)
        fill(store, "q", 100, 100, 2)
        assert claimed_by(store, ClaimRequest("w", 1)).seqs == [1]
        topic, queue, now = store.queues.find("q")
        claim = store.queues.read_claim(ClaimRequest("w", 8, 30_000))
        longest = 0.0
        while True:
            started = time.thread_time()
            grant = store.queues.serve_one(topic, queue, claim, now)
            longest = max(longest, time.thread_time() - started)
            if not queue.unfinished:
                break
        assert grant.seqs[0] == MILLION + 1
        after_us, _ = cycle_us(store, 1_000)
        kill(store)
        return longest * 1_000, after_us


def running_out() -> tuple[float, bool]:
    """The longest step in ms while 100,000 leases expire at once and are claimed again; whether counts were exact."""
    clock = ManualClock()
    with tempfile.TemporaryDirectory() as root:
        store = queue_of(Path(root) / "data", EXPIRING, clock)
        # As in the server, where a collection never comes in the middle of a step, and never looks at all objects.
        gc.collect()
        gc.disable()
        try:
            return expired_ms(store, clock)
        finally:
            gc.enable()
            kill(store)


def expired_ms(store: Store, clock: ManualClock) -> tuple[float, bool]:
    leased = 0
    while leased < EXPIRING:
        leased += len(claimed_by(store, ClaimRequest("w", 1_000)).seqs)
    longest, exact = 0.0, True
    clock.advance(30_001)
    claimed = 0
    while claimed < EXPIRING:
        started = time.thread_time()
        state = store.engine.look("q", touch=False).queue
        grant = claimed_by(store, ClaimRequest("v", 100))
        longest = max(longest, time.thread_time() - started)
        assert state is not None
        exact = exact and (state.ready, state.in_flight) == (EXPIRING - claimed, claimed)
        claimed += len(grant.seqs)
    return longest * 1000, exact


def main() -> None:
    rate = max(end_to_end()[0] for _ in range(3))
    p99_ms = min(end_to_end(probed=True)[1] for _ in range(2))
    few_ms, many_ms = among_many()
    longest_ms, exact = running_out()
    engine, server = in_the_engine(), over_http()
    step_ms, after_us = behind_one_tag()
    print("| work | at least | measured |\n| --- | --- | --- |")
    print(f"| 300,000 jobs, produced by 100, claimed and acked by 8, 50 workers | 40,000 jobs/s | {rate:,.0f} jobs/s |")
    print(f"| claim latency under that load, p99 | 15 ms | {p99_ms:.1f} ms |")
    print(f"| claim of 8 among 1,000,000 ready jobs against 1,000 | ratio 1.5 | {many_ms / few_ms:.2f} |")
    print(f"| 100,000 leases that expire at once, longest tick | 10 ms | {longest_ms:.1f} ms |")
    print(f"| counters exact meanwhile | yes | {'yes' if exact else 'NO'} |")
    plain_claim, plain_ack = engine["plain"]
    for name, (claim, ack) in engine.items():
        ratio = f"{claim / plain_claim:.2f}, with its ack {(claim + ack) / (plain_claim + plain_ack):.2f}"
        print(f"| claim of 8 among 1,000,000 ready jobs, {name}: engine | | {claim:.0f} + {ack:.0f} µs, {ratio} |")
        over = f"{server[name]:.0f} µs, {server[name] / server['plain']:.2f}"
        print(f"| the same with its ack over HTTP: processor time of the server | ratio 1.5 | {over} |")
    print(f"| first claim past 1,000,000 jobs of a tag without room, longest step | 5 ms | {step_ms:.1f} ms |")
    print(f"| claim of 8 after that | ratio 1.5 | {after_us:.0f} µs, {after_us / plain_claim:.2f} |")


if __name__ == "__main__":
    main()
