"""`topics group`: how far consumer groups are, and moving them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topics.cli.commands.completion import topic_names
from topics.cli.connection import takes_member
from topics.cli.failure import NOT_SO, CommandFailed
from topics.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from topics.client import Client

app = typer.Typer(
    help="Inspect consumer groups, and reset their offsets.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Output = Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Output format.")]
Topic = Annotated[
    str, typer.Argument(help="The topic.", metavar="TOPIC", autocompletion=topic_names, show_default=False)
]
Group = Annotated[str, typer.Argument(help="The group.", metavar="GROUP", show_default=False)]


@app.command("ls")
@takes_member
def list_groups(
    client: Client,
    topic: Annotated[
        str | None, typer.Argument(help="Only groups of this topic.", metavar="TOPIC", autocompletion=topic_names)
    ] = None,
    output: Output = "text",
) -> None:
    """List groups, for each partition that they have read."""
    import msgspec

    found = client.groups(topic)
    if output == "json":
        for standing in found:
            print_json(msgspec.to_builtins(standing))
        return
    rows = (
        (
            one.topic,
            one.partition,
            one.group,
            _shown(one.committed_offset),
            one.lag,
            one.open_claims,
            one.expired_claims,
        )
        for one in found
    )
    print_table(("topic", "partition", "group", "committed", "lag", "open claims", "expired"), rows)


@app.command("lag")
@takes_member
def lag(
    client: Client,
    topic: Topic,
    group: Group,
    at_most: Annotated[
        int | None, typer.Option("--at-most", help="Exit code 1 if the lag is above this.", min=0)
    ] = None,
) -> None:
    """Print how many records a group has not acked, over all partitions."""
    found = client.groups(topic, group)
    if not found:
        raise CommandFailed(f"the group {group} has not read {topic}; `topics group ls` lists the groups", NOT_SO)
    behind = sum(standing.lag for standing in found)
    print(behind)
    if at_most is not None and behind > at_most:
        raise typer.Exit(NOT_SO)


@app.command("reset")
@takes_member
def reset(
    client: Client,
    topic: Topic,
    group: Group,
    to: Annotated[
        str | None, typer.Option(help="earliest, latest, or the offset to read next.", metavar="OFFSET")
    ] = None,
    partition: Annotated[int | None, typer.Option(help="Only this partition.", min=0)] = None,
    forget: Annotated[bool, typer.Option("--forget", help="Remove the group.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report the new offsets.")] = False,
) -> None:
    """Move a group to another offset. Stop its workers first, because their claims become void."""
    if (to is None) == (not forget):
        raise CommandFailed("say where to move it: --to earliest, --to latest, --to OFFSET, or --forget")
    places = client.reset_group(
        topic,
        group,
        None if to is None else _start(to),
        partition="all" if partition is None else partition,
        forget=forget,
        dry_run=dry_run,
    )
    if dry_run:
        say("a dry run: nothing was changed")
    elif forget:
        say(f"removed {group} from {topic}")
        return
    for number, next_offset in sorted(places.items()):
        print_json({"topic": topic, "group": group, "partition": number, "next_offset": next_offset})


def _start(text: str) -> Literal["Earliest", "Latest"] | int:
    match text.lower():
        case "earliest":
            return "Earliest"
        case "latest":
            return "Latest"
        case number if number.isdigit():
            return int(number)
        case _:
            raise CommandFailed(f"--to is {text!r}, but must be earliest, latest, or an offset")


def _shown(offset: int | None) -> str:
    return "-" if offset is None else str(offset)
