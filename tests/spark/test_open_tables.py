"""Delta and Iceberg tables on real Spark, as sinks and as inputs, where there are jars for the Spark at hand."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.serving import serving
from tests.spark.conftest import FORMATS
from topics.client import Client, Fenced, Outgoing
from topics_spark.errors import NeedsDecision
from topics_spark.open_tables.formats import JarsMissing, admin, open_table
from topics_spark.open_tables.open_sink import OpenTableSink
from topics_spark.pipelines import building
from topics_spark.pipelines.assignment import Assignment, RunnerConfig, app_of
from topics_spark.pipelines.definition import parse
from topics_spark.pipelines.sources import read_table

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
END_S_MAX = 900.0
_numbers = itertools.count(1)
every_format = pytest.mark.parametrize(
    "format",
    [
        pytest.param(name, marks=pytest.mark.skipif(name not in FORMATS, reason=f"no {name} for this Spark"))
        for name in ("delta", "iceberg")
    ],
)


def ordered(*rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    return sorted(rows, key=str)


class World:
    def __init__(self, spark: SparkSession, client: Client, home: Path, lake: Path) -> None:
        self.spark = spark
        self.client = client
        self.config = RunnerConfig(str(home / "state"), str(lake), url=client.url)
        self.name = f"open{next(_numbers)}"

    def append(self, *payloads: Any) -> None:
        self.client.append_many(f"{self.name}.in", [Outgoing(payload) for payload in payloads])

    def definition(self, sql: str, schema: str = "id BIGINT, v STRING, gone BOOLEAN", **sink: Any) -> dict[str, Any]:
        mode = {"output_mode": sink.pop("output_mode")} if "output_mode" in sink else {}
        return {
            "sources": {"rows": {"topic": f"{self.name}.in", "schema": schema}},
            "sql": sql,
            "sink": {"table": self.name, **sink},
            "trigger": {"once": True},
            **mode,
        }

    def assignment(self, definition: dict[str, Any], pipeline: str | None = None, generation: int = 1) -> Assignment:
        name = pipeline or self.name
        fence = self.client.take_fence(app_of(name))
        return Assignment(name, parse(definition, name, "test"), generation, generation, fence)

    def run(self, definition: dict[str, Any], pipeline: str | None = None, generation: int = 1) -> None:
        """Runs to its end over the existing records."""
        given = self.assignment(definition, pipeline, generation)
        query = building.start(self.spark.newSession(), given, self.config, self.client)
        deadline_s = time.monotonic() + END_S_MAX
        while query.isActive:
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        if (error := query.exception()) is not None:
            raise error

    def rows(self) -> list[tuple[Any, ...]]:
        return ordered(*map(tuple, read_table(self.spark.newSession(), self.config, self.name).collect()))


@pytest.fixture(scope="module")
def shared_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    with (
        serving(tmp_path_factory.mktemp("data")) as server,
        Client(f"http://127.0.0.1:{server.port}", retries_max=0) as client,
    ):
        yield client


@pytest.fixture
def world(spark: SparkSession, shared_client: Client, tmp_path: Path, lake: Path) -> World:
    return World(spark, shared_client, tmp_path, lake)


@every_format
def test_a_batch_that_is_repeated_after_a_crash_is_in_the_table_once(
    world: World, format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The crash is between the commit of the table and that of the server: the worst moment there is."""
    definition = world.definition("SELECT id, v FROM rows", format=format)
    world.append({"id": 1, "v": "a"}, {"id": 2, "v": "b"})
    world.run(definition)
    world.append({"id": 3, "v": "c"})

    def crash(*_given: Any, **_more: Any) -> Any:
        raise RuntimeError("killed here")

    with monkeypatch.context() as patched:
        patched.setattr(world.client, "commit_txn", crash)
        with pytest.raises(Exception, match="killed here"):
            world.run(definition)
    assert world.rows() == [(1, "a"), (2, "b"), (3, "c")], "the table had the batch, and the server did not"
    world.append({"id": 4, "v": "d"})
    world.run(definition)
    world.run(definition)
    assert world.rows() == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]


@every_format
def test_a_runner_that_was_replaced_adds_nothing(world: World, format: str) -> None:
    """Neither before its write, where the server refuses it, nor after that, where the table has the batch already."""
    definition = world.definition("SELECT id, v FROM rows", format=format)
    session = world.spark.newSession()
    batch = session.createDataFrame([(1, "a")], "id BIGINT, v STRING")
    old = world.assignment(definition)
    stale = OpenTableSink(old, world.config, world.client)
    stale.open(session, batch.schema)
    new = OpenTableSink(world.assignment(definition), world.config, world.client)
    new.open(session, batch.schema)
    with pytest.raises(Fenced):
        stale.write(batch, 0)
    assert world.rows() == []
    new.write(batch, 0)
    table = open_table(admin(session), world.config.place(world.name), format)
    owner = table.owner()
    assert owner is not None
    # It had passed the check of its token, and goes on now: Delta passes over the batch, Iceberg refuses it.
    with contextlib.nullcontext() if format == "delta" else pytest.raises(Exception, match=r"(?i)wap"):
        table.append(batch, f"{old.app}@{owner.rpartition('@')[2]}", old.version_base)
    assert world.rows() == [(1, "a")]


