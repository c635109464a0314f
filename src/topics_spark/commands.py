"""`topics spark`: a Python prompt with a session, and jobs for `spark-submit`, with everything set up."""

from __future__ import annotations

import code
import importlib.util
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from topics_spark.java import find_java
from topics_spark.source.progress import waiting
from topics_spark.start import MASTER_DEFAULT, prepare, session, settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

app = typer.Typer(
    help="Use topics from Spark.", rich_markup_mode=None, add_completion=False, pretty_exceptions_enable=False
)

Url = Annotated[str | None, typer.Option(help="The server that queries use [TOPICS_URL].")]
Key = Annotated[str | None, typer.Option(help="The key for it [TOPICS_API_KEY].")]
Master = Annotated[str | None, typer.Option(help="Where Spark runs [SPARK_MASTER, local[*]].")]
Conf = Annotated[list[str] | None, typer.Option(help="A setting of Spark, as name=value; repeatable.")]

BANNER = """\
Spark {version} at {master}. `spark` is the session; Ctrl-D exits.
  spark.read.format("topics").option("subscribe", "orders").load().show()"""


@app.command()
def shell(url: Url = None, key: Key = None, master: Master = None, conf: Conf = None) -> None:
    """Open a Python prompt with `spark`; without a terminal, run the program on standard input."""
    point_at(url, key)
    program = None if sys.stdin.isatty() else sys.stdin.read()
    with waiting("starting Spark", "Spark is ready"):
        spark = session("topics shell", master=master, config=pairs(conf or []), quick=program is None)
    try:
        if program is None:
            prompt(spark)
        else:
            exec(compile(program, "<stdin>", "exec"), {"__name__": "__main__", "spark": spark})
    finally:
        spark.stop()


def prompt(spark: SparkSession) -> None:
    banner = BANNER.format(version=spark.version, master=spark.sparkContext.master)
    if importlib.util.find_spec("IPython") is not None:
        ipython = importlib.import_module("IPython")
        ipython.embed(banner1=banner, user_ns={"spark": spark}, colors="neutral")
        return
    code.interact(banner=banner, local={"spark": spark}, exitmsg="")


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def submit(context: typer.Context, url: Url = None, key: Key = None) -> None:
    """Run a job with the arguments of `spark-submit`, for example --master spark://host:7077 job.py 2026-11-01."""
    if not context.args:
        raise typer.BadParameter("name the job, a Python file")
    point_at(url, key)
    # That of the package, whatever is installed beside it.
    environ = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    master = wished(context.args, "--master") or environ.get("SPARK_MASTER") or MASTER_DEFAULT
    # Java is the command here, which would not end before it has written an archive.
    prepare(environ, master, make_archive=False)
    import pyspark

    home = Path(pyspark.__file__).parent
    arguments = [str(home / "bin" / "spark-submit")]
    if wished(context.args, "--master") is None:
        arguments += ["--master", master]
    for name, value in settings().items():
        arguments += ["--conf", f"{name}={value}"]
    version = find_java(environ).version
    sys.stderr.write(f"starting Spark {pyspark.__version__} with Java {version} at {master}\n")
    sys.stderr.flush()
    environ.setdefault("SPARK_HOME", str(home))
    os.execve(arguments[0], [*arguments, *context.args], environ)


@app.command()
def stop() -> None:
    """End the Spark that `topics sql` keeps for the next queries; it also ends by itself after ten idle minutes."""
    from topics.cli.output import say
    from topics_spark.sql.warm.asking import stop_all

    say(f"{stop_all()} stopped")


def point_at(url: str | None, key: str | None) -> None:
    """Sources and sinks without `url` and `key` find them in the environment, so that they appear in no plan."""
    for name, value in (("TOPICS_URL", url), ("TOPICS_API_KEY", key)):
        if value is not None:
            os.environ[name] = value


def wished(arguments: list[str], option: str) -> str | None:
    """The value of an option of `spark-submit`, before the job, whose own options come after it."""
    for at, argument in enumerate(arguments):
        if argument == option and at + 1 < len(arguments):
            return arguments[at + 1]
        if argument.startswith(f"{option}="):
            return argument.partition("=")[2]
        if argument.endswith(".py"):
            return None
    return None


def pairs(conf: list[str]) -> Mapping[str, str]:
    for each in conf:
        if "=" not in each:
            raise typer.BadParameter(f"--conf must be name=value, not {each!r}")
    return dict(each.split("=", 1) for each in conf)
