"""Inputs of views: topics as streams or as they are now, and tables."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.errors import PySparkException
from pyspark.sql.functions import col
from pyspark.sql.types import StructType

from topics.model.errors import InvalidRequest
from topics.model.requests.pipelines import PipelineRequest, PipelineSource
from topics_spark.open_tables.formats import format_at, open_table
from topics_spark.open_tables.schemas import evolved
from topics_spark.pipelines import tables
from topics_spark.pipelines.assignment import RunnerConfig
from topics_spark.source.limits import LIMITED
from topics_spark.source.row_types import columns_apart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A failed batch is repeated as a whole, so none may take too long.
BATCH_RECORDS_MAX: Final = 1_000_000


# What becomes of the rows of a view before anything is computed from them, and where they come from.
Admit = Callable[[str, PipelineSource, "DataFrame"], "DataFrame"]
Read = Callable[[PipelineSource], "DataFrame"]


def read_views(
    spark: SparkSession,
    definition: PipelineRequest,
    config: RunnerConfig,
    *,
    batch: bool,
    admit: Admit | None = None,
    read: Read | None = None,
) -> dict[str, DataFrame]:
    """The views of a definition; `batch`: over existing records."""
    for view, source in definition.sources.items():
        check_schema(view, source)
    views: dict[str, DataFrame] = {}
    for view, source in definition.sources.items():
        limit = definition.batch_records or BATCH_RECORDS_MAX
        rows = read_source(spark, source, config, batch=batch, limit=limit) if read is None else read(source)
        rows = rows if admit is None else admit(view, source, rows)
        watermark = source.watermark
        if watermark is not None and rows.isStreaming:
            rows = rows.withWatermark(watermark.column, watermark.delay)
        views[view] = rows
    if definition.state_retention is not None and definition.use is None:
        for view, source in definition.sources.items():
            # State of older rows is not kept, unless the source itself defines what is late.
            if source.watermark is None and views[view].isStreaming:
                views[view] = views[view].withWatermark("ts", definition.state_retention)
    return views


def check_schema(view: str, source: PipelineSource) -> None:
    """Spark's own message is about a text that nobody has written, and not about the field that is wrong."""
    if source.schema is None or is_ddl(source.schema):
        return
    wrong = next((field for field in fields_of(source.schema) if not is_ddl(field)), source.schema)
    raise InvalidRequest(
        f"sources.{view}.schema: {wrong.strip()!r} is not a name and a type of Spark SQL, like id BIGINT",
        field=f"sources.{view}.schema",
    )


def is_ddl(text: str) -> bool:
    try:
        return isinstance(StructType.fromDDL(text), StructType)
    except PySparkException:
        return False


def fields_of(schema: str) -> Iterator[str]:
    """The text between commas that are in no brackets."""
    begin = depth = 0
    for at, char in enumerate(schema):
        depth += (char in "<(") - (char in ">)")
        if char == "," and not depth:
            yield schema[begin:at]
            begin = at + 1
    yield schema[begin:]


def read_source(
    spark: SparkSession,
    source: PipelineSource,
    config: RunnerConfig,
    *,
    batch: bool = False,
    limit: int = BATCH_RECORDS_MAX,
    bounds: Mapping[str, str] | None = None,
) -> DataFrame:
    """As a stream, of at most `limit` records in a batch, or as it is now; `bounds`: options that name a part of it."""
    if source.table is not None:
        return read_table(spark, config, source.table)
    whole = batch or bool(source.static)
    reader: Any = spark.read if whole else spark.readStream
    reader = reader.format("topics").options(**config.options())
    if source.pattern is not None:
        reader = reader.option("subscribePattern", source.pattern)
    else:
        reader = reader.option("subscribe", ",".join(source.names()))
    if source.schema is not None:
        reader = reader.option("schema", source.schema)
    if not whole and LIMITED:
        reader = reader.option("maxOffsetsPerTrigger", str(limit))
    for name, value in (starting_options(source, whole=whole) if bounds is None else bounds).items():
        reader = reader.option(name, value)
    return with_payload_columns(cast("DataFrame", reader.load()))


def starting_options(source: PipelineSource, *, whole: bool) -> dict[str, str]:
    """Earliest by default: a pipeline processes the records of a topic. A batch cannot start at the end."""
    match source.start:
        case int(seq):
            return {"startingOffsets": json.dumps(dict.fromkeys(source.names(), seq + 1))}
        case None | "earliest":
            return {"startingOffsets": "earliest"}
        case "latest":
            return {"startingOffsets": "earliest" if whole else "latest"}
        case time:
            return {"startingTimestamp": str(milliseconds(time))}


def milliseconds(time: str) -> int:
    return int(datetime.fromisoformat(time).timestamp() * 1000)


def with_payload_columns(rows: DataFrame) -> DataFrame:
    """Fields of a parsed payload are columns as well, if their names are unique."""
    payload = rows.schema["data"].dataType
    names = columns_apart(payload.names, rows.columns) if isinstance(payload, StructType) else []
    return rows.select("*", *(col("data").getField(name).alias(name) for name in names))


def read_table(spark: SparkSession, config: RunnerConfig, table: str) -> DataFrame:
    """The current rows of a table; one without files cannot be read, because its columns are unknown."""
    if (found := format_at(spark, config.place(table))) != "parquet":
        return open_table(spark, config.place(table), found).read()
    place = config.table(table)
    manifest = tables.load(place)
    if not manifest.files:
        raise InvalidRequest(f"table {table} has no rows yet", field="table")
    tables.check_files(place, manifest)
    return tables.read_files(spark, place, manifest)


def check_columns(spark: SparkSession, config: RunnerConfig, table: str, columns: StructType) -> None:
    """Refuse columns whose types differ from those of an existing table."""
    place = config.place(table)
    if (found := format_at(spark, place)) != "parquet":
        evolved(open_table(spark, place, found).schema(), columns, place)
    elif (manifest := tables.load(config.table(table))).files:
        evolved(tables.schema_of(spark, config.table(table), manifest), columns, place)
