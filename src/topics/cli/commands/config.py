"""`topics config`: the settings that a start would use, and the page that describes them."""

from __future__ import annotations

from typing import Annotated

import typer

from topics.cli.flags import Loaded, takes_settings

app = typer.Typer(help="Show the settings.", no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def group() -> None:
    pass


@app.command("show")
@takes_settings
def show_config(
    loaded: Loaded,
    origin: Annotated[bool, typer.Option("--origin", help="Show the source of each value.")] = False,
) -> None:
    """Print the settings that `serve` would use, as TOML; secrets are only counted."""
    from topics.cli.settings_page import toml_lines

    print("\n".join(toml_lines(loaded.settings, loaded.origins if origin else None)))


@app.command("page", hidden=True)
def print_settings_page() -> None:
    """Print docs/SETTINGS.md."""
    from topics.cli.settings_page import markdown

    print(markdown(), end="")
