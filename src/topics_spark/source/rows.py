"""Rows of a topic: Arrow batches made from columns of records."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple, TypeAlias, cast

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import StructType

from topics_spark.errors import MalformedPayload
from topics_spark.options import SourceOptions
from topics_spark.payloads.arrow_types import arrow_schema
from topics_spark.payloads.decoding import PayloadParser
from topics_spark.source.row_types import TYPES, check_rows

# Arrow has no type stubs.
Column: TypeAlias = Any
Batch: TypeAlias = Any


class Records(NamedTuple):
    """Columns of `rows` records of one topic."""

    columns: Mapping[str, Column]
    rows: int


# Each batch costs Spark the same, however few rows it has: small ones go to it together.
ROWS_MIN: Final = 1000
HELD_BYTES_MAX: Final = 1024 * 1024

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


def merged(batches: Iterable[Batch]) -> Iterator[Batch]:
    """The same rows in the same order, in batches that are large enough but for the last one."""
    held: list[Batch] = []
    rows = held_bytes = 0
    for batch in batches:
        held.append(batch)
        rows += batch.num_rows
        held_bytes += batch.nbytes
        if rows >= ROWS_MIN or held_bytes >= HELD_BYTES_MAX:
            yield from _joined(held)
            held, rows, held_bytes = [], 0, 0
    yield from _joined(held)


def _joined(batches: list[Batch]) -> Iterator[Batch]:
    """One batch, or more if one cannot hold all their bytes; none without rows."""
    if batches:
        joined = pa.Table.from_batches(batches).combine_chunks()
        yield from (batch for batch in joined.to_batches() if batch.num_rows)
