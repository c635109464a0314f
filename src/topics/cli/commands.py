"""The sub-commands: each loads what it needs only when it runs, so that `topics --help` stays fast."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from importlib import import_module
from typing import Annotated

import typer

import topics
from topics.cli.flags import Loaded, takes_settings
from topics.model.errors import TopicsError
from topics.model.settings import TABLE, Settings

# Plain help: loading rich would double the time that `--help` takes.
app = typer.Typer(
    help="A persistent event engine: topics you append to and read from a cursor.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
config = typer.Typer(help="Look at the settings.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config, name="config")

# What a machine can refuse at the start and its owner can mend; anything else is a bug and keeps its traceback.
MENDABLE = frozenset(
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


DataDir = Annotated[str, typer.Argument(help="The data directory.", metavar="DIR", envvar="TOPICS_DATA_DIR")]


class CannotStart(TopicsError):
    """The machine refused what the settings ask for."""

    code = "cannot_start"


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        print(f"topics {topics.__version__}")
        raise typer.Exit


@app.command()
@takes_settings
def serve(loaded: Loaded) -> None:
    """Serve the HTTP API until SIGTERM or SIGINT."""
    run: Callable[..., int] = import_module("topics.server").run
    for row in TABLE:
        if row.secret:
            for variable in (row.variable, *row.also):
                os.environ.pop(variable, None)  # child processes need not know
    try:
        code = run(loaded.settings, log_format=loaded.settings.log_format)
    except OSError as error:
        raise CannotStart(reason_of(error, loaded.settings)) from error
    raise typer.Exit(code)


@app.command()
def verify(data_dir: DataDir) -> None:
    """Read everything in a data directory that no server has open, and say what is damaged."""
    from topics.cli.upkeep import verify_directory

    raise typer.Exit(verify_directory(data_dir))


@app.command()
def repair(data_dir: DataDir) -> None:
    """Make a damaged data directory usable: what cannot be read becomes a gap that readers are told of."""
    from topics.cli.upkeep import repair_directory

    raise typer.Exit(repair_directory(data_dir))


@app.command("hash")
def hash_a_password() -> None:
    """Ask for a password, or read it from standard input, and print the hash that the setting `users` takes."""
    import getpass
    import sys

    from topics.api.users import hash_password

    password = getpass.getpass() if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")
    print(hash_password(password))


@config.command("show")
@takes_settings
def show_config(
    loaded: Loaded,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
) -> None:
    """Print the settings that `serve` would use, as TOML; secrets are only counted."""
    from topics.cli.settings_page import toml_lines

    print("\n".join(toml_lines(loaded.settings, loaded.origins if origin else None)))


@config.command("page", hidden=True)
def print_settings_page() -> None:
    """Print docs/SETTINGS.md."""
    from topics.cli.settings_page import markdown

    print(markdown(), end="")


def reason_of(error: OSError, settings: Settings) -> str:
    """Why the start failed, in one line; an error that no setting can cause is raised again."""
    import socket

    address = f"{settings.host}:{settings.port}"
    if isinstance(error, socket.gaierror):
        return f"cannot listen on {address}: the host is unknown"
    if error.errno not in MENDABLE:
        raise error
    why = os.strerror(error.errno or 0).lower()
    if error.filename is not None:
        return f"cannot use {os.fsdecode(error.filename)}: {why}"
    return f"cannot listen on {address}: {why}"
