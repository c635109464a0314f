"""Plain Parquet tables on real Spark: columns that come later, one row of a key, and compaction of every table."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.serving import serving
from topics.client import Client, Outgoing
from topics_spark.errors import NeedsDecision
from topics_spark.pipelines import building, tables
from topics_spark.pipelines.assignment import Assignment, RunnerConfig, app_of
from topics_spark.pipelines.compaction import compact
from topics_spark.pipelines.definition import parse
from topics_spark.pipelines.sources import read_table
from topics_spark.pipelines.tables import TableSink
from topics_spark.sql.query_inputs import QueryInputs
from topics_spark.sql.views import Views

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
END_S_MAX = 360.0
_numbers = itertools.count(1)


class World:
    def __init__(self, spark: SparkSession, client: Client, home: Path) -> None:
        self.spark = spark
        self.client = client
        self.config = RunnerConfig(str(home / "state"), str(home / "tables"), url=client.url)
        self.name = f"rows{next(_numbers)}"
        self.table = self.config.table(self.name)

    def append(self, *payloads: Any) -> None:
        self.client.append_many(f"{self.name}.in", [Outgoing(payload) for payload in payloads])

    def assignment(
        self, sql: str, schema: str, mode: str | None = None, generation: int = 1, **sink: Any
    ) -> Assignment:
        definition: dict[str, Any] = {
            "sources": {"rows": {"topic": f"{self.name}.in", "schema": schema}},
            "sql": sql,
            "sink": {"table": self.name, **sink},
            "trigger": {"once": True},
        }
        if mode is not None:
            definition["output_mode"] = mode
        fence = self.client.take_fence(app_of(self.name))
        return Assignment(self.name, parse(definition, self.name, "test"), generation, generation, fence)

    def run(self, sql: str, schema: str = "id BIGINT, v STRING, gone BOOLEAN, at TIMESTAMP", **more: Any) -> None:
        given = self.assignment(sql, schema, **more)
        query = building.start(self.spark.newSession(), given, self.config, self.client)
        deadline_s = time.monotonic() + END_S_MAX
        while query.isActive:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        if (error := query.exception()) is not None:
            raise error

    def rows(self) -> list[tuple[Any, ...]]:
        found = read_table(self.spark.newSession(), self.config, self.name).collect()
        return sorted((tuple(row) for row in found), key=str)


@pytest.fixture(scope="module")
def shared_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        serving(tmp_path_factory.mktemp("data")) as server,
        Client(f"http://127.0.0.1:{server.port}") as client,
    ):
        yield client


@pytest.fixture
def world(spark: SparkSession, shared_client: Client, tmp_path: Path) -> World:
    return World(spark, shared_client, tmp_path)


def test_added_columns_are_seen_and_changed_types_refused(world: World) -> None:
    world.append({"id": 1, "v": "a"})
    world.run("SELECT id, v FROM rows")
    world.append({"id": 2, "v": "b"})
    world.run("SELECT id, upper(v) AS loud FROM rows WHERE id = 2", generation=2)
    assert world.rows() == [(1, "a", None), (2, None, "B")]
    inputs = QueryInputs(world.client.url, tables_dir=world.config.tables_dir)
    asked = Views(world.spark.newSession(), inputs).ask(f"SELECT loud FROM {world.name} ORDER BY id")
    assert [row[0] for row in asked.collect()] == [None, "B"]
    with pytest.raises(NeedsDecision) as refused:
        world.run("SELECT CAST(id AS INT) AS id FROM rows", generation=3)
    assert refused.value.problem == "table_schema"
    assert "column id" in refused.value.choices
    assert len(world.rows()) == 2


def test_a_key_has_one_row_the_newest(world: World) -> None:
    world.append({"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "a2"}, {"v": "nobody"})
    changes = "SELECT id, v, gone, seq FROM rows"
    world.run(changes, key=["id"], deleted="gone")
    assert world.rows() == [(1, "a2", 3), (2, "b", 2), (None, "nobody", 4)]
    world.append({"id": 2, "gone": True}, {"id": 3, "v": "c"}, {"v": "still nobody"})
    world.run(changes, key=["id"], deleted="gone")
    assert world.rows() == [(1, "a2", 3), (3, "c", 6), (None, "still nobody", 7)]


def test_update_keeps_one_row_of_a_group_and_older_rows_lose(world: World, tmp_path: Path) -> None:
    sums = "SELECT v, count(*) AS n FROM rows GROUP BY v"
    world.append({"v": "x"}, {"v": "y"}, {"v": "x"})
    world.run(sums, mode="update", key=["v"])
    world.append({"v": "x"}, {"v": "z"})
    world.run(sums, mode="update", key=["v"])
    assert world.rows() == [("x", 3), ("y", 1), ("z", 1)]

    dated = World(world.spark, world.client, tmp_path)
    times = "SELECT id, v, at FROM rows"
    dated.append(
        {"id": 1, "v": "new", "at": "2026-01-09T00:00:00Z"}, {"id": 1, "v": "old", "at": "2026-01-01T00:00:00Z"}
    )
    dated.run(times, key=["id"], newest_by="at")
    dated.append({"id": 1, "v": "late", "at": "2026-01-05T00:00:00Z"}, {"id": 2, "v": "other"})
    dated.run(times, key=["id"], newest_by="at")
    assert [row[:2] for row in dated.rows()] == [(1, "new"), (2, "other")]


@pytest.mark.parametrize("newest_by", ["at", None])
def test_of_equally_new_rows_the_later_record_stays(world: World, newest_by: str | None) -> None:
    """A state and its end in the same second; without a column to tell, the record that was appended later."""
    at = "2026-01-09T00:00:00Z"
    states = "SELECT id, v, at, gone FROM rows"
    some = {"key": ["id"], "deleted": "gone"} | ({} if newest_by is None else {"newest_by": newest_by})
    made = [{"id": n, "v": "paid", "at": at} for n in range(20)]
    ended = [{"id": n, "v": "ended", "at": at, "gone": n % 2 == 0} for n in range(20)]
    world.append(*made, *ended)
    world.run(states, **some)
    assert sorted(row[:2] for row in world.rows()) == [(n, "ended") for n in range(1, 20, 2)]
    world.append({"id": 1, "v": "again", "at": at}, {"id": 3, "at": at, "gone": True})
    world.run(states, **some)
    assert sorted(row[:2] for row in world.rows()) == [(1, "again"), *((n, "ended") for n in range(5, 20, 2))]


def test_compaction_of_any_table_keeps_its_rows_and_columns(world: World) -> None:
    for number in range(3):
        world.append({"id": number, "v": "a", "at": "2026-01-05T12:00:00.123456Z"})
        world.run("SELECT id, v, at FROM rows", partition_by=["v"])
    world.append({"id": 9, "v": "a"})
    world.run("SELECT id, v, 1 AS more FROM rows WHERE id = 9", generation=2, partition_by=["v"])
    before = world.rows()
    done = compact(world.client, world.name, world.table)
    assert (done.files_before, done.files_after, done.rows_removed) == (4, 1, 0)
    assert world.rows() == before
    assert len(before) == 4
    world.append({"id": 10, "v": "b"})
    world.run("SELECT id, v, 1 AS more FROM rows WHERE id >= 9", generation=2, partition_by=["v"])
    assert len(world.rows()) == 5


def test_a_batch_that_has_not_seen_a_compaction_is_valid_all_the_same(world: World) -> None:
    """Both replace the same file: the compaction is undone, and no row is lost or doubled."""
    session = world.spark.newSession()
    given = world.assignment("SELECT id, v FROM rows", "id BIGINT, v STRING", key=["id"])
    schema = "id BIGINT, v STRING"
    sink = TableSink(given, world.config, world.client)
    for number in range(3):
        sink.write(session.createDataFrame([(number, "a")], schema).coalesce(1), number)

    class Late(TableSink):
        def place_files(self, rows: Any, version: int) -> list[tables.DataFile]:
            compact(world.client, world.name, world.table)
            assert len(tables.load(world.table).files) == 1
            return super().place_files(rows, version)

    late = Late(given, world.config, world.client)
    late.write(session.createDataFrame([(1, "b"), (7, "c")], schema), 3)
    assert world.rows() == [(0, "a"), (1, "b"), (2, "a"), (7, "c")]
    sink.write(session.createDataFrame([(2, "d")], schema), 4)
    assert world.rows() == [(0, "a"), (1, "b"), (2, "d"), (7, "c")]
    assert tables.load(world.table).compactions == []
