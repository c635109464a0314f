"""One flag per setting, made from the table, and the settings that the given flags result in."""

from __future__ import annotations

import functools
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any, NamedTuple, cast

import typer

from topics.cli.connection import CLIENT_VARIABLES, KEY_VARIABLE
from topics.model.setting_types import Setting
from topics.model.settings import TABLE, Settings, load_settings, unknown_variables

CONFIG_VARIABLE = "TOPICS_CONFIG"


class Loaded(NamedTuple):
    """Settings, and the source of each value by name."""

    settings: Settings
    origins: dict[str, str]


def takes_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--config` and one flag per setting; its first argument is the resulting settings."""
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]

    @functools.wraps(command)
    def run(**given: Any) -> None:
        arguments = {parameter.name: given.pop(parameter.name) for parameter in own}
        toml_path = cast("str | None", given.pop("config"))
        loaded = Loaded(*load_settings(given, os.environ, toml_path))
        for warning in unknown_variables(_not_the_clients(loaded.settings), besides=CONFIG_VARIABLE):
            print(f"topics: {warning}", file=sys.stderr)
        command(loaded, **arguments)

    parameters = [*own, _config_flag(), *(_flag(row) for row in TABLE if row.flag)]
    # What typer reads to make a command's options.
    run.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    del run.__wrapped__
    return run


def _not_the_clients(settings: Settings) -> list[str]:
    """The environment without the client's variables; if the server has no keys, a lone API_KEY is likely a mistake."""
    theirs = (*CLIENT_VARIABLES, KEY_VARIABLE) if settings.api_keys else CLIENT_VARIABLES
    return [name for name in os.environ if name not in theirs]


def _config_flag() -> inspect.Parameter:
    option = typer.Option(None, "--config", envvar=CONFIG_VARIABLE, metavar="FILE", help="TOML file with settings.")
    return inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=option, annotation=str | None)


def _flag(row: Setting) -> inspect.Parameter:
    """Values are text and are checked by the table, so that flags and variables have the same error messages."""
    assert row.flag is not None
    if row.kind == "switch":
        option = typer.Option(None, f"{row.flag}/--no-{row.flag.removeprefix('--')}", help=row.help)
    else:
        option = typer.Option(None, row.flag, metavar=row.kind.upper(), help=row.help)
    annotation = bool | None if row.kind == "switch" else str | None
    return inspect.Parameter(row.name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation)
