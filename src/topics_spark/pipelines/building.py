"""From a definition to a query: sources become views, the transformation runs over them, the sink is attached."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import msgspec

from topics.model.errors import InvalidRequest
from topics.model.requests.pipelines import PipelineRequest
from topics.model.requests.ready_made import options_of
from topics_spark.errors import NeedsDecision
from topics_spark.pipelines.assignment import Assignment, RunnerConfig
from topics_spark.pipelines.checkpoints.resuming import resume
from topics_spark.pipelines.definition import fed_by_itself, feeding, outputs
from topics_spark.pipelines.delivery import RejectSink, as_records, record_options, table_sink, write_records
from topics_spark.pipelines.guard import check_sql
from topics_spark.pipelines.jobs import JobQuery, Work
from topics_spark.pipelines.quality.expectations import Judge, accepted_rows, judged_records, rejected_records
from topics_spark.pipelines.ready_made import BY_NAME, rows_of
from topics_spark.pipelines.sources import Read, read_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from topics.client import Client

EVERY_DEFAULT: Final = "1 second"
PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_STATE: Final = "org.apache.spark.sql.execution.streaming.state"
PROVIDERS: Final = {
    "memory": f"{_STATE}.HDFSBackedStateStoreProvider",
    "rocksdb": f"{_STATE}.RocksDBStateStoreProvider",
}
# Each batch writes what has changed in RocksDB, not all of it.
CHANGELOG: Final = "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled"
Views = dict[str, "DataFrame"]
Transformation = Callable[[Views], "DataFrame"]
WriteTable = Callable[["DataFrame", int], None]


def start(
    spark: SparkSession, assignment: Assignment, config: RunnerConfig, client: Client
) -> StreamingQuery | JobQuery:
    """Start the query. The session must belong to the pipeline alone."""
    definition = assignment.definition
    configure(spark, definition)
    ready = None if definition.use is None else BY_NAME[definition.use]
    job = None if ready is None else ready.job
    if job is not None:
        options = options_of(definition.use or "", definition.options)

        def work(stopping: threading.Event, done: Callable[[int], None]) -> None:
            activate(spark)
            job(Work(spark, assignment, config, client, stopping, done), options)

        return JobQuery(work, assignment.name)
    check_loop(assignment)
    assignment = resumed(assignment, config, client)
    definition = assignment.definition
    rows = build(spark, definition, config, assignment.name)
    write_table: WriteTable | None = None
    if definition.table_written(assignment.name) is not None:
        table = table_sink(assignment, config, client, () if ready is None else ready.partition_by)
        table.open(spark, (accepted_rows(rows) if definition.judges() else rows).schema)
        write_table = table.write
    if definition.judges():
        return judged_writer(rows, assignment, config, client, write_table).start()
    return writer(rows, assignment, config, write_table).start()


def configure(spark: SparkSession, definition: PipelineRequest) -> None:
    """The settings of the definition, for its session alone. A checkpoint keeps the state store that it began with."""
    chosen = spark.conf.get(PROVIDER) != PROVIDERS["memory"]
    if definition.state_store is not None or not chosen:
        spark.conf.set(PROVIDER, PROVIDERS[definition.store()])
        spark.conf.set(CHANGELOG, "true")
    for name, value in (definition.spark or {}).items():
        spark.conf.set(name, str(value).lower() if isinstance(value, bool) else str(value))


def check_loop(assignment: Assignment) -> None:
    fed = fed_by_itself(assignment.definition, outputs(assignment.name, assignment.definition))
    if fed is not None:
        raise NeedsDecision("feeds_itself", feeding(*fed))


def resumed(assignment: Assignment, config: RunnerConfig, client: Client) -> Assignment:
    """With the versions and the start of its checkpoint, which must fit what is committed."""
    committed = client.txn(assignment.app).version
    checkpoint = Path(config.checkpoint(assignment))
    found = resume(checkpoint, assignment.version_base, assignment.version_ceiling, committed, config.start)
    definition = assignment.definition
    if found.start == "end":
        sources = {view: msgspec.structs.replace(source, start="latest") for view, source in definition.sources.items()}
        definition = msgspec.structs.replace(definition, sources=sources)
    return replace(assignment, base=found.base, definition=definition)


def activate(spark: SparkSession) -> None:
    """A new thread has no active session, and without one Spark finds no data source written in Python."""
    java = cast("Any", spark)
    java._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(java._jsparkSession)


def build(
    spark: SparkSession,
    definition: PipelineRequest,
    config: RunnerConfig,
    name: str,
    *,
    batch: bool = False,
    read: Read | None = None,
) -> DataFrame:
    """The rows that the definition makes, judged if it has expectations.

    `batch`: from existing records, for a check before it runs; `read`: from others than those.
    """
    transform = transformation(spark, definition, config)
    if not definition.judges():
        return transform(read_views(spark, definition, config, batch=batch, read=read))
    judge = Judge(spark, name, definition)
    views = read_views(spark, definition, config, batch=batch, read=read, admit=judge.admit)
    return judge.judged(transform(views))


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
    rows: DataFrame, assignment: Assignment, config: RunnerConfig, write_table: WriteTable | None
) -> DataStreamWriter:
    """Everything that a query needs except its start."""
    sink = assignment.definition.sink
    if sink is None or sink.topic is None:
        assert write_table is not None
        return scheduled(rows.writeStream.foreachBatch(write_table), assignment, config)
    return records_writer(as_records(rows, sink.tag), assignment, config, record_options(assignment, config))


def judged_writer(
    rows: DataFrame, assignment: Assignment, config: RunnerConfig, client: Client, write_table: WriteTable | None
) -> DataStreamWriter:
    """The same for judged rows: what is rejected goes to its topics."""
    sink = assignment.definition.sink
    if sink is not None and sink.topic is not None:
        options = {**record_options(assignment, config), "topic": ""}
        return records_writer(judged_records(rows, sink.topic, sink.tag), assignment, config, options)
    assert write_table is not None
    rejects = RejectSink(assignment, config, client)

    def write(batch: DataFrame, batch_id: int) -> None:
        # Computing it twice would count its rows twice, and change the state of its query twice.
        kept = batch.persist()
        try:
            rejects.write(rejected_records(kept), batch_id)
            write_table(accepted_rows(kept), batch_id)
        finally:
            kept.unpersist()

    return scheduled(rows.writeStream.foreachBatch(write), assignment, config)


def records_writer(
    records: DataFrame, assignment: Assignment, config: RunnerConfig, options: dict[str, str]
) -> DataStreamWriter:
    out: Any = records.writeStream
    if assignment.definition.output_mode in (None, "append"):
        out = out.format("topics").options(**options).option("txnVersionBase", str(assignment.version_base))
    else:
        # Spark allows a sink in Python only to append; foreachBatch allows any mode.
        out = out.foreachBatch(partial(write_records, assignment, options))
    return scheduled(out, assignment, config)


def scheduled(out: Any, assignment: Assignment, config: RunnerConfig) -> DataStreamWriter:
    """With its name, checkpoint, mode and trigger."""
    definition = assignment.definition
    mode = definition.output_mode or "append"
    out = out.queryName(assignment.name).option("checkpointLocation", config.checkpoint(assignment))
    out = out.outputMode(mode)
    trigger = definition.trigger
    if trigger is not None and (trigger.once or trigger.cron):
        return out.trigger(availableNow=True)
    return out.trigger(processingTime=(trigger.every if trigger is not None else None) or EVERY_DEFAULT)
