"""Delta and Iceberg tables, and a runner that is killed between the commit of the table and that of the server."""

from __future__ import annotations

import itertools
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.serving import serving
from tests.spark.conftest import FORMATS
from tests.spark.runner_process import WAIT_S_MAX, RunnerProcess, running, until
from topics.client import Client, Outgoing, Record
from topics_spark.pipelines.assignment import RunnerConfig, app_of
from topics_spark.pipelines.sources import read_table

pytestmark = [pytest.mark.slow, pytest.mark.crash, pytest.mark.timeout(2700)]
# The tests share the directory of tables.
_numbers = itertools.count(1)


class World:
    """One pipeline from `events` to a table of its own, with a topic for rows that are not accepted."""

    def __init__(self, client: Client, port: int, home: Path, lake: Path, name: str) -> None:
        self.client = client
        self.port = port
        self.home = home
        self.lake = lake
        self.name = name
        self._sent = 0

    def put(self, format: str, **sink: Any) -> None:
        self.client.put_pipeline(
            self.name,
            {
                "sources": {"events": {"topic": f"{self.name}.in", "schema": "id BIGINT, v STRING"}},
                "sql": "SELECT id, v FROM events",
                "expect": {"known": {"condition": "v IS NOT NULL", "otherwise": f"quarantine to {self.name}.bad"}},
                "sink": {"table": self.name, "format": format, **sink},
            },
        )

    def append(self) -> None:
        """Ten rows, and one that is set aside."""
        ids = range(self._sent, self._sent + 10)
        rows = [{"id": id, "v": "good"} for id in ids]
        self.client.append_many(f"{self.name}.in", [Outgoing(row) for row in [*rows, {"id": ids[0]}]])
        self._sent += 10

    @property
    def sent(self) -> range:
        return range(self._sent)

    @property
    def version(self) -> int:
        return self.client.txn(app_of(self.name)).version or 0

    def run(self, format: str, *killed: str) -> Any:
        """A runner, which `killed` (a moment and its number) ends by itself."""
        program = {"program": (sys.executable, "-m", "tests.spark.killed_runner", *killed)} if killed else {}
        places = ("--tables", str(self.lake), "--packages", format)
        return running(self.port, self.home, self.name, *places, **program)

    def wait_for_version(self, version: int, runner: RunnerProcess) -> int:
        """Until the server knows the batch of this version."""
        until(lambda: self.version >= version, lambda: runner.log[-8000:], 2 * WAIT_S_MAX)
        return self.version

    def rows(self, spark: SparkSession) -> Counter[int]:
        config = RunnerConfig(str(self.home / "state"), str(self.lake), url=self.client.url)
        return Counter(row["id"] for row in read_table(spark.newSession(), config, self.name).collect())

    def set_aside(self) -> Counter[int]:
        found = self.client.read(f"{self.name}.bad")
        return Counter(record.data["id"] for record in found if isinstance(record, Record))


@pytest.fixture
def world(tmp_path: Path, lake: Path) -> Iterator[World]:
    with (
        serving(tmp_path / "data") as server,
        Client(f"http://127.0.0.1:{server.port}") as client,
    ):
        yield World(client, server.port, tmp_path, lake, f"killed{next(_numbers)}")


def once(numbers: range, step: int = 1) -> Counter[int]:
    return Counter(numbers[::step])


every_format = pytest.mark.parametrize(
    "format",
    [
        pytest.param(name, marks=pytest.mark.skipif(name not in FORMATS, reason=f"no {name} for this Spark"))
        for name in ("delta", "iceberg")
    ],
)


@every_format
@pytest.mark.parametrize("sink", [{}, {"key": ["id"]}], ids=["append", "merge"])
def test_a_batch_that_only_the_table_has_is_there_once_after_a_restart(
    world: World, spark: SparkSession, format: str, sink: dict[str, Any]
) -> None:
    world.put(format, **sink)
    world.append()
    with world.run(format, "written", "2") as runner:
        first = world.wait_for_version(1, runner)
        world.append()
        runner.wait_for_kill()
    assert world.version == first, "the server does not know the batch"
    assert world.rows(spark) == once(world.sent), "the table has it"
    world.append()
    with world.run(format) as runner:
        world.wait_for_version(first + 2, runner)
        assert runner.terminate() == 0
    assert world.rows(spark) == once(world.sent)
    assert world.set_aside() == once(world.sent, 10)


@pytest.mark.skipif("iceberg" not in FORMATS, reason="no iceberg for this Spark")
def test_a_batch_that_iceberg_has_staged_and_not_published_is_there_once_after_a_restart(
    world: World, spark: SparkSession
) -> None:
    world.put("iceberg")
    world.append()
    with world.run("iceberg", "staged", "2") as runner:
        first = world.wait_for_version(1, runner)
        world.append()
        runner.wait_for_kill()
    assert world.version == first
    assert world.rows(spark) == once(world.sent[:10]), "nobody sees what is staged"
    # Killed at the same place once more, with what the first one has staged.
    with world.run("iceberg", "staged", "1") as runner:
        runner.wait_for_kill()
    world.append()
    with world.run("iceberg") as runner:
        world.wait_for_version(first + 2, runner)
        assert runner.terminate() == 0
    assert world.rows(spark) == once(world.sent)
    assert world.set_aside() == once(world.sent, 10)
