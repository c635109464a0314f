"""Tables: one owner each, their own records only, and an error where files are gone. No Spark: files are only named."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from topics import testing
from topics.client import Client
from topics_spark.errors import NeedsDecision
from topics_spark.open_tables import jars
from topics_spark.pipelines import tables
from topics_spark.pipelines.assignment import Assignment, RunnerConfig, app_of
from topics_spark.pipelines.definition import parse
from topics_spark.pipelines.sources import read_table
from topics_spark.pipelines.tables import DataFile, TableSink

_numbers = itertools.count(1)


class Sink(TableSink):
    """One row in one file for a batch; everything else is real."""

    def place_files(self, rows: Any, version: int) -> list[DataFile]:
        self.table.mkdir(parents=True, exist_ok=True)
        path = f"{version}-{next(_numbers)}.parquet"
        (self.table / path).write_bytes(b"rows")
        return [DataFile(path, 1, 4)]

    def columns_text(self, rows: Any, manifest: tables.Manifest) -> str | None:
        return None


class World:
    def __init__(self, client: Client, home: Path) -> None:
        self.client = client
        self.config = RunnerConfig(str(home / "state"), str(home / "tables"))

    def sink(self, pipeline: str, table: str = "t", generation: int = 1, **more: Any) -> Sink:
        definition = {"sources": {"v": {"topic": "in"}}, "sql": "SELECT 1", "sink": {"table": table, **more}}
        fence = self.client.take_fence(app_of(pipeline))
        assignment = Assignment(pipeline, parse(definition, pipeline, "test"), generation, generation, fence)
        return Sink(assignment, self.config, self.client)

    def run(self, pipeline: str, *batches: int, **more: Any) -> None:
        sink = self.sink(pipeline, **more)
        sink.open()
        for number in batches:
            sink.write(None, number)  # pyright: ignore[reportArgumentType]

    def rows(self, table: str = "t") -> int:
        manifest = tables.load(self.config.table(table))
        tables.check_files(self.config.table(table), manifest)
        return sum(file.rows for file in manifest.files)

    def refused(self, pipeline: str, **more: Any) -> NeedsDecision:
        with pytest.raises(NeedsDecision) as refused:
            self.run(pipeline, 99, **more)
        return refused.value


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with testing.engine() as engine:
        yield World(engine.client(), tmp_path)


def test_a_second_pipeline_is_refused_and_the_table_keeps_all_rows_of_the_first(world: World) -> None:
    world.run("one", *range(4))
    refused = world.refused("two")
    assert refused.problem == "table_taken"
    assert "belongs to the pipeline one" in refused.choices
    world.run("one", 4)
    assert world.rows() == 5


def test_a_renamed_pipeline_continues_the_table_once_it_may(world: World) -> None:
    world.run("old", *range(4))
    world.refused("new")
    world.run("new", *range(4), take_over=True)
    assert world.rows() == 8
    world.run("new", 4)
    assert world.rows() == 9
    assert world.refused("old").problem == "table_taken"
    world.run("old", 4, take_over=True)
    assert world.rows() == 10


def test_a_batch_that_the_old_owner_committed_and_did_not_list_is_taken_over(world: World) -> None:
    world.run("old", 0, 1)
    place = world.config.table("t")
    (newest, *_) = sorted((place / "_manifest").iterdir(), reverse=True)
    newest.unlink()
    world.run("new", 0, take_over=True)
    assert world.rows() == 3


def test_another_table_of_the_same_pipeline_has_only_its_own_rows(world: World) -> None:
    world.run("p", 0, 1)
    world.run("p", 0, table="u", generation=2)
    assert (world.rows("t"), world.rows("u")) == (2, 1)
    world.run("p", 0, generation=3)
    assert (world.rows("t"), world.rows("u")) == (3, 1)


def test_a_manifest_that_is_lost_is_made_again_from_the_records(world: World) -> None:
    world.run("p", 0, 1)
    shutil.rmtree(world.config.table("t") / "_manifest")
    world.run("p", 2)
    assert world.rows() == 3


def test_a_directory_that_is_gone_is_an_error_and_not_a_new_table(world: World) -> None:
    world.run("p", 0, 1)
    shutil.rmtree(world.config.tables_dir)
    assert world.refused("p").problem == "table_missing"
    assert world.refused("p", take_over=True).problem == "table_missing"


def test_a_file_that_is_gone_is_an_error_for_writers_and_readers(world: World) -> None:
    world.run("p", 0, 1)
    lost = Path(tables.files(world.config.table("t"))[0])
    lost.unlink()
    refused = world.refused("p")
    assert refused.problem == "table_missing"
    assert str(lost) in refused.choices
    spark: Any = None
    with pytest.raises(NeedsDecision):
        read_table(spark, world.config, "t")


def test_a_deleted_topic_of_manifests_is_noticed(world: World) -> None:
    world.run("p", 0, 1)
    world.client.drop(tables.manifest_topic("p"))
    assert world.refused("p").problem == "table_taken"
    world.run("p", 2, take_over=True)
    assert world.rows() == 3


def older(world: World) -> None:
    """The directory and the topic as an earlier version has left them: no owner, no names of tables."""
    place = world.config.table("t")
    (newest, *_) = sorted((place / "_manifest").iterdir(), reverse=True)
    manifest = tables.load(place)
    newest.write_bytes(msgspec.json.encode({"seq": manifest.seq, "files": msgspec.to_builtins(manifest.files)}))


def test_a_table_of_an_earlier_version_goes_on(world: World) -> None:
    world.run("p", 0, 1)
    older(world)
    world.run("p", 2)
    assert world.rows() == 3


def test_a_table_of_an_earlier_version_is_not_taken_by_a_pipeline_without_its_records(world: World) -> None:
    world.run("p", 0, 1)
    older(world)
    assert world.refused("new").problem == "table_taken"


def files(*names: str) -> list[DataFile]:
    return [DataFile(name, 1, 1) for name in names]


def paths(manifest: tables.Manifest) -> set[str]:
    return {file.path for file in manifest.files}


def test_a_batch_brings_back_what_nested_compactions_had_merged() -> None:
    manifest = tables.Manifest(0, files("a", "b", "d"))
    manifest.apply(1, tables.Change(1, files("c"), ["a", "b"], kind="compaction"))
    manifest.apply(2, tables.Change(2, files("e"), ["c", "d"], kind="compaction"))
    assert paths(manifest) == {"e"}
    manifest.apply(3, tables.Change(3, files("new"), ["a"], kind="batch", based_on=0))
    assert paths(manifest) == {"b", "d", "new"}


def test_a_compaction_that_comes_after_a_batch_has_replaced_its_files_is_ignored() -> None:
    manifest = tables.Manifest(0, files("a", "b"))
    manifest.apply(1, tables.Change(1, files("new"), ["a"], kind="batch", based_on=0))
    manifest.apply(2, tables.Change(2, files("c"), ["a", "b"], kind="compaction"))
    assert paths(manifest) == {"b", "new"}


def test_a_batch_that_has_seen_a_compaction_forgets_it() -> None:
    manifest = tables.Manifest(0, files("a", "b"))
    manifest.apply(1, tables.Change(1, files("c"), ["a", "b"], kind="compaction"))
    manifest.apply(2, tables.Change(2, files("new"), ["c"], kind="batch", based_on=1))
    assert (paths(manifest), manifest.compactions) == ({"new"}, [])


def test_packages_are_those_of_the_spark_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "spark_version", lambda: "4.1")
    found = jars.spark_settings(["delta", "iceberg", "org.x:y:1"], "/t", {"spark.sql.extensions": "mine", "a": "b"})
    assert found["spark.jars.packages"].split(",") == [jars.DELTA["4.1"], jars.ICEBERG["4.1"], "org.x:y:1"]
    assert found["spark.sql.extensions"].split(",") == ["mine", *jars.EXTENSIONS.values()]
    assert (found["a"], found["spark.sql.catalog.lake.warehouse"]) == ("b", "/t")
    assert jars.spark_settings([], "/t", {"a": "b"}) == {"a": "b"}
    assert jars.coordinates_of("s3a").startswith("org.apache.hadoop:hadoop-aws:3.")
    monkeypatch.setattr(jars, "spark_version", lambda: "4.3")
    with pytest.raises(jars.NoJars, match=r"no release for Spark 4\.3 .*install Spark 4\.2"):
        jars.spark_settings(["delta"])
    with pytest.raises(jars.NoJars, match="must be delta, iceberg, s3a, or coordinates"):
        jars.spark_settings(["csv"])


def test_parquet_files_are_not_written_to_an_object_store(world: World) -> None:
    world.config = RunnerConfig(world.config.state_dir, "s3a://lake/tables")
    assert world.refused("p").problem == "table_place"
