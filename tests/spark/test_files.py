"""History from files: a data directory or a backup without a server, and joined with one."""

import json
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.serving import Client, ServerProcess, serving
from tests.spark.bounds import bounded

pytestmark = [pytest.mark.slow, pytest.mark.timeout(720)]

Read = Callable[..., DataFrame]
RECORDS = 6_000


def fill(client: Client, topic: str, count: int, start: int = 0) -> None:
    for at in range(start, start + count, 1_000):
        client.post(
            f"/v0/topics/{topic}",
            {
                "records": [
                    {"data": {"id": n, "text": "x" * 150}, "tag": f"t{n % 3}"}
                    for n in range(at, min(at + 1_000, start + count))
                ],
                "node": f"n{at % 2_000}",
            },
        )


def ids(rows: DataFrame) -> list[int]:
    return sorted(json.loads(row.data)["id"] for row in rows.select("data").collect())


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory that its server has left: orders with deletes, a capped topic, an empty one."""
    path = tmp_path_factory.mktemp("left")
    with serving(path) as server:
        client = server.client()
        fill(client, "orders", RECORDS)
        client.post("/v0/topics/orders/delete", {"match": ["tag", "Eq", "t1"]})
        client.put("/v0/topics/capped", {"cap_records": 10})
        fill(client, "capped", 30)
        client.put("/v0/topics/empty", {})
        assert server.terminate() == 0
    return path


@pytest.fixture
def read(spark: SparkSession) -> Read:
    def read(**options: Any) -> DataFrame:
        return spark.read.format("topics").options(**options).load()

    return read


ALIVE = [n for n in range(RECORDS) if n % 3 != 1]


def test_a_directory_is_read_without_its_server(read: Read, directory: Path) -> None:
    rows = read(path=str(directory), subscribe="orders", minPartitions=3)
    assert 3 <= rows.rdd.getNumPartitions() <= 4
    assert ids(rows) == ALIVE
    first = rows.orderBy("seq").first()
    assert first is not None
    assert (first.topic, first.seq, first.node, first.tag, first.meta) == ("orders", 1, "n0", "t0", None)
    assert json.loads(first.data) == {"id": 0, "text": "x" * 150}


def test_options_mean_the_same_as_with_a_server(read: Read, directory: Path) -> None:
    path = str(directory)
    some = read(path=path, subscribe="orders", startingOffsets='{"orders": 11}', endingOffsets='{"orders": 21}')
    assert ids(some) == [n for n in range(10, 20) if n % 3 != 1]
    assert ids(read(path=path, subscribe="orders", tagPrefix="t2")) == [n for n in range(RECORDS) if n % 3 == 2]
    assert ids(read(path=path, subscribe="orders", node="n0")) == [n for n in ALIVE if n // 1000 % 2]
    stamp = read(path=path, subscribe="orders").where("seq = 3001").selectExpr("unix_millis(ts)").first()
    assert stamp is not None
    later = read(path=path, subscribe="orders", startingTimestamp=stamp[0]).selectExpr("min(unix_millis(ts))").first()
    assert later == stamp
    typed = read(path=path, subscribe="orders", inferSchema="true")
    assert typed.schema["data"].dataType.simpleString() == "struct<id:bigint,text:string>"
    assert typed.selectExpr("sum(data.id)").first() == (sum(ALIVE),)
    assert read(path=path, subscribePattern="e.*").count() == 0


def test_lost_records_fail_the_query_here_too(read: Read, directory: Path) -> None:
    options = {"path": str(directory), "subscribe": "capped"}
    assert ids(read(**options)) == list(range(20, 30))
    with pytest.raises(PySparkException, match=r"from seq 1 to 20 \(cap\)"):
        read(**options, startingOffsets='{"capped": 1}').collect()
    lenient = read(**options, startingOffsets='{"capped": 1}', failOnDataLoss="false")
    assert ids(lenient) == list(range(20, 30))


def test_damage_is_told_with_its_seqs(read: Read, directory: Path, tmp_path: Path) -> None:
    import shutil

    copy = tmp_path / "copy"
    shutil.copytree(directory, copy)
    pack = max(copy.rglob("*.pack"), key=lambda each: each.stat().st_size)
    content = bytearray(pack.read_bytes())
    content[len(content) // 2] ^= 0xFF
    pack.write_bytes(content)
    with pytest.raises(PySparkException, match=r"(?i)checksum|damaged|cannot be read"):
        read(path=str(copy), subscribe="orders").collect()


def test_a_wrong_path_is_an_error(read: Read, tmp_path: Path) -> None:
    with pytest.raises(PySparkException, match="neither a data directory nor a backup"):
        read(path=str(tmp_path), subscribe="orders").collect()


@pytest.fixture
def alive(tmp_path: Path) -> Iterator[ServerProcess]:
    with serving(tmp_path / "data", checkpoint_ms=1_000) as server:
        yield server


def backup(server: ServerProcess, file: Path) -> Path:
    with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/v0/backup") as answer:
        file.write_bytes(answer.read())
    return file


def test_a_backup_and_the_server_are_one_table_without_gap_or_double(
    read: Read, alive: ServerProcess, tmp_path: Path
) -> None:
    client = alive.client()
    fill(client, "orders", 3_000)
    file = backup(alive, tmp_path / "backup.tar")
    assert ids(read(path=str(file), subscribe="orders")) == list(range(3_000))
    fill(client, "orders", 2_000, start=3_000)
    fill(client, "later", 10)
    url = f"http://127.0.0.1:{alive.port}"
    both = read(path=str(file), url=url, subscribe="orders", minPartitions=4)
    rows = both.select("seq", "data").collect()
    assert sorted(row.seq for row in rows) == list(range(1, 5_001))
    assert ids(read(path=str(file), url=url, subscribe="later")) == list(range(10)), "not in the backup at all"


def test_a_backup_has_what_the_server_has_let_go_of(read: Read, alive: ServerProcess, tmp_path: Path) -> None:
    client = alive.client()
    fill(client, "orders", 3_000)
    alive.terminate()
    with serving(tmp_path / "data") as again:
        file = backup(again, tmp_path / "backup.tar")
        client = again.client()
        client.put("/v0/topics/orders", {"cap_records": 1_000})
        fill(client, "orders", 500, start=3_000)
        url = f"http://127.0.0.1:{again.port}"
        assert ids(read(url=url, subscribe="orders")) == list(range(2_500, 3_500))
        assert ids(read(path=str(file), url=url, subscribe="orders")) == list(range(3_500))


def test_files_of_another_life_of_a_topic_are_not_mixed_in(read: Read, alive: ServerProcess, tmp_path: Path) -> None:
    client = alive.client()
    fill(client, "orders", 3_000)
    file = backup(alive, tmp_path / "backup.tar")
    client.delete("/v0/topics/orders")
    fill(client, "orders", 5, start=90_000)
    url = f"http://127.0.0.1:{alive.port}"
    assert ids(read(path=str(file), url=url, subscribe="orders")) == list(range(90_000, 90_005))


def test_the_directory_of_a_running_server_can_be_read_while_it_writes(
    read: Read, alive: ServerProcess, tmp_path: Path
) -> None:
    client = alive.client()
    fill(client, "orders", 4_000)
    url = f"http://127.0.0.1:{alive.port}"
    table = read(path=str(tmp_path / "data"), url=url, subscribe="orders", minPartitions=2)
    fill(client, "orders", 1_000, start=4_000)
    assert ids(table) == list(range(5_000))


def test_a_stream_takes_its_history_from_files(
    spark: SparkSession, alive: ServerProcess, tmp_path: Path, drained: Callable[..., list[Any]]
) -> None:
    client = alive.client()
    fill(client, "orders", 3_000)
    file = backup(alive, tmp_path / "backup.tar")
    fill(client, "orders", 1_000, start=3_000)
    options = {
        "path": str(file),
        "url": f"http://127.0.0.1:{alive.port}",
        "subscribe": "orders",
        "startingOffsets": "earliest",
        **bounded(1_500),
    }
    source = spark.readStream.format("topics").options(**options).load()
    assert sorted(row.seq for row in drained(source)) == list(range(1, 4_001))
    fill(client, "orders", 10, start=4_000)
    assert sorted(row.seq for row in drained(source)) == list(range(4_001, 4_011))
    with pytest.raises(PySparkException, match="needs `url`"):
        drained(spark.readStream.format("topics").options(path=str(file), subscribe="orders").load(), "alone")
