"""The table of settings as TOML with current values, and as docs/SETTINGS.md."""

from __future__ import annotations

import json
from collections.abc import Mapping

from topics.model.setting_types import Setting, Value, show_number, shown_url
from topics.model.settings import TABLE, Settings

INTRODUCTION = """\
# Settings

<!-- Made by `topics config page`; a test keeps it current. -->

A value comes from the first of these that has one:

1. a flag of `topics serve`, e.g. `--max-body-bytes 8MiB`;
2. an environment variable, e.g. `TOPICS_MAX_BODY_BYTES=8MiB` (an empty one counts as absent);
3. a TOML file named by `--config` or `TOPICS_CONFIG`, e.g. `max_body_bytes = "8 MiB"`;
4. the default.

The flag is the name with dashes, the variable `TOPICS_` and the name in capitals. Sizes are bytes or carry `KiB`,
`MiB`, `GiB` or `TiB`; times are milliseconds or carry `s`, `m` or `h`. `topics config show --origin` prints the current
values and their sources as such a file. A value out of bounds stops the start with exit code 2 and one line that names
it.

Secrets have no flag, because a process's arguments are public on its machine, and are never printed.
"""


def toml_lines(settings: Settings, origins: Mapping[str, str] | None) -> list[str]:
    """The settings as a TOML file, without secrets; with `origins`, each line has the source of its value."""
    lines: list[str] = []
    for row in TABLE:
        value: Value = getattr(settings, row.name)
        if row.secret:
            line = f"# {row.name}: {len(value) if isinstance(value, tuple) else int(value is not None)} set, not shown"
        elif value is None:
            line = f"# {row.name} is not set"
        elif row.name == "bucket":
            # `serve` refuses one that holds secrets, but here it may be printed.
            line = f"{row.name} = {_toml(shown_url(str(value)))}"
        else:
            line = f"{row.name} = {_toml(value)}"
        lines.append(line if origins is None else f"{line:<48} # {origins[row.name]}")
    return lines


def markdown() -> str:
    """The whole of docs/SETTINGS.md."""
    lines = [INTRODUCTION.rstrip()]
    group = ""
    for row in TABLE:
        if row.group != group:
            group = row.group
            lines += ["", f"## {group}", "", "| name | variable | default | allowed | what |", "|" + " --- |" * 5]
        lines.append(f"| `{row.name}` | `{row.variable}` | {_default(row)} | {row.allowed} | {_what(row)} |")
    return "\n".join(lines) + "\n"


def _what(row: Setting) -> str:
    text = f"{row.help} A secret." if row.secret else row.help
    if row.also:
        text += " Also read from " + " and ".join(f"`{name}`" for name in row.also) + "."
    return f"{text} May stand in the file's table `[{row.section}]`." if row.section else text


def _default(row: Setting) -> str:
    if row.default is None or row.default == ():
        return "none"
    if isinstance(row.default, int) and not isinstance(row.default, bool):
        return f"`{show_number(row.kind, row.default)}`"
    return f"`{str(row.default).lower() if row.kind == 'switch' else row.default}`"


def _toml(value: Value) -> str:
    """JSON writes numbers, booleans, lists and printable texts as TOML does."""
    return json.dumps(list(value) if isinstance(value, tuple) else value, ensure_ascii=False)
