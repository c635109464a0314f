"""The sink under Spark Connect: foreachBatch is exactly once with a name and a version, and refused without."""

import os
import subprocess
import sys
from typing import Any, NamedTuple

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
APPS = ("copy", "")


class Job(NamedTuple):
    """What it has printed for each app, and written."""

    told: dict[str, str]
    written: dict[str, list[Any]]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """One for all apps: to start Spark Connect takes longer than what they do."""
    home = tmp_path_factory.mktemp("connect")
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "SPARK_"))}
    with serving(home / "data") as server, Client(f"http://127.0.0.1:{server.port}") as client:
        fill(client, "in", RECORDS)
        done = subprocess.run(
            [sys.executable, "-m", "tests.spark.connect_job", client.url, "in", str(home), *APPS],
            cwd=ROOT,
            env={**clean, "PYTHONPATH": f"{ROOT}{os.pathsep}{PACKAGES}"},
            capture_output=True,
            text=True,
            timeout=JOB_S_MAX,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        told = dict(part.split(":", 1) for part in ("\n" + done.stdout).split("\napp ")[1:])
        written = {
            app: [record.data for record in client.read(f"out-{app}") if isinstance(record, Record)] for app in APPS
        }
    return Job(told, written)


@pytest.mark.parametrize("app", APPS)
def test_a_batch_that_is_repeated_is_written_once_or_not_at_all(job: Job, app: str) -> None:
    written = list(job.written[app])
    assert written.pop() == "once"
    if app:
        assert "dead after the write" in job.told[app]
        assert [row["n"] for row in written] == list(range(RECORDS))
    else:
        assert "txnVersion" in job.told[app]
        assert written == []
