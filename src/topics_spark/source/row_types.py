"""The columns of rows and their types, without Arrow: processes that Spark starts for a moment need no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from pyspark.sql.types import DataType, LongType, StringType, StructType, TimestampType

from topics_spark.errors import SchemaError
from topics_spark.options import SourceOptions

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


def check_rows(schema: StructType, options: SourceOptions) -> None:
    for field in schema.fields:
        allowed = TYPES.get(field.name)
        if field.name == options.corrupt_column and "data" in schema.fieldNames():
            allowed = StringType()
        if allowed is None:
            raise SchemaError(f"rows of a topic have no column {field.name!r}, only {', '.join(TYPES)}")
        if field.dataType != allowed and not (field.name == "data" and isinstance(field.dataType, StructType)):
            raise SchemaError(f"column {field.name!r} is {allowed.simpleString()}, not {field.dataType.simpleString()}")
