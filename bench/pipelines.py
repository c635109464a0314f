"""The figures of pipelines: a runner's start, a running archive, and how old a running count is when it is seen.

CPU time is shown as well: it is what the runner and the server need when other programs use the cores, too.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.serving import serving
from tests.spark.runner_process import RunnerProcess, until
from topics.client import Arrived, Client, Record, TopicNotFound
from topics_spark.pipelines import tables

CORES = 2
ROWS = 4_000_000
PART_ROWS = 10_000
# About 200 bytes as a record.
ROW = '{"data":{"id":1%08d,"kind":"resize","url":"s3://bucket/images/2026/11/16/image-%09d.png","w":256,"note":"%s"}}'
NOTE = "n" * 60
KEYS = 10
LATENCY_S = 60.0
SEND_S = 0.05
WARM_S = 20.0
STARTS = 4

ARCHIVE = {"sources": {"rows": {"topic": "rows"}}, "use": "archive", "sink": {"table": "rows"}}
COUNTS = {
    "sources": {"events": {"topic": "events", "schema": "key STRING"}},
    "sql": "SELECT key, count(*) AS n FROM events GROUP BY key",
    "sink": {"topic": "counts", "tag": "key"},
    "output_mode": "update",
    "trigger": {"every": "1 second"},
}


class World:
    def __init__(self, home: Path, port: int) -> None:
        self.home = home
        self.port = port
        self.client = Client(f"http://127.0.0.1:{port}")

    @contextlib.contextmanager
    def running(self) -> Iterator[RunnerProcess]:
        runner = RunnerProcess(self.port, self.home, environ={"XDG_CACHE_HOME": str(self.home / "cache")})
        try:
            yield runner
            runner.terminate()
            # After the first start Java writes its archive of classes, which later ones use.
            until(lambda: not is_alive(runner.process.pid), lambda: "Java does not end")
        finally:
            runner.kill()

    def head_seq(self, topic: str) -> int:
        try:
            return self.client.state(topic, touch=False).head_seq
        except TopicNotFound:
            return 0


def cpu_s(*sessions: int) -> float:
    """Of all processes of these sessions, including those that have ended."""
    ticks = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) in sessions or int(stat.parent.name) in sessions:
                ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


def is_alive(session: int) -> bool:
    """Whether a process of this session runs."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[3]) == session and fields[0] != "Z":
                return True
    return False


def started_s(world: World) -> tuple[float, float]:
    """From the command to the first record of its pipeline, and the CPU time of that."""
    seen = world.head_seq("counts")
    world.client.append("events", {"key": "start"})
    begun_s = time.perf_counter()
    with world.running() as runner:
        until(lambda: world.head_seq("counts") > seen, lambda: runner.log)
        return time.perf_counter() - begun_s, cpu_s(runner.process.pid)


def latencies_s(world: World) -> list[float]:
    """For every event: from its acknowledgement to the count that has it."""
    sent_s: dict[str, list[float]] = {f"k{key}": [] for key in range(KEYS)}
    took_s: list[float] = []
    over = threading.Event()

    def send() -> None:
        number = 0
        while not over.wait(SEND_S):
            key = f"k{number % KEYS}"
            world.client.append("events", {"key": key})
            sent_s[key].append(time.perf_counter())
            number += 1

    with world.running(), world.client.watch({"counts": world.head_seq("counts")}) as watch:
        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        counted = dict.fromkeys(sent_s, 0)
        first_s = None
        for event in watch:
            now_s = time.perf_counter()
            for record in event.records if isinstance(event, Arrived) else ():
                key, count = record.data["key"], record.data["n"]
                if key in sent_s:
                    first_s = first_s or now_s
                    fresh = sent_s[key][counted[key] : count]
                    counted[key] = count
                    took_s += [now_s - each for each in fresh if each - first_s > WARM_S]
            if first_s is not None and now_s - first_s > WARM_S + LATENCY_S:
                break
        over.set()
        sender.join()
    return took_s


def fill(client: Client, rows: int) -> None:
    for first in range(0, rows, PART_ROWS):
        body = ",".join([ROW % (number, number, NOTE) for number in range(first, first + PART_ROWS)])
        client.append_many("rows", f"[{body}]".encode(), return_seqs=False)


class Archived(NamedTuple):
    """Records per second after the first batch, the same by CPU time, and Spark's figures of each batch."""

    rate: float
    rate_cpu: float
    batches: list[dict[str, Any]]


def archived(world: World, server: int) -> Archived:
    fill(world.client, ROWS)
    table = world.home / "tables" / "rows"
    world.client.put_pipeline("archive", ARCHIVE)

    def rows() -> int:
        return sum(file.rows for file in tables.load(table).files)

    with world.running() as runner:
        until(rows, lambda: runner.log, 600)
        first_s, first_cpu_s, first_rows = time.perf_counter(), cpu_s(runner.process.pid, server), rows()
        until(lambda: rows() == ROWS, lambda: runner.log, 600)
        took_s, took_cpu_s = time.perf_counter() - first_s, cpu_s(runner.process.pid, server) - first_cpu_s
    records = world.client.read("pipelines.progress")
    told = [record.data for record in records if isinstance(record, Record) and record.tag == "archive"]
    done = ROWS - first_rows
    return Archived(done / took_s, CORES * done / took_cpu_s, [batch for batch in told if batch.get("numInputRows")])


def main() -> None:
    print("| work | figure |")
    print("| --- | --- |")
    with tempfile.TemporaryDirectory() as root, serving(Path(root) / "data") as server:
        world = World(Path(root), server.port)
        world.client.put_pipeline("counts", COUNTS)
        starts = [started_s(world) for _ in range(STARTS)]
        told = ", ".join(f"{wall_s:.1f} ({cpu:.1f} on the CPU)" for wall_s, cpu in starts)
        what = "`topics pipelines run` with one pipeline to its first result: the very first start, and later ones"
        print(f"| {what} | {told} s |", flush=True)
        took_s = latencies_s(world)
        p50, p95 = statistics.median(took_s), statistics.quantiles(took_s, n=20)[18]
        print(f"| event to its count, update mode, trigger 1 s | p50 {p50:.2f} s, p95 {p95:.2f} s |", flush=True)
        world.client.drop_pipeline("counts")
        done = archived(world, server.process.pid)
        rates = [batch["processedRowsPerSecond"] for batch in done.batches]
        print(
            f"| archive of {ROWS:,} records of 200 bytes, {CORES} cores | {done.rate:,.0f} records/s, batches "
            f"{min(rates):,.0f} to {max(rates):,.0f}; {done.rate_cpu:,.0f} by time on the CPU |",
            flush=True,
        )
        world.client.close()


if __name__ == "__main__":
    main()
