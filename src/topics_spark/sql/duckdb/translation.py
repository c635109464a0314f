"""Spark SQL for DuckDB: the questions over one relation whose rows are the same in both, and nothing else.

    text ─ sqlglot, as Spark's dialect ─▶ tree ─ each node by name and type, or refused ─▶ DuckDB's text, with casts

What is not in these tables is for Spark: joins, subqueries, windows, most functions, and types whose arithmetic,
comparison or rounding may differ.
"""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from pyspark.sql.types import DataType
from sqlglot import exp, parse
from sqlglot.errors import SqlglotError

from topics_spark.sql.duckdb.expressions import (
    INT_MAX,
    PLAIN_NAME,
    ROWS,
    SIMPLE,
    Expression,
    NotAlike,
    Tree,
    Values,
    arguments,
    check_key,
    kind_of,
    name_of,
    passes,
)
from topics_spark.sql.parsing import begins_a_query

SQL_CHARS_MAX: Final = 10_000


class Item(NamedTuple):
    """A column of the result."""

    name: str
    value: Expression


class Translated(NamedTuple):
    """What DuckDB runs, and the columns of its rows under Spark's names and types."""

    sql: str
    names: tuple[str, ...]
    types: tuple[DataType, ...]


class Parsed(NamedTuple):
    """A query over one relation; `relation` has one part, or two of which the first is a database."""

    select: Tree
    relation: tuple[str, ...]
    alias: str
    is_whole: bool


def parsed(sql: str) -> Parsed:
    """The tree of a query of the right shape; its expressions are not looked at yet."""
    if len(sql) > SQL_CHARS_MAX or "\\" in sql or "/*" in sql:
        raise NotAlike("it is long, or has a backslash or a comment in /* */")
    if not begins_a_query(sql):
        raise NotAlike("it does not begin with SELECT")
    try:
        trees: list[Tree] = parse(sql, read="spark")
    except (SqlglotError, RecursionError):
        raise NotAlike("its syntax is not known here") from None
    if len(trees) != 1 or type(trees[0]) is not exp.Select:
        raise NotAlike("it is not a plain SELECT")
    select = trees[0]
    given = arguments(select, "expressions", "from", "where", "group", "having", "order", "limit", "offset", "distinct")
    if "from" not in given:
        raise NotAlike("it names no topic")
    table = arguments(given["from"], "this")["this"]
    if type(table) is not exp.Table:
        raise NotAlike("it reads from something other than a topic or a table")
    where = arguments(table, "this", "db", "alias")
    parts = [name_of(where[part]) for part in ("db", "this") if part in where]
    alias = name_of(arguments(where["alias"], "this")["this"]) if "alias" in where else parts[-1]
    stars = any(type(item) is exp.Star for item in select.expressions)
    return Parsed(select, tuple(parts), alias, stars)


def translated(question: Parsed, columns: Mapping[str, Expression]) -> Translated:
    """`columns` are those of the relation, in their order; NotAlike if a part of the question is not in the tables."""
    try:
        return _Translation(question, columns).whole()
    except RecursionError:
        raise NotAlike("it is nested too deeply") from None


