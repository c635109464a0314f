"""`topics compact`: free disk space now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.cli.connection import takes_patient_client
from topics.cli.spans import shown_bytes

if TYPE_CHECKING:
    from topics.client import Client


@takes_patient_client
def compact(client: Client) -> None:
    """Remove from the server's disk, now, what retention, deletes and acks have freed.

    The server does this by itself at checkpoints, but leaves files that are partly in use, and keeps an older snapshot.
    """
    found = client.compact()
    before, after = found["bytes_before"], found["bytes_after"]
    print(f"{shown_bytes(before)} before, {shown_bytes(after)} after: {shown_bytes(max(0, before - after))} freed")
