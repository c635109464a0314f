"""A backfill: a range of the sources once more through a pipeline into its sink, next to its stream.

One batch, in one transaction under an app that is named after the range: repeating the command after a crash adds
nothing, and the checkpoint of the stream is not touched.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from topics.model.errors import InvalidRequest
from topics.model.requests.pipelines import JOBS, PipelineSource
from topics_spark.pipelines.assignment import Assignment, RunnerConfig, app_of
from topics_spark.pipelines.building import build
from topics_spark.pipelines.delivery import RejectSink, as_records, record_options, table_sink, write_records
from topics_spark.pipelines.quality.expectations import accepted_rows, judged_records, rejected_records
from topics_spark.pipelines.ready_made import BY_NAME
from topics_spark.pipelines.sources import read_source

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from topics.client import Client
    from topics.model.requests.pipelines import PipelineRequest


@dataclass(frozen=True, slots=True)
class Span:
    """Records at or after `from_ms` and before `to_ms`, or with seqs from `from_seq` to `to_seq`, both included."""

    from_ms: int | None = None
    to_ms: int | None = None
    from_seq: int | None = None
    to_seq: int | None = None

    def options(self, source: PipelineSource) -> dict[str, str]:
        """For `format("topics")`; offsets are those of the next record."""
        given: dict[str, str] = {"startingOffsets": "earliest"}
        if self.from_seq is not None:
            given["startingOffsets"] = json.dumps(dict.fromkeys(source.names(), self.from_seq))
        if self.to_seq is not None:
            given["endingOffsets"] = json.dumps(dict.fromkeys(source.names(), self.to_seq + 1))
        if self.from_ms is not None:
            given = {"startingTimestamp": str(self.from_ms)} | given
            del given["startingOffsets"]
        if self.to_ms is not None:
            given["endingTimestamp"] = str(self.to_ms)
        return given

    def __str__(self) -> str:
        if self.from_seq is not None or self.to_seq is not None:
            return f"{self.from_seq or 1}..{'' if self.to_seq is None else self.to_seq}"
        return f"{self.from_ms or 0}ms..{'' if self.to_ms is None else f'{self.to_ms}ms'}"


@dataclass(frozen=True, slots=True)
class Backfill:
    """What to do once more. `number` is above 0 if it was done before and is wanted again."""

    name: str
    definition: PipelineRequest
    generation: int
    span: Span
    number: int = 0

    @property
    def suffix(self) -> str:
        """Of its app: another meaning of the definition is another backfill."""
        return f":backfill:{self.generation}:{self.span}"

    @property
    def app(self) -> str:
        return f"{app_of(self.name)}{self.suffix}"


def check_backfill(definition: PipelineRequest, span: Span) -> None:
    if definition.use in JOBS:
        raise InvalidRequest(f"{definition.use} is a job, which reads what its options say: change those", field="use")
    if definition.output_mode == "complete":
        raise InvalidRequest(
            "output_mode is complete: a part of the records cannot replace the whole result; "
            "`topics pipelines restart --from sources` computes it again",
            field="output_mode",
        )
    sink = definition.sink
    if sink is not None and sink.key is not None and (sink.newest_by is None or sink.format in (None, "parquet")):
        raise InvalidRequest(
            "a table with one row of each key takes older records only with sink.newest_by and the format delta or "
            "iceberg; `topics pipelines restart --from sources` computes it again",
            field="sink.key",
        )
    streams = [source for source in definition.sources.values() if source.table is None and not source.static]
    by_seq = span.from_seq is not None or span.to_seq is not None
    if by_seq and (len(streams) != 1 or len(streams[0].names()) != 1):
        raise InvalidRequest("a range of seqs is for one topic, but the pipeline reads several: give times")


def run(spark: SparkSession, client: Client, config: RunnerConfig, wanted: Backfill) -> int:
    """The number of rows that it has written, rejected ones included."""
    definition = wanted.definition
    assignment = Assignment(
        wanted.name,
        definition,
        0,
        wanted.generation,
        client.take_fence(wanted.app),
        base=0,
        app_suffix=wanted.suffix,
    )

    def read(source: PipelineSource) -> DataFrame:
        whole = source.table is not None or source.static
        bounds = None if whole else wanted.span.options(source)
        return read_source(spark, source, config, batch=True, bounds=bounds)

    rows = build(spark, definition, config, wanted.name, batch=True, read=read).persist()
    try:
        write(rows, assignment, config, client, wanted.number)
        return rows.count()
    finally:
        rows.unpersist()


def write(rows: DataFrame, assignment: Assignment, config: RunnerConfig, client: Client, number: int) -> None:
    definition = assignment.definition
    sink, judged = definition.sink, definition.judges()
    if sink is not None and sink.topic is not None:
        options = record_options(assignment, config)
        if judged:
            records, options["topic"] = judged_records(rows, sink.topic, sink.tag), ""
        else:
            records = as_records(rows, sink.tag)
        write_records(assignment, options, records, number)
        return
    if judged:
        RejectSink(assignment, config, client).write(rejected_records(rows), number)
        rows = accepted_rows(rows)
    table = table_sink(
        assignment, config, client, () if definition.use is None else BY_NAME[definition.use].partition_by
    )
    table.open(rows.sparkSession, rows.schema)
    table.write(rows, number)
