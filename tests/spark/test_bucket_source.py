"""Spark on the bucket of a server: tables and streams from packs and pieces, whatever becomes of the server."""

from __future__ import annotations

import contextlib
import http.client
import itertools
import json
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.bucket.s3_server import SECRET, s3_server
from tests.patience import PATIENCE_S
from tests.serving import Client, ServerProcess, serving
from tests.spark.bounds import needs_bounds
from topics.storage.bucket.chain import snapshots_in
from topics.storage.bucket.shared_directory import SharedDirectory

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

Read = Callable[..., DataFrame]
LEASE_MS = 1_000


def on(bucket: str, **more: Any) -> dict[str, Any]:
    return {"bucket": bucket, "bucket_lease_ms": LEASE_MS, "bucket_piece_ms": 10, **more}


@pytest.fixture
def bucket(tmp_path: Path) -> str:
    (tmp_path / "bucket").mkdir()
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def read(spark: SparkSession) -> Read:
    def read(path: str, **options: Any) -> DataFrame:
        return spark.read.format("topics").options(**options).load(path)

    return read


def fill(client: Client, topic: str, start: int, count: int) -> None:
    records = [{"data": {"id": n, "text": "x" * 200}, "tag": f"t{n % 3}"} for n in range(start, start + count)]
    assert client.post(f"/v0/topics/{topic}", {"records": records}).status in (200, 201)


def until_shipped(client: Client) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while (found := client.get("/v0/health").json["bucket"])["lag_bytes"] or found["state"] != "ok":
        assert time.monotonic() < deadline_s, found
        time.sleep(0.01)


def until_snapshot(bucket: str) -> None:
    """A snapshot is in the bucket that was made from now on."""
    found = SharedDirectory(bucket.removeprefix("file://"))
    before, deadline_s = len(snapshots_in(found)), time.monotonic() + PATIENCE_S
    while len(snapshots_in(found)) <= before:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)


def rows_of(client: Client, topic: str) -> list[tuple[int, Any]]:
    """What the server gives."""
    found: list[tuple[int, Any]] = []
    cursor, caught_up = 0, False
    while not caught_up:
        page = client.diff(topic, from_seq=cursor, limit=1000)
        found += [(record["$seq"], record["data"]) for record in page["records"]]
        cursor, caught_up = page["next_from_seq"], page["caught_up"]
    return found


def rows_in(rows: DataFrame) -> list[tuple[int, Any]]:
    return sorted(((row.seq, json.loads(row.data)) for row in rows.collect()), key=lambda row: row[0])


def test_a_table_is_read_from_packs_and_pieces_while_its_server_is_gone(
    read: Read, bucket: str, tmp_path: Path
) -> None:
    with serving(tmp_path / "data", **on(bucket, checkpoint_ms=500)) as server:
        client = server.client()
        fill(client, "orders", 0, 3_000)
        until_shipped(client)
        until_snapshot(bucket)
        client.post("/v0/topics/orders/delete", {"match": ["tag", "Eq", "t1"]})
        fill(client, "orders", 3_000, 100)
        client.put("/v0/topics/capped", {"cap_records": 10})
        fill(client, "capped", 0, 30)
        until_shipped(client)
        expected = rows_of(client, "orders")
        assert rows_in(read(bucket, subscribe="orders", minPartitions=3)) == expected
    shutil.rmtree(tmp_path / "data")
    table = read(bucket, subscribe="orders", minPartitions=3)
    assert table.rdd.getNumPartitions() >= 3
    assert rows_in(table) == expected
    assert len(rows_in(read(bucket, subscribe="capped"))) == 10
    with pytest.raises(PySparkException, match=r"from seq 1 to 20 \(cap\)"):
        read(bucket, subscribe="capped", startingOffsets='{"capped": 1}').collect()
    typed = read(bucket, subscribe="orders", inferSchema="true", startingOffsets='{"orders": 3001}')
    assert typed.selectExpr("sum(data.id)").first() == (sum(range(3_000, 3_100)),)


def test_errors_are_those_of_files(read: Read, bucket: str, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="neither a data directory nor a backup"):
        read(bucket, subscribe="orders").collect()
    with serving(tmp_path / "data", **on(bucket)) as server:
        until_shipped(server.client())
        with pytest.raises(PySparkException, match="names 'orders', which does not exist"):
            read(bucket, subscribe="orders").collect()
    (tmp_path / "none" / "log").mkdir(parents=True)
    with pytest.raises(PySparkException, match="is not the bucket of a server: it holds no log"):
        read(f"file://{tmp_path}/none", subscribe="orders").collect()
    with pytest.raises(PySparkException, match="path contains credentials") as refused:
        read("s3://me:hidden-word@bkt/x", subscribe="orders").collect()
    assert "hidden-word" not in str(refused.value)


class Followed:
    """A stream whose rows are collected while it runs."""

    def __init__(self, spark: SparkSession, bucket: str, checkpoint: Path, **options: Any) -> None:
        self.seqs: list[int] = []
        source = spark.readStream.format("topics").options(subscribe="t", startingOffsets="earliest", **options)
        self.query = (
            source.load(bucket)
            .writeStream.foreachBatch(lambda batch, _id: self.seqs.extend(row.seq for row in batch.collect()))
            .option("checkpointLocation", str(checkpoint))
            .start()
        )

    def until(self, seqs: list[int]) -> None:
        self.wait_for(len(seqs))
        assert sorted(self.seqs) == seqs

    def wait_for(self, count: int) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while len(self.seqs) < count:
            assert self.query.isActive, self.query.exception()
            assert time.monotonic() < deadline_s, len(self.seqs)
            time.sleep(0.05)


