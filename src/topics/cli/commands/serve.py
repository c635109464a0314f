"""`topics serve`: the settings, the server that runs with them, and why it cannot start."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from importlib import import_module

import typer

from topics.cli.connection import KEY_VARIABLE
from topics.cli.flags import Loaded, takes_settings
from topics.model.errors import TopicsError
from topics.model.settings import TABLE, Settings

# Errors of the machine at the start that its owner can fix; any other error is a bug and keeps its traceback.
FIXABLE = frozenset(
    (
        errno.EACCES,
        errno.EADDRINUSE,
        errno.EADDRNOTAVAIL,
        errno.EEXIST,
        errno.EISDIR,
        errno.ENOENT,
        errno.ENOSPC,
        errno.ENOTDIR,
        errno.EPERM,
        errno.EROFS,
    )
)


class CannotStart(TopicsError):
    """The machine refused what the settings require."""

    code = "cannot_start"


@takes_settings
def serve(loaded: Loaded) -> None:
    """Serve the HTTP API until SIGTERM or SIGINT."""
    # First of all, because modules that the server imports may copy the environment (wsgiref does).
    _forget_secrets()
    run: Callable[..., int] = import_module("topics.server").run
    try:
        code = run(loaded.settings, log_format=loaded.settings.log_format, origins=loaded.origins)
    except OSError as error:
        raise CannotStart(reason_of(error, loaded.settings)) from error
    raise typer.Exit(code)


def _forget_secrets() -> None:
    """Remove the keys from the environment, including a client's key: neither this process nor a child needs them."""
    secret = [variable for row in TABLE if row.secret for variable in (row.variable, *row.also)]
    for variable in (*secret, KEY_VARIABLE):
        os.environ.pop(variable, None)


def reason_of(error: OSError, settings: Settings) -> str:
    """Why the start failed, in one line; errors that no setting can cause are raised again."""
    import socket

    address = f"{settings.host}:{settings.port}"
    if isinstance(error, socket.gaierror):
        return f"cannot listen on {address}: the host is unknown"
    if error.errno not in FIXABLE:
        raise error
    why = os.strerror(error.errno or 0).lower()
    if error.filename is not None:
        return f"cannot use {os.fsdecode(error.filename)}: {why}"
    if error.errno == errno.EADDRINUSE:
        why += "; a server may already run there: --port or TOPICS_PORT chooses another"
    return f"cannot listen on {address}: {why}"
