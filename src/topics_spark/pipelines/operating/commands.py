"""`topics pipelines pause|resume|restart|backfill|explain|test|graph|history|watch`."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from topics.cli.connection import Access, takes_access, takes_client
from topics.cli.failure import NOT_SO, CommandFailed
from topics.cli.output import Out, print_fields, print_json, print_table, say
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
    from topics.client import Client, Pipeline
    from topics_spark.pipelines.operating.backfill import Span

Names = Annotated[list[str], typer.Argument(help="The pipelines.", metavar="NAME...", show_default=False)]
WATCH_S = 1.0
HISTORY_MAX = 100_000
CLEAR = "\x1b[H\x1b[J"


def pause(client: Client, names: Names) -> None:
    """Stop pipelines after their current batch, until `resume`; they keep their checkpoints."""
    _enable(client, names, enabled=False)


def resume(client: Client, names: Names) -> None:
    """Continue paused pipelines from their checkpoints."""
    _enable(client, names, enabled=True)


def _enable(client: Client, names: list[str], *, enabled: bool) -> None:
    found = [client.pipeline(name) for name in names]
    for pipeline in found:
        definition = {name: value for name, value in pipeline.definition.items() if name != "enabled"}
        changed = client.put_pipeline(pipeline.pipeline, definition if enabled else {**definition, "enabled": False})
        state = "runs" if enabled else "is paused"
        already = " already" if changed.effect == "same" else ""
        say(f"{pipeline.pipeline} {state}{already}, revision {changed.revision}")


def restart(
    client: Client,
    names: Names,
    start: Annotated[
        Literal["checkpoint", "sources"],
        typer.Option("--from", help="Continue, or begin where the sources say and repeat the output."),
    ] = "checkpoint",
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")] = False,
) -> None:
    """Let runners stop pipelines and start them again, at once even if they wait after a failure."""
    found = [client.pipeline(name) for name in names]
    if start == "sources" and not yes:
        told = ", ".join(names)
        if not sys.stdin.isatty():
            raise CommandFailed(f"nothing was changed: this repeats the output of {told}. Say --yes")
        if not typer.confirm(f"This repeats the output of {told}. Go on?", err=True):
            raise CommandFailed("nothing was changed", NOT_SO)
    for pipeline in found:
        changed = client.restart_pipeline(pipeline.pipeline, anew=start == "sources")
        paused = "; it is paused" if pipeline.definition.get("enabled") is False else ""
        say(f"{pipeline.pipeline} starts again from its {start}, revision {changed.revision}{paused}")


def backfill(
    access: Access,
    name: Name,
    since: Annotated[
        str | None,
        typer.Option("--from", help="The first record: a seq, a span ago like 2d, or 2026-11-01T00:00Z."),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", help="The last seq, or the time before which records were appended.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also if this range was backfilled before.")] = False,
    master: Master = None,
    tables: Tables = None,
    allow_python: AllowPython = None,
    packages: Packages = None,
    conf: Conf = None,
) -> None:
    """Run a range of the sources once more through a pipeline into its sink, while the pipeline itself continues.

    The range is one transaction: repeat an interrupted command with the times that it has printed. Old output stays.
    """
    import msgspec

    from topics.model.requests.pipelines import PipelineRequest
    from topics_spark.commands import point_at
    from topics_spark.errors import NeedsDecision
    from topics_spark.pipelines.assignment import RunnerConfig
    from topics_spark.pipelines.checking import local_spark
    from topics_spark.pipelines.checkpoints.places import tables_place
    from topics_spark.pipelines.operating.backfill import Backfill, check_backfill, run

    with access.open() as client:
        point_at(client.url, access.key)
        pipeline = client.pipeline(name)
        definition = msgspec.convert(pipeline.definition, PipelineRequest)
        span = _span(name, since, until)
        check_backfill(definition, span)
        config = RunnerConfig("", tables_place(client, tables), tuple(allow_python or ()))
        spark = local_spark("topics pipelines backfill", master, spark_conf(packages, config.tables_dir, conf))
        try:
            from topics_spark.pipelines.pipeline_run import words_of

            wanted = Backfill(name, definition, pipeline.generation, span)
            done = client.txn(wanted.app).version
            if done is not None and not again:
                say(f"{name}: this range was backfilled before; --again repeats it")
                return
            wanted = Backfill(name, definition, pipeline.generation, span, 0 if done is None else done + 1)
            begun_s = time.monotonic()
            try:
                rows = run(spark, client, config, wanted)
            except NeedsDecision as error:
                raise CommandFailed(str(error), NOT_SO) from None
            except Exception as error:
                if not type(error).__module__.startswith(("pyspark", "py4j")):
                    raise
                raise CommandFailed(f"{name}: {words_of(error)}", NOT_SO) from None
            say(f"{name}: {rows} rows after {time.monotonic() - begun_s:.1f} s")
        finally:
            spark.stop()


def _span(name: str, since: str | None, until: str | None) -> Span:
    from topics.cli.spans import moment_ms, shown_time
    from topics_spark.pipelines.operating.backfill import Span

    if since is None and until is None:
        raise CommandFailed("give --from, --to or both")
    seqs = [text is not None and text.isdecimal() and len(text) <= 10 for text in (since, until)]
    if any(seqs):
        if any(text is not None and not seq for text, seq in zip((since, until), seqs, strict=True)):
            raise CommandFailed("--from and --to must both be seqs, or both be times")
        return Span(from_seq=int(since) if since else None, to_seq=int(until) if until else None)
    from_ms = None if since is None else moment_ms(since, "--from")
    to_ms = None if until is None else moment_ms(until, "--to")
    if from_ms is not None and to_ms is not None and from_ms >= to_ms:
        raise CommandFailed("--from must be before --to")
    # A span ago is another range each time, and would be written twice.
    bounds = " ".join(
        f"{flag} {shown_time(ms)}" for flag, ms in (("--from", from_ms), ("--to", to_ms)) if ms is not None
    )
    say(f"{name}: the range is {bounds}")
    return Span(from_ms=from_ms, to_ms=to_ms)


Pipelines = Annotated[
    list[str], typer.Argument(help="Files, or names of pipelines on the server.", metavar="FILE|NAME...")
]


def explain(
    access: Access,
    pipelines: Pipelines,
    master: Master = None,
    tables: Tables = None,
    allow_python: AllowPython = None,
    plan: Annotated[bool, typer.Option("--plan/--no-plan", help="Also Spark's plan, which starts Spark.")] = True,
) -> None:
    """Say in words what a definition does, what `put` of it would change, and how Spark would run it."""
    from topics_spark.commands import point_at
    from topics_spark.pipelines.assignment import RunnerConfig
    from topics_spark.pipelines.checking import local_spark
    from topics_spark.pipelines.checkpoints.places import TABLES, directory

    with access.open() as client:
        point_at(client.url, access.key)
        found = [each for text in pipelines for each in definitions_of(client, text)]
        config = RunnerConfig("", str(directory(client, tables, TABLES)), tuple(allow_python or ()))
        spark = local_spark("topics pipelines explain", master) if plan else None
        try:
            from topics_spark.pipelines.operating import explaining
            from topics_spark.pipelines.pipeline_run import words_of

            wrong: list[str] = []
            for name, definition in found:
                planned = client.put_pipeline(name, definition, dry_run=True)
                print_fields([*explaining.described(name, definition), ("change", explaining.effect(planned))])
                if spark is None:
                    continue
                try:
                    with Out() as out:
                        out.line(explaining.plan(spark.newSession(), name, definition, config).encode())
                except Exception as error:  # noqa: BLE001 - whatever Spark finds wrong is the answer
                    say(f"{name}: {words_of(error)}")
                    wrong.append(name)
        finally:
            if spark is not None:
                spark.stop()
    if wrong:
        raise CommandFailed(f"{', '.join(wrong)}: see above", NOT_SO)


def run_tests(
    files: Annotated[list[Path], typer.Argument(help="Definitions with tests.", metavar="FILE...", show_default=False)],
    only: Annotated[str | None, typer.Option("--only", "-k", help="Only tests whose name has this text.")] = None,
    master: Master = None,
    allow_python: AllowPython = None,
) -> None:
    """Run the tests of definitions: sample records and the rows that must come of them. Needs no server.

    Exit code 1 if one fails. Spark starts once for all files.
    """
    from topics_spark.pipelines.assignment import RunnerConfig
    from topics_spark.pipelines.checking import local_spark
    from topics_spark.pipelines.definition import load_cases

    found = [
        (name, definition, case)
        for path in files
        for name, (definition, cases) in load_cases(path).items()
        for case in cases
        if only is None or only in case.name
    ]
    if not found:
        raise CommandFailed("there are no tests in these files; docs/PIPELINES.md says how to write them")
    config = RunnerConfig("", "", tuple(allow_python or ()))
    spark = local_spark("topics pipelines test", master)
    try:
        from topics_spark.pipelines.quality.trial import run_case

        failed = 0
        for name, definition, case in found:
            begun_s = time.monotonic()
            wrong = run_case(spark.newSession(), name, definition, config, case)
            failed += bool(wrong)
            with Out() as out:
                result = "FAILED" if wrong else "passed"
                out.line(f"{result} {name}: {case.name} ({time.monotonic() - begun_s:.1f} s)".encode())
                for line in wrong:
                    out.line(f"  {line}".encode())
    finally:
        spark.stop()
    if failed:
        raise CommandFailed(f"{failed} of {len(found)} tests failed", NOT_SO)


def show_graph(
    client: Client,
    name: Annotated[
        str | None, typer.Argument(help="Only what this pipeline depends on and feeds.", show_default=False)
    ] = None,
    output: Annotated[
        Literal["text", "dot", "mermaid", "json"], typer.Option("--output", "-o", help="Output format.")
    ] = "text",
) -> None:
    """Show which pipelines read and write which topics and tables."""
    from topics_spark.pipelines.operating import graph

    found = list(client.pipelines())
    drawn = graph.edges(found)
    if name is not None:
        client.pipeline(name)
        drawn = graph.upstream_and_downstream(drawn, name)
    match output:
        case "json":
            print_json(graph.as_json(drawn))
            return
        case "dot":
            lines = graph.as_dot(drawn)
        case "mermaid":
            lines = graph.as_mermaid(drawn)
        case "text":
            lines = graph.as_text(drawn, {each.pipeline: state_of(each) for each in found})
    with Out() as out:
        for line in lines:
            out.line(line.encode())


def show_history(
    client: Client,
    name: Name,
    since: Annotated[str | None, typer.Option(help="Only batches since then: 1h, 2026-11-16T08:00Z.")] = None,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=HISTORY_MAX, help="At most the last N.")] = 1_000,
    output: Output = "text",
    plot: Annotated[
        Path | None, typer.Option("--plot", help="Also draw them into this file: .png, .svg or .pdf.")
    ] = None,
) -> None:
    """Show the last batches of a pipeline: rows, speed and duration, late and unmet rows."""
    import msgspec

    from topics.cli.spans import moment_ms, shown_time
    from topics_spark.pipelines.operating.history import PICTURES, draw, history

    if plot is not None and plot.suffix not in PICTURES:
        raise CommandFailed(f"--plot {plot}: the name must end in {', '.join(PICTURES)}")
    client.pipeline(name)
    batches = history(client, name, None if since is None else moment_ms(since, "--since"), limit)
    if output == "json":
        for batch in batches:
            print_json(msgspec.to_builtins(batch))
    else:
        head = ("time", "batch", "rows", "rows/s", "ms", "late", "unmet", "runner")
        print_table(
            head,
            (
                (
                    shown_time(each.ts),
                    each.batch,
                    each.rows,
                    f"{each.rows_per_second:.1f}",
                    each.duration_ms,
                    each.late_rows,
                    sum(each.unmet.values()),
                    each.runner,
                )
                for each in batches
            ),
        )
    if plot is not None:
        try:
            draw(name, batches, plot)
        except OSError as error:
            raise CommandFailed(f"--plot {plot}: {error.strerror}") from None
        say(f"{len(batches)} batches drawn in {plot}")


def watch(
    client: Client,
    names: Annotated[
        list[str] | None, typer.Argument(help="Only these.", metavar="[NAME...]", show_default="all of them")
    ] = None,
    every: Annotated[float, typer.Option(min=0.1, help="Seconds between two looks.")] = WATCH_S,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after this many looks.")] = None,
) -> None:
    """Follow pipelines on the terminal: rows/s, lag and batch time, and where Spark's own pages are. Ctrl-C ends it."""
    left = count
    while left is None or left > 0:
        found = [client.pipeline(name) for name in names] if names else list(client.pipelines())
        if sys.stdout.isatty():
            sys.stdout.write(CLEAR)
        head = ("pipeline", "state", "batch", "batch time", "rows/s", "lag", "oldest", "late", "unmet", "runner")
        print_table(head, map(_watched, found))
        for address in dict.fromkeys((each.status or {}).get("spark_ui") for each in found):
            if address:
                print_fields([("Spark", address)])
        sys.stdout.flush()
        left = None if left is None else left - 1
        if left != 0:
            time.sleep(every)


def _watched(pipeline: Pipeline) -> tuple[object, ...]:
    status = pipeline.status or {}
    progress: dict[str, Any] = status.get("progress") or {}
    batch, took_ms = status.get("batch"), progress.get("batchDuration")
    return (
        pipeline.pipeline,
        state_of(pipeline),
        "-" if batch is None else batch,
        "-" if took_ms is None else f"{took_ms / 1000:.1f} s",
        f"{status.get('rows_per_second', 0.0):.1f}",
        "-" if pipeline.lag is None else pipeline.lag,
        age(pipeline.oldest_unread_ts),
        status.get("late_rows", 0),
        sum(status.get("unmet", {}).values()),
        status.get("runner", "-"),
    )


def add_to(app: typer.Typer) -> None:
    for name, command in (
        ("pause", takes_client(pause)),
        ("resume", takes_client(resume)),
        ("restart", takes_client(restart)),
        ("backfill", takes_access(backfill)),
        ("explain", takes_access(explain)),
        ("test", run_tests),
        ("graph", takes_client(show_graph)),
        ("history", takes_client(show_history)),
        ("watch", takes_client(watch)),
    ):
        app.command(name)(command)
