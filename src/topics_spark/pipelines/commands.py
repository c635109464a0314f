"""`topics pipelines`: define, list, look, check, follow and run them. Only `check` and `run` start Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topics.cli.connection import Access, takes_access, takes_client
from topics.cli.failure import NOT_SO, CommandFailed
from topics.cli.output import print_fields, print_json, print_table, say

if TYPE_CHECKING:
    from topics.client import Client, Pipeline, Record
    from topics.model.requests.pipelines import PipelineRequest

app = typer.Typer(
    help="Define pipelines, and run them on Spark.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
Output = Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Output format.")]
Name = Annotated[str, typer.Argument(help="The pipeline.", metavar="NAME")]
Files = Annotated[
    list[Path],
    typer.Argument(help="Definitions in TOML, YAML or JSON.", metavar="FILE...", show_default=False),
]
Master = Annotated[str | None, typer.Option(help="Where Spark runs [SPARK_MASTER, local[*]].")]
AllowPython = Annotated[
    list[str] | None,
    typer.Option("--allow-python", help="A module whose functions definitions may use; repeatable."),
]
STATE_DIR = "./pipelines/state"
TABLES_DIR = "./pipelines/tables"


@app.command("put")
@takes_client
def put_pipelines(client: Client, files: Files) -> None:
    """Define or change the pipelines of files, under the names in a file or its own name."""
    from topics_spark.pipelines.definition import load_file

    for path in files:
        for name, definition in load_file(path).items():
            made = client.put_pipeline(name, definition)
            say(f"{'created' if made.created else 'changed'} the pipeline {name}, revision {made.revision}")


@app.command("get")
@takes_client
def get_pipeline(client: Client, name: Name) -> None:
    """Print a definition as JSON, as `put` accepts it."""
    print_json(client.pipeline(name).definition)


@app.command("rm")
@takes_client
def remove_pipelines(
    client: Client,
    names: Annotated[list[str], typer.Argument(help="The pipelines.", metavar="NAME...", show_default=False)],
) -> None:
    """Remove pipelines; their output stays. Exit code 1 if one did not exist."""
    absent = [name for name in names if not client.drop_pipeline(name)]
    if absent:
        raise CommandFailed(f"there was no pipeline {', '.join(absent)}", NOT_SO)


@app.command("ls")
@takes_client
def list_pipelines(client: Client, output: Output = "text") -> None:
    """List pipelines and their status."""
    import msgspec

    found = client.pipelines()
    if output == "json":
        for pipeline in found:
            print_json(msgspec.to_builtins(pipeline))
        return
    print_table(("pipeline", "state", "batch", "rows/s", "lag", "restarts", "last error"), map(_row, found))


def _row(pipeline: Pipeline) -> tuple[object, ...]:
    status = pipeline.status or {}
    state = "disabled" if pipeline.definition.get("enabled") is False else status.get("state", "no runner")
    error = str(status.get("last_error") or "-").partition("\n")[0]
    batch = status.get("batch")
    return (
        pipeline.pipeline,
        state,
        "-" if batch is None else batch,
        f"{status.get('rows_per_second', 0.0):.1f}",
        status.get("lag", 0),
        status.get("restarts", 0),
        error[:80],
    )


@app.command("status")
@takes_client
def show_status(client: Client, name: Name, output: Output = "text") -> None:
    """Show the last report of a pipeline's runner. Exit code 1 if it does not run."""
    pipeline = client.pipeline(name)
    status = pipeline.status or {"state": "no runner has it"}
    if output == "json":
        print_json(status)
    else:
        shown = {"pipeline": name, "revision": pipeline.revision, **status}
        print_fields((field, value) for field, value in shown.items() if value is not None and field != "progress")
        if progress := status.get("progress"):
            print_fields((f"  {field}", value) for field, value in progress.items())
    if status["state"] not in ("running", "idle", "starting"):
        raise typer.Exit(NOT_SO)


