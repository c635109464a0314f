"""`topics pipelines`: define, list, look, check, follow and run them; the commands of `operating` are added."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topics.cli.connection import RETRIES_QUICK, Access, takes_access, takes_client
from topics.cli.failure import NOT_SO, CommandFailed
from topics.cli.output import print_fields, print_json, print_table, say
from topics_spark.pipelines.operating.commands import add_to
from topics_spark.pipelines.operating.flags import (
    AllowPython,
    Conf,
    Master,
    Name,
    Output,
    Packages,
    Tables,
    age,
    definitions_of,
    spark_conf,
    state_of,
)

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
Files = Annotated[
    list[Path],
    typer.Argument(help="Definitions in TOML, YAML or JSON.", metavar="FILE...", show_default=False),
]
INPUTS_SHOWN_MAX = 20
LOG_SHOWN_MAX = 10
CheckTables = Callable[["Client", "dict[str, PipelineRequest]"], None]


@app.command("put")
@takes_access
def put_pipelines(
    access: Access,
    files: Files,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Continue tables of other pipelines, which are disabled.")
    ] = False,
    keep_checkpoint: Annotated[
        bool, typer.Option("--keep-checkpoint", help="Continue after a change that would start a pipeline again.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")] = False,
    tables: Tables = None,
    packages: Packages = None,
    allow_python: AllowPython = None,
) -> None:
    """Define or change the pipelines of files, under the names in a file or its own name.

    A change of sources, transformation, sink or output mode starts a pipeline again, after a question. If it writes to
    a table that exists here, Spark compares the columns first, and a column of another type is refused.
    """

    def checked(client: Client, definitions: dict[str, PipelineRequest]) -> None:
        _check_tables(client, access.key, definitions, tables, packages, allow_python)

    with access.open(retries_max=RETRIES_QUICK) as client:
        _put(client, files, take_over=take_over, keep_checkpoint=keep_checkpoint, yes=yes, check=checked)


def _put(
    client: Client, files: list[Path], *, take_over: bool, keep_checkpoint: bool, yes: bool, check: CheckTables
) -> None:
    from topics_spark.pipelines.definition import load_file, taking_over

    loaded = [each for path in files for each in load_file(path).items()]
    definitions = {name: taking_over(name, definition) if take_over else definition for name, definition in loaded}
    planned = [
        client.put_pipeline(name, definition, keep_checkpoint=keep_checkpoint, dry_run=True)
        for name, definition in definitions.items()
    ]
    fresh = {plan.pipeline for plan in planned if plan.effect in ("starts_again", "created")}
    check(client, {name: definition for name, definition in definitions.items() if name in fresh})
    _confirm_restarts([plan for plan in planned if plan.effect == "starts_again"], yes=yes)
    for name, definition in definitions.items():
        made = client.put_pipeline(name, definition, keep_checkpoint=keep_checkpoint)
        say(f"{name}: {_effect(made)}")


def _check_tables(
    client: Client,
    key: str | None,
    definitions: dict[str, PipelineRequest],
    tables: str | None,
    packages: list[str] | None,
    allow_python: list[str] | None,
) -> None:
    """Refuse definitions whose rows do not fit the tables that they write, as far as these are here."""
    written = {name: definition.table_written(name) for name, definition in definitions.items()}
    if not any(written.values()):
        return
    from topics_spark.pipelines.assignment import RunnerConfig
    from topics_spark.pipelines.checking import Checker
    from topics_spark.pipelines.checkpoints.places import tables_place

    config = RunnerConfig("", tables_place(client, tables), tuple(allow_python or ()))
    there = [name for name, table in written.items() if table is not None and config.has_table(table)]
    formats = {(sink.format if (sink := definitions[name].sink) is not None else None) for name in there}
    if not there or (formats - {None, "parquet"} and not packages):
        return
    with Checker(client, key, None, config, spark_conf(packages, config.tables_dir, None)) as checker:
        wrong = [name for name in there if not checker.fits_table(name, definitions[name])]
    if wrong:
        raise CommandFailed(f"nothing was changed: {', '.join(wrong)}: see above", NOT_SO)


def _confirm_restarts(plans: list[Pipeline], *, yes: bool) -> None:
    """Records that a pipeline has processed are processed again, and what it wrote is written again."""
    if not plans or yes:
        return
    told = "; ".join(f"{plan.pipeline} ({', '.join(plan.changed)})" for plan in plans)
    if not sys.stdin.isatty():
        raise CommandFailed(
            f"nothing was changed: this starts again and repeats the output of {told}. Say --yes, "
            "or --keep-checkpoint to continue"
        )
    if not typer.confirm(f"This starts again and repeats the output of {told}. Go on?", err=True):
        raise CommandFailed("nothing was changed", NOT_SO)


def _effect(made: Pipeline) -> str:
    if made.effect == "same":
        return f"same, revision {made.revision}"
    if made.effect == "created" or made.effect is None:
        return f"{'created' if made.created else 'changed'}, revision {made.revision}"
    effect = "continues from its checkpoint" if made.effect == "continues" else "starts again"
    return f"changed ({', '.join(made.changed)}), revision {made.revision}: {effect}"


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
    head = ("pipeline", "state", "batch", "rows/s", "lag", "oldest", "late", "unmet", "restarts", "last error")
    print_table(head, map(_row, found))


def _row(pipeline: Pipeline) -> tuple[object, ...]:
    status = pipeline.status or {}
    error = str(status.get("last_error") or "-").partition("\n")[0]
    batch = status.get("batch")
    return (
        pipeline.pipeline,
        state_of(pipeline),
        "-" if batch is None else batch,
        f"{status.get('rows_per_second', 0.0):.1f}",
        "-" if pipeline.lag is None else pipeline.lag,
        age(pipeline.oldest_unread_ts),
        status.get("late_rows", 0),
        sum(status.get("unmet", {}).values()),
        status.get("restarts", 0),
        error[:80],
    )


@app.command("status")
@takes_client
def show_status(client: Client, name: Name, output: Output = "text") -> None:
    """Show the last report of a pipeline's runner. Exit code 1 if it does not run."""
    from topics.cli.spans import shown_time

    pipeline = client.pipeline(name)
    status = pipeline.status or {"state": "no runner has it"}
    if output == "json":
        print_json(status)
    else:
        shown = {"pipeline": name, "revision": pipeline.revision, **status, "lag": pipeline.lag}
        if pipeline.oldest_unread_ts is not None:
            shown["oldest_unread"] = age(pipeline.oldest_unread_ts)
        if failed_ts := status.get("last_error_ts"):
            shown["last_error_ts"] = f"{age(failed_ts)} ago"
        if unmet := status.get("unmet"):
            shown["unmet"] = ", ".join(f"{rule} {rows}" for rule, rows in unmet.items())
        apart = ("progress", "log")
        print_fields((field, value) for field, value in shown.items() if value is not None and field not in apart)
        behind = pipeline.inputs[:INPUTS_SHOWN_MAX]
        print_fields((f"  {each.topic}", f"{each.lag} behind, at {each.seq} of {each.head_seq}") for each in behind)
        if progress := status.get("progress"):
            print_fields((f"  {field}", value) for field, value in progress.items() if field != "unmet")
        lines = status.get("log", [])[-LOG_SHOWN_MAX:]
        print_fields((f"  {shown_time(line['ts'])}", f"{line['level']}  {line['message']}") for line in lines)
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
    from topics_spark.pipelines.assignment import PROGRESS

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
def compact_table(
    client: Client,
    name: Name,
    tables: Tables = None,
    packages: Packages = None,
    conf: Conf = None,
) -> None:
    """Merge the small files of a pipeline's table; of an archive, drop records that were deleted from its topics since.

    Delta and Iceberg tables are compacted by their own means, on Spark, sorted by sink.cluster_by.
    """
    from topics_spark.errors import ConnectorError
    from topics_spark.open_tables.compacting import compact_open
    from topics_spark.pipelines.checkpoints.places import TABLES, directory, tables_place

    (_, definition), *_ = definitions_of(client, name)
    sink = definition.sink
    try:
        if sink is not None and sink.format in ("delta", "iceberg"):
            place = tables_place(client, tables)
            chosen = [sink.format, *(packages or ())] if not packages and not conf else packages
            settings = spark_conf(chosen, place, conf)
            before, after = compact_open(f"{place}/{definition.table_of(name)}", sink, settings)
            say(f"{before} files became {after}")
            return
        from topics_spark.pipelines.compaction import compact

        done = compact(client, name, directory(client, tables, TABLES) / definition.table_of(name))
    except ConnectorError as error:
        raise CommandFailed(str(error), NOT_SO) from None
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
    tables: Tables = None,
    allow_python: AllowPython = None,
    packages: Packages = None,
    conf: Conf = None,
) -> None:
    """Build a pipeline without running it: print the schema of its rows, and ten of them from real records."""
    from topics_spark.pipelines.assignment import RunnerConfig
    from topics_spark.pipelines.checking import Checker
    from topics_spark.pipelines.checkpoints.places import tables_place

    with access.open() as client:
        config = RunnerConfig("", tables_place(client, tables), tuple(allow_python or ()))
        definitions = [found for text in pipelines for found in definitions_of(client, text)]
        settings = spark_conf(packages, config.tables_dir, conf)
        with Checker(client, access.key, master, config, settings) as checker:
            wrong = [name for name, definition in definitions if not checker.check(name, definition)]
    if wrong:
        raise CommandFailed(f"{', '.join(wrong)}: see above", NOT_SO)


