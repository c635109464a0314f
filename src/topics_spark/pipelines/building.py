"""From a definition to a query: sources become views, the transformation runs over them, the sink is attached."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, cast

from topics.model.errors import InvalidRequest
from topics.model.requests.pipelines import PipelineRequest
from topics.model.requests.ready_made import options_of
from topics_spark.pipelines.assignment import Assignment, RunnerConfig
from topics_spark.pipelines.delivery import as_records, record_options, write_records
from topics_spark.pipelines.guard import check_sql
from topics_spark.pipelines.jobs import JobQuery, Work
from topics_spark.pipelines.ready_made import BY_NAME, ReadyMade, rows_of
from topics_spark.pipelines.sources import read_views
from topics_spark.pipelines.tables import TableSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from topics.client import Client

EVERY_DEFAULT: Final = "1 second"
Views = dict[str, "DataFrame"]
Transformation = Callable[[Views], "DataFrame"]


def start(
    spark: SparkSession, assignment: Assignment, config: RunnerConfig, client: Client
) -> StreamingQuery | JobQuery:
    """Start the query. The session must belong to the pipeline alone."""
    definition = assignment.definition
    ready = ReadyMade() if definition.use is None else BY_NAME[definition.use]
    job = ready.job
    if job is not None:
        options = options_of(definition.use or "", definition.options)

        def work(stopping: threading.Event, done: Callable[[int], None]) -> None:
            activate(spark)
            job(Work(spark, assignment, config, client, stopping, done), options)

        return JobQuery(work, assignment.name)
    table = TableSink(assignment, config, client, ready.partition_by)
    return writer(build(spark, definition, config), assignment, config, table.write).start()


def activate(spark: SparkSession) -> None:
    """A new thread has no active session, and without one Spark finds no data source written in Python."""
    java = cast("Any", spark)
    java._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(java._jsparkSession)


def build(spark: SparkSession, definition: PipelineRequest, config: RunnerConfig, *, batch: bool = False) -> DataFrame:
    """The rows that the definition makes; `batch`: from existing records, for a check before it runs."""
    transform = transformation(spark, definition, config)
    return transform(read_views(spark, definition, config, batch=batch))


def transformation(spark: SparkSession, definition: PipelineRequest, config: RunnerConfig) -> Transformation:
    if definition.sql is not None:
        sql = definition.sql
        check_sql(spark, sql, definition.sources.keys())
        return lambda views: run_sql(spark, sql, views)
    if definition.python is not None:
        return load_function(definition.python, config.allow_python)
    return rows_of(definition)


def run_sql(spark: SparkSession, sql: str, views: Views) -> DataFrame:
    """The session belongs to the pipeline alone, so that no other one sees its views."""
    for name, rows in views.items():
        rows.createOrReplaceTempView(name)
    return spark.sql(sql)


def load_function(name: str, allowed: tuple[str, ...]) -> Transformation:
    """`module:function`, from modules that the runner is configured to trust."""
    module_name, _, function_name = name.partition(":")
    if not any(module_name == module or module_name.startswith(f"{module}.") for module in allowed):
        raise InvalidRequest(
            f"python: this runner may not load {module_name}; start it with --allow-python {module_name}",
            field="python",
        )
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except (ImportError, AttributeError) as error:
        raise InvalidRequest(f"python: {error}", field="python") from None
    return cast("Transformation", function)


def writer(
    rows: DataFrame, assignment: Assignment, config: RunnerConfig, write_table: Callable[..., Any]
) -> DataStreamWriter:
    """Everything that a query needs except its start."""
    definition = assignment.definition
    sink = definition.sink
    mode = definition.output_mode or "append"
    if sink is None or sink.topic is None:
        out: Any = rows.writeStream.foreachBatch(write_table)
    elif mode == "append":
        out = as_records(rows, sink.tag).writeStream.format("topics").options(**record_options(assignment, config))
        out = out.option("txnVersionBase", str(assignment.version_base))
    else:
        # Spark allows a sink in Python only to append; foreachBatch allows any mode.
        out = as_records(rows, sink.tag).writeStream.foreachBatch(partial(write_records, assignment, config))
    out = out.queryName(assignment.name).option("checkpointLocation", config.checkpoint(assignment))
    out = out.outputMode(mode)
    trigger = definition.trigger
    if trigger is not None and (trigger.once or trigger.cron):
        return out.trigger(availableNow=True)
    return out.trigger(processingTime=(trigger.every if trigger is not None else None) or EVERY_DEFAULT)
