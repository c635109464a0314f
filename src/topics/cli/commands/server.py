"""`topics server`: a running server as its operator sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topics.cli.connection import takes_client
from topics.cli.failure import FINE, NOT_SO
from topics.cli.output import print_json, print_table
from topics.cli.spans import shown_time

if TYPE_CHECKING:
    from topics.client import Client

app = typer.Typer(
    help="Look at a running server: what needs attention, settings, history.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
Output = Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="How to print it.")]


@app.command("status")
@takes_client
def status(client: Client, output: Output = "text") -> None:
    """Print the role of each server, and what needs attention, the gravest first.

    Exit code 1 if there is anything but notices, or if a server does not reply.
    """
    roles = client.roles()
    if output == "text" and (len(roles) > 1 or "standby" in roles.values()):
        # Before the rest, which there is only if one of them is primary.
        print_table(("server", "role"), [[url, role or "no reply"] for url, role in roles.items()])
    found = client.overview()
    if output == "json":
        print_json({**found, "roles": roles})
    else:
        counts = ("topics", "records", "ready", "in_flight", "delayed", "dead", "live_readers")
        print_table(counts, [[found[name] for name in counts]])
        for finding in found["attention"]:
            print(f"{finding['severity']}: {finding['text']}")
    calm = None not in roles.values() and all(finding["severity"] == "notice" for finding in found["attention"])
    raise typer.Exit(FINE if calm else NOT_SO)


@app.command("me")
@takes_client
def me(client: Client) -> None:
    """Print what the key in use may do: scopes and prefixes."""
    print_json(client.me())


@app.command("show")
@takes_client
def show(
    client: Client,
    log_lines: Annotated[int, typer.Option("--log-lines", help="Lines of the log, up to 500.", min=0)] = 0,
) -> None:
    """Print settings and where they come from, keys, files and the end of the log, as JSON without secrets."""
    print_json(client.server(log_lines=log_lines))


@app.command("history")
@takes_client
def history(
    client: Client,
    output: Output = "text",
    count: Annotated[int, typer.Option("--count", "-n", help="At most this many points.", min=1)] = 20,
) -> None:
    """Print the last points of the server's own metrics, one every 5 s for an hour."""
    found = client.history()
    if output == "json":
        print_json(found)
        return
    shown = ("records_in_per_s", "records_out_per_s", "requests_per_s", "handler_ms", "sync_ms", "live_readers")
    columns = [[shown_time(ts) for ts in found["ts"]], *(found["series"][name] for name in shown)]
    print_table(("time", *shown), list(zip(*columns, strict=True))[-count:])
