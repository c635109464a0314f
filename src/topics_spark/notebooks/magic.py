"""`%%topics`: a cell of SQL, and `%topics`: a line of it."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from typing import Any, NoReturn

from topics_spark.errors import ConnectorError
from topics_spark.notebooks.querying import query
from topics_spark.notebooks.results import QueryResult


class _Options(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConnectorError(f"%%topics: {message}; {self.format_usage().strip()}")


def options() -> argparse.ArgumentParser:
    parser = _Options(prog="%%topics", add_help=False)
    parser.add_argument("name", nargs="?", metavar="NAME", help="the variable that gets the result")
    parser.add_argument("--engine", choices=("auto", "spark", "duckdb"), default="auto")
    for option in ("--url", "--path", "--tables", "--since", "--until"):
        parser.add_argument(option)
    return parser


def magic_for(shell: Any) -> Callable[..., QueryResult]:
    """The magic of one shell, whose variables it can set."""

    def topics(line: str, cell: str | None = None) -> QueryResult:
        """%%topics [NAME] [--engine auto|spark|duckdb] [--since 1h] [--until …] [--url …] [--path …] [--tables …]

        The cell is a query; its result is shown, and is the variable NAME. %topics SELECT … is a query in a line.
        """
        if cell is None:
            return query(line)
        given = vars(options().parse_args(shlex.split(line)))
        name = given.pop("name")
        if name is not None and not name.isidentifier():
            raise ConnectorError(f"%%topics: {name!r} cannot be the name of a variable")
        result = query(cell, **given)
        if name is not None:
            shell.user_ns[name] = result
        return result

    return topics