@pytest.fixture
def follow(spark: SparkSession, bucket: str, tmp_path: Path) -> Iterator[Callable[..., Followed]]:
    started: list[Followed] = []

    def follow(**options: Any) -> Followed:
        started.append(Followed(spark, bucket, tmp_path / "checkpoint", **options))
        return started[-1]

    yield follow
    for each in started:
        each.query.stop()


def append_until_killed(client: Client, topic: str) -> None:
    with contextlib.suppress(OSError, http.client.HTTPException):
        for start in itertools.count(0, 20):
            fill(client, topic, start, 20)


def test_a_stream_has_what_the_server_has_however_often_that_is_killed(
    follow: Callable[..., Followed], bucket: str, tmp_path: Path
) -> None:
    """In the middle of writes, of pieces and of snapshots."""
    followed: Followed | None = None
    settings = on(bucket, checkpoint_ms=300)
    for _ in range(4):
        with serving(tmp_path / "data", **settings) as server:
            fill(server.client(), "t", 0, 500)
            until_shipped(server.client())
            followed = followed or follow()
            writer = threading.Thread(target=append_until_killed, args=(server.client(), "t"))
            writer.start()
            followed.wait_for(len(followed.seqs) + 700)
        writer.join()
    assert followed is not None
    with serving(tmp_path / "data", **settings) as server:
        until_shipped(server.client())
        followed.until([seq for seq, _ in rows_of(server.client(), "t")])


def test_a_stream_goes_on_in_the_term_of_another_server(
    follow: Callable[..., Followed], read: Read, bucket: str, tmp_path: Path
) -> None:
    """What that server skips fails the query, unless that is allowed."""
    with serving(tmp_path / "data", **on(bucket, checkpoint_ms=300)) as server:
        fill(server.client(), "t", 0, 500)
        until_shipped(server.client())
        followed = follow()
        followed.until(list(range(1, 501)))
        # What has come is repeated unless its batch is noted as done.
        followed.query.processAllAvailable()
        followed.query.stop()
        fill(server.client(), "t", 500, 20)
        until_shipped(server.client())
        again = follow()
        again.until(list(range(501, 521)))
    with serving(tmp_path / "other", **on(bucket)) as server:
        fill(server.client(), "t", 2_000, 10)
        until_shipped(server.client())
        with pytest.raises(PySparkException, match=r"has lost about \d+ records from seq 521 to \d+ \(lost\)"):
            again.query.awaitTermination(int(PATIENCE_S))
        lenient = follow(failOnDataLoss="false")
        expected = rows_of(server.client(), "t")
        lenient.until([seq for seq, _ in expected[-10:]])
        assert rows_in(read(bucket, subscribe="t", failOnDataLoss="false")) == expected
        url = f"http://127.0.0.1:{server.port}"
        assert rows_in(read(bucket, subscribe="t", url=url, failOnDataLoss="false")) == expected


@needs_bounds
def test_a_stream_in_limited_batches_reads_each_record_once(
    spark: SparkSession, bucket: str, tmp_path: Path, drained: Callable[..., list[Any]]
) -> None:
    options = {"subscribePattern": "t.*", "startingOffsets": "earliest", "maxOffsetsPerTrigger": 700}
    with serving(tmp_path / "data", **on(bucket, checkpoint_ms=300)) as server:
        fill(server.client(), "t1", 0, 2_000)
        until_shipped(server.client())
        source = spark.readStream.format("topics").options(**options).load(bucket)
        assert sorted(row.seq for row in drained(source)) == list(range(1, 2_001))
        fill(server.client(), "t1", 2_000, 10)
        fill(server.client(), "t2", 0, 5)
        until_shipped(server.client())
        found = sorted((row.topic, row.seq) for row in drained(source))
        assert found == [*(("t1", seq) for seq in range(2_001, 2_011)), *(("t2", seq) for seq in range(1, 6))]
        server.client().delete("/v0/topics/t2")
        until_shipped(server.client())
        with pytest.raises(PySparkException, match="'t2' was deleted"):
            drained(source)


JOB = """
import sys, topics_spark
spark = topics_spark.session("bucket", master="local[2]", quick=True, config={"spark.ui.enabled": "false"})
table = spark.read.format("topics").option("subscribe", "orders").option("minPartitions", 3).load(sys.argv[1])
table.explain(True)
print("rows", table.count(), table.selectExpr("max(seq)").first()[0])
found = []
stream = spark.readStream.format("topics").options(subscribe="orders", startingOffsets="earliest").load(sys.argv[1])
writing = stream.writeStream.foreachBatch(lambda batch, _id: found.append(batch.count()))
writing.trigger(availableNow=True).start().awaitTermination()
print("stream", sum(found))
try:
    spark.read.format("topics").option("subscribe", "orders").load("s3://no-such-bucket/x").count()
except Exception as error:
    print("refused", error)
"""


def test_a_real_s3_server_is_read_with_the_credentials_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with s3_server(tmp_path / "s3") as s3:
        for name, value in s3.environ.items():
            monkeypatch.setenv(name, value)
        url = "s3://bkt/prefix"
        server = ServerProcess(tmp_path / "data", **on(url, checkpoint_ms=300)).ready()
        fill(server.client(), "orders", 0, 3_000)
        until_shipped(server.client())
        fill(server.client(), "orders", 3_000, 10)
        assert server.terminate() == 0
        done = subprocess.run(
            [sys.executable, "-c", JOB, url],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        assert "rows 3010 3010" in done.stdout
        assert "stream 3010" in done.stdout
        assert "cannot read s3://no-such-bucket/x" in done.stdout
        assert SECRET not in done.stdout + done.stderr
