"""Columns of a topic in a query: those of its records, and the fields of its payloads, as far as they are used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.types import DataType, StringType, StructField, StructType

from topics_spark.options import COLUMNS
from topics_spark.source.row_types import columns_apart, row_type

if TYPE_CHECKING:
    from topics_spark.sql.parsing import Question

CORRUPT: Final = "_corrupt"
# Archives have this column as well.
DAY: Final = "day"


def topic_schema(payload: StructType | None, asked: Question | None) -> tuple[StructType, list[str]]:
    """What has to be read of a topic, and the fields of `data` that are columns; None: for a query that uses all."""
    fields = [] if payload is None else columns_of(payload, asked)
    struct = [
        StructField(column, row_type(column))
        for column in COLUMNS
        if column != "data" and (asked is None or asked.mentions(column))
    ]
    if (data := _data_type(payload, fields, asked)) is not None:
        # Its position among the columns of a record.
        at = sum(COLUMNS.index(each.name) < COLUMNS.index("data") for each in struct)
        struct.insert(at, StructField("data", data))
        if payload is not None and (asked is None or asked.mentions(CORRUPT)):
            struct.append(StructField(CORRUPT, StringType()))
    return StructType(struct or [StructField("seq", row_type("seq"))]), fields


def columns_of(payload: StructType, asked: Question | None) -> list[str]:
    """The fields that are columns of their own, as far as the query uses them."""
    names = columns_apart(payload.names, (*COLUMNS, CORRUPT, DAY))
    return [name for name in names if asked is None or asked.mentions(name)]


def _data_type(payload: StructType | None, fields: list[str], asked: Question | None) -> DataType | None:
    """How payloads are read: whole, only the fields that the query uses, as text, or not at all."""
    if payload is None:
        return StringType() if asked is None or asked.mentions("data") else None
    # Whether a payload fits depends on all of its fields.
    if asked is None or asked.mentions("data") or asked.mentions(CORRUPT):
        return payload
    return StructType([each for each in payload.fields if each.name in fields]) if fields else None
