"""The key: in no plan, no log, no page of the UI, no checkpoint, no event log."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import Client, ServerProcess
from tests.spark.conftest import SECRET

pytestmark = [pytest.mark.slow, pytest.mark.timeout(720)]

JOB = """\
import contextlib, io, os, sys, urllib.request
from pathlib import Path
import topics_spark

url, topic, place = sys.argv[1:]
key = os.environ.pop("KEY_OF_TEST")
spark = topics_spark.session(
    master="local[1]",
    quick=True,
    config={
        "spark.log.level": "INFO",
        "spark.ui.port": "0",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": Path(place, "events").as_uri(),
        "spark.eventLog.compress": "false",
    },
)
options = {"url": url, "key": key, "subscribe": topic}
table = spark.read.format("topics").options(**options, schema="id INT").load()
table.collect()
table.createOrReplaceTempView("orders")
print(spark.sql("EXPLAIN EXTENDED SELECT * FROM orders").first()[0])
table.explain(mode="formatted")
query = (
    spark.readStream.format("topics").options(**options, startingOffsets="earliest").load()
    .select("data").writeStream.format("topics").options(url=url, key=key, topic=topic + "-copy")
    .option("checkpointLocation", place + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
query.explain(True)
print(query.lastProgress)
ui = spark.sparkContext.uiWebUrl
app = spark.sparkContext.applicationId
pages = [f"/api/v1/applications/{app}/{what}" for what in ("sql?details=true", "environment", "jobs", "stages")]
for page in [*pages, "/SQL/", "/environment/", "/jobs/", "/SQL/execution/?id=0", "/StreamingQuery/"]:
    print(page, urllib.request.urlopen(ui + page).read().decode())
with contextlib.suppress(Exception):
    spark.read.format("topics").options(**options, nonsense=1).load()
broken = spark.read.format("topics").options(**{**options, "url": "http://127.0.0.1:1"}, timeoutSeconds=1)
spark.stop()
"""


def test_the_key_is_nowhere_to_be_seen(server: ServerProcess, client: Client, topic: str, tmp_path: Path) -> None:
    client.append(topic, {"id": 1}, {"id": 2})
    (tmp_path / "events").mkdir()
    (tmp_path / "job.py").write_text(JOB)
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "SPARK_"))}
    done = subprocess.run(
        [sys.executable, tmp_path / "job.py", f"http://127.0.0.1:{server.port}", topic, str(tmp_path)],
        env={**environ, "KEY_OF_TEST": SECRET},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "BatchScan topics" in done.stdout, "the plans were shown"
    assert "/SQL/execution" in done.stdout, "the pages were read"
    assert "INFO" in done.stderr, "the log was a full one"
    assert SECRET not in done.stdout
    assert SECRET not in done.stderr
    written = [each for each in tmp_path.rglob("*") if each.is_file()]
    assert any("checkpoint" in each.parts for each in written)
    assert any("events" in each.parts for each in written)
    assert [str(each) for each in written if SECRET.encode() in each.read_bytes()] == []
    assert len(client.payloads(f"{topic}-copy")) == 2