@app.command("logs")
@takes_client
def show_logs(
    client: Client,
    name: Name,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new events.")] = False,
) -> None:
    """Print the events of a pipeline: its batches, failures and runners, one JSON object per line."""
    from topics_spark.pipelines.runner import PROGRESS

    client.pipeline(name)
    for record in _told(client, PROGRESS, name, follow=follow):
        print_json({"ts": record.ts, **record.data})


def _told(client: Client, topic: str, name: str, *, follow: bool) -> Iterator[Record]:
    from topics.client import Record, TopicNotFound

    try:
        for record in client.read(topic, follow=follow):
            if isinstance(record, Record) and record.tag == name:
                yield record
    except TopicNotFound:
        return


@app.command("compact")
@takes_client
def compact_archive(
    client: Client,
    name: Name,
    tables: Annotated[str, typer.Option(help="The directory of the runner's tables.")] = TABLES_DIR,
) -> None:
    """Merge the small files of an archive, and drop records that were deleted from its topics since."""
    from topics_spark.pipelines.compaction import compact

    (_, definition), *_ = _definitions(client, name)
    done = compact(client, name, Path(tables) / definition.table_of(name))
    say(f"{done.files_before} files became {done.files_after}, {done.rows_removed} deleted records were dropped")


@app.command("check")
@takes_access
def check_pipelines(
    access: Access,
    pipelines: Annotated[
        list[str],
        typer.Argument(help="Files, or names of pipelines on the server.", metavar="FILE|NAME..."),
    ],
    master: Master = None,
    tables: Annotated[str, typer.Option(help="The directory of the runner's tables.")] = TABLES_DIR,
    allow_python: AllowPython = None,
) -> None:
    """Build a pipeline without running it: print the schema of its rows, and ten of them from real records."""
    from topics_spark.pipelines.assignment import RunnerConfig
    from topics_spark.pipelines.checking import Checker

    config = RunnerConfig("", str(Path(tables).absolute()), tuple(allow_python or ()))
    with access.open() as client:
        definitions = [found for text in pipelines for found in _definitions(client, text)]
        with Checker(client, access.key, master, config) as checker:
            wrong = [name for name, definition in definitions if not checker.check(name, definition)]
    if wrong:
        raise CommandFailed(f"{', '.join(wrong)}: see above", NOT_SO)


def _definitions(client: Client, text: str) -> list[tuple[str, PipelineRequest]]:
    import msgspec

    from topics.model.requests.pipelines import PipelineRequest
    from topics_spark.pipelines.definition import ENDINGS, load_file

    if text.endswith(ENDINGS):
        return list(load_file(Path(text)).items())
    return [(text, msgspec.convert(client.pipeline(text).definition, PipelineRequest))]


@app.command("run")
@takes_access
def run_pipelines(
    access: Access,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Only these pipelines.", metavar="[NAME...]", show_default="all of them"),
    ] = None,
    master: Master = None,
    state: Annotated[str, typer.Option(help="The directory of checkpoints.")] = STATE_DIR,
    tables: Annotated[str, typer.Option(help="The directory of tables.")] = TABLES_DIR,
    allow_python: AllowPython = None,
    runner: Annotated[str | None, typer.Option(help="This runner's name.", show_default="host-pid")] = None,
    conf: Annotated[list[str] | None, typer.Option(help="A setting of Spark, as name=value.")] = None,
) -> None:
    """Run pipelines until SIGTERM or Ctrl-C; definitions may be added, changed and removed meanwhile."""
    from topics_spark.commands import pairs
    from topics_spark.pipelines.assignment import RunnerConfig
    from topics_spark.pipelines.serving import serve

    config = RunnerConfig(str(Path(state).absolute()), str(Path(tables).absolute()), tuple(allow_python or ()))
    serve(access, config, names or (), master=master, runner=runner, conf=pairs(conf or []))
