"""A Java that starts Spark from an archive of classes and compiles for the short run: tests start it dozens of times.

`python -m tests.spark.quick_java HOME` makes the archive with a small job, and HOME/bin/java, which uses it.
"""

import os
import shlex
import sys
import tempfile
from pathlib import Path
from typing import Any

import topics_spark
from topics_spark.java import find_java
from topics_spark.start import QUICK_JAVA, settings

HOME = Path(sys.prefix) / "quick-java"
# An archive that does not fit is passed over; the log would be among what a program prints.
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
SCRIPT = """\
#!/bin/sh
case "$*" in
  *org.apache.spark.launcher.*) exec {java} {options} "$@" ;;
  *) exec {java} {options} -XX:SharedArchiveFile={archive} {quiet} "$@" ;;
esac
"""


def environ() -> dict[str, str]:
    """For what starts Spark; nothing where there is no archive."""
    return {"JAVA_HOME": str(HOME)} if (HOME / "bin" / "java").exists() else {}


def make(home: Path) -> None:
    """An empty home where Java makes no archive: some runtimes lack what it begins with."""
    home.mkdir(parents=True, exist_ok=True)
    java = find_java(os.environ).home
    archive = home / "spark.jsa"
    archive.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory() as place:
        run_spark(place, f"-XX:ArchiveClassesAtExit={archive} {QUIET}")
    if not archive.exists():
        return
    program = home / "bin" / "java"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        SCRIPT.format(
            java=shlex.quote(str(java / "bin" / "java")),
            options=QUICK_JAVA,
            archive=shlex.quote(str(archive)),
            quiet=QUIET,
        )
    )
    program.chmod(0o755)
    if (java / "release").exists():
        (home / "release").write_bytes((java / "release").read_bytes())


def run_spark(place: str, java_options: str) -> None:
    """What most tests do: a table, a query, a stream with a checkpoint, and Python among them."""
    options = f"{settings(quick=True)['spark.driver.extraJavaOptions']} {java_options}"
    config = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.extraJavaOptions": options,
    }
    spark = topics_spark.session("archive", master="local[2]", quick=True, config=config)
    spark.createDataFrame([(1, "a"), (2, "b")], "n INT, tag STRING").createOrReplaceTempView("rows")
    spark.sql("SELECT tag, sum(n) AS n FROM rows GROUP BY tag ORDER BY tag").collect()
    spark.table("rows").write.mode("overwrite").parquet(f"{place}/rows")
    stream = spark.readStream.schema("n INT, tag STRING").parquet(f"{place}/rows")
    counted = stream.groupBy("tag").count().writeStream.outputMode("update").option("checkpointLocation", place)
    counted.foreachBatch(lambda batch, _id: print(batch.count())).trigger(availableNow=True).start().awaitTermination()
    gateway = spark.sparkContext._gateway
    spark.stop()
    assert gateway is not None
    gateway.shutdown()
    # Java ends with its standard input, and writes the archive then.
    java: Any = gateway.proc
    java.stdin.close()
    java.wait()


if __name__ == "__main__":
    make(Path(sys.argv[1]).absolute())
