"""Rows of a topic: their columns and types, and Arrow batches made from rendered records."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import DataType, LongType, StringType, StructType, TimestampType

from topics_spark.errors import MalformedPayload, SchemaError
from topics_spark.options import SourceOptions
from topics_spark.payloads.arrow_types import arrow_schema
from topics_spark.payloads.decoding import PayloadParser

# Arrow has no type stubs.
Column: TypeAlias = Any
Batch: TypeAlias = Any

TYPES: Final[Mapping[str, DataType]] = {
    "topic": StringType(),
    "seq": LongType(),
    "ts": TimestampType(),
    "node": StringType(),
    "tag": StringType(),
    "data": StringType(),
    "meta": StringType(),
}


def row_ddl(options: SourceOptions, payload: str | None) -> str:
    """The schema of the rows as DDL, which only Spark's own parser can read; `payload` is the DDL of `data`."""
    return ", ".join(
        f"data {payload}" if name == "data" and payload is not None else f"`{name}` {row_type(name).simpleString()}"
        for name in options.columns
    )


def row_type(name: str, payload: DataType | None = None) -> DataType:
    """The type of a column; a column that is not in the table has corrupt payloads."""
    return payload if name == "data" and payload is not None else TYPES.get(name, StringType())


def columns_apart(fields: Sequence[str], taken: Iterable[str]) -> list[str]:
    """The fields of a payload that can be columns: those whose names are unique, whatever their case."""
    uses = Counter(name.lower() for name in (*fields, *taken))
    return [name for name in fields if uses[name.lower()] == 1]


class Records(NamedTuple):
    """Columns of `rows` records of one topic."""

    columns: Mapping[str, Column]
    rows: int


# What records provide; a row's topic is known before.
READ: Final = frozenset(TYPES) - {"topic"}


class RowBuilder:
    """Turns columns of records into batches with exactly the schema that Spark expects."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._names = schema.fieldNames()
        self._corrupt = options.corrupt_column
        self._mode = options.mode
        self._tag_prefix = options.tag_prefix
        self._parser: PayloadParser | None = None
        check_rows(schema, options)
        if "data" in self._names and isinstance(payload := schema["data"].dataType, StructType):
            self._parser = PayloadParser(payload)
        # Spark returns a schema from DDL with all fields nullable, as Arrow batches must be.
        self.schema: pa.Schema = arrow_schema(schema)

    @property
    def wants(self) -> frozenset[str]:
        """The columns that have to be read."""
        wanted = set(self._names) & READ
        if self._tag_prefix is not None:
            wanted.add("tag")
        if self._corrupt in self._names or self._parser is not None:
            wanted |= {"data", "seq"}
        return frozenset(wanted)

    def batch(self, topic: str, records: Records) -> Batch:
        """`records` has the columns that `wants` names."""
        columns = dict(records.columns)
        count = records.rows
        if self._tag_prefix is not None:
            chosen = pc.fill_null(pc.starts_with(columns["tag"], self._tag_prefix), fill_value=False)
            columns = {name: column.filter(chosen) for name, column in columns.items()}
            count = len(columns["tag"])
        if self._parser is not None:
            columns, count = self._parsed(topic, columns, count)
        arrays: list[Column] = []
        for field in self.schema:
            if field.name == "topic":
                array = pa.repeat(pa.scalar(topic, pa.string()), count)
            elif field.name in columns:
                array = columns[field.name]
            else:
                array = pa.nulls(count, field.type)
            arrays.append(array if array.type == field.type else array.cast(field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def _parsed(self, topic: str, columns: dict[str, Column], count: int) -> tuple[dict[str, Column], int]:
        parser = self._parser
        assert parser is not None
        texts = columns["data"]
        data, bad = parser.parse(texts)
        if bad is None:
            return {**columns, "data": data}, count
        if self._mode == "FAILFAST":
            first = cast("int", pc.index(bad, value=True).as_py())
            raise MalformedPayload(topic, columns["seq"][first].as_py())
        columns["data"] = data
        columns[self._corrupt] = pc.if_else(bad, texts, pa.scalar(None, pa.string()))
        if self._mode == "DROPMALFORMED":
            good = pc.invert(bad)
            columns = {name: column.filter(good) for name, column in columns.items()}
            count = len(columns["data"])
        return columns, count


def check_rows(schema: StructType, options: SourceOptions) -> None:
    for field in schema.fields:
        allowed = TYPES.get(field.name)
        if field.name == options.corrupt_column and "data" in schema.fieldNames():
            allowed = StringType()
        if allowed is None:
            raise SchemaError(f"rows of a topic have no column {field.name!r}, only {', '.join(TYPES)}")
        if field.dataType != allowed and not (field.name == "data" and isinstance(field.dataType, StructType)):
            raise SchemaError(f"column {field.name!r} is {allowed.simpleString()}, not {field.dataType.simpleString()}")
