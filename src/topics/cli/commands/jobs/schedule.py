"""`topics schedule`: list, create, remove and run schedules."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topics.cli.commands.completion import topic_names
from topics.cli.connection import takes_client
from topics.cli.failure import NOT_SO, CommandFailed
from topics.cli.output import print_json, print_table, say
from topics.cli.spans import SPAN_MS, moment_ms, shown_time, span_ms

if TYPE_CHECKING:
    from topics.client import Client, Json, Schedule

app = typer.Typer(
    help="List, create, remove and run schedules.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)
Output = Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Output format.")]
Name = Annotated[str, typer.Argument(help="The schedule.", metavar="SCHEDULE")]


@app.command("ls")
@takes_client
def list_schedules(
    client: Client,
    topic: Annotated[
        str | None, typer.Option(help="Only schedules that append to this topic.", autocompletion=topic_names)
    ] = None,
    prefix: Annotated[str, typer.Option(help="Only names that start with this.")] = "",
    output: Output = "text",
) -> None:
    """List schedules, when they are due, and what stops them."""
    import msgspec

    found = client.schedules(topic, prefix=prefix or None)
    if output == "json":
        for schedule in found:
            shown = msgspec.to_builtins(schedule)
            shown.pop("created")
            print_json(shown)
        return
    rows = (
        (
            schedule.schedule,
            schedule.topic,
            _when(schedule),
            "paused" if schedule.paused else _time(schedule.next_ts),
            _time(schedule.last_ts),
            schedule.runs_total,
            schedule.last_error or "-",
        )
        for schedule in found
    )
    print_table(("schedule", "topic", "when", "next", "last", "runs", "stopped by"), rows)


@app.command("create")
@takes_client
def create_schedule(
    client: Client,
    name: Name,
    topic: Annotated[
        str, typer.Argument(help="Append to this topic, a log or a queue.", metavar="TOPIC", autocompletion=topic_names)
    ],
    data: Annotated[str, typer.Argument(help="The payload, as JSON.", metavar="DATA", show_default="null")] = "null",
    cron: Annotated[
        str | None, typer.Option(help="Due by a cron expression: five fields, or six with seconds first.")
    ] = None,
    every: Annotated[str | None, typer.Option(help="Due at this interval: 500ms, 30s, 5m, 12h, 1d.")] = None,
    at: Annotated[
        str | None, typer.Option(help="Due once: in 10m, 2h or 7d, or at a time like 2030-01-31T12:00Z.")
    ] = None,
    timezone: Annotated[str, typer.Option("--timezone", "--tz", help="The time zone of --cron.")] = "UTC",
    tag: Annotated[str | None, typer.Option(help="The tag of its records.")] = None,
    missed: Annotated[
        Literal["skip", "once", "all"], typer.Option(help="What to append for due times that were missed.")
    ] = "once",
    jitter: Annotated[str, typer.Option(help="Run up to this much later, each time differently: 30s.")] = "0s",
    paused: Annotated[bool, typer.Option("--paused", help="Create it without running it.")] = False,
) -> None:
    """Append a record to a topic whenever it is due. An existing schedule of this name is changed."""
    made = client.put_schedule(
        name,
        topic,
        cron=cron,
        every_ms=None if every is None else span_ms(every, "--every"),
        at=None if at is None else _moment(at),
        timezone=timezone,
        data=_payload(data),
        tag=tag,
        missed=missed,
        jitter_ms=span_ms(jitter, "--jitter"),
        paused=paused,
    )
    due = "paused" if made.paused else f"next at {_time(made.next_ts)}"
    say(f"{'created' if made.created else 'changed'} the schedule {made.schedule}, {due}")


@app.command("rm")
@takes_client
def remove_schedules(
    client: Client,
    schedules: Annotated[list[str], typer.Argument(help="The schedules.", metavar="SCHEDULE")],
) -> None:
    """Remove schedules; the records they appended stay.

    Exit code 1 if a schedule did not exist.
    """
    missing = [schedule for schedule in schedules if not client.drop_schedule(schedule)]
    for schedule in schedules:
        if schedule not in missing:
            say(f"removed {schedule}")
    if missing:
        raise CommandFailed(f"there is no schedule {', '.join(missing)}", NOT_SO)


@app.command("run")
@takes_client
def run_schedule(client: Client, name: Name) -> None:
    """Append the record of a schedule now; its due times stay. Prints the record's seq."""
    print(client.run_schedule(name))


def _when(schedule: Schedule) -> str:
    if schedule.cron is not None:
        return schedule.cron if schedule.timezone == "UTC" else f"{schedule.cron} ({schedule.timezone})"
    return f"every {schedule.every_ms} ms" if schedule.every_ms is not None else "once"


def _time(ts: int | None) -> str:
    return "-" if ts is None else shown_time(ts)


def _moment(text: str) -> int:
    """Like other times of this command line, but a span is from now on."""
    if text[-1:] in SPAN_MS and text[:1].isdigit():
        return time.time_ns() // 1_000_000 + span_ms(text, "--at")
    return moment_ms(text, "--at")


def _payload(text: str) -> Json:
    import msgspec

    try:
        return msgspec.json.decode(text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise CommandFailed(f"DATA is not valid JSON: {error}; quote text as '\"text\"'") from None
