"""Spark Declarative Pipelines with topics at both ends: the example, run twice as its README says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import ServerProcess
from tests.spark.conftest import SECRET
from topics_spark.spark_home import unzipped_home

ROOT = Path(__file__).parent.parent.parent
# Aside, since `make test` puts pandas there, which would hide what needs it by mistake.
PACKAGES = Path(sys.prefix) / "declarative"
RUN_S_MAX = 840


def run(folder: Path, server: ServerProcess) -> str:
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "SPARK_"))}
    environ |= {
        "TOPICS_URL": f"http://127.0.0.1:{server.port}",
        "TOPICS_API_KEY": SECRET,
        "PYTHONPATH": str(PACKAGES),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(unzipped_home(os.environ)),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_MASTER": "local[2]",
    }
    done = subprocess.run(
        [Path(sys.executable).parent / "spark-pipelines", "run", "--conf", "spark.sql.catalogImplementation=hive"],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
    )
    told = done.stdout + done.stderr
    assert done.returncode == 0, told
    assert SECRET not in told
    return told


@pytest.mark.slow
@pytest.mark.timeout(2 * RUN_S_MAX + 40)
@pytest.mark.skipif(not PACKAGES.exists(), reason="`make .venv/declarative` installs what spark-pipelines needs")
def test_the_example_takes_each_record_once_over_two_runs(server: ServerProcess, tmp_path: Path) -> None:
    folder = tmp_path / "declarative"
    shutil.copytree(ROOT / "examples" / "declarative", folder)
    spec = folder / "spark-pipeline.yml"
    spec.write_text(spec.read_text().replace("file:///tmp/topics-declarative", (tmp_path / "storage").as_uri()))
    client = server.client()
    client.append("shop.orders", {"id": 1, "total": 20}, {"id": 2, "total": 150}, {"id": 3, "total": 99.5})
    assert "Run is COMPLETED" in run(folder, server)
    assert client.payloads("shop.large") == [{"id": 2, "total": 150.0}]
    client.append("shop.orders", {"id": 4, "total": 100}, {"id": 5, "total": 1})
    assert "Run is COMPLETED" in run(folder, server)
    assert client.payloads("shop.large") == [{"id": 2, "total": 150.0}, {"id": 4, "total": 100.0}]
