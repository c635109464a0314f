"""docs/CLI.md, generated from the commands: every option as in `--help`, and what scripts need to know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from topics.cli.command_table import TABLE, root_command
from topics.cli.failure import MEANINGS

INTRODUCTION = """\
# Command line

<!-- Made by `topics page`; a test keeps it current. -->

`topics COMMAND --help` shows the same in a terminal.

- **Server**: `--url`, or `TOPICS_URL`, or the one on this machine at `TOPICS_PORT` (4000 if that is not set). Several,
  separated by commas, are a primary and its standbys; commands go to the one that is primary. The key is `--key` or
  better `TOPICS_API_KEY`: every user of a machine can read the arguments of its processes. The `group` commands take
  `--token` (`TOPICS_TOKEN`), or `--user` with `TOPICS_PASSWORD`.
- **Output**: data goes to standard output, as NDJSON (one JSON value per line) or as text; everything else goes
  to standard error. Long work shows a bar on a terminal, and a line every few seconds elsewhere.
- **Errors** are one line on standard error, with a way out.
- **Times** are spans like `500ms`, `90s`, `10m`, `2h`, `7d` (a plain number is milliseconds), or moments: a span ago,
  an ISO date and time, milliseconds since 1970. **Sizes** are bytes, or carry `KiB`, `MiB`, `GiB`.
- **Seqs** in `--from` are cursors as everywhere in the API: reading starts after them, and 0 is the beginning.

## Exit codes

| code | meaning |
| --- | --- |
"""

PLUGINS = """\
## Commands of other packages

An installed package may add commands, by the entry point group `topics.commands`:

```toml
[project.entry-points."topics.commands"]
spark = "topics_spark.cli:app"
```

The name becomes a command; the value is a `typer.Typer`, or a function with typer's parameters. It is imported only
when that command is used; `topics --help` lists the names.
"""


def print_page() -> None:
    """Print docs/CLI.md."""
    print(markdown(), end="")


def markdown() -> str:
    """The whole of docs/CLI.md."""
    lines = [INTRODUCTION.rstrip("\n")]
    lines += [f"| {code} | {_cell(meaning)} |" for code, meaning in MEANINGS.items()]
    lines.append("")
    root = root_command()
    context = root.make_context("topics", [], resilient_parsing=True)
    for name, row in TABLE.items():
        if not row.hidden:
            lines += _section(root.get_command(context, name), context, name, "##")
    return "\n".join([*lines, PLUGINS])


def _section(command: Any, parent: Any, name: str, level: str) -> Iterator[str]:
    context = command.make_context(name, [], parent=parent, resilient_parsing=True)
    yield f"{level} {context.command_path}"
    yield ""
    yield from _paragraphs(command.help or "")
    subcommands: dict[str, Any] = getattr(command, "commands", {})
    if subcommands:
        for sub_name, sub in subcommands.items():
            if not sub.hidden:
                yield from _section(sub, context, sub_name, "###")
        return
    if name == "serve" or context.command_path == "topics config show":
        yield "One flag per setting, listed in [SETTINGS](SETTINGS.md), and `--config FILE`."
        yield ""
        rows = [row for row in _options(command, context) if row[0].startswith("`--origin")]
    else:
        rows = _options(command, context)
    yield "```"
    yield " ".join([context.command_path, *command.collect_usage_pieces(context)])
    yield "```"
    if rows:
        yield ""
        yield "| option | meaning |"
        yield "| --- | --- |"
        for option, shown in rows:
            yield f"| {option} | {shown} |"
    yield ""


def _paragraphs(text: str) -> Iterator[str]:
    """Help as Markdown: the first line is a summary, the rest a separate paragraph."""
    import inspect

    yield from inspect.cleandoc(text).splitlines()
    yield ""


def _options(command: Any, context: Any) -> list[tuple[str, str]]:
    """Arguments and options, except `--help` and those that every command has, which the page explains once."""
    rows: list[tuple[str, str]] = []
    for parameter in command.get_params(context):
        if parameter.name in ("help", "url", "key", "token", "user"):
            continue
        record = parameter.get_help_record(context)
        if record is not None:
            option, shown = record
            rows.append((f"`{_cell(option)}`", _cell(shown)))
    return rows


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
