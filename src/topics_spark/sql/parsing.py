"""Analysis of a query before it runs: which topics and tables it names, and which of their columns."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from topics.cli.failure import CommandFailed
from topics_spark.pipelines.guard import is_of_a_query, kind_of, names_of_with, parsed, parts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Queries with |> are queries as well.
PIPES: Final = frozenset({"PipeOperator", "PipeExpression"})
# With one of these, a query may use columns that its text does not mention.
ALL_COLUMNS: Final = frozenset(
    {
        "PipeOperator",
        "Transpose",
        "Unpivot",
        "UnresolvedRegex",
        "UnresolvedStar",
        "UnresolvedStarExcept",
        "UnresolvedStarExceptOrReplace",
        "UnresolvedSubqueryColumnAliases",
    }
)
# The same, where only the text shows it: a relation that stands for all its columns.
_WHOLE: Final = re.compile(
    r"\b(natural|table)\b|(\(|\b(union|all|distinct|except|minus|intersect|as)\b)\s*from\b", re.IGNORECASE
)
_BEGINNING: Final = re.compile(r"\s*(select|with)\b", re.IGNORECASE)
_COMMENTS: Final = re.compile(r"^(\s|--[^\n]*(\n|$)|/\*.*?\*/)*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Question:
    """A query and its analysis; names are as written."""

    sql: str
    names: tuple[tuple[str, ...], ...]
    # Names defined by WITH; a topic of that name may be meant as well.
    given: frozenset[str]
    # None: it may use every column.
    words: str | None

    def mentions(self, column: str) -> bool:
        return self.words is None or column.lower() in self.words


def question(spark: SparkSession, sql: str) -> Question:
    """Refuse everything but a query. A syntax error is Spark's ParseException."""
    nodes = parsed(spark, sql)
    for node in nodes:
        if not is_of_a_query(node) and kind_of(node) not in PIPES:
            kind = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", kind_of(node)).lower()
            raise CommandFailed(f"only queries are allowed here (SELECT, WITH, VALUES, FROM), not {kind}")
    named = dict.fromkeys(
        tuple(parts(node["multipartIdentifier"])) for node in nodes if kind_of(node) == "UnresolvedRelation"
    )
    given = frozenset(name.lower() for node in nodes for name in names_of_with(node))
    return Question(sql, tuple(named), given, _words(sql, nodes))


def _words(sql: str, nodes: Iterable[dict[str, Any]]) -> str | None:
    """The text, if every column that the query uses must be mentioned in it."""
    if not begins_a_query(sql) or _WHOLE.search(sql) or any(kind_of(node) in ALL_COLUMNS for node in nodes):
        return None
    return sql.lower()


def begins_a_query(sql: str) -> bool:
    """With SELECT or WITH, after comments."""
    return _BEGINNING.match(_COMMENTS.sub("", sql, count=1)) is not None
