"""What makes Spark start sooner: a home without a zip of Python, lean processes, an archive of Java's classes."""

from __future__ import annotations

import contextlib
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import serving
from tests.spark.runner_process import WAIT_S_MAX, running, until
from topics.client import Client
from topics_spark import class_archive
from topics_spark.class_archive import MAKING, OPTIONS, USING, VARIABLE, add_archive, names_archive
from topics_spark.java import Java, find_java
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


@pytest.mark.parametrize(
    "module",
    [
        "pyspark_topics",
        "topics_spark.source.data_source",
        "topics_spark.source.row_types",
        "topics_spark.sink.data_sink",
    ],
)
def test_what_spark_imports_for_a_moment_imports_no_arrow(module: str) -> None:
    """Finding the source, asking for its schema and committing are processes of their own, one after the other."""
    program = f"import sys, {module}; print({{'numpy', 'pandas', 'pyarrow'}} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr


class Machine:
    """A cache, a Java with an archive of its own classes, and a Spark."""

    def __init__(self, place: Path) -> None:
        self.cache = place / "cache" / "topics"
        self.java = Java(place / "java", 17)
        self.jars = place / "spark" / "jars"
        self.jars.mkdir(parents=True)
        (self.java.home / "lib" / "server").mkdir(parents=True)
        (self.java.home / "lib" / "server" / "classes.jsa").write_bytes(b"base")

    def options(
        self, use: class_archive.Use = "queries", *, make: bool = True, environ: dict[str, str] | None = None
    ) -> list[str]:
        """What a start adds for Java."""
        given = {"XDG_CACHE_HOME": str(self.cache.parent), **(environ or {})}
        add_archive(given, self.java, self.jars, use, make=make)
        return shlex.split(given.get(OPTIONS, ""))

    def archive(self, options: list[str], flag: str = MAKING) -> Path:
        (found,) = (Path(option.removeprefix(flag)) for option in options if option.startswith(flag))
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_one_start_makes_the_archive_and_later_ones_use_it(machine: Machine) -> None:
    file = machine.archive(machine.options())
    assert file.parent == machine.cache
    assert machine.options() == [], "the first one may still be running"
    file.write_bytes(bytes(4) + b"classes")
    assert machine.options() == [], "Java writes its head last"
    file.write_bytes(b"head" + b"classes")
    assert machine.archive(machine.options(), USING) == file
    assert machine.archive(machine.options(make=False), USING) == file
    assert machine.archive(machine.options("pipelines")) != file, "streams need other classes"


def test_a_start_that_was_killed_is_followed_by_another_that_makes_it(machine: Machine) -> None:
    file = machine.archive(machine.options())
    file.write_bytes(bytes(8))
    long_ago_s = file.stat().st_mtime - class_archive.AGAIN_S - 1
    os.utime(file.with_suffix(".making"), (long_ago_s, long_ago_s))
    assert machine.archive(machine.options()) == file


def test_another_java_or_spark_has_an_archive_of_its_own_and_old_ones_go(machine: Machine) -> None:
    first = machine.archive(machine.options())
    first.write_bytes(b"made")
    (machine.jars / "one-more.jar").touch()
    os.utime(machine.jars, (1, 1))
    second = machine.archive(machine.options())
    second.write_bytes(b"made")
    os.utime(first, (1, 1))
    os.utime(machine.java.home / "lib" / "server" / "classes.jsa", (1, 1))
    third = machine.archive(machine.options())
    assert len({first, second, third}) == 3
    assert (first.exists(), second.exists()) == (False, True), "one is not used any more"


def test_archives_of_others_and_the_wish_for_none_are_respected(machine: Machine, tmp_path: Path) -> None:
    assert machine.options(environ={VARIABLE: "0"}) == []
    own = f"{USING}/mine.jsa"
    assert machine.options(environ={OPTIONS: own}) == [own]
    assert machine.options(environ={OPTIONS: "-Da=b"})[-1] == "-Da=b"
    assert names_archive({"spark.driver.extraJavaOptions": f"-Da=b {own}"})
    assert machine.options("pipelines", make=False) == []
    (tmp_path / "file").touch()
    assert machine.options(environ={"XDG_CACHE_HOME": str(tmp_path / "file")}) == [], "there is no place for it"
    (machine.java.home / "lib" / "server" / "classes.jsa").unlink()
    assert machine.options() == [], "Java adds to an archive, and has none"


def test_without_a_place_for_a_cache_spark_starts_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    environ = {"PATH": os.environ["PATH"], "XDG_CACHE_HOME": str(tmp_path / "file")}
    prepare(environ, "local[2]")
    assert "JAVA_HOME" in environ
    assert "SPARK_HOME" not in environ
    assert OPTIONS not in environ


def test_the_java_from_pypi_gets_the_archive_that_it_lacks(tmp_path: Path) -> None:
    environ = {"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path)}
    java = find_java(environ)
    (tmp_path / "jars").mkdir()
    add_archive(environ, java, tmp_path / "jars", "queries")
    options = shlex.split(environ[OPTIONS])
    assert java.home / "classes.jsa" == Path(options[0].removeprefix(USING))
    assert (java.home / "classes.jsa").stat().st_size > 1_000_000
    told = subprocess.run([java.home / "bin" / "java", *options, "-version"], capture_output=True, text=True)
    assert told.returncode == 0
    assert "warning" not in (told.stdout + told.stderr).lower()


@pytest.mark.slow
@pytest.mark.timeout(2700)
def test_a_real_runner_makes_an_archive_before_it_ends_and_the_next_one_maps_it(tmp_path: Path) -> None:
    """With what systemd and containers do: everything that is left is killed as soon as the runner has ended."""
    # That of tests has an archive already.
    java = find_java({name: value for name, value in os.environ.items() if name != "JAVA_HOME"}).home
    environ = {"XDG_CACHE_HOME": str(tmp_path), "JAVA_HOME": str(java)}

    def run(client: Client, port: int, records: int) -> set[str]:
        """The archives of classes that its Java has mapped."""
        with running(port, tmp_path, environ=environ) as runner:
            until(lambda: client.state("out").head_seq == records, lambda: runner.log)
            mapped = archives_mapped(runner.process.pid)
            runner.process.terminate()
            assert runner.process.wait(WAIT_S_MAX) == 0
            runner.kill()
            assert "[cds" not in runner.log
            assert "[aot" not in runner.log
        return mapped

    with serving(tmp_path / "data") as server, Client(f"http://127.0.0.1:{server.port}") as client:
        client.create("out")
        client.put_pipeline(
            "copy", {"sources": {"v": {"topic": "in"}}, "sql": "SELECT data FROM v", "sink": {"topic": "out"}}
        )
        client.append("in", 1)
        assert run(client, server.port, 1) == set()
        (made,) = (tmp_path / "topics").glob("classes-pipelines-*.jsa")
        client.append("in", 2)
        assert run(client, server.port, 2) == {str(made)}


def archives_mapped(session: int) -> set[str]:
    found: set[str] = set()
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):
            if os.getsid(int(maps.parent.name)) == session:
                found |= {line.split()[-1] for line in maps.read_text().splitlines() if "/classes-" in line}
    return found
