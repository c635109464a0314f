"""What DuckDB reads: a topic through the connector's own reader, or the files of a table, as batches of Arrow."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false, reportAttributeAccessIssue=false

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.parquet as parquet
from pyspark.sql.types import DataType, NullType, StringType, StructField, StructType

from topics_spark.options import SourceOptions
from topics_spark.payloads.arrow_types import arrow_schema, arrow_type
from topics_spark.source.planning import batch_ranges
from topics_spark.source.reading import read_share
from topics_spark.sql.duckdb.expressions import ROWS, SIMPLE, Expression, NotAlike, quoted, text_literal
from topics_spark.sql.parsing import Question
from topics_spark.sql.query_inputs import TABLES, QueryInputs
from topics_spark.sql.topic_columns import CORRUPT, columns_of, topic_schema

if TYPE_CHECKING:
    from topics_spark.pipelines.tables import Manifest

Batch = Any
Batches = Iterator[Batch]
# Without a time zone, which the questions do not need: every time is in UTC.
TIME: Final = pa.timestamp("us")
# Above this, Spark's tasks read in parallel, and its memory has limits.
RECORDS_MAX: Final = 1_000_000


class Relation(NamedTuple):
    """The columns of a topic or a table, and its batches for a question, up to a number of records."""

    columns: Mapping[str, Expression]
    read: Callable[[Question, int | None], tuple[Any, Batches]]


def relation(inputs: QueryInputs, parts: tuple[str, ...]) -> Relation:
    """A topic takes precedence over a table of the same name."""
    match parts:
        case (name,) if inputs.is_topic(name):
            return _topic(inputs, name)
        case (name,) if name in inputs.table_names():
            return _table(inputs, name)
        case (prefix, name) if prefix.lower() == TABLES and name in inputs.table_names():
            return _table(inputs, name)
        case (prefix, _) if prefix.lower() != TABLES:
            raise NotAlike("a name with dots")
        case _:
            raise inputs.absent(".".join(parts))


def of_the_record(name: str, kind: DataType) -> Expression:
    return Expression(f"{ROWS}.{quoted(name)}", kind)


# --- topics ---


def _topic(inputs: QueryInputs, name: str) -> Relation:
    if name in inputs.schemas:
        raise NotAlike("the schema of the topic is given in Spark's words")
    payload = inputs.inferred_payload(name)
    schema, fields = topic_schema(payload, None)
    columns = {each.name: of_the_record(each.name, each.dataType) for each in schema.fields if each.name != CORRUPT}
    for field in fields:
        assert payload is not None
        columns[field] = Expression(f"struct_extract({ROWS}.data, {text_literal(field)})", payload[field].dataType)
    if CORRUPT in schema.names:
        columns[CORRUPT] = of_the_record(CORRUPT, StringType())

    def read(asked: Question, records_max: int | None) -> tuple[Any, Batches]:
        wanted, _ = topic_schema(payload, asked)
        options = SourceOptions.parse(inputs.options(name))
        with inputs.backend(name) as backend:
            ranges = batch_ranges(backend, options)
            check_size(sum(each.seqs for each in ranges), records_max)
            shares = backend.shares(ranges)
        batches = (batch for share in shares for batch in read_share(share, wanted, options))
        return without_zones(arrow_schema(wanted)), map(_without_zone, batches)

    return Relation(columns, read)


def check_size(records: int, records_max: int | None) -> None:
    if records_max is not None and records > records_max:
        raise NotAlike(f"it reads more than {records_max:,} records")


def without_zones(schema: Any) -> Any:
    return pa.schema([(each.name, TIME if pa.types.is_timestamp(each.type) else each.type) for each in schema])


def _without_zone(batch: Batch) -> Batch:
    schema = without_zones(batch.schema)
    columns = [column.cast(each.type) for column, each in zip(batch.columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


# --- tables ---


def _table(inputs: QueryInputs, name: str) -> Relation:
    from topics_spark.pipelines import tables

    place = Path(inputs.tables_dir or "", name)
    if not (place / tables.MANIFESTS).exists() or (place / "_delta_log").exists() or (place / "metadata").exists():
        raise NotAlike("a table in an open format")
    manifest = tables.load(place)
    if not manifest.files or manifest.schema is None or name in inputs.schemas:
        raise NotAlike("a table without files, without a schema, or with one in Spark's words")
    schema = StructType.fromJson(json.loads(manifest.schema))
    columns = {each.name: of_the_record(each.name, each.dataType) for each in schema.fields}
    if {"seq", "data"} <= set(schema.names) and schema["data"].dataType == StringType():
        # Payloads of an archive are read by Spark alone: their names are known here, and any use of them is refused.
        payload = _archived(place, manifest)
        columns["data"] = Expression("NULL", NullType())
        columns |= dict.fromkeys(columns_of(payload, None), Expression("NULL", NullType())) if payload else {}

    def read(asked: Question, records_max: int | None) -> tuple[Any, Batches]:
        check_size(sum(file.rows for file in manifest.files), records_max)
        used = [each for each in schema.fields if asked.mentions(each.name) and columns[each.name].type in SIMPLE]
        used = used or [each for each in schema.fields if each.dataType in SIMPLE][:1]
        if not used or any(asked.mentions(each.name) and each not in used for each in schema.fields):
            raise NotAlike("columns that are not simple")
        paths = [place / file.path for file in manifest.files]
        for path in paths:
            _check_file(path, used)
        names = [each.name for each in used]
        return without_zones(arrow_schema(StructType(used))), map(_without_zone, _file_batches(paths, names))

    return Relation(columns, read)


def _archived(place: Path, manifest: Manifest) -> StructType | None:
    from topics_spark.payloads.inference import inferred
    from topics_spark.sql.views import archived

    return inferred(archived([str(place / file.path) for file in manifest.files]))


def _check_file(path: Path, used: list[StructField]) -> None:
    """A file of an older schema may lack a column, or have it in another type."""
    try:
        schema = parquet.read_schema(path)
    except (OSError, pa.ArrowException):
        raise NotAlike("a file that cannot be read") from None
    for each in used:
        kind = schema.field(each.name).type if each.name in schema.names else None
        wanted = arrow_type(each.dataType)
        if kind != wanted and not (pa.types.is_timestamp(wanted) and kind is not None and pa.types.is_timestamp(kind)):
            raise NotAlike(f"files with different types of {each.name}")


def _file_batches(paths: list[Path], names: list[str]) -> Batches:
    for path in paths:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(columns=names):
                yield batch.select(names)
