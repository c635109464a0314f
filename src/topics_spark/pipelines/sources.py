"""Inputs of views: topics as streams or as they are now, and tables."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, cast

from pyspark.sql.functions import col
from pyspark.sql.types import StructType

from topics.model.errors import InvalidRequest
from topics.model.requests.pipelines import PipelineRequest, PipelineSource
from topics_spark.pipelines import tables
from topics_spark.pipelines.assignment import RunnerConfig
from topics_spark.source.rows import columns_apart

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# A failed batch is repeated as a whole, so none may take too long.
BATCH_RECORDS_MAX: Final = 1_000_000


def read_views(
    spark: SparkSession, definition: PipelineRequest, config: RunnerConfig, *, batch: bool
) -> dict[str, DataFrame]:
    """The views of a definition; `batch`: over existing records."""
    views = {view: read_source(spark, source, config, batch=batch) for view, source in definition.sources.items()}
    if definition.state_retention is not None and definition.use is None:
        for view, source in definition.sources.items():
            # State of older rows is not kept, unless the source itself defines what is late.
            if source.watermark is None and views[view].isStreaming:
                views[view] = views[view].withWatermark("ts", definition.state_retention)
    return views


def read_source(spark: SparkSession, source: PipelineSource, config: RunnerConfig, *, batch: bool = False) -> DataFrame:
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
    if not whole:
        reader = reader.option("maxOffsetsPerTrigger", str(BATCH_RECORDS_MAX))
    for name, value in starting_options(source, whole=whole).items():
        reader = reader.option(name, value)
    rows = with_payload_columns(cast("DataFrame", reader.load()))
    if source.watermark is not None and not whole:
        rows = rows.withWatermark(source.watermark.column, source.watermark.delay)
    return rows


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
    """The current files of a table; a table without files cannot be read, because its columns are unknown."""
    found = tables.files(config.table(table))
    if not found:
        raise InvalidRequest(f"table {table} has no rows yet", field="table")
    return spark.read.parquet(*found)
