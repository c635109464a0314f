"""Values of Spark SQL for DuckDB: each by its name and type, in a text that computes the same, or refused."""
# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeAlias

from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampType,
)
from sqlglot import exp

# sqlglot's trees have an attribute for anything.
Tree: TypeAlias = Any

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
# The name of the relation in the text for DuckDB.
ROWS: Final = "topic_rows"
INT, LONG, DOUBLE, STRING = IntegerType(), LongType(), DoubleType(), StringType()
BOOLEAN, TIMESTAMP = BooleanType(), TimestampType()
# Types whose values compare, sort and print alike; others pass through from the record to the row at most.
SIMPLE: Final = (INT, LONG, DOUBLE, STRING, BOOLEAN, TIMESTAMP)
LEAVES: Final = (LONG, DOUBLE, STRING, BOOLEAN)
WHOLE: Final = (INT, LONG)
NUMBERS: Final = (INT, LONG, DOUBLE)
COMPARED: Final = {exp.EQ: "=", exp.NEQ: "<>", exp.LT: "<", exp.LTE: "<=", exp.GT: ">", exp.GTE: ">="}
COMPUTED: Final = {exp.Add: "+", exp.Sub: "-", exp.Mul: "*"}
UNITS: Final = frozenset({"SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "YEAR"})
MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d([ T]\d\d:\d\d:\d\d(\.\d{1,6})?Z?)?")
PLAIN_NAME: Final = re.compile(r"\w+", re.ASCII)


class NotAlike(Exception):
    """A question that DuckDB may answer differently from Spark, or not at all."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


class Expression(NamedTuple):
    """DuckDB's text for a value, with Spark's type; `literal`: it adapts to the type that it is compared with."""

    sql: str
    type: DataType
    literal: bool = False
    aggregate: bool = False


def arguments(node: Tree, *allowed: str) -> dict[str, Any]:
    """The arguments of a node that are given; one that is not allowed is refused, so that nothing is overlooked."""
    if not isinstance(node, exp.Expr):
        raise NotAlike("it has a part that is not known here")
    given = {name.rstrip("_"): value for name, value in node.args.items() if value not in (None, False, [])}
    if unknown := sorted(given.keys() - set(allowed)):
        raise NotAlike(f"{kind_of(node)} with {unknown[0]}")
    return given


def kind_of(node: Tree) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", type(node).__name__).lower()


def name_of(node: Tree) -> str:
    if type(node) is not exp.Identifier:
        raise NotAlike(f"{kind_of(node)} instead of a name")
    return node.this


def passes(kind: DataType) -> bool:
    """Whether values go through DuckDB unchanged."""
    match kind:
        case StructType():
            return all(kind_passes_within(field.dataType) for field in kind.fields)
        case ArrayType():
            return kind_passes_within(kind.elementType)
        case _:
            return kind in SIMPLE


def kind_passes_within(kind: DataType) -> bool:
    return kind in LEAVES or (isinstance(kind, StructType | ArrayType) and passes(kind))


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def text_literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def cast(value: Expression, kind: DataType) -> str:
    """Numbers only: what they are cast to has room for them."""
    return value.sql if value.type == kind else f"CAST({value.sql} AS {'BIGINT' if kind == LONG else 'DOUBLE'})"


def same_type(values: Sequence[Expression], what: str) -> tuple[list[str], DataType]:
    """The values, in the one type that Spark compares or merges them in."""
    kinds = {value.type for value in values}
    if not kinds <= set(SIMPLE):
        raise NotAlike(f"{what} of a type that is not simple")
    if len(kinds) == 1:
        return [value.sql for value in values], values[0].type
    if kinds <= set(NUMBERS):
        kind = DOUBLE if DOUBLE in kinds else LONG
        return [cast(value, kind) for value in values], kind
    if kinds == {TIMESTAMP, STRING} and all(value.literal for value in values if value.type == STRING):
        return [moment(value.sql[1:-1]) if value.type == STRING else value.sql for value in values], TIMESTAMP
    raise NotAlike(f"{what} of different types")


def moment(text: str) -> str:
    """A time in UTC, written in one of the ways that both read alike."""
    if not MOMENT.fullmatch(text):
        raise NotAlike(f"a time that is written as {text!r}")
    try:
        at = datetime.fromisoformat(text.removesuffix("Z"))
    except ValueError:
        raise NotAlike(f"a time that does not exist: {text!r}") from None
    return f"TIMESTAMP '{at.isoformat(sep=' ')}'"


def check_key(value: Expression, what: str) -> None:
    """Spark takes 0.0 and -0.0 for the same key."""
    if value.type not in SIMPLE or value.type == DOUBLE:
        raise NotAlike(f"{what} of the type {value.type.simpleString()}")


class Values:
    """The values that a query can make of the columns of one relation."""

    def __init__(self, alias: str, columns: Mapping[str, Expression]) -> None:
        self._alias = alias
        self.by_name = {name.lower(): value for name, value in columns.items()}
        if len(self.by_name) != len(columns) or alias.lower() in self.by_name:
            raise NotAlike("names of columns are not unique")
        # Columns of the result by name, for clauses that see them; None: there are several of that name.
        self.results: dict[str, Expression | None] = {}
        self._inside_aggregate = False
        self._values: dict[type, Callable[[Tree], Expression]] = {
            exp.Column: self._column,
            exp.Literal: self._literal,
            exp.Cast: self._moment,
            exp.Boolean: lambda node: Expression("true" if node.this else "false", BOOLEAN),
            exp.Neg: self._negated,
            exp.Paren: lambda node: self._inner(arguments(node, "this")["this"]),
            exp.And: lambda node: self._logical(node, "AND"),
            exp.Or: lambda node: self._logical(node, "OR"),
            exp.Not: self._not,
            exp.Is: self._is_null,
            exp.In: self._in,
            exp.Between: self._between,
            exp.Like: self._like,
            exp.Case: self._case,
            exp.Coalesce: self._coalesce,
            exp.Length: self._length,
            exp.TimestampTrunc: self._truncated,
            exp.Count: self._count,
            exp.Sum: self._sum,
            exp.Avg: self._average,
            exp.Min: lambda node: self._extreme(node, "min"),
            exp.Max: lambda node: self._extreme(node, "max"),
            exp.Filter: self._filtered,
        }

    def value(self, node: Tree) -> Expression:
        if (kind := type(node)) in COMPARED:
            return self._compared(node, COMPARED[kind])
        if kind in COMPUTED or kind is exp.Div:
            return self._computed(node)
        if (translate := self._values.get(kind)) is None:
            raise NotAlike(kind_of(node))
        return translate(node)

    def _inner(self, node: Tree) -> Expression:
        value = self.value(node)
        return value if value.literal else value._replace(sql=f"({value.sql})")

    def _boolean(self, node: Tree) -> Expression:
        value = self.value(node)
        if value.type != BOOLEAN:
            raise NotAlike(f"a condition of the type {value.type.simpleString()}")
        return value

    def parts(self, node: Tree) -> list[str]:
        """The names of a column from the outer to the inner one, without that of the relation."""
        given = arguments(node, "this", "table", "db", "catalog")
        parts = [name_of(given[part]) for part in ("catalog", "db", "table", "this") if part in given]
        return parts[1:] if len(parts) > 1 and parts[0].lower() == self._alias.lower() else parts

    def _column(self, node: Tree) -> Expression:
        first, *inner = self.parts(node)
        value = self.by_name.get(first.lower())
        if first.lower() in self.results and not self._inside_aggregate:
            result = self.results[first.lower()]
            if result is None or (value is not None and value != result):
                raise NotAlike(f"{first} is the name of several columns")
            value = result
        if value is None:
            raise NotAlike(f"there is no column {first}")
        for name in inner:
            fields = value.type.fields if isinstance(value.type, StructType) else []
            found = [field for field in fields if field.name.lower() == name.lower()]
            if len(found) != 1:
                raise NotAlike(f"there is no field {name}, or more than one")
            value = Expression(f"struct_extract({value.sql}, {text_literal(found[0].name)})", found[0].dataType)
        if not passes(value.type):
            raise NotAlike(f"a column of the type {value.type.simpleString()}")
        return value

    @staticmethod
    def _literal(node: Tree) -> Expression:
        text = node.this
        if node.is_string:
            # Quotes within quotes have a history in Spark.
            if "'" in text or '"' in text:
                raise NotAlike("a text with quotes")
            return Expression(text_literal(text), STRING, literal=True)
        if not text.isdecimal() or int(text) > LONG_MAX:
            raise NotAlike(f"the number {text}, whose type is a decimal or not known here")
        kind = INT if int(text) <= INT_MAX else LONG
        return Expression(f"CAST({int(text)} AS {'INTEGER' if kind == INT else 'BIGINT'})", kind, literal=True)

    @staticmethod
    def _moment(node: Tree) -> Expression:
        """TIMESTAMP '…'."""
        given = arguments(node, "this", "to")
        text = given["this"]
        if type(text) is not exp.Literal or not text.is_string or given["to"] != exp.DataType.build("timestamptz"):
            raise NotAlike("a cast")
        return Expression(moment(text.this), TIMESTAMP, literal=True)

    def _number(self, node: Tree, beside: DataType | None) -> Expression:
        """A value; beside a double, a literal like 1.5 is one as well."""
        sign, inner = "", node
        if type(node) is exp.Neg:
            sign, inner = "-", arguments(node, "this")["this"]
        if type(inner) is exp.Literal and not inner.is_string and re.fullmatch(r"\d+\.\d+", inner.this):
            if beside != DOUBLE or len(inner.this) > len("1234567.12345678"):
                raise NotAlike(f"the decimal {inner.this} beside something other than a double")
            return Expression(f"CAST('{sign}{inner.this}' AS DOUBLE)", DOUBLE, literal=True)
        return self.value(node)

    def _both(self, node: Tree) -> tuple[Expression, Expression]:
        given = arguments(node, "this", "expression", "typed", "safe")
        left, right = given["this"], given["expression"]
        if self._is_decimal(left):
            second = self.value(right)
            return self._number(left, second.type), second
        first = self.value(left)
        return first, self._number(right, first.type)

    @staticmethod
    def _is_decimal(node: Tree) -> bool:
        inner = node.this if type(node) is exp.Neg else node
        return type(inner) is exp.Literal and not inner.is_string and "." in inner.this

    def _compared(self, node: Tree, sign: str) -> Expression:
        first, second = self._both(node)
        (left, right), _ = same_type((first, second), "a comparison")
        return Expression(f"({left} {sign} {right})", BOOLEAN, aggregate=first.aggregate or second.aggregate)

    def _computed(self, node: Tree) -> Expression:
        first, second = self._both(node)
        if not {first.type, second.type} <= set(NUMBERS) or {first.type, second.type} == {INT}:
            raise NotAlike(f"{kind_of(node)} of something other than long numbers and doubles")
        aggregate = first.aggregate or second.aggregate
        if type(node) is exp.Div:
            if not second.literal or not any(digit in second.sql for digit in "123456789"):
                raise NotAlike("a division by something other than a number")
            return Expression(f"({cast(first, DOUBLE)} / {cast(second, DOUBLE)})", DOUBLE, aggregate=aggregate)
        (left, right), kind = same_type((first, second), kind_of(node))
        return Expression(f"({left} {COMPUTED[type(node)]} {right})", kind, aggregate=aggregate)

    def _negated(self, node: Tree) -> Expression:
        value = self.value(arguments(node, "this")["this"])
        if value.type not in NUMBERS:
            raise NotAlike("a minus before something other than a number")
        return value._replace(sql=f"(-{value.sql})")

    def _logical(self, node: Tree, word: str) -> Expression:
        given = arguments(node, "this", "expression")
        first, second = self._boolean(given["this"]), self._boolean(given["expression"])
        return Expression(f"({first.sql} {word} {second.sql})", BOOLEAN, aggregate=first.aggregate or second.aggregate)

    def _not(self, node: Tree) -> Expression:
        value = self._boolean(arguments(node, "this")["this"])
        return value._replace(sql=f"(NOT {value.sql})")

    def _is_null(self, node: Tree) -> Expression:
        given = arguments(node, "this", "expression")
        if type(given["expression"]) is not exp.Null:
            raise NotAlike("IS with something other than NULL")
        value = self.value(given["this"])
        return Expression(f"({value.sql} IS NULL)", BOOLEAN, aggregate=value.aggregate)

    def _in(self, node: Tree) -> Expression:
        given = arguments(node, "this", "expressions")
        value = self.value(given["this"])
        choices = [self._number(each, value.type) for each in given.get("expressions", [])]
        if not choices or not all(choice.literal for choice in choices):
            raise NotAlike("IN with something other than constants")
        (left, *right), _ = same_type((value, *choices), "IN")
        return Expression(f"({left} IN ({', '.join(right)}))", BOOLEAN, aggregate=value.aggregate)

    def _between(self, node: Tree) -> Expression:
        given = arguments(node, "this", "low", "high")
        value = self.value(given["this"])
        bounds = [self._number(given[name], value.type) for name in ("low", "high")]
        if not all(bound.literal for bound in bounds):
            raise NotAlike("BETWEEN with something other than constants")
        (left, low, high), _ = same_type((value, *bounds), "BETWEEN")
        return Expression(f"({left} BETWEEN {low} AND {high})", BOOLEAN, aggregate=value.aggregate)

    def _like(self, node: Tree) -> Expression:
        given = arguments(node, "this", "expression")
        value, pattern = self.value(given["this"]), self.value(given["expression"])
        if (value.type, pattern.type, pattern.literal) != (STRING, STRING, True):
            raise NotAlike("LIKE of something other than a text and a constant")
        return Expression(f"({value.sql} LIKE {pattern.sql})", BOOLEAN, aggregate=value.aggregate)

    def condition(self, node: Tree, *, aggregates: bool) -> Expression:
        value = self._boolean(arguments(node, "this")["this"])
        if value.aggregate and not aggregates:
            raise NotAlike("WHERE of an aggregate")
        return value

    # --- functions ---

    def _case(self, node: Tree) -> Expression:
        given = arguments(node, "ifs", "default")
        cases = [arguments(each, "this", "true") for each in given["ifs"]]
        conditions = [self._boolean(each["this"]) for each in cases]
        results = [self.value(each["true"]) for each in cases]
        if "default" in given:
            results.append(self.value(given["default"]))
        if len({each.type for each in results}) > 1:
            raise NotAlike("CASE with results of different types")
        whens = " ".join(
            f"WHEN {condition.sql} THEN {result.sql}" for condition, result in zip(conditions, results, strict=False)
        )
        default = f" ELSE {results[-1].sql}" if "default" in given else ""
        aggregate = any(each.aggregate for each in (*conditions, *results))
        return Expression(f"(CASE {whens}{default} END)", results[0].type, aggregate=aggregate)

    def _coalesce(self, node: Tree) -> Expression:
        given = arguments(node, "this", "expressions")
        values = [self.value(each) for each in (given["this"], *given.get("expressions", []))]
        if len({each.type for each in values}) > 1 or values[0].type not in SIMPLE:
            raise NotAlike("coalesce of different types")
        sql = f"coalesce({', '.join(each.sql for each in values)})"
        return Expression(sql, values[0].type, aggregate=any(each.aggregate for each in values))

    def _length(self, node: Tree) -> Expression:
        value = self.value(arguments(node, "this")["this"])
        if value.type != STRING:
            raise NotAlike("length of something other than a text")
        return Expression(f"CAST(length({value.sql}) AS INTEGER)", INT, aggregate=value.aggregate)

    def _truncated(self, node: Tree) -> Expression:
        given = arguments(node, "this", "unit")
        value, unit = self.value(given["this"]), given.get("unit")
        if value.type != TIMESTAMP or type(unit) is not exp.Var or unit.this.upper() not in UNITS:
            raise NotAlike("date_trunc of something other than a time, or to a unit that is not known here")
        return Expression(f"date_trunc('{unit.this.lower()}', {value.sql})", TIMESTAMP, aggregate=value.aggregate)

    def _argument(self, node: Tree, *allowed: str) -> Expression:
        """What an aggregate is over."""
        if self._inside_aggregate:
            raise NotAlike("an aggregate of an aggregate")
        self._inside_aggregate = True
        value = self.value(arguments(node, "this", *allowed)["this"])
        self._inside_aggregate = False
        if value.type not in SIMPLE:
            raise NotAlike(f"an aggregate of the type {value.type.simpleString()}")
        return value

    def _count(self, node: Tree) -> Expression:
        what = arguments(node, "this", "big_int")["this"]
        if type(what) is exp.Star:
            arguments(what)
            if self._inside_aggregate:
                raise NotAlike("an aggregate of an aggregate")
            return Expression("count(*)", LONG, aggregate=True)
        if type(what) is exp.Distinct:
            (inner,) = arguments(what, "expressions")["expressions"][:2] or (None,)
            value = self._argument(exp.Count(this=inner))
            check_key(value, "count(DISTINCT)")
            return Expression(f"count(DISTINCT {value.sql})", LONG, aggregate=True)
        return Expression(f"count({self._argument(node, 'big_int').sql})", LONG, aggregate=True)

    def _sum(self, node: Tree) -> Expression:
        value = self._argument(node)
        if value.type not in NUMBERS:
            raise NotAlike("sum of something other than numbers")
        if value.type == DOUBLE:
            return Expression(f"sum({value.sql})", DOUBLE, aggregate=True)
        return Expression(f"CAST(sum({value.sql}) AS BIGINT)", LONG, aggregate=True)

    def _average(self, node: Tree) -> Expression:
        value = self._argument(node)
        if value.type not in NUMBERS:
            raise NotAlike("avg of something other than numbers")
        return Expression(f"avg({cast(value, DOUBLE)})", DOUBLE, aggregate=True)

    def _extreme(self, node: Tree, name: str) -> Expression:
        value = self._argument(node)
        return Expression(f"{name}({value.sql})", value.type, aggregate=True)

    def _filtered(self, node: Tree) -> Expression:
        given = arguments(node, "this", "expression")
        value = self.value(given["this"])
        if type(given["this"]) not in {exp.Count, exp.Avg, exp.Min, exp.Max}:
            raise NotAlike("FILTER of something other than count, avg, min and max")
        condition = self.condition(given["expression"], aggregates=False)
        return value._replace(sql=f"{value.sql} FILTER (WHERE {condition.sql})")
