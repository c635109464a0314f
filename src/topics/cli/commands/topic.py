"""`topics topic`: list topics, show and change their configuration, remove them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from topics.cli.commands.completion import topic_names
from topics.cli.commands.topic_flags import takes_wish
from topics.cli.connection import takes_client
from topics.cli.failure import NOT_SO, REFUSED, CommandFailed
from topics.cli.output import print_fields, print_json, print_table, say
from topics.cli.spans import shown_bytes, shown_time
from topics.model.names import TopicOrder

if TYPE_CHECKING:
    from topics.client import Client

app = typer.Typer(
    help="List, show, create, change and remove topics.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Name = Annotated[
    str, typer.Argument(help="The topic.", metavar="TOPIC", autocompletion=topic_names, show_default=False)
]
Output = Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Output format.")]


@app.command("ls")
@takes_client
def list_topics(
    client: Client,
    prefix: Annotated[
        str,
        typer.Argument(
            help="Only names that start with this.", metavar="PREFIX", autocompletion=topic_names, show_default=False
        ),
    ] = "",
    contains: Annotated[str, typer.Option(help="Only names that contain this, in any case.", show_default=False)] = "",
    of_type: Annotated[
        Literal["log", "queue"] | None, typer.Option("--type", help="Only topics of this type.", show_default=False)
    ] = None,
    sort: Annotated[TopicOrder, typer.Option(help="The order; with a minus, the most or the latest first.")] = "name",
    output: Output = "text",
) -> None:
    """List topics: name, type, records, bytes and head."""
    import msgspec

    found = client.list(prefix, contains=contains, type=of_type, sort=sort)
    if output == "json":
        for item in found:
            print_json(msgspec.to_builtins(item))
        return
    head = ("topic", "type", "records", "bytes", "earliest", "head")
    rows = ((item.topic, item.type, item.count, item.bytes, item.earliest_seq, item.head_seq) for item in found)
    print_table(head, rows)


@app.command("info")
@takes_client
def show_topic(client: Client, topic: Name, output: Output = "text") -> None:
    """Show a topic's state and configuration; this does not count as a read."""
    import msgspec

    state = client.state(topic, touch=False)
    if output == "json":
        print_json(msgspec.to_builtins(state))
        return
    fields: list[tuple[str, object]] = [
        ("topic", state.topic),
        ("type", state.type),
        ("records", f"{state.count} ({shown_bytes(state.bytes)})"),
        ("seqs", f"{state.earliest_seq} to {state.head_seq}" if state.count else f"none, head {state.head_seq}"),
        ("last write", shown_time(state.last_write_ts)),
        ("last read", shown_time(state.last_read_ts)),
    ]
    if state.queue is not None:
        counters = state.queue
        shown = f"{counters.ready} ready, {counters.in_flight} in flight, {counters.delayed} delayed"
        dead = counters.dead_lettered if counters.dead is None else counters.dead
        fields.append(("jobs", f"{shown}, {dead} dead" + (", PAUSED" if counters.paused else "")))
        if counters.claimers is not None:
            fields.append(("workers", workers_line(counters.claimers, counters.last_claim_ts)))
        if counters.limited_by is not None:
            fields.append(("held back", f"all ready jobs, by {counters.limited_by}"))
        elif counters.held_back:
            fields.append(("held back", f"{counters.held_back} ready jobs, by limits of their tags"))
        if counters.dead_letter_error is not None:
            fields.append(("dead letters", f"cannot be moved: {counters.dead_letter_error}"))
    defaults = msgspec.to_builtins(type(state.config)())
    for name, value in msgspec.to_builtins(state.config).items():
        if value != defaults.get(name) and name not in ("type", "durable"):
            fields.append((name, value))
    print_fields(fields)


@app.command("create")
@takes_client
@takes_wish
def create_topic(
    client: Client,
    request: dict[str, Any],
    topic: Name,
    kind: Annotated[Literal["log", "queue"], typer.Option("--type", help="A plain log, or a queue of jobs.")] = "log",
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="Leave an existing topic unchanged.")] = False,
) -> None:
    """Create a topic; absent flags mean defaults. An existing topic must have the same configuration, see `edit`."""
    from topics.client import TopicExistsIncompatible

    try:
        created = client.create(topic, **request, type=kind).created
    except TopicExistsIncompatible as error:
        if not exist_ok:
            hint = "" if error.detail.get("field") == "type" else f"; change it with `topics topic edit {topic}`"
            raise CommandFailed(f"{error.message.partition('. ')[0]}{hint}", REFUSED) from None
        say(f"topic {topic} exists already and was not changed")
        return
    noun = "queue" if kind == "queue" else "topic"
    say(f"created the {noun} {topic}" if created else f"the {noun} {topic} exists already, configured like this")


