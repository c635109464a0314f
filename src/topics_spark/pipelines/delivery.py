"""Output of rows: records of a topic or files of a table, under the pipeline's name, version and token."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql.functions import col, struct, to_json
from pyspark.sql.types import StringType, StructField, StructType

from topics.model.errors import InvalidRequest
from topics_spark.open_tables.open_sink import OpenTableSink
from topics_spark.pipelines.assignment import Assignment, RunnerConfig
from topics_spark.pipelines.tables import TableSink

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from topics.client import Client
    from topics_spark.pipelines.jobs import Work


# The payload, then what may come beside it.
OF_RECORDS: Final = ("data", "tag", "topic", "node", "meta")


def deliver(work: Work, rows: DataFrame) -> int:
    """The whole result of a job, in one step; returns its number of rows. In a table it replaces the last result."""
    assignment = work.assignment
    sink = assignment.definition.sink
    number = next_number(work)
    result = rows.cache()
    try:
        if sink is not None and sink.topic is not None:
            options = record_options(assignment, work.config)
            write_records(assignment, options, as_records(result, sink.tag), number)
        else:
            table = table_sink(assignment, work.config, work.client, complete=True)
            table.open(work.spark, result.schema)
            table.write(result, number)
        return result.count()
    finally:
        result.unpersist()


def table_sink(
    assignment: Assignment,
    config: RunnerConfig,
    client: Client,
    partition_by: Sequence[str] = (),
    *,
    complete: bool = False,
) -> TableSink | OpenTableSink:
    """The table of an assignment, in the format of its definition."""
    sink = assignment.definition.sink
    if sink is None or sink.format in (None, "parquet"):
        return TableSink(assignment, config, client, partition_by, complete=complete)
    return OpenTableSink(assignment, config, client, partition_by, complete=complete)


def next_number(work: Work) -> int:
    """The number of this run, above all that were committed since the definition last changed in substance."""
    committed = work.client.txn(work.assignment.app).version
    return 0 if committed is None else max(0, committed - work.assignment.version_base + 1)


def as_records(rows: DataFrame, tag: str | None) -> DataFrame:
    """Rows as records: the column `data` if there is one, otherwise all columns as one JSON object."""
    fields = record_columns(rows.schema, col, tag)
    if "data" in rows.columns:
        fields["data"] = col("data")
    return rows.select(*(field.alias(name) for name, field in fields.items()))


def record_columns(schema: StructType, field: Callable[[str], Column], tag: str | None) -> dict[str, Column]:
    """The fields of a record by name, made from the columns of a row; `data` is JSON text."""
    names = schema.fieldNames()
    if tag is not None and tag not in names:
        raise InvalidRequest(f"sink.tag: the rows have no column {tag}, only {', '.join(names)}", field="sink.tag")
    tags = {} if tag is None else {"tag": field(tag).cast("string")}
    if "data" not in names:
        return {"data": to_json(struct(*(field(name).alias(name) for name in names))), **tags}
    kept = {name: field(name) for name in OF_RECORDS[1:] if name in names}
    return {"data": json_of(schema["data"], field("data")), **kept, **tags}


def json_of(data: StructField, value: Column) -> Column:
    """The column `data` as text: a parsed payload with all fields of its schema."""
    if isinstance(data.dataType, StringType):
        return value
    return to_json(value, {"ignoreNullFields": "false"})


def left_out(columns: list[str], tag: str | None) -> list[str]:
    """Columns that are in no record: beside a column `data` only those of a record count."""
    return [name for name in columns if name not in (*OF_RECORDS, tag)] if "data" in columns else []


class RejectSink:
    """Records that are not accepted, next to a table: once for a batch, under an app and a token of their own."""

    def __init__(self, assignment: Assignment, config: RunnerConfig, client: Client) -> None:
        app = f"{assignment.app}:rejected"
        self._assignment = assignment
        self._options = {**config.options(), "txnApp": app, "txnFence": str(client.take_fence(app))}

    def write(self, records: DataFrame, batch_id: int) -> None:
        # Usually there are none, and writing none takes three processes of Python.
        if not records.isEmpty():
            write_records(self._assignment, self._options, records, batch_id)


def write_records(assignment: Assignment, options: dict[str, str], records: DataFrame, batch_id: int) -> None:
    version = str(assignment.version_base + batch_id)
    out: Any = records.write.format("topics").mode("append").option("txnNumber", version)
    out.options(**options).save()


def record_options(assignment: Assignment, config: RunnerConfig) -> dict[str, str]:
    sink = assignment.definition.sink
    assert sink is not None and sink.topic is not None
    token = str(assignment.fence)
    return {**config.options(), "topic": sink.topic, "txnApp": assignment.app, "txnFence": token}