@app.command("run")
@takes_access
def run_pipelines(
    access: Access,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="Only these pipelines.", metavar="[NAME...]", show_default="all of them"),
    ] = None,
    master: Master = None,
    state: Annotated[
        str | None,
        typer.Option(
            help="The directory of checkpoints.", show_default="pipelines/state in the server's data directory"
        ),
    ] = None,
    tables: Tables = None,
    start: Annotated[
        Literal["checkpoint", "start", "end"],
        typer.Option("--from", help="Where to begin if the checkpoint of a pipeline that has run is not there."),
    ] = "checkpoint",
    allow_python: AllowPython = None,
    runner: Annotated[str | None, typer.Option(help="This runner's name.", show_default="host-pid")] = None,
    packages: Packages = None,
    conf: Conf = None,
) -> None:
    """Run pipelines until SIGTERM or Ctrl-C; definitions may be added, changed and removed meanwhile."""
    from topics_spark.pipelines.assignment import RunnerConfig
    from topics_spark.pipelines.checkpoints.places import STATE, directory, tables_place
    from topics_spark.pipelines.serving import serve

    with access.open(retries_max=RETRIES_QUICK) as client:
        directories = (str(directory(client, state, STATE)), tables_place(client, tables))
    config = RunnerConfig(*directories, tuple(allow_python or ()), start=start)
    settings = spark_conf(packages, config.tables_dir, conf)
    serve(access, config, names or (), master=master, runner=runner, conf=settings)


add_to(app)
