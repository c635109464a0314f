"""Spark and topics on the same cores: starts, 1,000,000 records of about 200 bytes in and out, batches of one row."""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import struct

import topics_spark
from bench.pipelines import CORES, cpu_s
from tests.serving import Client, free_port, serving
from topics_spark.errors import ServerFailed
from topics_spark.options import SourceOptions
from topics_spark.source.server import Server

RECORDS = 1_000_000
APPEND = 10_000
RUNS = 3
MICRO_BATCHES = 30
SCHEMA = "id BIGINT, kind STRING, price DOUBLE, text STRING"
STARTS = 4
TOPICS = 1_000
PATTERN = r"many\.\d+"
# What a user types first; the settings are those of a session.
FIRST_READ = """
import topics_spark
spark = topics_spark.session(master="local[2]")
print(spark.read.format("topics").option("subscribe", "few").load().count(), flush=True)
spark.stop()
"""


def first_reads_s(url: str, cache: Path) -> list[tuple[float, float]]:
    """From the command to its first result, and the CPU time of that; the first start finds an empty cache."""
    environ = {**os.environ, "TOPICS_URL": url, "XDG_CACHE_HOME": str(cache)}
    took_s: list[tuple[float, float]] = []
    for _ in range(STARTS):
        begun_s = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-c", FIRST_READ],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"3\n"
            took_s.append((time.perf_counter() - begun_s, cpu_s(process.pid)))
            # Java has this pipe, too.
            process.stdout.read()
    return took_s


def refused_s() -> float:
    """Until an address where nobody listens is given up, with two seconds to do so."""
    url = f"http://127.0.0.1:{free_port()}"
    options = SourceOptions.parse({"url": url, "subscribe": "few", "timeoutSeconds": "2"})
    begun_s = time.perf_counter()
    try:
        Server(options).heads(options.subscription)
    except ServerFailed:
        return time.perf_counter() - begun_s
    raise AssertionError("somebody listens")


def pattern_s(spark: SparkSession, client: Client, at: dict[str, str]) -> tuple[float, float]:
    """The heads of a thousand topics, and all their records as a table."""
    topics = {f"many.{number}": {"records": [{"data": number}]} for number in range(TOPICS)}
    reply = client.post("/v0/append", {"topics": topics})
    assert reply.status in (200, 201), reply
    options = SourceOptions.parse({**at, "subscribePattern": PATTERN})
    begun_s = time.perf_counter()
    assert len(Server(options).heads(options.subscription)) == TOPICS
    heads_s = time.perf_counter() - begun_s

    def read(_run: int) -> None:
        rows = spark.read.format("topics").options(**at, subscribePattern=PATTERN).load()
        assert rows.count() == TOPICS

    return heads_s, TOPICS / rate(read, TOPICS).wall


def fill(client: Client, topic: str) -> None:
    for start in range(0, RECORDS, APPEND):
        records = [
            {"data": {"id": n, "kind": f"kind-{n % 100}", "price": n / 4, "text": "x" * 110}}
            for n in range(start, start + APPEND)
        ]
        body = json.dumps({"records": records, "disable_backpressure": True}).encode()
        headers = {"Content-Type": "application/json"}
        reply = client.post(f"/v0/topics/{topic}?return_seqs=false", body=body, headers=headers)
        assert reply.status in (200, 201), reply


class Rate(NamedTuple):
    """Rows per second of the best of some runs, and what two cores would do by the processor time of all processes."""

    wall: float
    by_cpu: float

    def __str__(self) -> str:
        return f"{self.wall:,.0f} rows/s; {self.by_cpu:,.0f} by time on the CPU"


def rate(work: Callable[[int], None], rows: int = RECORDS) -> Rate:
    """The first run also warms Spark up."""
    took_s: list[float] = []
    took_cpu_s: list[float] = []
    for run in range(RUNS):
        begun_s, begun_cpu_s = time.perf_counter(), cpu_s(os.getsid(0))
        work(run)
        took_s.append(time.perf_counter() - begun_s)
        took_cpu_s.append(cpu_s(os.getsid(0)) - begun_cpu_s)
    return Rate(rows / min(took_s), CORES * rows / min(took_cpu_s))


def consumed(table: Callable[[], DataFrame]) -> Callable[[int], None]:
    return lambda _run: table().write.format("noop").mode("overwrite").save()


