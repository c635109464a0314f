"""`topics router`: list, create, remove and draw routers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topics.cli.commands.completion import topic_names
from topics.cli.connection import takes_client
from topics.cli.failure import NOT_SO, CommandFailed
from topics.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from topics.client import Client, Router

app = typer.Typer(
    help="List, create, remove and draw routers.", no_args_is_help=True, add_completion=False, rich_markup_mode=None
)
Output = Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="Output format.")]
Source = Annotated[str | None, typer.Option(help="Only routers that copy from this topic.", autocompletion=topic_names)]
Dest = Annotated[str | None, typer.Option(help="Only routers that copy into this topic.", autocompletion=topic_names)]


@app.command("ls")
@takes_client
def list_routers(client: Client, source: Source = None, dest: Dest = None, output: Output = "text") -> None:
    """List routers, their lag, and what stops them."""
    import msgspec

    found = (client.router(item.router) for item in client.routers(source=source, dest=dest))
    if output == "json":
        for router in found:
            shown = msgspec.to_builtins(router)
            shown.pop("created")
            print_json(shown)
        return
    rows = (
        (router.router, router.source, router.dest, router.forwarded_total, router.lag, router.last_error or "-")
        for router in found
    )
    print_table(("router", "source", "dest", "forwarded", "lag", "stopped by"), rows)


@app.command("create")
@takes_client
def create_router(
    client: Client,
    source: Annotated[
        str,
        typer.Argument(help="Copy from this topic; created if missing.", metavar="SOURCE", autocompletion=topic_names),
    ],
    dest: Annotated[
        str,
        typer.Argument(help="Copy into this topic; created if missing.", metavar="DEST", autocompletion=topic_names),
    ],
    name: Annotated[str | None, typer.Option(help="The router's name.", show_default="SOURCE->DEST")] = None,
    tag: Annotated[str | None, typer.Option(help="Copy only records with this tag; `user-*` is a prefix.")] = None,
    exactly_once: Annotated[bool, typer.Option("--exactly-once", help="Stamp copies, and never copy twice.")] = False,
    backfill: Annotated[bool, typer.Option("--backfill", help="Start at the source's first record.")] = False,
    keep_node: Annotated[bool, typer.Option("--keep-node/--drop-node", help="Copies keep their node.")] = True,
    keep_tag: Annotated[bool, typer.Option("--keep-tag/--drop-tag", help="Copies keep their tag.")] = True,
    create_dest: Annotated[bool, typer.Option("--create/--no-create", help="Create a missing DEST.")] = True,
    allow_cycle: Annotated[bool, typer.Option("--allow-cycle", help="Allow the router to close a cycle.")] = False,
) -> None:
    """Copy every record of a topic into another, from now on or from the beginning."""
    made = client.route(
        *(name or f"{source}->{dest}", source, dest),
        filter=None if tag is None else ("tag", "Glob" if tag.endswith("*") else "Eq", tag),
        guarantee="exactly_once" if exactly_once else "at_least_once",
        preserve_node=keep_node,
        preserve_tag=keep_tag,
        create_dest=create_dest,
        allow_cycle=allow_cycle,
        backfill=backfill,
    )
    say(f"{'created' if made.created else 'changed'} the router {made.router}")


@app.command("rm")
@takes_client
def remove_routers(
    client: Client,
    routers: Annotated[
        list[str] | None,
        typer.Argument(help="The routers; quote names like 'a->b'.", metavar="ROUTER", show_default=False),
    ] = None,
    source: Source = None,
    dest: Dest = None,
) -> None:
    """Remove routers by name, or all of a source, of a dest, or between both. Copied records stay.

    Exit code 1 if a router did not exist.
    """
    by_topics = source is not None or dest is not None
    if bool(routers) == by_topics:
        raise CommandFailed("name the routers to remove, or give --source and --dest; `topics router ls` lists them")
    names = routers or [router.router for router in client.routers(source=source, dest=dest)]
    if not names:
        raise CommandFailed(f"there is no router{_between(source, dest)}", NOT_SO)
    missing = [router for router in names if not client.unroute(router)]
    for router in names:
        if router not in missing:
            say(f"removed {router}")
    if missing:
        raise CommandFailed(f"there is no router {', '.join(missing)}", NOT_SO)


def _between(source: str | None, dest: str | None) -> str:
    return (f" from {source}" if source is not None else "") + (f" to {dest}" if dest is not None else "")


@app.command("graph")
@takes_client
def graph(
    client: Client,
    topic: Annotated[
        str | None,
        typer.Argument(help="Only routers that start at this topic.", metavar="TOPIC", autocompletion=topic_names),
    ] = None,
    form: Annotated[
        Literal["tree", "dot", "mermaid"], typer.Option("--output", "-o", help="A tree, or Graphviz or Mermaid source.")
    ] = "tree",
) -> None:
    """Draw which topics are copied into which."""
    edges = _reachable(list(client.routers()), topic)
    lines = {"tree": _tree, "dot": _dot, "mermaid": _mermaid}[form](edges)
    for line in lines:
        print(line)


def _reachable(routers: list[Router], topic: str | None) -> list[Router]:
    routers = sorted(routers, key=lambda router: (router.source, router.dest))
    if topic is None:
        return routers
    reached = {topic}
    while True:
        more = {router.dest for router in routers if router.source in reached} - reached
        if not more:
            return [router for router in routers if router.source in reached]
        reached |= more


def _tree(edges: list[Router]) -> Iterator[str]:
    """Each topic that no router copies into, with its destinations below; cycles start at their first name."""
    below: dict[str, list[Router]] = {}
    for edge in edges:
        below.setdefault(edge.source, []).append(edge)
    fed = {edge.dest for edge in edges}
    drawn: set[str] = set()

    def branch(topic: str, indent: str, path: tuple[str, ...]) -> Iterator[str]:
        drawn.add(topic)
        routers = below.get(topic, [])
        for place, router in enumerate(routers):
            last = place == len(routers) - 1
            again = " (again)" if router.dest in path else ""
            yield f"{indent}{'└─' if last else '├─'} {router.dest}{_note(router)}{again}"
            if not again:
                yield from branch(router.dest, indent + ("   " if last else "│  "), (*path, router.dest))

    roots = [topic for topic in below if topic not in fed]
    for topic in [*roots, *below]:
        if topic not in drawn:
            yield topic
            yield from branch(topic, "", (topic,))


def _note(router: Router) -> str:
    notes = [] if router.router == f"{router.source}->{router.dest}" else [router.router]
    if router.guarantee == "exactly_once":
        notes.append("exactly once")
    return f" [{', '.join(notes)}]" if notes else ""


def _dot(edges: list[Router]) -> Iterator[str]:
    yield "digraph routers {"
    yield "  rankdir=LR;"
    for edge in edges:
        yield f'  "{edge.source}" -> "{edge.dest}" [label="{edge.router}"];'
    yield "}"


def _mermaid(edges: list[Router]) -> Iterator[str]:
    names = {
        name: f"t{place}" for place, name in enumerate(dict.fromkeys(n for e in edges for n in (e.source, e.dest)))
    }
    yield "flowchart LR"
    for name, short in names.items():
        yield f'  {short}["{name}"]'
    for edge in edges:
        yield f"  {names[edge.source]} --> {names[edge.dest]}"
