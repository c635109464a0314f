"""Connections to servers, kept by each process; without Arrow, which a commit does not need."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from topics.client import Client

# A Python worker runs many tasks; few of them use more than one server.
CLIENTS_MAX = 8


@dataclass(slots=True)
class Link:
    """A client, and whether its server sends Arrow, as far as this process knows."""

    client: Client
    has_arrow: bool = True


@functools.lru_cache(maxsize=CLIENTS_MAX)
def link_to(url: str, key: str | None, timeout_s: float) -> Link:
    """Kept for the life of the process: connecting costs more than a small batch.

    A server that cannot be reached is tried again for as long as an answer may take.
    """
    return Link(Client(url, key, timeout_s=timeout_s, retry_s_max=timeout_s))
