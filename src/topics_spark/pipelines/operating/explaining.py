"""A definition in words, and Spark's plan of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from topics.model.requests.pipelines import JOBS, PipelineRequest, PipelineSource, expectations
from topics_spark.pipelines.building import EVERY_DEFAULT, build
from topics_spark.pipelines.checking import check_streaming
from topics_spark.pipelines.sources import BATCH_RECORDS_MAX
from topics_spark.source.limits import LIMITED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from topics.client import Pipeline
    from topics_spark.pipelines.assignment import RunnerConfig


def described(name: str, definition: PipelineRequest) -> Iterator[tuple[str, str]]:
    """What a definition says, and what holds where it says nothing."""
    yield "pipeline", name
    for view, source in definition.sources.items():
        yield "reads", f"{view}: {_source(source)}"
    yield "computes", _transformation(definition)
    yield "runs", _trigger(definition)
    if definition.use not in JOBS:
        bound = f"at most {definition.batch_records or BATCH_RECORDS_MAX} records of each source"
        yield "batch", bound if LIMITED else "all records that are there: Spark 4.1 cannot bound it"
        yield "mode", definition.output_mode or "append"
        yield "state", f"{definition.store()}, if it has any"
    for setting, value in (definition.spark or {}).items():
        yield "spark", f"{setting} = {value}"
    for field, expect in (
        *((f"{view}.", each.expect) for view, each in definition.sources.items()),
        ("", definition.expect),
    ):
        for rule, given in expectations(expect).items():
            yield "expects", f"{field}{rule}: {given.condition}, otherwise {given.otherwise}"
    table = definition.table_written(name)
    sink = definition.sink
    yield "writes", f"table {table}" if table is not None or sink is None else f"topic {sink.topic}"
    if definition.enabled is False:
        yield "paused", "yes"


def _source(source: PipelineSource) -> str:
    if source.table is not None:
        return f"table {source.table}, as a whole"
    what = f"topics that match {source.pattern}" if source.pattern is not None else f"topic {', '.join(source.names())}"
    told = [what, "as a whole" if source.static else f"from {source.start if source.start is not None else 'earliest'}"]
    if source.watermark is not None:
        told.append(f"late after {source.watermark.delay} by {source.watermark.column}")
    if source.dead_letter is not None:
        told.append(f"misfits to {source.dead_letter}")
    return ", ".join(told)


def _transformation(definition: PipelineRequest) -> str:
    if definition.sql is not None:
        return " ".join(definition.sql.split())
    return definition.python or f"{definition.use} {definition.options or ''}".strip()


def _trigger(definition: PipelineRequest) -> str:
    trigger = definition.trigger
    if trigger is not None and trigger.once:
        return "once over existing records"
    if trigger is not None and trigger.cron:
        return f"at {trigger.cron}, UTC"
    return f"every {(trigger.every if trigger is not None else None) or EVERY_DEFAULT}"


def effect(planned: Pipeline) -> str:
    """What `put` of it would do."""
    changed = ", ".join(planned.changed)
    match planned.effect:
        case "created":
            return "new"
        case "same":
            return "none: the server has this definition"
        case "continues":
            return f"{changed}: continues from its checkpoint"
        case _:
            return f"{changed}: starts again, and repeats its output"


def plan(spark: SparkSession, name: str, definition: PipelineRequest, config: RunnerConfig) -> str:
    """Spark's plan of the stream, or of a job that has rows."""
    check_streaming(spark, name, definition, config)
    rows: Any = build(spark, definition, config, name, batch=definition.use in JOBS)
    mode = rows.sparkSession._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("formatted")
    return str(rows._jdf.queryExecution().explainString(mode))
