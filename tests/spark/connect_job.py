"""Streams under Spark Connect that write by foreachBatch: `python connect_job.py URL SOURCE PLACE APP…`.

Each APP has the topic out-APP; an empty one writes plainly. A first batch fails after it is written, as if the driver
had died then. What an APP has raised is printed after its name.
"""

import sys
from pathlib import Path

from pyspark.errors import PySparkException

import topics_spark


def main(url: str, source: str, place: str, *apps: str) -> None:
    spark = topics_spark.session("job", remote="local[2]")
    for app in apps:
        print(f"app {app}:", flush=True)
        copy(spark, url, source, f"out-{app}", Path(place, f"app-{app}"), app)
    spark.stop()


def copy(spark, url: str, source: str, dest: str, home: Path, app: str) -> None:
    died = Path(f"{home}-died")

    def write(batch, batch_id):
        out = batch.select("data").write.format("topics").options(url=url, topic=dest).mode("append")
        (out.options(txnApp=app, txnVersion=str(batch_id)) if app else out).save()
        if not died.exists():
            died.touch()
            raise RuntimeError("dead after the write")

    for _ in range(2):
        rows = spark.readStream.format("topics").options(url=url, subscribe=source, startingOffsets="earliest").load()
        stream = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(home))
        try:
            stream.trigger(availableNow=True).start().awaitTermination()
        except PySparkException as error:
            print(str(error).split("JVM stacktrace")[0], flush=True)
    # A plain batch write is none of this.
    spark.createDataFrame([('"once"',)], "data STRING").write.format("topics").options(url=url, topic=dest).mode(
        "append"
    ).save()


if __name__ == "__main__":
    main(*sys.argv[1:])