class _Translation:
    """One question and the names that it can use."""

    def __init__(self, question: Parsed, columns: Mapping[str, Expression]) -> None:
        self._select = question.select
        self._columns = columns
        self._values = Values(question.alias, columns)
        self._items: list[Item] = []

    def whole(self) -> Translated:
        given = {name.rstrip("_"): value for name, value in self._select.args.items() if value}
        for node in given["expressions"]:
            self._items += self._columns_of(node)
        parts = [self._select_part(given)]
        if "where" in given:
            parts.append(f"WHERE {self._values.condition(given['where'], aggregates=False).sql}")
        grouped = "group" in given or any(item.value.aggregate for item in self._items)
        if "group" in given:
            parts.append(f"GROUP BY {', '.join(self._groups(given['group']))}")
        for item in self._items:
            name = item.name.lower()
            self._values.results[name] = (
                item.value if self._values.results.get(name, item.value) == item.value else None
            )
        if "having" in given:
            if "group" not in given:
                raise NotAlike("HAVING without GROUP BY")
            parts.append(f"HAVING {self._values.condition(given['having'], aggregates=True).sql}")
        if "order" in given:
            parts.append(f"ORDER BY {', '.join(self._orders(given['order'], grouped=grouped))}")
        parts += [f"{word.upper()} {self._count_of(given[word])}" for word in ("limit", "offset") if word in given]
        return Translated(
            " ".join(parts),
            tuple(item.name for item in self._items),
            tuple(item.value.type for item in self._items),
        )

    def _select_part(self, given: Mapping[str, Any]) -> str:
        distinct = ""
        if "distinct" in given:
            arguments(given["distinct"])
            distinct = "DISTINCT "
            for item in self._items:
                check_key(item.value, "DISTINCT")
        values = ", ".join(f"{item.value.sql} AS c{place}" for place, item in enumerate(self._items))
        return f"SELECT {distinct}{values} FROM {ROWS}"

    def _columns_of(self, node: Tree) -> list[Item]:
        if type(node) is exp.Star:
            arguments(node)
            return [self._item(name, value) for name, value in self._columns.items()]
        if type(node) is exp.Alias:
            given = arguments(node, "this", "alias")
            return [self._item(name_of(given["alias"]), self._values.value(given["this"]))]
        return [self._item(self._name(node), self._values.value(node))]

    @staticmethod
    def _item(name: str, value: Expression) -> Item:
        if not passes(value.type):
            raise NotAlike(f"a column of the type {value.type.simpleString()}")
        return Item(name, value)

    def _name(self, node: Tree) -> str:
        """Spark's name for a value without AS, where it is simple."""
        match type(node):
            case exp.Column:
                return name_of(node.this)
            case exp.Count if type(node.this) is exp.Star or node.this == exp.Literal.number(1):
                return "count(1)"
            case exp.Count if type(node.this) is exp.Distinct and len(node.this.expressions) == 1:
                return f"count(DISTINCT {self._plain(node.this.expressions[0])})"
            case exp.Count | exp.Sum | exp.Avg | exp.Min | exp.Max:
                return f"{type(node).__name__.lower()}({self._plain(node.this)})"
            case _:
                raise NotAlike(f"{kind_of(node)} without a name; add AS")

    def _plain(self, node: Tree) -> str:
        """The name of a column of the relation, as Spark writes it within a function."""
        if type(node) is exp.Column and len(self._values.parts(node)) == 1 and PLAIN_NAME.fullmatch(name_of(node.this)):
            return name_of(node.this)
        raise NotAlike("a function without a name; add AS")

    def _groups(self, group: Tree) -> list[str]:
        found: list[str] = []
        for node in arguments(group, "expressions")["expressions"]:
            value = self._ordinal(node) or self._group(node)
            if value.aggregate or value.literal:
                raise NotAlike("GROUP BY of an aggregate or a constant")
            check_key(value, "GROUP BY")
            found.append(value.sql)
        return found

    def _orders(self, order: Tree, *, grouped: bool) -> list[str]:
        found: list[str] = []
        for node in arguments(order, "expressions")["expressions"]:
            given = arguments(node, "this", "desc", "nulls_first")
            value = self._ordinal(given["this"]) or self._order(given["this"])
            if value.type not in SIMPLE or value.literal:
                raise NotAlike("ORDER BY of a type that is not simple, or of a constant")
            if value.aggregate and not grouped:
                raise NotAlike("ORDER BY of an aggregate")
            direction = "DESC" if "desc" in given else "ASC"
            found.append(f"{value.sql} {direction} NULLS {'FIRST' if 'nulls_first' in given else 'LAST'}")
        return found

    def _ordinal(self, node: Tree) -> Expression | None:
        """The n-th column, by its number."""
        if type(node) is not exp.Literal:
            return None
        if node.is_string or not node.this.isdecimal() or not 1 <= int(node.this) <= len(self._items):
            raise NotAlike("a constant instead of a column")
        return self._items[int(node.this) - 1].value

    def _group(self, node: Tree) -> Expression:
        """A name is that of a column of the relation, else of the result."""
        if (
            type(node) is exp.Column
            and len(parts := self._values.parts(node)) == 1
            and parts[0].lower() not in self._values.by_name
        ):
            found = {item.value for item in self._items if item.name.lower() == parts[0].lower()}
            if len(found) == 1:
                return found.pop()
        return self._values.value(node)

    def _order(self, node: Tree) -> Expression:
        """A name is that of a column of the result, else of the relation."""
        if type(node) is exp.Column and len(parts := self._values.parts(node)) == 1:
            found = self._values.results.get(parts[0].lower())
            if found is not None:
                return found
        return self._values.value(node)

    @staticmethod
    def _count_of(node: Tree) -> int:
        number = arguments(node, "expression")["expression"]
        if type(number) is not exp.Literal or number.is_string or not number.this.isdecimal():
            raise NotAlike("LIMIT or OFFSET without a number")
        if int(number.this) > INT_MAX:
            raise NotAlike("LIMIT or OFFSET of more rows than Spark allows")
        return int(number.this)