@every_format
def test_update_and_change_streams_are_merged_by_key(world: World, format: str) -> None:
    definition = world.definition("SELECT id, v, gone, seq FROM rows", format=format, key=["id"], deleted="gone")
    world.append({"id": 1, "v": "a"}, {"id": 2, "v": "b"}, {"id": 1, "v": "a2"}, {"id": None, "v": "n"})
    world.run(definition)
    assert world.rows() == ordered((None, "n", 4), (1, "a2", 3), (2, "b", 2))
    world.append({"id": 2, "gone": True}, {"id": 3, "v": "c"}, {"id": 4, "v": "d"}, {"id": 4, "gone": True})
    world.append({"id": None, "v": "n2"})
    world.run(definition)
    assert world.rows() == ordered((None, "n2", 9), (1, "a2", 3), (3, "c", 6))

    counts = World(world.spark, world.client, Path(world.config.state_dir), Path(world.config.tables_dir))
    sums = counts.definition(
        "SELECT v, count(*) AS n FROM rows GROUP BY v", format=format, key=["v"], output_mode="update"
    )
    counts.append({"v": "x"}, {"v": "y"}, {"v": "x"})
    counts.run(sums)
    counts.append({"v": "x"}, {"v": "z"})
    counts.run(sums)
    assert counts.rows() == [("x", 3), ("y", 1), ("z", 1)]


@every_format
def test_an_older_row_does_not_replace_a_newer_one(world: World, format: str) -> None:
    definition = world.definition(
        "SELECT id, v, at FROM rows", "id BIGINT, v STRING, at BIGINT", format=format, key=["id"], newest_by="at"
    )
    world.append({"id": 1, "v": "new", "at": 9}, {"id": 1, "v": "old", "at": 3})
    world.run(definition)
    world.append({"id": 1, "v": "late", "at": 5}, {"id": 2, "v": "other", "at": 1})
    world.run(definition)
    assert world.rows() == [(1, "new", 9), (2, "other", 1)]
    world.append({"id": 1, "v": "same", "at": 9}, {"id": 1, "v": "later", "at": 9}, {"id": 2, "v": "other", "at": 1})
    world.run(definition)
    assert world.rows() == [(1, "later", 9), (2, "other", 1)]


@every_format
def test_columns_are_added_and_their_types_stay(world: World, format: str) -> None:
    world.append({"id": 1, "v": "a"})
    world.run(world.definition("SELECT id, v FROM rows", format=format))
    world.append({"id": 2, "v": "b"})
    world.run(world.definition("SELECT id, upper(v) AS loud FROM rows", format=format), generation=2)
    assert world.rows() == ordered((1, "a", None), (1, None, "A"), (2, None, "B"))
    with pytest.raises(NeedsDecision) as refused:
        world.run(world.definition("SELECT CAST(id AS STRING) AS id FROM rows", format=format), generation=3)
    assert refused.value.problem == "table_schema"
    assert "is bigint, and the rows would have string" in refused.value.choices


@every_format
def test_a_table_of_others_is_taken_only_on_demand_and_joined_without(world: World, format: str) -> None:
    world.append({"id": 1, "v": "a"})
    world.run(world.definition("SELECT id, v FROM rows", format=format))
    rival = world.definition("SELECT id, v FROM rows", format=format)
    with pytest.raises(NeedsDecision) as refused:
        world.run(rival, f"{world.name}-rival")
    assert refused.value.problem == "table_taken"
    rival["sink"]["take_over"] = True
    world.run(rival, f"{world.name}-rival")
    assert world.rows() == [(1, "a"), (1, "a")]
    with pytest.raises(NeedsDecision):
        world.run(world.definition("SELECT id, v FROM rows", format=format))

    joined = World(world.spark, world.client, Path(world.config.state_dir), Path(world.config.tables_dir))
    joined.append({"id": 1}, {"id": 7})
    definition = joined.definition("SELECT r.id, n.v FROM rows r JOIN names n ON r.id = n.id", format=format)
    definition["sources"]["names"] = {"table": world.name}
    joined.run(definition)
    assert joined.rows() == [(1, "a"), (1, "a")]


@every_format
def test_complete_replaces_and_compaction_merges_by_the_means_of_the_format(world: World, format: str) -> None:
    appended = world.definition("SELECT id, v FROM rows", format=format, cluster_by=["id"])
    for number in range(3):
        world.append({"id": number, "v": "a"})
        world.run(appended)
    table = open_table(admin(world.spark), world.config.place(world.name), format)
    before, after = table.compact(["id"])
    assert (before >= 3, after) == (True, 1)
    assert world.rows() == [(0, "a"), (1, "a"), (2, "a")]
    world.append({"id": 3, "v": "b"})
    world.run(appended)
    assert len(world.rows()) == 4

    counts = World(world.spark, world.client, Path(world.config.state_dir), Path(world.config.tables_dir))
    whole = counts.definition("SELECT v, count(*) AS n FROM rows GROUP BY v", format=format, output_mode="complete")
    counts.append({"v": "x"})
    counts.run(whole)
    counts.append({"v": "x"}, {"v": "y"})
    counts.run(whole)
    assert counts.rows() == [("x", 2), ("y", 1)]


@pytest.mark.skipif(bool(FORMATS), reason="this Spark has the jars")
def test_without_jars_the_error_says_how_to_get_them(world: World) -> None:
    world.append({"id": 1})
    with pytest.raises(JarsMissing, match="--packages delta"):
        world.run(world.definition("SELECT id FROM rows", format="delta"))
