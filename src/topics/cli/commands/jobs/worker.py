"""`topics worker`: runs an app of topics.workers, with a health endpoint, and again after each change of its code."""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from topics.cli.connection import KEY_VARIABLE, URL_VARIABLE, Access, takes_access
from topics.cli.failure import CommandFailed
from topics.cli.output import say
from topics.cli.spans import span_ms

if TYPE_CHECKING:
    from topics.workers import App


@takes_access
def worker(
    access: Access,
    target: Annotated[
        str, typer.Argument(help="The app: a module, a colon, and the name of the app in it.", metavar="MODULE:APP")
    ],
    grace: Annotated[
        str | None,
        typer.Option(
            help="Time for running handlers after Ctrl-C or SIGTERM.", show_default="the app's", metavar="SPAN"
        ),
    ] = None,
    health: Annotated[
        str | None,
        typer.Option(help="Answer /healthz, /readyz and /metrics at this port, or host:port.", metavar="ADDRESS"),
    ] = None,
    reload: Annotated[
        bool, typer.Option("--reload", help="For development: start again when a .py file below here changes.")
    ] = False,
    node: Annotated[str | None, typer.Option(help="The worker's name; generated if not given.")] = None,
) -> None:
    """Run the workers of an app until Ctrl-C or SIGTERM.

    Modules are found from the current directory. After the first signal no more jobs are claimed, and running handlers
    may finish within the grace period; what is left goes back to its queue at once. A second signal ends the process.
    """
    if reload:
        from topics.cli.commands.jobs.reloading import run_and_reload

        raise typer.Exit(run_and_reload([argument for argument in sys.argv[1:] if argument != "--reload"]))
    logging.basicConfig(level=logging.INFO, format="topics: %(message)s", stream=sys.stderr)
    # An app is made when its module is imported: it takes these from the environment unless the module says otherwise.
    for variable, value in ((URL_VARIABLE, access.url), (KEY_VARIABLE, access.key)):
        if value is not None:
            os.environ[variable] = value
    app = load_app(target)
    try:
        app.configure(
            node=node, grace_s=None if grace is None else span_ms(grace, "--grace") / 1000, health=health or app.health
        )
    except ValueError as error:
        raise CommandFailed(f"--health: {error}") from None
    try:
        app.run()
    except OSError as error:
        raise CommandFailed(f"the app cannot run: {error}") from None
    counts = app.counts
    say(f"{counts.done} done, {counts.retried} retried, {counts.dead} dead, {counts.rejected} rejected")


def load_app(target: str) -> App:
    """The app that MODULE:APP names; `app` if there is no name."""
    from topics.workers import App

    module_name, _, name = target.partition(":")
    if not module_name or module_name.startswith("."):
        raise CommandFailed(f"{target!r} is not MODULE:APP, like shop.jobs:app")
    sys.path.insert(0, os.getcwd())
    try:
        found: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise CommandFailed(
            f"there is no module {module_name}; MODULE:APP is looked for from the current directory, {os.getcwd()}"
        ) from None
    for part in (name or "app").split("."):
        found = getattr(found, part, None)
    if not isinstance(found, App):
        have = [key for key, value in vars(sys.modules[module_name]).items() if isinstance(value, App)]
        shown = f"; it has {', '.join(f'{module_name}:{key}' for key in have)}" if have else ""
        raise CommandFailed(f"{target} is not an app of topics.workers{shown}")
    if not found.duties:
        raise CommandFailed(f"{target} has no workers: decorate a function with @app.worker(queue)")
    return found
