"""Rows of Arrow as Spark writes them: JSON, CSV, the cells of a table, or Parquet."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BooleanType,
    DataType,
    DoubleType,
    NumericType,
    StringType,
    StructType,
    TimestampType,
)

from topics.cli.output import say, write_out
from topics_spark.sql.formats import (
    TABLE_ROWS_MAX,
    Form,
    Write,
    check_distinct,
    csv_line,
    distinct,
    table,
    written_aside,
)

Batch = Any
Text = Callable[[Any], str]
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
# Java writes larger and smaller numbers with an exponent.
PLAIN_FROM, PLAIN_TO = 1e-3, 1e7
# In CSV these need quotes; # would begin a comment where a line begins.
_QUOTED: Final = re.compile(r'[",\r\n]')
_QUOTED_FIRST: Final = re.compile(r'^#|[",\r\n]')
_CONTROL: Final = re.compile(r"\\u00[0-9a-f]{2}")


class Rows:
    """The result of a query: columns under Spark's names and types, and batches that have exactly these."""

    def __init__(self, names: Sequence[str], schema: StructType, batches: Iterable[Batch]) -> None:
        self.names = names
        self.schema = schema
        self.batches = batches

    def rows(self) -> Iterator[tuple[Any, ...]]:
        for batch in self.batches:
            yield from zip(*map(values_of, batch.columns), strict=True)


def deliver(rows: Rows, form: Form, out: Path | None) -> int:
    """Write the rows; how many there were."""
    if form == "parquet":
        return _deliver_parquet(rows, out)
    if out is None:
        return _deliver_lines(rows, form, write_out)
    with written_aside(out) as aside, aside.open("wb") as file:
        return _deliver_lines(rows, form, file.write)


def _deliver_lines(rows: Rows, form: Form, write: Write) -> int:
    kinds = [field.dataType for field in rows.schema.fields]
    match form:
        case "json":
            line = object_text(distinct(rows.names), kinds, with_nulls=True)
        case "csv":
            write(csv_line(rows.names))
            line = csv_row(kinds)
        case _:
            return _deliver_table(rows, kinds, write)
    count = 0
    found = rows.rows()
    while piece := [line(row) for row in islice(found, 2_000)]:
        write(("\n".join(piece) + "\n").encode("utf-8", "surrogatepass"))
        count += len(piece)
    return count


def _deliver_table(rows: Rows, kinds: Sequence[DataType], write: Write) -> int:
    cells = [cell_text(kind) for kind in kinds]
    found = [
        [None if value is None else cell(value) for cell, value in zip(cells, row, strict=True)]
        for row in islice(rows.rows(), TABLE_ROWS_MAX + 1)
    ]
    right = [isinstance(kind, NumericType) for kind in kinds]
    write(table(rows.names, found[:TABLE_ROWS_MAX], right).encode("utf-8", "replace"))
    if len(found) > TABLE_ROWS_MAX:
        say(f"these are the first {TABLE_ROWS_MAX} rows; -o csv, json or parquet gives all of them")
    return min(len(found), TABLE_ROWS_MAX)


def _deliver_parquet(rows: Rows, out: Path | None) -> int:
    import pyarrow.parquet as parquet

    check_distinct(rows.names)
    batches = iter(rows.batches)
    first = next(batches)
    schema = first.schema

    def write_to(place: Any) -> int:
        count = 0
        with parquet.ParquetWriter(place, schema) as writer:
            for batch in chain([first], batches):
                if batch.num_rows:
                    writer.write_batch(batch)
                count += batch.num_rows
        return count

    if out is not None:
        with written_aside(out) as aside:
            return write_to(aside)
    whole = pa.BufferOutputStream()
    count = write_to(whole)
    sys.stdout.buffer.write(whole.getvalue())
    return count


def values_of(column: Any) -> list[Any]:
    """Times as microseconds since 1970: some of them are too late for a datetime of Python's."""
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    return column.to_pylist()


# --- values ---


def json_text(kind: DataType, *, with_nulls: bool) -> Text:
    """As Spark's `to_json`; `with_nulls`: fields that are NULL are written."""
    match kind:
        case StructType():
            fields = [field.dataType for field in kind.fields]
            whole = object_text(kind.names, fields, with_nulls=with_nulls)
            names = kind.names
            return lambda value: whole([value[name] for name in names])
        case ArrayType():
            element = json_text(kind.elementType, with_nulls=with_nulls)
            return lambda value: f"[{','.join('null' if each is None else element(each) for each in value)}]"
        case StringType():
            return json_string
        case BooleanType():
            return boolean_text
        case DoubleType():
            return lambda value: double_text(value) if math.isfinite(value) else f'"{double_text(value)}"'
        case TimestampType():
            return lambda value: f'"{time_text(value)}"'
        case _:
            return str


def object_text(names: Sequence[str], kinds: Sequence[DataType], *, with_nulls: bool) -> Text:
    """An object of values in the order of its names."""
    fields = [
        (f"{json_string(name)}:", json_text(kind, with_nulls=with_nulls))
        for name, kind in zip(names, kinds, strict=True)
    ]

    def whole(values: Sequence[Any]) -> str:
        found: list[str] = []
        for (head, text), value in zip(fields, values, strict=True):
            if value is not None:
                found.append(head + text(value))
            elif with_nulls:
                found.append(f"{head}null")
        return f"{{{','.join(found)}}}"

    return whole


def json_string(text: str) -> str:
    written = json.dumps(text, ensure_ascii=False)
    return _CONTROL.sub(lambda found: "\\u" + found[0][2:].upper(), written) if "\\u" in written else written


def csv_row(kinds: Sequence[DataType]) -> Text:
    cells = [csv_cell(kind, is_first=place == 0) for place, kind in enumerate(kinds)]
    return lambda row: ",".join([cell(value) for cell, value in zip(cells, row, strict=True)])


def csv_cell(kind: DataType, *, is_first: bool) -> Text:
    """As Spark's `to_csv`: NULL is empty, an empty text is quoted."""
    text = time_text if isinstance(kind, TimestampType) else cell_text(kind)
    quoted = _QUOTED_FIRST if is_first else _QUOTED

    def cell(value: Any) -> str:
        if value is None:
            return ""
        found = text(value)
        if not found:
            return '""'
        return '"' + found.replace('"', '""') + '"' if quoted.search(found) else found

    return cell


def cell_text(kind: DataType) -> Text:
    """As Spark casts to text; objects and lists are JSON."""
    match kind:
        case StringType():
            return str
        case BooleanType():
            return boolean_text
        case DoubleType():
            return double_text
        case TimestampType():
            return moment_text
        case StructType() | ArrayType():
            return json_text(kind, with_nulls=False)
        case _:
            return str


def boolean_text(value: bool) -> str:
    return "true" if value else "false"


def double_text(value: float) -> str:
    """The notation of Java; of the digits that stand for the same number, the shortest."""
    if not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if value == 0 or PLAIN_FROM <= abs(value) < PLAIN_TO:
        return repr(value)
    sign, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int)
    whole, rest = digits[0], "".join(map(str, digits[1:])) or "0"
    return f"{'-' if sign else ''}{whole}.{rest}E{exponent + len(digits) - 1}"


def moment_of(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=micros)


def time_text(micros: int) -> str:
    """As in JSON and CSV: to the millisecond."""
    return f"{moment_of(micros).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def moment_text(micros: int) -> str:
    """As a cast to text: with the digits that it has."""
    at = moment_of(micros).replace(tzinfo=None)
    text = at.isoformat(sep=" ", timespec="microseconds")
    return text.rstrip("0").rstrip(".") if micros % 1_000_000 else text[:-7]
