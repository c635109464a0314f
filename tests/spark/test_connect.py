"""The sink under Spark Connect: foreachBatch is exactly once with a name and a version, and refused without."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import serving
from tests.spark.running import JOB_S_MAX, ROOT, fill
from tests.spark.test_declarative import PACKAGES
from topics.client import Client, Record

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2 * JOB_S_MAX),
    pytest.mark.skipif(not PACKAGES.exists(), reason="`make .venv/declarative` installs what Spark Connect needs"),
]
RECORDS = 50


def run(*arguments: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "SPARK_"))}
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.connect_job", *arguments],
        cwd=ROOT,
        env={**clean, "PYTHONPATH": f"{ROOT}{os.pathsep}{PACKAGES}"},
        capture_output=True,
        text=True,
        timeout=JOB_S_MAX,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("app", ["copy", ""])
def test_a_batch_that_is_repeated_is_written_once_or_not_at_all(tmp_path: Path, app: str) -> None:
    with serving(tmp_path / "data") as server, Client(f"http://127.0.0.1:{server.port}") as client:
        fill(client, "in", RECORDS)
        told = run(client.url, "in", "out", str(tmp_path / "checkpoint"), *([app] if app else []))
        written = [record.data for record in client.read("out") if isinstance(record, Record)]
    assert written.pop() == "once"
    if app:
        assert "dead after the write" in told
        assert [row["n"] for row in written] == list(range(RECORDS))
    else:
        assert "txnVersion" in told
        assert written == []
