"""Commands of other packages: found by the entry point group `topics.commands`, loaded only when one is named."""

from __future__ import annotations

import os
import sys
from typing import Any

GROUP = "topics.commands"


def plugin_names() -> dict[str, str]:
    """Names with the package of each, read from the metadata files.

    `importlib.metadata` could do this, but importing it takes longer than the rest of `topics --help`.
    """
    found: dict[str, str] = {}
    for folder in dict.fromkeys(sys.path):
        try:
            entries = [entry.path for entry in os.scandir(folder or ".") if entry.name.endswith(".dist-info")]
        except OSError:
            continue
        for path in entries:
            for name, package in _declared(os.path.join(path, "entry_points.txt")):
                found.setdefault(name, package)
    return dict(sorted(found.items()))


def _declared(path: str) -> list[tuple[str, str]]:
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError:
        return []
    if f"[{GROUP}]" not in text:
        return []
    section = text.partition(f"[{GROUP}]")[2].partition("\n[")[0]
    pairs = (line.partition("=") for line in section.splitlines())
    return [
        (name.strip(), place.strip().partition(":")[0].partition(".")[0]) for name, is_one, place in pairs if is_one
    ]


def load_plugin(name: str) -> Any | None:
    """The Typer object or function of a name, or None if no package provides it."""
    from importlib.metadata import entry_points

    from topics.cli.failure import NOT_SO, CommandFailed

    for entry in entry_points(group=GROUP, name=name):
        try:
            return entry.load()
        except ImportError as error:
            line = f"the command {name} of {entry.value.partition(':')[0]} cannot be loaded: {error}"
            raise CommandFailed(line, NOT_SO) from error
    return None
