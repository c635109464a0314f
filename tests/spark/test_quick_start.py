"""What makes Spark start sooner: a home without a zip of Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from topics_spark.spark_home import unzipped_home
from topics_spark.start import prepare


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
