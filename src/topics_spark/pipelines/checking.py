"""Checking a definition before it runs: the schema of its rows and ten of them from real records, or what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, cast

import msgspec

from topics.cli.output import Out, say
from topics.model.errors import InvalidRequest
from topics.model.requests.pipelines import PipelineRequest, PipelineSource
from topics_spark.commands import point_at
from topics_spark.pipelines.assignment import RunnerConfig
from topics_spark.pipelines.guard import SESSION_SETTINGS
from topics_spark.pipelines.pipeline_run import words_of
from topics_spark.source.progress import waiting

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from topics.client import Client

SAMPLE_ROWS = 10
# A check reads only the newest records: it is about their form, not about the result.
SAMPLE_RECORDS = 10_000


def local_spark(name: str, master: str | None, conf: Mapping[str, str] | None = None) -> Any:
    """A session that starts quickly, for commands that look at definitions."""
    from topics_spark.start import quiet_errors, session

    quiet_errors()
    with waiting("starting Spark", "Spark is ready"):
        return session(name, master=master, config={**SESSION_SETTINGS, **(conf or {})}, quick=True)


class Checker:
    """Has one Spark session for several checks."""

    def __init__(
        self,
        client: Client,
        key: str | None,
        master: str | None,
        config: RunnerConfig,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        self._client = client
        self._master = master
        self._conf = conf
        self._config = config
        point_at(client.url, key)

    def __enter__(self) -> Checker:
        self._spark: Any = local_spark("topics pipelines check", self._master, self._conf)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spark.stop()

    def check(self, name: str, definition: PipelineRequest) -> bool:
        """Whether it can run; rows go to standard output, messages to standard error."""
        from pyspark.sql.functions import struct, to_json

        from topics_spark.pipelines.building import build
        from topics_spark.pipelines.delivery import left_out
        from topics_spark.pipelines.quality.expectations import accepted_rows

        try:
            check_streaming(self._spark.newSession(), name, definition, self._config)
            rows = build(self._spark.newSession(), self._sampled(definition), self._config, name, batch=True)
            rows = accepted_rows(rows) if definition.judges() else rows
            self._check_columns(name, definition, rows.schema)
            sample = [row[0] for row in rows.limit(SAMPLE_ROWS).select(to_json(struct("*"))).collect()]
            say(f"{name}: {rows.schema.simpleString()}")
            sink = definition.sink
            if sink is not None and sink.topic is not None and (absent := left_out(rows.columns, sink.tag)):
                say(f"{name}: the column data is the whole payload of a record; left out: {', '.join(absent)}")
            with Out() as out:
                for row in sample:
                    out.line(row.encode())
        except InvalidRequest as error:
            say(f"{name}: {error.message}")
        except Exception as error:  # noqa: BLE001 - whatever Spark finds wrong is the answer
            say(f"{name}: {words_of(error)}")
        else:
            return True
        return False

    def fits_table(self, name: str, definition: PipelineRequest) -> bool:
        """Whether its rows fit its table; other mistakes are found by `check`, and where it runs."""
        from topics_spark.errors import NeedsDecision
        from topics_spark.pipelines.building import build
        from topics_spark.pipelines.quality.expectations import accepted_rows
        from topics_spark.pipelines.ready_made import BY_NAME

        if definition.use is not None and BY_NAME[definition.use].job is not None:
            return True
        try:
            rows = build(self._spark.newSession(), definition, self._config, name, batch=True)
            rows = accepted_rows(rows) if definition.judges() else rows
            self._check_columns(name, definition, rows.schema)
        except NeedsDecision as error:
            say(f"{name}: {error}")
            return False
        except Exception as error:  # noqa: BLE001 - whatever Spark finds wrong
            say(f"{name}: the columns of its table were not compared: {words_of(error)}")
        return True

    def _check_columns(self, name: str, definition: PipelineRequest, schema: StructType) -> None:
        """The table that it writes, if there is one, must have these columns or lack them."""
        from topics_spark.open_tables.upserts import stored
        from topics_spark.pipelines.sources import check_columns

        table = definition.table_written(name)
        if table is not None:
            columns = stored(schema, definition.sink)
            if definition.output_mode != "complete":
                check_columns(self._spark, self._config, table, columns)

    def _sampled(self, definition: PipelineRequest) -> PipelineRequest:
        sources = {view: self._newest(source) for view, source in definition.sources.items()}
        return msgspec.structs.replace(definition, sources=sources)

    def _newest(self, source: PipelineSource) -> PipelineSource:
        if source.static or len(source.names()) != 1:
            return source
        head_seq = self._client.state(source.names()[0], touch=False).head_seq
        return msgspec.structs.replace(source, start=max(0, head_seq - SAMPLE_RECORDS))


def check_streaming(spark: SparkSession, name: str, definition: PipelineRequest, config: RunnerConfig) -> None:
    """A stream does not support everything that a batch does: Spark says so before it runs."""
    from topics_spark.pipelines.building import build
    from topics_spark.pipelines.ready_made import BY_NAME

    if definition.use is not None and BY_NAME[definition.use].job is not None:
        return
    rows: Any = build(spark, definition, config, name)
    if not rows.isStreaming:
        raise InvalidRequest("sources: a pipeline needs a topic that is not static", field="sources")
    java: Any = cast("Any", spark)._jvm.org.apache.spark.sql
    modes = java.streaming.OutputMode
    mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[
        definition.output_mode or "append"
    ]
    java.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode())
