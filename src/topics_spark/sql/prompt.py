"""The prompt of `topics sql`: statements over many lines up to a semicolon, with a history, and a few commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, Protocol

from topics.cli.output import print_table, say
from topics_spark.sql.statements import is_blank, rest, statements

FIRST: Final = "topics> "
MORE: Final = "   ...> "
HISTORY_LINES_MAX: Final = 10_000
WELCOME: Final = "SQL over topics. End a query with ;  \\d lists topics, \\? helps, Ctrl-D exits."
HELP: Final = """\
  SELECT …;    a query, over any number of lines; Ctrl-C stops it
  \\d           topics and tables
  \\d NAME      the columns of one
  \\?           this
  \\q           exit, like Ctrl-D
Names with . : or - are written in backticks: SELECT * FROM `orders.eu`;"""


class Answers(Protocol):
    """What the prompt needs; it reports all errors itself and raises none."""

    def run(self, sql: str) -> bool: ...

    def list(self) -> bool: ...

    def describe(self, name: str) -> bool: ...


class Prompt:
    """Lines in, statements out."""

    def __init__(self, answers: Answers, read: Callable[[str], str] = input) -> None:
        self._answers = answers
        self._read = read
        # the typed part of an incomplete statement
        self._text = ""

    def loop(self) -> None:
        say(WELCOME)
        while True:
            try:
                line = self._read(MORE if self._text else FIRST)
            except EOFError:
                sys.stderr.write("\n")
                return
            except KeyboardInterrupt:
                # As in a shell: the typed text is dropped, and the prompt continues.
                sys.stderr.write("^C\n")
                self._text = ""
                continue
            if not self._text and line.strip().startswith("\\"):
                if not self._command(line.split()):
                    return
            else:
                self._take(line)

    def _take(self, line: str) -> None:
        self._text += f"{line}\n"
        ended = [statement.text for statement in statements(self._text) if statement.ended]
        self._text = rest(self._text)
        if is_blank(self._text):
            self._text = ""
        for sql in ended:
            self._answers.run(sql)

    def _command(self, words: list[str]) -> bool:
        """Returns whether to continue."""
        match words:
            case ["\\q"]:
                return False
            case ["\\d"]:
                self._answers.list()
            case ["\\d", name]:
                self._answers.describe(name.rstrip(";"))
            case _:
                sys.stderr.write(f"{HELP}\n")
        return True


def history_file(environ: Mapping[str, str]) -> Path:
    state = environ.get("XDG_STATE_HOME") or Path(environ.get("HOME") or "~").expanduser() / ".local" / "state"
    return Path(state) / "topics" / "sql_history"


def converse(answers: Answers, names: Callable[[], list[str]]) -> None:
    """A prompt on the terminal; its history is stored, readable only by its owner."""
    import readline

    file = history_file(os.environ)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch(mode=0o600)
        readline.read_history_file(file)
    except OSError as error:
        say(f"no history: {error}")
    readline.set_history_length(HISTORY_LINES_MAX)
    readline.set_completer_delims(" \t\n`'\"(),;")
    readline.set_completer(_completer(names))
    readline.parse_and_bind("tab: complete")
    try:
        Prompt(answers).loop()
    finally:
        try:
            readline.write_history_file(file)
        except OSError as error:
            say(f"the history was not stored: {error}")


def _completer(names: Callable[[], list[str]]) -> Callable[[str, int], str | None]:
    def complete(text: str, state: int) -> str | None:
        found = [name for name in names() if name.startswith(text)]
        return found[state] if state < len(found) else None

    return complete


def show_names(topics: list[str], tables: list[str]) -> None:
    print_table(("name", "kind"), [*((name, "topic") for name in topics), *((name, "table") for name in tables)])


def show_columns(columns: list[tuple[str, str]]) -> None:
    print_table(("column", "type"), columns)
