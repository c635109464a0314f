"""Log analytics on Spark: `python examples/log_analytics/report.py URL [lines]` appends access logs and reports.

Lines go to the topic `access`. Spark reads the topic as a table, and writes what it found to the topic `access.slow`,
exactly once however often the job is repeated after a crash. `errors.toml` beside this file is the same as a pipeline
that never ends: `topics pipelines put examples/log_analytics/errors.toml`.
"""

import random
import sys

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import col, count_if, expr, lit, round, struct, to_json
from pyspark.sql.functions import count as count_of

import topics_spark
from topics.client import Client

SCHEMA = "path STRING, status INT, ms DOUBLE"
PATHS = {"/": 12.0, "/cart": 40.0, "/search": 90.0, "/report": 400.0}


def append_lines(url: str, lines: int) -> None:
    """What web servers would append, always the same."""
    chance = random.Random(1)
    with Client(url) as client, client.producer("access") as producer:
        for _ in range(lines):
            path = chance.choice(list(PATHS))
            status = 500 if path == "/cart" and chance.random() < 0.2 else 200
            producer.append({"path": path, "status": status, "ms": chance.expovariate(1 / PATHS[path])}, tag=path)


def by_path(spark: SparkSession, url: str) -> DataFrame:
    lines = spark.read.format("topics").options(url=url, subscribe="access", schema=SCHEMA).load().select("data.*")
    return (
        lines.groupBy("path")
        .agg(
            count_of(lit(1)).alias("requests"),
            round(100 * count_if(col("status") >= 500) / count_of(lit(1)), 1).alias("errors %"),
            round(expr("percentile(ms, 0.5)"), 1).alias("p50 ms"),
            round(expr("percentile(ms, 0.99)"), 1).alias("p99 ms"),
        )
        .orderBy("path")
    )


def main(url: str, lines: int) -> None:
    append_lines(url, lines)
    spark = topics_spark.session("log analytics")
    found = by_path(spark, url).cache()
    found.show()
    slow = found.where(col("p99 ms") > 300).select(to_json(struct("*")).alias("data"), col("path").alias("tag"))
    slow.write.format("topics").options(url=url, topic="access.slow").mode("append").save()
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 10_000)
