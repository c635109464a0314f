"""A Spark job as a process of its own: `python job.py KINDS MASTER URL SOURCE DEST CHECKPOINT`, stream, batch or both.

The stream copies a topic into another one, a few records at a time; the batch does so at once. Of "batch,stream", each
has the topics SOURCE-KIND and DEST-KIND.
"""

import sys

from pyspark.sql import SparkSession

import topics_spark
from topics_spark.source.limits import LIMITED

RECORDS_PER_BATCH = 40


def main(kinds: str, master: str, url: str, source: str, dest: str, checkpoint: str) -> None:
    config = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        # Executors are on addresses of their own, and call back.
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.executorEnv.PYSPARK_PYTHON": sys.executable,
    }
    spark = topics_spark.session("job", master=master, quick=True, config=config)
    if "," in kinds:
        for kind in kinds.split(","):
            copy(spark, kind, url, f"{source}-{kind}", f"{dest}-{kind}", checkpoint)
    else:
        copy(spark, kinds, url, source, dest, checkpoint)
    print("done", flush=True)
    spark.stop()


def copy(spark: SparkSession, kind: str, url: str, source: str, dest: str, checkpoint: str) -> None:
    read = {"url": url, "subscribe": source, "startingOffsets": "earliest", "minPartitions": "2"}
    if kind == "batch":
        rows = spark.read.format("topics").options(**read).load()
        rows.select("data", "tag").write.format("topics").mode("append").options(url=url, topic=dest).save()
        return
    if LIMITED:
        read["maxOffsetsPerTrigger"] = str(RECORDS_PER_BATCH)
    rows = spark.readStream.format("topics").options(**read).load()
    query = (
        rows.select("data", "tag")
        .writeStream.format("topics")
        .options(url=url, topic=dest, checkpointLocation=checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
