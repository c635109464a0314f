"""What the commands of pipelines share: their arguments, definitions by file or name, and how a status is shown."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from topics.client import Client, Pipeline
    from topics.model.requests.pipelines import PipelineRequest

Output = Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Output format.")]
Name = Annotated[str, typer.Argument(help="The pipeline.", metavar="NAME")]
Master = Annotated[str | None, typer.Option(help="Where Spark runs [SPARK_MASTER, local[*]].")]
Conf = Annotated[list[str] | None, typer.Option(help="A setting of Spark, as name=value.")]
AllowPython = Annotated[
    list[str] | None,
    typer.Option("--allow-python", help="A module whose functions definitions may use; repeatable."),
]
Tables = Annotated[
    str | None,
    typer.Option(
        help="The directory of tables, or s3a://bucket/path for Delta and Iceberg.",
        show_default="pipelines/tables in the server's data directory",
    ),
]
Packages = Annotated[
    list[str] | None,
    typer.Option(
        "--packages",
        help="Jars from Maven: delta, iceberg or s3a as they fit this Spark, or group:name:version; repeatable.",
    ),
]


def spark_conf(packages: list[str] | None, tables_dir: str, conf: list[str] | None) -> dict[str, str]:
    """Spark's settings for `--packages` and `--conf`."""
    from topics.cli.failure import CommandFailed
    from topics_spark.commands import pairs
    from topics_spark.open_tables.jars import NoJars, spark_settings

    try:
        return spark_settings(packages or [], tables_dir, pairs(conf or []))
    except NoJars as error:
        raise CommandFailed(str(error)) from None


def definitions_of(client: Client, text: str) -> list[tuple[str, PipelineRequest]]:
    """The pipelines of a file, or the one of this name on the server."""
    import msgspec

    from topics.model.requests.pipelines import PipelineRequest
    from topics_spark.pipelines.definition import ENDINGS, load_file

    if text.endswith(ENDINGS):
        return list(load_file(Path(text)).items())
    return [(text, msgspec.convert(client.pipeline(text).definition, PipelineRequest))]


def state_of(pipeline: Pipeline) -> str:
    status = pipeline.status or {}
    state = "disabled" if pipeline.definition.get("enabled") is False else status.get("state", "no runner")
    return f"{state}: {problem}" if (problem := status.get("problem")) else state


def age(ts: int | None) -> str:
    """How long ago that was."""
    if ts is None:
        return "-"
    seconds = max(0, time.time() - ts / 1000)
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"
