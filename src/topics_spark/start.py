"""Starting Spark: Java, Python, addresses, quiet logs, redacted secrets."""
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import logging
import os
import re
import sys
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from topics_spark.class_archive import Use, add_archive, names_archive
from topics_spark.java import find_java
from topics_spark.spark_home import installed_home, is_own_python, unzipped_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER_DEFAULT: Final = "local[*]"
LOCAL: Final = re.compile(r"local(-cluster)?(\[.*\])?$|spark://(127\.|localhost)")
# Spark's own patterns, and `key`, the name of the secret in the connector's options.
REDACTED: Final = "(?i)secret|password|token|credential|access[.]?key|api[._-]?key|^key$|[.]key$"
REDACTED_OPTIONS: Final = "(?i)url|secret|password|token|^key$|[.]key$"
LOGGING: Final = Path(__file__).with_name("log4j2.properties")
# Starts quickly but is slower at full speed: for prompts and tests, not for long jobs.
QUICK_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


def session(
    app_name: str = "topics",
    *,
    master: str | None = None,
    remote: str | None = None,
    config: Mapping[str, str] | None = None,
    quick: bool = False,
) -> SparkSession:
    """A session for `format("topics")`; the running one, if there is one.

    `master` defaults to SPARK_MASTER or local[*]. `remote` (SPARK_REMOTE) is that of Spark Connect instead: sc://host,
    or local[*] for a server of its own. `quick` starts sooner and works slower.
    """
    from pyspark.sql import SparkSession

    if master is None and (remote := remote or os.environ.get("SPARK_REMOTE")):
        if LOCAL.match(remote):
            prepare(os.environ, remote, make_archive=not names_archive(config or {}))
        connecting = SparkSession.builder.appName(app_name).remote(remote)
        for name, value in (config or {}).items():
            connecting = connecting.config(name, value)
        return connecting.getOrCreate()
    master = master or os.environ.get("SPARK_MASTER") or MASTER_DEFAULT
    prepare(os.environ, master, make_archive=not names_archive(config or {}))
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in {**settings(quick=quick), **(config or {})}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def prepare(environ: MutableMapping[str, str], master: str, use: Use = "queries", *, make_archive: bool = True) -> None:
    """The environment for Spark's processes; existing variables are kept unless they cannot work."""
    java = find_java(environ)
    environ["JAVA_HOME"] = str(java.home)
    if master.startswith("local[") and "SPARK_HOME" not in environ and is_own_python(environ):
        # Without a directory for it, or without a home, Spark starts more slowly.
        with contextlib.suppress(OSError, RuntimeError):
            environ["SPARK_HOME"] = str(unzipped_home(environ))
    jars = Path(environ.get("SPARK_HOME") or installed_home()) / "jars"
    add_archive(environ, java, jars, use, make=make_archive)
    environ.setdefault("PYSPARK_PYTHON", sys.executable)
    environ.setdefault("PYSPARK_DRIVER_PYTHON", environ["PYSPARK_PYTHON"])
    if LOCAL.match(master):
        # Otherwise Spark looks up the name of this machine, which may fail.
        environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")


def quiet_errors() -> None:
    """For commands: Spark logs a failed query as JSON on standard error before it raises what the command reports."""
    for name in ("SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logging.getLogger(name).disabled = True


def settings(*, quick: bool = False) -> dict[str, str]:
    """Settings of every session, which can also be given to `spark-submit`."""
    java = f"-Dlog4j2.configurationFile={LOGGING.as_uri()} {QUICK_JAVA if quick else ''}".strip()
    return {
        "spark.driver.extraJavaOptions": java,
        "spark.redaction.regex": REDACTED,
        "spark.sql.redaction.options.regex": REDACTED_OPTIONS,
        "spark.ui.showConsoleProgress": "false",
    }
