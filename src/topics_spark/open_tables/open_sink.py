"""Batches into a Delta or Iceberg table: each once, by its owner alone, with columns added and never changed.

    stage ─▶ the server: a record for pipelines.manifest.<pipeline>, refused if another runner has the pipeline by now
    write ─▶ the table: append, MERGE or replacement under the owner's name and the version, which the format takes once
    commit ─▶ the server: the version is done

A crash between the last two repeats the batch: the format refuses what it has, and the version is committed then.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql.functions import col, lit

from topics.client import TopicExistsIncompatible
from topics_spark.errors import NeedsDecision
from topics_spark.open_tables.formats import OpenTable, admin, exists, format_at, open_table
from topics_spark.open_tables.schemas import evolved
from topics_spark.open_tables.upserts import merge_statement, newest, order_of, stored
from topics_spark.pipelines.assignment import MANIFESTS, Assignment, RunnerConfig, manifest_topic

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from topics.client import Client

VIEW: Final = "topics_batch"


class OpenTableSink:
    """Writes the batches of one assignment into its table."""

    def __init__(
        self,
        assignment: Assignment,
        config: RunnerConfig,
        client: Client,
        partition_by: Sequence[str] = (),
        *,
        complete: bool = False,
    ) -> None:
        sink = assignment.definition.sink
        assert sink is not None and sink.format is not None
        self._sink = sink
        self._assignment = assignment
        self._client = client
        self._partition_by = sink.partition_by or list(partition_by)
        self._complete = complete or assignment.definition.output_mode == "complete"
        self._place = config.place(assignment.table)
        self._format = sink.format
        self._owner = ""
        # The name of its writes: a backfill has versions of its own.
        self._writer = ""
        self._table: OpenTable | None = None

    def open(self, spark: SparkSession, schema: StructType) -> None:
        """Before the first batch: the table is made or extended, and must be this pipeline's."""
        session = admin(spark)
        found = format_at(session, self._place)
        table = open_table(session, self._place, self._format)
        epoch = self._epoch()
        self._owner = f"{manifest_topic(self._assignment.name)}@{epoch}"
        self._writer = f"{self._assignment.app}@{epoch}"
        columns = stored(schema, self._sink)
        if not table.exists():
            if found not in ("parquet", self._format) or exists(session, f"{self._place}/{MANIFESTS}"):
                raise NeedsDecision(
                    "table_taken",
                    f"the table in {self._place} has the format {found}, not {self._format}: name another sink.table",
                )
            table.create(columns, self._owner, self._partition_by, self._sink.cluster_by or ())
        self._take(table)
        if added := evolved(table.schema(), columns, self._place):
            table.extend(added)
        self._table = table

    def _epoch(self) -> int:
        topic = manifest_topic(self._assignment.name)
        try:
            self._client.create(topic)
        except TopicExistsIncompatible:
            pass
        return self._client.state(topic, touch=False).epoch

    def _take(self, table: OpenTable) -> None:
        owner = table.owner()
        if owner == self._owner:
            return
        if not self._sink.take_over:
            whose = "belongs to no pipeline" if owner is None else f"belongs to {owner.rpartition('@')[0]}"
            raise NeedsDecision(
                "table_taken",
                f"the table in {self._place} {whose}. Name another sink.table, or continue this one with its rows: "
                "`topics pipelines put --take-over`, or sink.take_over in the definition",
            )
        table.take(self._owner)

    def write(self, rows: DataFrame, batch_id: int) -> None:
        """One micro-batch. Spark repeats a batch whose end it has not seen."""
        assert self._table is not None
        assignment = self._assignment
        version = assignment.version_base + batch_id
        committed = self._client.txn(assignment.app).version
        if committed is not None and committed >= version:
            return
        stage = uuid.uuid4().hex
        record: dict[str, Any] = {
            "version": version,
            "added": [],
            "removed": [],
            "table": assignment.table,
            "format": self._format,
        }
        body = msgspec.json.encode([{"data": record}])
        topic = manifest_topic(assignment.name)
        self._client.stage(assignment.app, version, stage, 0, body, topic=topic, fence=assignment.fence)
        if not self._table.is_written(self._writer, version):
            self._store(self._table, rows, version)
        self._client.commit_txn(assignment.app, version, [stage], fence=assignment.fence)

    def _store(self, table: OpenTable, rows: DataFrame, version: int) -> None:
        if self._sink.key is None:
            out = aligned(rows, table.schema())
            (table.replace if self._complete else table.append)(out, self._writer, version)
            return
        # Merging reads them more than once.
        order = order_of(rows.schema, self._sink)
        # Groups have different keys: if rows of a batch do not, the format refuses them, which shows a wrong `key`.
        grouped = self._assignment.definition.output_mode == "update" and not order
        fresh = (rows if grouped else newest(rows, self._sink.key, order)).persist()
        try:
            fresh.createOrReplaceTempView(VIEW)
            columns = stored(rows.schema, self._sink).names
            statement = merge_statement(
                table.name, VIEW, columns, self._sink.key, self._sink.newest_by, self._sink.deleted
            )
            table.merge(fresh, statement, self._writer, version)
        finally:
            fresh.unpersist()


def aligned(rows: DataFrame, schema: StructType) -> DataFrame:
    """With the table's columns in its order; those that the rows do not have are null."""
    there = {name.lower(): name for name in rows.columns}
    columns: list[Any] = []
    for field in schema.fields:
        found = there.get(field.name.lower())
        value = lit(None).cast(field.dataType) if found is None else col(f"`{found}`")
        columns.append(value.alias(field.name))
    return rows.select(*columns)
