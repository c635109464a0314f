"""How a command asks the warm Spark: a socket of this user, a query, and the command's own output.

    command ─ length, JSON, its standard output and error as open files ─▶ warm Spark
            ◀─ {"ready": true} when it begins, {"code": 0} when it is done; a command that goes away stops its query

The address depends on everything that a session cannot change: server, key, interpreter and versions. Only this user
can reach it.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

VARIABLE: Final = "TOPICS_SQL_WARM_S"
IDLE_S_DEFAULT: Final = 600.0
# Of a Unix socket, with some room.
PATH_BYTES_MAX: Final = 100
REQUEST_BYTES_MAX: Final = 16 << 20
LENGTH_BYTES: Final = 4


class SqlRequest(msgspec.Struct):
    """What a command wants; `stop`: that the warm Spark ends."""

    text: str = ""
    form: str = "json"
    out: str | None = None
    limit_rows: int | None = None
    inputs: dict[str, Any] = {}
    stop: bool = False


class Reply(msgspec.Struct, omit_defaults=True):
    ready: bool = False
    code: int | None = None


def idle_s(environ: Mapping[str, str]) -> float:
    """How long a warm Spark waits for the next query; 0: there is none."""
    try:
        return max(0.0, float(environ.get(VARIABLE, IDLE_S_DEFAULT)))
    except ValueError:
        return IDLE_S_DEFAULT


def directory(environ: Mapping[str, str]) -> Path:
    """Where the sockets are; only this user may enter it."""
    if runtime := environ.get("XDG_RUNTIME_DIR"):
        return Path(runtime) / "topics"
    state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".local" / "state"
    return Path(state) / "topics" / "run"


def address(environ: Mapping[str, str], *identity: object) -> Path | None:
    """The socket for this identity; None if the path is too long for one, or the directory is not private."""
    folder = directory(environ)
    digest = hashlib.sha256(json.dumps([str(part) for part in identity]).encode()).hexdigest()[:16]
    path = folder / f"spark-{digest}.sock"
    if len(os.fsencode(path)) > PATH_BYTES_MAX:
        return None
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        found = folder.stat()
    except OSError:
        return None
    if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o077:
        return None
    return path


def connected(path: Path) -> socket.socket | None:
    """None if nobody listens there."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        found.connect(str(path))
    except OSError:
        found.close()
        return None
    return found


def send_request(connection: socket.socket, request: SqlRequest, files: list[int]) -> None:
    body = msgspec.json.encode(request)
    socket.send_fds(connection, [len(body).to_bytes(LENGTH_BYTES, "big")], files)
    connection.sendall(body)


def receive_request(connection: socket.socket) -> tuple[SqlRequest, list[int]]:
    """A request and the open files that came with it, which the receiver closes."""
    head, files, _, _ = socket.recv_fds(connection, LENGTH_BYTES, 2)
    try:
        length = int.from_bytes(head, "big")
        if len(head) < LENGTH_BYTES or length > REQUEST_BYTES_MAX:
            raise ValueError("this is not a request")
        body = b""
        while len(body) < length:
            more = connection.recv(length - len(body))
            if not more:
                raise ValueError("a request ends in the middle")
            body += more
        return msgspec.json.decode(body, type=SqlRequest), list(files)
    except (ValueError, OSError):
        for each in files:
            os.close(each)
        raise


def send_reply(connection: socket.socket, reply: Reply) -> None:
    connection.sendall(msgspec.json.encode(reply) + b"\n")
