"""Tests of a definition: sample records go through it, and the rows that come out must be the expected ones.

They are in the file of the definition, and run as a batch: everything is there at once, so that nothing is late.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec
import pyarrow as pa
from pyspark.sql.functions import struct, to_json
from pyspark.sql.types import StructType

from topics.model.errors import InvalidRequest
from topics_spark.options import SourceOptions
from topics_spark.pipelines.building import build
from topics_spark.pipelines.pipeline_run import words_of
from topics_spark.pipelines.quality.expectations import accepted_rows, rejected_records
from topics_spark.pipelines.sources import with_payload_columns
from topics_spark.source.row_types import row_ddl
from topics_spark.source.rows import Records, RowBuilder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from topics.model.requests.pipelines import PipelineRequest, PipelineSource
    from topics_spark.pipelines.assignment import RunnerConfig
    from topics_spark.pipelines.quality.cases import Case, Sample

SHOWN_MAX: Final = 20
_MOMENT: Final = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:?\d\d)?")


def run_case(
    spark: SparkSession, name: str, definition: PipelineRequest, config: RunnerConfig, case: Case
) -> list[str]:
    """What is wrong; nothing if the case passes."""
    for view in case.records:
        if view not in definition.sources:
            raise InvalidRequest(f"records.{view}: the definition has no such view", field=f"records.{view}")
    try:
        rows, rejected = outcome(spark, name, definition, config, case)
    except InvalidRequest:
        raise
    except Exception as error:  # noqa: BLE001 - whatever Spark raises is the outcome
        words = words_of(error)
        if case.fails is not None and re.search(case.fails, words):
            return []
        return [f"it fails: {words}"]
    if case.fails is not None:
        return [f"it does not fail with {case.fails!r}"]
    wrong = differences(case.rows or [], rows, "row") if case.rows is not None else []
    for topic in (case.rejected or {}).keys() | (rejected.keys() if case.rejected is not None else ()):
        wrong += differences((case.rejected or {}).get(topic, []), rejected.get(topic, []), f"record in {topic}")
    return wrong


def outcome(
    spark: SparkSession, name: str, definition: PipelineRequest, config: RunnerConfig, case: Case
) -> tuple[list[Any], dict[str, list[Any]]]:
    """The rows, and what is rejected, by topic."""

    def read(source: PipelineSource) -> DataFrame:
        view = next(view for view, each in definition.sources.items() if each is source)
        return sampled(spark, source, case.records.get(view, []))

    rows = build(spark, definition, config, name, batch=True, read=read)
    if not definition.judges():
        return texts(rows), {}
    rows = rows.persist()
    try:
        rejected: dict[str, list[Any]] = {}
        for row in rejected_records(rows).select("topic", "data").collect():
            rejected.setdefault(row["topic"], []).append(json.loads(row["data"]))
        return texts(accepted_rows(rows)), rejected
    finally:
        rows.unpersist()


def texts(rows: DataFrame) -> list[Any]:
    return [json.loads(row[0]) for row in rows.select(to_json(struct("*"))).collect()]


def sampled(spark: SparkSession, source: PipelineSource, samples: list[Sample]) -> DataFrame:
    """Sample records as the source would read them, by the same parser; of a table, `data` is a row."""
    if source.table is not None:
        if not samples:
            raise InvalidRequest(f"table {source.table} needs at least one record, whose data is a row")
        return cast("Any", spark).createDataFrame(pa.Table.from_pylist([sample.data for sample in samples]))
    topic = next(iter(source.names()), "sample")
    options = SourceOptions.parse({"subscribe": topic, **({"schema": source.schema} if source.schema else {})})
    payload = None if source.schema is None else f"STRUCT<{source.schema}>"
    schema = cast("StructType", StructType.fromDDL(row_ddl(options, payload)))
    builder = RowBuilder(schema, options)
    now = datetime.now(UTC)
    columns = {
        "seq": pa.array([sample.seq or number for number, sample in enumerate(samples, 1)], pa.int64()),
        "ts": pa.array([sample.ts or now for sample in samples], pa.timestamp("us", "UTC")),
        "node": pa.array([sample.node for sample in samples], pa.string()),
        "tag": pa.array([sample.tag for sample in samples], pa.string()),
        "data": pa.array([_json(sample.data) for sample in samples], pa.string()),
        "meta": pa.array([None if sample.meta is None else _json(sample.meta) for sample in samples], pa.string()),
    }
    batch = builder.batch(topic, Records(columns, len(samples)))
    return with_payload_columns(cast("Any", spark).createDataFrame(pa.Table.from_batches([batch]), schema))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


# --- comparing ---


def differences(wanted: list[Any], found: list[Any], what: str) -> list[str]:
    """In any order; columns that no expected row names are not compared, and a null is as good as absent."""
    named = {column for row in wanted if isinstance(row, dict) for column in row} if wanted else None
    expected, actual = Counter(_keys(wanted, None)), Counter(_keys(found, named))
    missing, surplus = expected - actual, actual - expected
    told = [f"missing {what}: {key}" for key in missing.elements()]
    told += [f"unexpected {what}: {key}" for key in surplus.elements()]
    return told if len(told) <= SHOWN_MAX else [*told[:SHOWN_MAX], f"and {len(told) - SHOWN_MAX} more"]


def _keys(rows: Iterable[Any], columns: set[str] | None) -> list[str]:
    kept = (
        {name: value for name, value in row.items() if name in columns}
        if columns is not None and isinstance(row, dict)
        else row
        for row in rows
    )
    return [json.dumps(_plain(row), sort_keys=True, ensure_ascii=False) for row in kept]


def _plain(value: Any) -> Any:
    """One form for what means the same: 1 and 1.0, times in different zones, null and absent."""
    match value:
        case dict():
            return {name: _plain(each) for name, each in value.items() if each is not None}
        case list():
            return [_plain(each) for each in value]
        case bool() | None:
            return value
        case int() | float():
            return int(value) if float(value).is_integer() else value
        case datetime():
            return _moment(value)
        case str() if _MOMENT.fullmatch(value):
            return _moment(datetime.fromisoformat(value))
        case _:
            return value if isinstance(value, str) else str(value)


def _moment(when: datetime) -> str:
    when = when.replace(tzinfo=UTC) if when.tzinfo is None else when.astimezone(UTC)
    return when.isoformat()
