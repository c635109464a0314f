"""Output of rows: records of a topic or files of a table, under the pipeline's name, version and token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.functions import col, struct, to_json

from topics.model.errors import InvalidRequest
from topics_spark.pipelines.assignment import Assignment, RunnerConfig
from topics_spark.pipelines.tables import TableSink

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from topics_spark.pipelines.jobs import Work


def deliver(work: Work, rows: DataFrame) -> int:
    """The whole result of a job, in one step; returns its number of rows. In a table it replaces the last result."""
    assignment = work.assignment
    sink = assignment.definition.sink
    number = next_number(work)
    result = rows.cache()
    try:
        if sink is not None and sink.topic is not None:
            write_records(assignment, work.config, as_records(result, sink.tag), number)
        else:
            TableSink(assignment, work.config, work.client, complete=True).write(result, number)
        return result.count()
    finally:
        result.unpersist()


def next_number(work: Work) -> int:
    """The number of this run, above all that were committed since the definition last changed in substance."""
    committed = work.client.txn(work.assignment.app).version
    return 0 if committed is None else max(0, committed - work.assignment.version_base + 1)


def as_records(rows: DataFrame, tag: str | None) -> DataFrame:
    """Rows as records: the column `data` if there is one, otherwise all columns as one JSON object."""
    if tag is not None and tag not in rows.columns:
        raise InvalidRequest(
            f"sink.tag: the rows have no column {tag}, only {', '.join(rows.columns)}", field="sink.tag"
        )
    kept = [name for name in ("topic", "node", "meta") if "data" in rows.columns and name in rows.columns]
    data = col("data") if "data" in rows.columns else to_json(struct(*rows.columns))
    if tag is not None:
        return rows.select(data.alias("data"), col(tag).cast("string").alias("tag"), *kept)
    tags = ["tag"] if "data" in rows.columns and "tag" in rows.columns else []
    return rows.select(data.alias("data"), *tags, *kept)


def write_records(assignment: Assignment, config: RunnerConfig, records: DataFrame, batch_id: int) -> None:
    version = str(assignment.version_base + batch_id)
    out: Any = records.write.format("topics").mode("append").option("txnVersion", version)
    out.options(**record_options(assignment, config)).save()


def record_options(assignment: Assignment, config: RunnerConfig) -> dict[str, str]:
    sink = assignment.definition.sink
    assert sink is not None and sink.topic is not None
    token = str(assignment.fence)
    return {**config.options(), "topic": sink.topic, "txnApp": assignment.app, "txnFence": token}
