"""One Spark and one server for all tests of a process: both are real, and Spark takes seconds to start."""

import itertools
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

import topics_spark
from tests.serving import Client, ServerProcess, serving
from tests.spark import quick_java
from tests.spark.pipeline_world import World
from tests.spark.quick_python import quick_python
from topics.client import Client as TopicsClient
from topics_spark.open_tables import jars
from topics_spark.spark_home import unzipped_home

SECRET = "never-to-be-seen-0815"

os.environ |= quick_java.environ()


# The open formats that have a release for this Spark.
FORMATS = [name for name, known in (("delta", jars.DELTA), ("iceberg", jars.ICEBERG)) if jars.spark_version() in known]


@pytest.fixture(scope="session")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of tables in open formats, which the session knows as a catalog."""
    return tmp_path_factory.mktemp("lake")


@pytest.fixture(scope="session")
def spark(lake: Path) -> Iterator[SparkSession]:
    with quick_python() as python:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYSPARK_PYTHON", str(python))
            patch.setenv("PYSPARK_DRIVER_PYTHON", str(python))
            # The archive of classes (tests/spark/quick_java.py) is for the paths of this home.
            patch.setenv("SPARK_HOME", str(unzipped_home(os.environ)))
            session = topics_spark.session("tests", master="local[2]", quick=True, config=settings(lake))
        yield session
        with warnings.catch_warnings():
            # py4j leaves the sockets of its gateway to the end of the process.
            warnings.simplefilter("ignore", ResourceWarning)
            session.stop()


def settings(lake: Path) -> dict[str, str]:
    return {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.memory": "1g",
        # `tables.NAME` of `topics sql`, which is set once for all sessions.
        "spark.sql.globalTempDatabase": "tables",
        **jars.spark_settings(FORMATS, str(lake)),
    }


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serving(tmp_path_factory.mktemp("data"), api_keys=SECRET) as server:
        server.key = SECRET
        yield server


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Client:
    return server.client()


@pytest.fixture(scope="session")
def numbers() -> Iterator[int]:
    return itertools.count(1)


@pytest.fixture
def topic(numbers: Iterator[int]) -> str:
    """A name that no other test has."""
    return f"t{next(numbers)}"


Options = dict[str, Any]


@pytest.fixture
def at(server: ServerProcess) -> Options:
    """Where the server is, for `options(**at)`."""
    return {"url": f"http://127.0.0.1:{server.port}", "key": SECRET}


@pytest.fixture
def load(spark: SparkSession, at: Options) -> Callable[..., DataFrame]:
    """A batch: `load(subscribe="orders")`."""

    def load(schema_of_rows: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("topics").options(**at, **options)
        return (reader.schema(schema_of_rows) if schema_of_rows else reader).load()

    return load


@pytest.fixture
def stream(spark: SparkSession, at: Options) -> Callable[..., DataFrame]:
    def stream(**options: Any) -> DataFrame:
        return spark.readStream.format("topics").options(**at, **options).load()

    return stream


@pytest.fixture
def drained(tmp_path: Path) -> Callable[..., list[Any]]:
    """Run a stream to the end of what there is, with a checkpoint that stays between calls; the rows of this call."""

    def drained(rows: DataFrame, checkpoint: str = "checkpoint", progress: list[Any] | None = None) -> list[Any]:
        found: list[Any] = []
        query = (
            rows.writeStream.foreachBatch(lambda batch, _id: found.extend(batch.collect()))
            .option("checkpointLocation", str(tmp_path / checkpoint))
            .trigger(availableNow=True)
            .start()
        )
        assert query.awaitTermination(400)
        if progress is not None:
            progress += query.recentProgress
        return found

    return drained


@pytest.fixture(scope="session")
def open_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TopicsClient]:
    """Of a server without keys."""
    with (
        serving(tmp_path_factory.mktemp("open")) as server,
        TopicsClient(f"http://127.0.0.1:{server.port}") as client,
    ):
        yield client


@pytest.fixture
def world(spark: SparkSession, open_client: TopicsClient, tmp_path: Path) -> World:
    return World(spark, open_client, tmp_path)