@app.command("edit")
@takes_client
@takes_wish
def edit_topic(
    client: Client,
    request: dict[str, Any],
    topic: Name,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would change and be evicted.")] = False,
    output: Output = "text",
) -> None:
    """Change a topic's configuration; absent flags change nothing. Prints each change."""
    edited = client.edit(topic, dry_run=dry_run, **request)
    if output == "json":
        shown = {name: {"from": change.before, "to": change.after} for name, change in edited.changes.items()}
        print_json({"topic": topic, "applied": not dry_run, "changes": shown, "evicts": edited.evicts})
    else:
        for name, change in edited.changes.items():
            print(f"{name}: {_shown(change.before)} -> {_shown(change.after)}")
    if edited.evicts:
        records = "1 record" if edited.evicts == 1 else f"{edited.evicts} records"
        say(f"{records} would be evicted" if dry_run else f"{records} were evicted")
    if not edited.changes:
        say(f"nothing to change in {topic}")
    elif dry_run:
        say("a dry run: nothing was changed")


@app.command("readers")
@takes_client
def show_readers(client: Client, topic: Name, output: Output = "text") -> None:
    """List who reads a topic, and how far behind each of them is: followers, groups, routers, workers."""
    found = client.readers(topic)
    if output == "json":
        print_json(found)
        return
    rows = [("follower", f"connection {number}", one["lag"]) for number, one in enumerate(found["followers"], 1)]
    rows += [("group", one["group"], one["lag"]) for one in found["groups"]]
    rows += [("router", f"{one['router']} to {one['dest']}", one["lag"]) for one in found["routers_out"]]
    rows += [("worker", one["worker"], "-") for one in found["workers"]]
    print_table(("kind", "reader", "behind"), rows)


@app.command("delete-records")
@takes_client
def delete_records(
    client: Client,
    topic: Name,
    before_seq: Annotated[int | None, typer.Option("--before-seq", help="Only records below this seq.", min=0)] = None,
    tag: Annotated[str | None, typer.Option(help="Only records with this tag; `user-*` is a prefix.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only count them.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")] = False,
) -> None:
    """Delete records of a topic by seq, by tag, or both, for good."""
    if before_seq is None and tag is None:
        raise CommandFailed("say which: --before-seq, --tag, or both")
    if not dry_run and not yes:
        _ask([f"records of {topic}"])
    match = None if tag is None else ("tag", "Glob" if tag.endswith("*") else "Eq", tag)
    deleted = client.delete(topic, before_seq, match, dry_run=dry_run)
    print_json({"topic": topic, "deleted": deleted, "dry_run": dry_run})


@app.command("rm")
@takes_client
def remove_topics(
    client: Client,
    topics: Annotated[
        list[str], typer.Argument(help="The topics.", metavar="TOPIC", autocompletion=topic_names, show_default=False)
    ],
    if_empty: Annotated[bool, typer.Option("--if-empty", help="Refuse a topic with records.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask; needed where there is no terminal.")] = False,
) -> None:
    """Remove topics with all their records and routers, for good. Exit code 1 if one did not exist."""
    if not yes:
        _ask([f"{topic} with all records" for topic in topics])
    missing = [topic for topic in topics if not client.drop(topic, if_empty=if_empty)]
    for topic in topics:
        if topic not in missing:
            say(f"removed {topic}")
    if missing:
        raise CommandFailed(f"there was no topic {', '.join(missing)}", NOT_SO)


def _ask(what: list[str]) -> None:
    if not sys.stdin.isatty():
        raise CommandFailed("removing needs --yes where there is no terminal to confirm on")
    if not typer.confirm(f"Remove {', '.join(what)}, for good?", err=True):
        raise typer.Abort


def workers_line(claimers: int, last_claim_ts: int | None) -> str:
    """Whether anybody takes the jobs of a queue."""
    if claimers:
        return f"{claimers} waiting for jobs"
    return (
        "none has asked since the server started"
        if last_claim_ts is None
        else f"last asked {shown_time(last_claim_ts)}"
    )


def _shown(value: object) -> str:
    import json

    return value if isinstance(value, str) else json.dumps(value)
