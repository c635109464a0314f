"""Counts errors per minute from a topic of logs into another topic, exactly once; run by `topics spark submit`.

Run it as often as you like: each run takes what has come since the last one.
"""

import sys

from pyspark.sql import DataFrame
from pyspark.sql.functions import col, count, window

import topics_spark

checkpoint = sys.argv[1] if len(sys.argv) > 1 else "./checkpoints/errors"
spark = topics_spark.session("errors per minute", config={"spark.sql.shuffle.partitions": "2"})
logs = (
    spark.readStream.format("topics")
    .option("subscribe", "logs")
    .option("startingOffsets", "earliest")
    .option("schema", "level STRING, service STRING")
    .load()
)
errors = (
    logs.where("data.level = 'error'")
    .withWatermark("ts", "1 minute")
    .groupBy(window("ts", "1 minute").alias("minute"), col("data.service").alias("service"))
    .agg(count("*").alias("errors"))
)


def store(counts: DataFrame, batch_id: int) -> None:
    """Sinks in Python take no updates as such; a batch under a version is added once, however often it is run."""
    rows = counts.selectExpr("struct(minute.start AS minute, service, errors) AS data", "service AS tag")
    sink = rows.write.format("topics").option("topic", "errors").mode("append")
    # A new checkpoint counts its batches from 0 again: give it another name here.
    sink.option("txnApp", "errors-per-minute").option("txnVersion", batch_id).save()


query = (
    errors.writeStream.foreachBatch(store)
    .option("checkpointLocation", checkpoint)
    .outputMode("update")
    .trigger(availableNow=True)
    .start()
)
query.awaitTermination()
table = spark.read.format("topics").option("subscribe", "errors").option("inferSchema", "true").load()
table.orderBy("seq").select("data.*").show(truncate=False)
