"""Where checkpoints and tables are if nobody says: a place that does not depend on the current directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from topics.cli.failure import CommandFailed
from topics.client.errors import Forbidden, Unauthorized
from topics.client.request import urls_of

if TYPE_CHECKING:
    from topics.client import Client

VARIABLE: Final = "TOPICS_PIPELINES_DIR"
STATE: Final = "state"
TABLES: Final = "tables"
# Earlier versions used this directory, wherever they were started.
EARLIER: Final = "pipelines"
LOOPBACK: Final = frozenset(("127.0.0.1", "localhost", "::1"))


def directory(client: Client, given: str | None, kind: str) -> Path:
    """The one that an option names, otherwise the usual one of this kind, STATE or TABLES."""
    if given is None:
        return home(client) / kind
    place = given.removeprefix("file://")
    if "://" in place:
        raise CommandFailed(f"--{kind} {given}: object stores are not supported; name a directory of a file system")
    return Path(place).absolute()


def tables_place(client: Client, given: str | None) -> str:
    """The directory of tables, or a place in an object store, for tables in an open format."""
    if given is not None and "://" in given.removeprefix("file://"):
        return given.rstrip("/")
    return str(directory(client, given, TABLES))


def home(client: Client) -> Path:
    """Of these the first that there is: the named directory, an earlier one below the current directory, the data
    directory of a server on this machine, and a directory of this user for this server.
    """
    if named := os.environ.get(VARIABLE):
        return Path(named).absolute()
    earlier = Path(EARLIER).absolute()
    if any((earlier / name).is_dir() for name in (STATE, TABLES)):
        return earlier
    return _in_data_dir(client) or _of_user(client.url)


def _in_data_dir(client: Client) -> Path | None:
    """None for several servers as well: a server that takes over has another directory."""
    url, *others = urls_of(client.url)
    if others or urlsplit(url).hostname not in LOOPBACK:
        return None
    try:
        data_dir = Path(client.server(log_lines=0)["data_dir"])
    except (Forbidden, Unauthorized):
        return None
    return data_dir / "pipelines" if (data_dir / "meta.json").exists() and os.access(data_dir, os.W_OK) else None


def _of_user(url: str) -> Path:
    """Named after the first server that is given."""
    states = os.environ.get("XDG_STATE_HOME") or str(Path.home() / ".local" / "state")
    server = urlsplit(urls_of(url)[0]).netloc.rpartition("@")[2]
    return Path(states, "topics", "pipelines", server.replace(":", "-"))
