"""The figures of transactions: rows staged and committed per second over HTTP, the longest tick, appends meanwhile.

CPU time is shown as well: it is what the server needs when other programs use the cores, too.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.engine import kill, opened
from tests.serving import Client, ServerProcess, serving
from topics.engine.opening.store import Store
from topics.model.requests.records import decode_body
from topics.model.requests.transactions import CommitRequest, StageRequest

ROWS = 1_000_000
PART_ROWS = 10_000
WRITERS = 2
ROUNDS = 3
# About 200 bytes.
ROW = b'{"data":{"id":1%08d,"kind":"resize","url":"s3://bucket/images/2026/11/16/image-%09d.png","w":256,"note":"%b"}}'
NOTE = b"n" * 100


def part_body(stage: str, part: int, topic: str = "rows") -> bytes:
    first = part * PART_ROWS
    rows = b",".join([ROW % (number, number, NOTE) for number in range(first, first + PART_ROWS)])
    head = json.dumps({"stage": stage, "part": part, "topic": topic})[:-1].encode()
    return b'%b,"records":[%b]}' % (head, rows)


# --- in process: the longest tick ---


class Ticks(NamedTuple):
    """Seconds to stage and to commit a million rows, and the longest step of the commit."""

    staged_s: float
    committed_s: float
    worst_ms: float
    worst_cpu_ms: float


def longest_ticks() -> Ticks:
    with tempfile.TemporaryDirectory() as root:
        store = opened(Path(root) / "data")
        body = part_body("s", 0)
        started = time.perf_counter()
        for part in range(ROWS // PART_ROWS):
            request: StageRequest = decode_body(msgspec.json.Decoder(StageRequest), body)
            request.part = part
            change = store.transactions.stage("bench", 1, request)
            store.commit_log.flush()
            store.step()
            # The disk may be slow: then the commit thread writes, and the reply comes later.
            while not change.done or store.wal.overloaded:
                time.sleep(0.0001)
                store.settle()
            store.settle()
        staged_s = time.perf_counter() - started
        outcome = store.transactions.commit("bench", 1, CommitRequest(["s"]))
        ticks: list[tuple[float, float]] = []
        started = time.perf_counter()
        while not outcome.done:
            ticks += [timed(work) for work in (work_of(store), store.settle, store.step)]
        committed_s = time.perf_counter() - started
        assert store.state.by_name["rows"].count == ROWS, outcome.error
        kill(store)
        return Ticks(staged_s, committed_s, max(ticks)[0], max(cpu_ms for _, cpu_ms in ticks))


def work_of(store: Store) -> Callable[[], object]:
    def work() -> None:
        store.background.run(time.perf_counter() + 0.001)
        store.commit_log.flush()

    return work


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Milliseconds, and how many of them on the CPU."""
    started, cpu = time.perf_counter(), time.thread_time()
    work()
    return (time.perf_counter() - started) * 1000, (time.thread_time() - cpu) * 1000


# --- over HTTP ---


def stage_all(server: ServerProcess, version: int, bodies: list[list[bytes]]) -> float:
    def write(number: int) -> None:
        client = server.client()
        for body in bodies[number]:
            reply = client.post(
                f"/v0/txns/bench/{version}/stage", body=body, headers={"Content-Type": "application/json"}
            )
            assert reply.status == 200, reply.body

    threads = [threading.Thread(target=write, args=(number,)) for number in range(len(bodies))]
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.perf_counter() - started


def appends_beside(client: Client, stop: threading.Event, took_ms: list[float]) -> None:
    while not stop.is_set():
        started = time.perf_counter()
        client.append("beside", 1)
        took_ms.append((time.perf_counter() - started) * 1000)
        time.sleep(0.002)


class Round(NamedTuple):
    staged_s: float
    committed_s: float
    # the server's CPU time for both
    cpu_s: float
    beside_ms: list[float]


def cpu_s_of(server: ServerProcess) -> float:
    fields = Path(f"/proc/{server.process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def over_http(server: ServerProcess, version: int) -> Round:
    each = ROWS // PART_ROWS // WRITERS
    bodies = [[part_body(f"s{number}", part) for part in range(each)] for number in range(WRITERS)]
    cpu_s = cpu_s_of(server)
    staged_s = stage_all(server, version, bodies)
    stop, took_ms = threading.Event(), list[float]()
    beside = threading.Thread(target=appends_beside, args=(server.client(), stop, took_ms))
    beside.start()
    started = time.perf_counter()
    stages = [f"s{number}" for number in range(WRITERS)]
    reply = server.client().post(f"/v0/txns/bench/{version}/commit", {"stages": stages})
    committed_s = time.perf_counter() - started
    stop.set()
    beside.join()
    assert reply.json["topics"]["rows"]["records"] == ROWS, reply.body
    return Round(staged_s, committed_s, cpu_s_of(server) - cpu_s, took_ms)


def small_commits(server: ServerProcess, count: int) -> list[float]:
    client, took_ms = server.client(), list[float]()
    for version in range(count):
        started = time.perf_counter()
        client.post(f"/v0/txns/small/{version}/stage", {"stage": "s", "topic": "small", "records": [{"data": 1}]})
        client.post(f"/v0/txns/small/{version}/commit", {"stages": ["s"]})
        took_ms.append((time.perf_counter() - started) * 1000)
    return took_ms


def main() -> None:
    print("| work | figure |")
    print("| --- | --- |")
    runs = [longest_ticks() for _ in range(ROUNDS)]
    print(f"| engine: stage 1,000,000 rows of 200 bytes | {ROWS / min(run.staged_s for run in runs):,.0f} rows/s |")
    print(f"| engine: commit them | {ROWS / min(run.committed_s for run in runs):,.0f} rows/s |")
    # A limit for every step is judged by the worst run, not by the best.
    print(
        f"| longest step of a commit, worst of {ROUNDS} runs | {max(run.worst_ms for run in runs):.1f} ms, "
        f"{max(run.worst_cpu_ms for run in runs):.1f} ms on the CPU |",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as root, serving(Path(root)) as server:
        rounds = [over_http(server, version) for version in range(ROUNDS)]
        for name, took_s in (
            ("stage", [row.staged_s for row in rounds]),
            ("commit", [row.committed_s for row in rounds]),
            ("stage and commit", [row.staged_s + row.committed_s for row in rounds]),
            ("stage and commit, by the server's time on the CPU", [row.cpu_s for row in rounds]),
        ):
            best, worst = ROWS / min(took_s), ROWS / max(took_s)
            print(f"| HTTP, {WRITERS} writers: {name} | {best:,.0f} rows/s ({worst:,.0f} worst) |")
        beside = [sample for row in rounds for sample in row.beside_ms]
        p99 = statistics.quantiles(beside, n=100)[98]
        print(
            f"| append to another topic during the commits | p50 {statistics.median(beside):.1f} ms, p99 {p99:.1f} ms, "
            f"max {max(beside):.1f} ms |"
        )
        small = small_commits(server, 300)
        print(f"| stage and commit one row | p50 {statistics.median(small):.1f} ms |", flush=True)


if __name__ == "__main__":
    main()
