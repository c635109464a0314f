"""Tables in a real S3 server, with Spark's jars from Maven: written, continued after kill -9, read, compacted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from tests.bucket.s3_server import SECRET, S3Server, s3_server
from tests.serving import serving
from tests.spark.conftest import FORMATS
from tests.spark.runner_process import WAIT_S_MAX, running, until
from tests.spark.runner_process import topics as command
from topics.client import Client, Outgoing, Record, TopicNotFound
from topics_spark.pipelines.assignment import app_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.crash,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not FORMATS, reason="no table format for this Spark"),
]
TABLES = "s3a://bkt/lake"


@pytest.fixture
def s3(tmp_path: Path) -> Iterator[S3Server]:
    with s3_server(tmp_path / "s3") as server:
        yield server


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with serving(tmp_path / "data") as server, Client(f"http://127.0.0.1:{server.port}") as client:
        yield client


def store_of(server: S3Server, format: str) -> list[str]:
    """The options that a user gives; credentials are in the environment."""
    endpoint = f"spark.hadoop.fs.s3a.endpoint=http://127.0.0.1:{server.port}"
    path_style = "spark.hadoop.fs.s3a.path.style.access=true"
    packages = ("--packages", format, "--packages", "s3a")
    return ["--tables", TABLES, *packages, "--conf", endpoint, "--conf", path_style]


def ids_in_delta(table: Path) -> list[int]:
    """By its log alone, as any other reader would."""
    live: dict[str, None] = {}
    for commit in sorted((table / "_delta_log").glob("*.json")):
        for line in commit.read_text().splitlines():
            action: dict[str, Any] = json.loads(line)
            if "add" in action:
                live[action["add"]["path"]] = None
            elif "remove" in action:
                live.pop(action["remove"]["path"])
    found = [pyarrow.parquet.ParquetFile(table / path).read(["id"])["id"].to_pylist() for path in live]
    return sorted(id for ids in found for id in ids)


def rows_in_iceberg(table: Path) -> int:
    """What the current snapshot says of itself."""
    version = (table / "metadata" / "version-hint.text").read_text().strip()
    metadata = json.loads((table / "metadata" / f"v{version}.metadata.json").read_text())
    (current,) = (each for each in metadata["snapshots"] if each["snapshot-id"] == metadata["current-snapshot-id"])
    return int(current["summary"]["total-records"])


@pytest.mark.parametrize("format", FORMATS)
def test_a_table_in_a_bucket_has_each_batch_once_and_is_an_input(
    client: Client, s3: S3Server, tmp_path: Path, format: str
) -> None:
    port = int(client.url.rpartition(":")[2])
    source = {"events": {"topic": "events", "schema": "id BIGINT"}}
    client.put_pipeline(
        "kept", {"sources": source, "sql": "SELECT id FROM events", "sink": {"table": "kept", "format": format}}
    )
    store = store_of(s3, format)

    def append(*ids: int) -> None:
        client.append_many("events", [Outgoing({"id": id}) for id in ids])

    def version() -> int:
        return client.txn(app_of("kept")).version or 0

    append(1, 2)
    killed = {"program": (sys.executable, "-m", "tests.spark.killed_runner", "written", "2"), "environ": s3.environ}
    with running(port, tmp_path, "kept", *store, **killed) as runner:
        until(version, lambda: runner.log[-8000:], 2 * WAIT_S_MAX)
        first = version()
        append(3)
        runner.wait_for_kill()
    assert version() == first
    append(4)
    joined = {
        "sources": {**source, "kept": {"table": "kept"}},
        "sql": "SELECT e.id FROM events e JOIN kept k ON e.id = k.id",
        "sink": {"topic": "known"},
        "trigger": {"once": True},
    }
    with running(port, tmp_path, *store, environ=s3.environ) as runner:
        until(lambda: version() >= first + 2, lambda: runner.log[-8000:], 2 * WAIT_S_MAX)
        client.put_pipeline("known", joined)
        until(lambda: ids_of(client, "known") == [1, 2, 3, 4], lambda: runner.log[-8000:], 2 * WAIT_S_MAX)
        assert runner.terminate() == 0
        assert SECRET not in runner.log
    table = tmp_path / "s3" / "bkt" / "lake" / "kept"
    assert (ids_in_delta(table) == [1, 2, 3, 4]) if format == "delta" else rows_in_iceberg(table) == 4
    done = command(port, "pipelines", "compact", "kept", *store, environ=s3.environ)
    assert (done.returncode, "files became" in done.stderr) == (0, True), done
    assert (ids_in_delta(table) == [1, 2, 3, 4]) if format == "delta" else rows_in_iceberg(table) == 4
    assert not list(tmp_path.rglob("s3a:*")), "no directory is made for an address"


def ids_of(client: Client, topic: str) -> list[int]:
    try:
        return sorted(record.data["id"] for record in client.read(topic) if isinstance(record, Record))
    except TopicNotFound:
        return []


def test_a_store_without_its_jars_is_named_with_the_way_out(client: Client, s3: S3Server, tmp_path: Path) -> None:
    port = int(client.url.rpartition(":")[2])
    client.append("events", {"id": 1})
    definition = {
        "sources": {"events": {"topic": "events", "schema": "id BIGINT"}},
        "sql": "SELECT id FROM events",
        "sink": {"table": "kept", "format": FORMATS[0]},
    }
    client.put_pipeline("kept", definition)
    arguments = ("--tables", TABLES, "--packages", FORMATS[0])
    with running(port, tmp_path, *arguments, environ=s3.environ) as runner:
        runner.wait_for_log(r"pipeline kept failed: .*add --packages s3a")
