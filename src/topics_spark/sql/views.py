"""Topics and tables as views: those that a query names, with the fields of their payloads as columns."""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Final

import pyarrow.parquet
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql.functions import col, from_json
from pyspark.sql.types import StringType, StructType

from topics.cli.failure import CommandFailed
from topics_spark.payloads.inference import inferred
from topics_spark.pipelines import guard, tables
from topics_spark.pipelines.assignment import RunnerConfig
from topics_spark.pipelines.sources import read_table
from topics_spark.sql.error_lines import error_line
from topics_spark.sql.parsing import Question, question
from topics_spark.sql.query_inputs import SAMPLE_RECORDS, TABLES, QueryInputs, quoted
from topics_spark.sql.topic_columns import CORRUPT, columns_of, topic_schema

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

SESSION_SETTINGS: Final = {
    **guard.SESSION_SETTINGS,
    "spark.sql.globalTempDatabase": TABLES,
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "8",
    "spark.ui.enabled": "false",
}


class Views:
    """Runs queries. The session should be its own: it creates views there under the names that queries use."""

    def __init__(self, spark: SparkSession, inputs: QueryInputs) -> None:
        self.spark = spark
        self.inputs = inputs
        self._schemas = {name: self._parsed(name, ddl) for name, ddl in inputs.schemas.items()}

    def _parsed(self, name: str, ddl: str) -> StructType:
        try:
            schema = StructType.fromDDL(ddl)
        except ParseException as error:
            raise CommandFailed(f"--schema {name}: {error_line(error)}") from None
        if not isinstance(schema, StructType):
            raise CommandFailed(f"--schema {name}: give fields and their types, like id BIGINT, name STRING")
        # Fields of a topic may always be missing.
        return StructType.fromJson(json.loads(schema.json().replace('"nullable":false', '"nullable":true')))

    def ask(self, sql: str) -> DataFrame:
        """The rows of a query as of now; nothing is read before they are fetched."""
        asked = question(self.spark, sql)
        self._check_cases(asked)
        self._provide(asked)
        if asked.words is None:
            return self.spark.sql(sql)
        try:
            return self.spark.sql(sql)
        except AnalysisException:
            # With all columns available the error can suggest the one that was meant.
            self._provide(Question(sql, asked.names, asked.given, None))
            return self.spark.sql(sql)

    @staticmethod
    def _check_cases(asked: Question) -> None:
        seen: dict[str, str] = {}
        for name in (parts[0] for parts in asked.names if len(parts) == 1):
            other = seen.setdefault(name.lower(), name)
            if other != name:
                raise CommandFailed(f"{other} and {name} cannot be used in one query: SQL ignores case")

    def _provide(self, asked: Question) -> None:
        for parts in asked.names:
            match parts:
                case (name,):
                    self._provide_name(asked, name)
                case (prefix, name) if prefix.lower() == TABLES:
                    if name not in self.inputs.table_names():
                        raise self.inputs.absent(f"{TABLES}.{name}")
                    self._table_rows(name).createOrReplaceGlobalTempView(quoted(name))
                case _:
                    name = ".".join(parts)
                    raise CommandFailed(f"a name with dots must be in backticks: `{name}`")

    def _provide_name(self, asked: Question, name: str) -> None:
        """A topic takes precedence over a table of the same name."""
        if self.inputs.is_topic(name):
            rows = self._topic_rows(asked, name)
        elif name in self.inputs.table_names():
            rows = self._table_rows(name)
        elif name.lower() in asked.given:
            return
        else:
            raise self.inputs.absent(name)
        rows.createOrReplaceTempView(quoted(name))

    def topics(self) -> list[str]:
        return self.inputs.topics()

    # --- rows ---

    def describe(self, name: str) -> list[tuple[str, str]]:
        """The columns of a topic or table and their types."""
        schema = self.ask(f"SELECT * FROM {name}").schema
        return [(column.name, column.dataType.simpleString()) for column in schema.fields]

    def _topic_rows(self, asked: Question, name: str) -> DataFrame:
        payload = self._payload(name)
        schema, fields = topic_schema(payload, asked)
        reader = self.spark.read.format("topics").options(**self.inputs.options(name)).schema(schema)
        return ordered(reader.load(), fields)

    def _payload(self, name: str) -> StructType | None:
        if name in self._schemas:
            return self._schemas[name]
        return self.inputs.inferred_payload(name)

    def _table_rows(self, name: str) -> DataFrame:
        """An archive has payloads as text, which are read like those of a topic."""
        assert self.inputs.tables_dir is not None
        rows = read_table(self.spark, RunnerConfig("", self.inputs.tables_dir), name)
        if not {"seq", "data"} <= set(rows.columns) or not isinstance(rows.schema["data"].dataType, StringType):
            return rows
        # A table in an open format has no list of files.
        files = tables.files(f"{self.inputs.tables_dir}/{name}")
        sample = archived(files) if files else (row[0] for row in rows.select("data").limit(SAMPLE_RECORDS).collect())
        payload = self._schemas.get(name) or inferred(sample)
        if payload is None:
            return rows
        return ordered(rows.withColumn("data", from_json(col("data"), payload)), columns_of(payload, None))


def ordered(rows: DataFrame, fields: list[str]) -> DataFrame:
    """The record's own columns, then those of its payload, then the corrupt payload."""
    own = [column for column in rows.columns if column != CORRUPT]
    last = [column for column in rows.columns if column == CORRUPT]
    return rows.select(*own, *(col("data").getField(name).alias(name) for name in fields), *last)


def archived(files: list[str]) -> Iterator[str]:
    """Payloads from the beginning and the end of an archive."""
    for path in {files[0], files[-1]}:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in islice(file.iter_batches(SAMPLE_RECORDS // 2, columns=["data"]), 1):
                yield from (text for text in batch.column(0).to_pylist() if text is not None)
