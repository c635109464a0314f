"""`topics txn`: apps that write transactions, and their stages that are neither committed nor aborted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from topics.cli.connection import takes_client
from topics.cli.failure import NOT_SO
from topics.cli.output import print_json, print_table
from topics.cli.spans import shown_bytes, shown_time

if TYPE_CHECKING:
    from topics.client import Client

app = typer.Typer(
    help="List transactions that are not finished, and abort them.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
App = Annotated[str, typer.Argument(help="The app.", metavar="APP", show_default=False)]
Output = Annotated[Literal["text", "json"], typer.Option("--output", "-o", help="How to print it.")]


@app.command("ls")
@takes_client
def list_apps(client: Client, output: Output = "text") -> None:
    """List apps: the version they have committed, their token, and what they have staged."""
    import msgspec

    found = client.txns()
    if output == "json":
        for item in found:
            print_json(msgspec.to_builtins(item))
        return
    rows = ((item.app, _or_dash(item.version), item.fence, item.stages, shown_bytes(item.bytes)) for item in found)
    print_table(("app", "version", "fence", "stages", "size"), rows)


@app.command("show")
@takes_client
def show(client: Client, app_name: App, output: Output = "text") -> None:
    """List the open stages of an app: since when, of whom, and when they expire."""
    import msgspec

    found = client.txn(app_name)
    if output == "json":
        print_json(msgspec.to_builtins(found))
        return
    rows = (
        (
            stage.version,
            stage.stage,
            _or_dash(stage.owner),
            stage.records,
            shown_bytes(stage.bytes),
            shown_time(stage.created_ms),
            shown_time(stage.expires_ms),
        )
        for stage in found.stages
    )
    print_table(("version", "stage", "owner", "records", "size", "since", "expires"), rows)


@app.command("abort")
@takes_client
def abort(
    client: Client,
    app_name: App,
    version: Annotated[int, typer.Argument(help="The version.", metavar="VERSION", min=0, show_default=False)],
    stages: Annotated[list[str], typer.Argument(help="The stages.", metavar="STAGE", show_default=False)],
) -> None:
    """Drop stages with their records; their writer has to begin again. Exit code 1 if there was none of them."""
    fence = client.txn(app_name).fence
    aborted = client.abort_txn(app_name, version, stages, fence or None)
    print_json({"app": app_name, "version": version, "aborted": aborted})
    if not aborted:
        raise typer.Exit(NOT_SO)


def _or_dash(value: object) -> object:
    return "-" if value is None else value
