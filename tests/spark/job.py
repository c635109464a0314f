"""A Spark job as a process of its own: `python job.py KIND MASTER URL SOURCE DEST CHECKPOINT`, a stream or a batch.

The stream copies a topic into another one, a few records at a time; the batch does so at once.
"""

import sys

import topics_spark

RECORDS_PER_BATCH = 40


def main(kind: str, master: str, url: str, source: str, dest: str, checkpoint: str) -> None:
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
    read = {"url": url, "subscribe": source, "startingOffsets": "earliest", "minPartitions": "2"}
    if kind == "batch":
        rows = spark.read.format("topics").options(**read).load()
        rows.select("data", "tag").write.format("topics").mode("append").options(url=url, topic=dest).save()
    else:
        rows = spark.readStream.format("topics").options(**read, maxOffsetsPerTrigger=str(RECORDS_PER_BATCH)).load()
        query = (
            rows.select("data", "tag")
            .writeStream.format("topics")
            .options(url=url, topic=dest, checkpointLocation=checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
