"""The table of commands: help is printed from it without loading any command; a command is loaded when it is used."""

from __future__ import annotations

import typing
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Final, NamedTuple

import typer
from typer.core import TyperGroup
from typer.main import get_command

import topics


class Row(NamedTuple):
    """One command: where its code is, and the line that `topics --help` shows for it."""

    module: str
    attribute: str
    help: str
    hidden: bool = False


TABLE: Final[typing.Mapping[str, Row]] = {
    "serve": Row("serve", "serve", "Serve the HTTP API until SIGTERM or SIGINT."),
    "config": Row("config", "app", "Show the settings."),
    "topic": Row("topic", "app", "List, show, create, change and remove topics."),
    "append": Row("records.append", "append", "Append records: arguments, lines of files, or lines of standard input."),
    "tail": Row("records.tail", "tail", "Print the end of one or more topics, and with -f new records."),
    "export": Row(
        "records.export", "export", "Write a topic as NDJSON, to standard output or to a file that can be resumed."
    ),
    "import": Row(
        "records.importing", "import_", "Append what `topics export` wrote; run again, it resumes or has nothing to do."
    ),
    "queue": Row("queue", "app", "Inspect queues, claim jobs, run them, redrive dead letters."),
    "worker": Row("jobs.worker", "worker", "Run the workers of an app of topics.workers."),
    "router": Row("router", "app", "List, create, remove and draw routers."),
    "schedule": Row("jobs.schedule", "app", "List, create, remove and run schedules."),
    "sqs": Row("jobs.sqs", "app", "Use queues by SQS clients."),
    "webhook": Row("jobs.webhook", "app", "Deliver topics to URLs, signed and with retries."),
    "group": Row("group", "app", "Inspect consumer groups, and reset their offsets."),
    "txn": Row("txn", "app", "List transactions that are not finished, and abort them."),
    "server": Row("server", "app", "Look at a running server: what needs attention, settings, history."),
    "doctor": Row(
        "operations.doctor", "doctor", "Check whether this machine and these settings suit a server, and what to do."
    ),
    "top": Row("operations.top", "top", "Show a running server live: rates, topics, queues, lags, slow calls."),
    "compact": Row("operations.compact", "compact", "Free disk space now that retention, deletes and acks have left."),
    "promote": Row("operations.promote", "promote", "Make a standby the primary now."),
    "bench": Row("bench", "bench", "Measure a server with a quick load on a topic of its own."),
    "backup": Row("backup", "backup", "Copy a running server into one file, at one point in time, checked."),
    "restore": Row("backup", "restore", "Make a data directory from a backup, and verify it."),
    "verify": Row("upkeep", "verify", "Read a data directory that no server uses, and report damage."),
    "repair": Row(
        "upkeep", "repair", "Make a damaged data directory usable; lost records become a gap that readers see."
    ),
    "hash": Row("password", "hash_a_password", "Print the hash of a password, for the setting `users`."),
    "completion": Row(
        "completion", "completion", "Print the script that lets a shell complete commands, options and topics."
    ),
    "page": Row("page", "print_page", "Print docs/CLI.md.", hidden=True),
}


# The commands of our own other package, by package and name: help is printed without loading it.
SPARK_HELP: Final[typing.Mapping[tuple[str, str], str]] = {
    ("topics_spark", "pipelines"): "Define pipelines, and run them on Spark.",
    ("topics_spark", "spark"): "Open a Python prompt with Spark, or submit a job, with topics as tables.",
    ("topics_spark", "sql"): "Query topics and archives in SQL.",
}

# Other programs' names of commands, and ours.
OTHER_WORDS: Final[typing.Mapping[str, str]] = {
    "show": "info",
    "describe": "info",
    "list": "ls",
    "delete": "rm",
    "remove": "rm",
    "add": "create",
    "new": "create",
    "update": "edit",
}


class LazyGroup(TyperGroup):
    """The commands of the table and of plug-ins, each loaded only when it is used."""

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - the signature is typer's
        from topics.cli.plugins import plugin_names

        return [*TABLE, *(name for name in plugin_names() if name not in TABLE)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002
        row = TABLE.get(cmd_name)
        if row is not None:
            found = getattr(import_module(f"topics.cli.commands.{row.module}"), row.attribute)
            return command_of(found, cmd_name, row.help, hidden=row.hidden)
        from topics.cli.plugins import load_plugin

        found = load_plugin(cmd_name)
        return None if found is None else command_of(found, cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        from topics.cli.plugins import plugin_names

        rows = [(name, row.help) for name, row in TABLE.items() if not row.hidden]
        with formatter.section("Commands"):
            formatter.write_dl(rows)
        found = {name: package for name, package in plugin_names().items() if name not in TABLE}
        plugins = [(name, SPARK_HELP.get((package, name), f"From {package}.")) for name, package in found.items()]
        if plugins:
            with formatter.section("Commands of other packages"):
                formatter.write_dl(plugins)

    def shell_complete(self, ctx: Any, incomplete: str) -> list[Any]:
        from typer.core import CompletionItem  # pyright: ignore[reportPrivateImportUsage]

        from topics.cli.plugins import plugin_names

        known = {name: row.help for name, row in TABLE.items() if not row.hidden} | plugin_names()
        found = [CompletionItem(name, help=shown) for name, shown in known.items() if name.startswith(incomplete)]
        return [*found, *super(TyperGroup, self).shell_complete(ctx, incomplete)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """A mistyped name is answered with a similar one; no command is loaded for that."""
        _check_name(ctx, args[0], self.list_commands(ctx))
        return super().resolve_command(ctx, args)


def _check_name(ctx: Any, name: str, known: list[str]) -> None:
    import difflib

    if name in known or name.startswith("-"):
        return
    close = [OTHER_WORDS[name]] if OTHER_WORDS.get(name) in known else difflib.get_close_matches(name, known, n=1)
    ctx.fail(f"no such command: {name}" + (f", did you mean {close[0]}?" if close else ""))


def _resolve_in(group: Any, ctx: Any, args: list[str]) -> Any:
    _check_name(ctx, args[0], list(group.commands))
    return TyperGroup.resolve_command(group, ctx, args)


def command_of(found: Any, name: str, short_help: str | None = None, *, hidden: bool = False) -> Any:
    """A function with typer's parameters, or a group of them, as a command."""
    if isinstance(found, typer.Typer):
        group: Any = get_command(found)
        group.name = name
        group.resolve_command = partial(_resolve_in, group)
        for command in group.commands.values():
            _use_plain_usage(command)
        return group
    single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
    single.command(name, short_help=short_help, hidden=hidden)(found)
    command = get_command(single)
    _use_plain_usage(command)
    return command


def _use_plain_usage(command: Any) -> None:
    """Required arguments in usage lines, as in every manual: `QUEUE SEQ...`; typer puts them in braces."""
    for argument in command.params:
        if argument.param_type_name == "argument":
            usage = argument.get_usage_pieces(None)[0].replace("{", "").replace("}", "")
            argument.get_usage_pieces = partial(_pieces, usage)


def _pieces(usage: str, ctx: Any) -> list[str]:  # noqa: ARG001 - the signature is typer's
    return [usage]


# Plain help: loading rich would double the time of `--help`.
app = typer.Typer(
    cls=LazyGroup,
    help="A persistent event engine: append to topics, and read them from a cursor.",
    epilog="A command that talks to a server takes --url and --key, or TOPICS_URL and TOPICS_API_KEY.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False) -> None:
    if version:
        from topics.model.variant import VARIANT

        print(f"topics {topics.__version__} ({VARIANT})")
        raise typer.Exit


def root_command() -> Any:
    return get_command(app)
