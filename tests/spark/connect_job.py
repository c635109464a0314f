"""A stream under Spark Connect that writes by foreachBatch: `python connect_job.py URL SOURCE DEST CHECKPOINT APP`.

Without an APP the write is a plain one. Its first batch fails after it is written, as if the driver had died then.
"""

import sys
from pathlib import Path

from pyspark.errors import PySparkException

import topics_spark


def main(url: str, source: str, dest: str, checkpoint: str, app: str = "") -> None:
    spark = topics_spark.session("job", remote="local[2]")
    died = Path(checkpoint).with_name("died")

    def write(batch, batch_id):
        out = batch.select("data").write.format("topics").options(url=url, topic=dest).mode("append")
        (out.options(txnApp=app, txnVersion=str(batch_id)) if app else out).save()
        if not died.exists():
            died.touch()
            raise RuntimeError("dead after the write")

    def run() -> None:
        rows = spark.readStream.format("topics").options(url=url, subscribe=source, startingOffsets="earliest").load()
        stream = rows.writeStream.foreachBatch(write).option("checkpointLocation", checkpoint)
        stream.trigger(availableNow=True).start().awaitTermination()

    for _ in range(2):
        try:
            run()
        except PySparkException as error:
            print(str(error).split("JVM stacktrace")[0], flush=True)
    # A plain batch write is none of this.
    spark.createDataFrame([('"once"',)], "data STRING").write.format("topics").options(url=url, topic=dest).mode(
        "append"
    ).save()
    print("done", flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
