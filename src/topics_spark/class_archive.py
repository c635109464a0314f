"""An archive of the classes that Spark loads at its start, which Java maps into memory instead of loading them again.

`topics spark prepare` makes it once, with a small job; every session of the same Java and Spark uses it. Java itself
passes over one that does not fit.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingTypeStubs=false

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from topics_spark.java import JavaMissing, cache_dir, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Java reports what it passes over, and that would be among what a program prints.
QUIET: Final = "-Xlog:cds=off -Xlog:cds+dynamic=off"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"


def place_of(environ: Mapping[str, str]) -> Path:
    """Of the Java and the Spark that a session would use."""
    import pyspark

    home = find_java(environ).home.resolve()
    release = home / "release"
    parts = (str(home), release.read_text() if release.exists() else "", pyspark.__version__, pyspark.__file__)
    return cache_dir(environ) / f"spark-{hashlib.sha256(repr(parts).encode()).hexdigest()[:16]}.jsa"


def options_of(environ: Mapping[str, str]) -> str:
    """What Java has to be told to use the archive; nothing if there is none."""
    try:
        place = place_of(environ)
    except (ImportError, JavaMissing):
        return ""
    return f"-XX:SharedArchiveFile={place} {QUIET}" if place.exists() else ""


def make(environ: Mapping[str, str]) -> Path | None:
    """Run a small job and keep the classes that it has loaded; None if this Java cannot do that."""
    from topics_spark.start import session

    place = place_of(environ)
    place.unlink(missing_ok=True)
    place.parent.mkdir(parents=True, exist_ok=True)
    fresh = place.with_suffix(f".{os.getpid()}")
    options = f"-XX:ArchiveClassesAtExit={fresh} {QUIET}"
    config = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
    with tempfile.TemporaryDirectory() as folder:
        spark = session("topics spark prepare", master="local[2]", config=config, java_options=options)
        _use(spark, folder)
        _end(spark)
    if not fresh.exists():
        return None
    fresh.replace(place)
    return place


def _use(spark: SparkSession, folder: str) -> None:
    """What most programs do first: a source in Python, a query, files, a stream with state and a checkpoint."""
    from pyspark.sql.datasource import DataSource, DataSourceReader

    class Reader(DataSourceReader):
        def read(self, partition: Any) -> Iterator[Any]:
            del partition
            import pyarrow as pa

            yield pa.RecordBatch.from_pydict({"n": pa.array([1, 2], pa.int64()), "tag": ["a", "b"]})

    class Sample(DataSource):
        @classmethod
        def name(cls) -> str:
            return "topics_sample"

        def schema(self) -> str:
            return "n BIGINT, tag STRING"

        def reader(self, schema: Any) -> DataSourceReader:
            del schema
            return Reader()

    spark.dataSource.register(Sample)
    spark.read.format("topics_sample").load().createOrReplaceTempView("rows")
    spark.sql("SELECT tag, sum(n) AS n FROM rows GROUP BY tag ORDER BY tag").collect()
    spark.table("rows").write.mode("overwrite").parquet(f"{folder}/rows")
    stream = spark.readStream.schema("n BIGINT, tag STRING").parquet(f"{folder}/rows")
    counted = stream.groupBy("tag").count().writeStream.outputMode("update")
    counted = counted.option("checkpointLocation", f"{folder}/checkpoint")
    query = counted.foreachBatch(_count).trigger(availableNow=True).start()
    query.awaitTermination()


def _count(batch: Any, number: int) -> None:
    del number
    batch.count()


def _end(spark: SparkSession) -> None:
    """Java ends with its standard input, and writes the archive then."""
    gateway = cast("Any", spark.sparkContext)._gateway
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait()
