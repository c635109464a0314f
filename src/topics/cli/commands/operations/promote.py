"""`topics promote`: let a standby take over now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from topics.cli.connection import takes_client

if TYPE_CHECKING:
    from topics.client import Client


@takes_client
def promote(
    client: Client,
    force: Annotated[
        bool, typer.Option("--force", help="Take over from a primary that is alive: it stops acknowledging writes.")
    ] = False,
) -> None:
    """Make a standby the primary, without waiting until the primary's lease ends.

    `--url` names the standby. If it names several servers, exactly one of them must be a standby. While the primary
    renews its lease, only --force takes over.
    """
    promoted = client.promote(force=force)
    print(f"{promoted.role} in term {promoted.term}")
