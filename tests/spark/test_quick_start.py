"""What makes Spark start sooner: a home without a zip of Python, and an archive of classes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import TOPICS
from topics_spark.class_archive import options_of
from topics_spark.spark_home import unzipped_home
from topics_spark.start import prepare

START_S_MAX = 700.0
PROGRAM = """
arguments = spark.sparkContext._jvm.java.lang.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
print("archive", any("SharedArchiveFile" in argument for argument in arguments))
(place,) = spark.sparkContext.parallelize([1], 1).map(lambda _: __import__("pyspark").__file__).collect()
print("worker", place)
"""


def test_the_home_has_what_spark_needs_and_no_zip(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path)}
    home = unzipped_home(environ)
    assert (home / "bin" / "spark-submit").exists()
    assert list((home / "jars").glob("spark-core_*.jar"))
    assert not (home / "python").exists()
    assert unzipped_home(environ) == home
    assert [each.name for each in (tmp_path / "topics").iterdir()] == [home.name], "nothing is left beside it"


def test_only_a_spark_of_this_machine_and_this_python_gets_it(tmp_path: Path) -> None:
    bare = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path)}

    def home_of(master: str, **given: str) -> str | None:
        environ = {**bare, **given}
        prepare(environ, master)
        return environ.get("SPARK_HOME")

    assert home_of("local[2]") == str(unzipped_home(bare))
    assert home_of("local[2]", PYSPARK_PYTHON=sys.executable) == str(unzipped_home(bare))
    assert home_of("local[2]", PYSPARK_PYTHON="/other/python") is None, "it may not have the package"
    assert home_of("local[2]", SPARK_HOME="/opt/spark") == "/opt/spark"
    assert home_of("spark://127.0.0.1:7077") is None, "its nodes have homes of their own"


@pytest.mark.slow
@pytest.mark.timeout(2 * START_S_MAX)
def test_an_archive_is_made_once_and_used_by_every_session(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "JAVA_"))}
    environ = {**clean, "XDG_CACHE_HOME": str(tmp_path)}

    def run(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [TOPICS, "spark", *arguments], env=environ, input=stdin, capture_output=True, text=True, timeout=START_S_MAX
        )
        assert done.returncode == 0, done
        return done.stdout

    assert options_of(environ) == ""
    run("prepare")
    assert "SharedArchiveFile" in options_of(environ)
    said = run("shell", "--master", "local[1]", "--conf", "spark.ui.enabled=false", stdin=PROGRAM)
    assert "archive True" in said
    assert ".zip" not in said.partition("worker")[2]
