"""Rows into records: columns of an Arrow batch become the JSON of a request, a column at a time and without a loop.

data    {"a":1}   {"a":2}        one call for a column or a field of it,
tag     "x"       null           Python only where Arrow has no function
        └──────────┴─▶ [{"data":{"a":1},"tag":"x"},{"data":{"a":2}}]
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

from operator import attrgetter
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import UNSET, Raw, UnsetType
from pyspark.sql.types import StringType, StructType

from topics_spark.errors import RowRefused, SchemaError
from topics_spark.payloads.json_texts import Column, Render, joined, or_null, rendering, strung, text

# The columns of a sink; only `data` is required.
COLUMNS: Final = ("data", "topic", "tag", "node", "meta")
JSON_COLUMNS: Final = ("data", "meta")
EXCERPT_CHARS: Final = 40


class _Sent(msgspec.Struct, gc=False):
    """A record as decoded from the request."""

    data: Raw
    meta: Raw | UnsetType = UNSET


_sent = msgspec.json.Decoder(list[_Sent])
_one = msgspec.json.Decoder(Raw)
_data_of = attrgetter("data")


class RecordWriter:
    """Made once for a schema. `plain_text`: a string in `data` is text to be quoted, not JSON to be sent unchanged."""

    def __init__(self, schema: StructType, *, topic: str | None, plain_text: bool) -> None:
        names = schema.fieldNames()
        if unknown := [name for name in names if name not in COLUMNS]:
            raise SchemaError(
                f"a sink has the columns {', '.join(COLUMNS)}, not {unknown[0]!r}: put it into `data`, "
                "as in select(to_json(struct('*')).alias('data'))"
            )
        if "data" not in names:
            raise SchemaError("a sink needs a column `data`, as in select(to_json(struct('*')).alias('data'))")
        if topic is None and "topic" not in names:
            raise SchemaError("a sink needs the option `topic`, or a column `topic` that names one for each row")
        self._renders: dict[str, Render] = {}
        # Columns whose strings should be JSON already.
        self._as_it_is: list[str] = []
        for field in schema.fields:
            name, is_text = field.name, isinstance(field.dataType, StringType)
            if name not in JSON_COLUMNS and not is_text:
                raise SchemaError(f"column {name!r} must be a string, not {field.dataType.simpleString()}")
            if topic is not None and name == "topic":
                continue
            if name in JSON_COLUMNS and is_text and not (plain_text and name == "data"):
                self._as_it_is.append(name)
                self._renders[name] = _json_texts
            else:
                self._renders[name] = rendering(field.dataType, name)

    def records(self, batch: Column, start: int, stop: int) -> bytes:
        """Rows `start` to `stop`, at least one, as a JSON array of records."""
        part = batch.slice(start, stop - start)
        texts = {name: self._texts(part, name) for name in self._renders}
        data = or_null(texts.pop("data"))
        if not texts:
            body = strung(data, '},{"data":')
        else:
            others = [pc.fill_null(joined(f',"{name}":', column), text("")) for name, column in sorted(texts.items())]
            body = strung(joined(data, *others), '},{"data":')
        records = b'[{"data":%b}]' % body
        if self._as_it_is:
            self._check(records, part)
        return records

    def _texts(self, part: Column, name: str) -> Column:
        column = part.column(part.schema.get_field_index(name))
        if name == "topic" and column.null_count:
            raise RowRefused("column 'topic' is null in a row, and the option `topic` is not given")
        try:
            column.validate(full=True)
        except pa.ArrowInvalid as error:
            raise RowRefused(f"column {name!r} has text that is not UTF-8: {error}") from error
        return self._renders[name](column)

    def _check(self, records: bytes, part: Column) -> None:
        """A text that is not exactly one JSON value could add fields, or records."""
        try:
            sent = _sent.decode(records)
            if all(_lengths(sent, name) == _meant(part.column(name), name) for name in self._as_it_is):
                return
        except msgspec.DecodeError:
            pass
        for name in self._as_it_is:
            for value in part.column(name).to_pylist():
                if value is not None:
                    _check_one(value, name)


def _json_texts(column: Column) -> Column:
    return column.cast(pa.string())


def _lengths(sent: list[_Sent], name: str) -> list[int]:
    """The lengths of the decoded values; nested values are always shorter."""
    if name == "data":
        return list(map(len, map(_data_of, sent)))
    return [0 if record.meta is UNSET else len(record.meta) for record in sent]


def _meant(column: Column, name: str) -> list[int]:
    return pc.fill_null(pc.binary_length(column), pa.scalar(len("null") if name == "data" else 0)).to_pylist()


def _check_one(value: str, name: str) -> None:
    try:
        _one.decode(value)
    except msgspec.DecodeError as error:
        excerpt = value if len(value) <= EXCERPT_CHARS else f"{value[:EXCERPT_CHARS]}…"
        way_out = "; for plain text set the option `stringData` to text" if name == "data" else ""
        raise RowRefused(f"column {name!r} has {excerpt!r}, which is not valid JSON: {error}{way_out}") from error