def micro_batches_ms(query: Any, feed: Callable[[int], None]) -> float:
    """The median time of a micro-batch of one row, as reported by Spark, fed one at a time."""
    took_ms: list[int] = []
    for number in range(MICRO_BATCHES):
        feed(number)
        query.processAllAvailable()
        took_ms.append(query.lastProgress.batchDuration)
    query.stop()
    return statistics.median(took_ms[MICRO_BATCHES // 3 :])


def from_files_to_noop(spark: SparkSession, folder: Path) -> float:
    source = folder / "source"
    source.mkdir()
    query = (
        spark.readStream.text(str(source))
        .writeStream.format("noop")
        .option("checkpointLocation", str(folder / "of-files"))
        .start()
    )

    def feed(number: int) -> None:
        fresh = folder / f"{number}.new"
        fresh.write_text(f"{number}\n")
        fresh.replace(source / f"{number}.txt")

    return micro_batches_ms(query, feed)


def from_topic_to_topic(spark: SparkSession, client: Client, at: dict[str, str], folder: Path) -> float:
    client.append("small", 0)
    query = (
        spark.readStream.format("topics")
        .options(**at, subscribe="small")
        .load()
        .select("data")
        .writeStream.format("topics")
        .options(**at, topic="small-copy", checkpointLocation=str(folder / "of-topics"))
        .start()
    )
    query.processAllAvailable()
    return micro_batches_ms(query, lambda number: client.append("small", number) and None)


def main() -> None:
    print("| work | measured |\n| --- | --- |")
    with tempfile.TemporaryDirectory() as name, serving(Path(name) / "data") as server:
        folder = Path(name)
        client = server.client()
        fill(client, "orders")
        at = {"url": f"http://127.0.0.1:{server.port}"}
        client.append("few", 1, 2, 3)
        starts = first_reads_s(at["url"], folder / "cache")
        told = ", ".join(f"{wall_s:.1f} ({took_cpu_s:.1f} on the CPU)" for wall_s, took_cpu_s in starts)
        print(f"| command to its first read: the very first start, and later ones | {told} s |", flush=True)
        print(f"| an address where nobody listens, `timeoutSeconds` 2 | {refused_s():.1f} s |", flush=True)
        spark = topics_spark.session("bench", master="local[2]", config={"spark.ui.enabled": "false"})

        heads_s, read_s = pattern_s(spark, client, at)
        what = f"a pattern over {TOPICS:,} topics: their heads; a record of each"
        print(f"| {what} | {heads_s:.2f} s; {read_s:.2f} s |", flush=True)

        def orders(**options: str) -> DataFrame:
            return spark.read.format("topics").options(subscribe="orders", **options).load()

        orders(**at, columns="data").write.text(str(folder / "text"))
        text = str(folder / "text")
        for what, table in (
            ("batch read from the server, `data` as text", lambda: orders(**at)),
            ("the same parsed by `schema`", lambda: orders(**at, schema=SCHEMA)),
            ("the same from files", lambda: orders(path=str(folder / "data"))),
            ("`spark.read.json` with a schema over the same text", lambda: spark.read.schema(SCHEMA).json(text)),
        ):
            print(f"| {what} | {rate(consumed(table))} |", flush=True)

        def sink(run: int) -> None:
            rows = spark.read.text(text).withColumnRenamed("value", "data")
            rows.write.format("topics").options(**at, topic=f"copy-{run}").mode("append").save()

        def sink_of_structs(run: int) -> None:
            rows = spark.read.schema(SCHEMA).json(text).select(struct("*").alias("data"))
            rows.write.format("topics").options(**at, topic=f"structs-{run}").mode("append").save()

        print(f"| sink, exactly once | {rate(sink)} |", flush=True)
        print(f"| sink of structs, read from JSON | {rate(sink_of_structs)} |", flush=True)
        assert client.state("copy-0")["count"] == RECORDS
        files_ms = from_files_to_noop(spark, folder)
        topics_ms = from_topic_to_topic(spark, client, at, folder)
        print(
            f"| micro-batch of one row, source and sink | {topics_ms:.0f} ms; file source to `noop` {files_ms:.0f} ms: "
            f"{topics_ms / files_ms:.1f}× |",
            flush=True,
        )
        spark.stop()


if __name__ == "__main__":
    main()
