"""Checking a definition before it runs: the schema of its rows and ten of them from real records, or what is wrong."""

from __future__ import annotations

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

    from topics.client import Client

SAMPLE_ROWS = 10
# A check reads only the newest records: it is about their form, not about the result.
SAMPLE_RECORDS = 10_000


class Checker:
    """Has one Spark session for several checks."""

    def __init__(self, client: Client, key: str | None, master: str | None, config: RunnerConfig) -> None:
        self._client = client
        self._master = master
        self._config = config
        point_at(client.url, key)

    def __enter__(self) -> Checker:
        from topics_spark.start import session

        with waiting("starting Spark", "Spark is ready"):
            self._spark: Any = session(
                "topics pipelines check", master=self._master, config=SESSION_SETTINGS, quick=True
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._spark.stop()

    def check(self, name: str, definition: PipelineRequest) -> bool:
        """Whether it can run; rows go to standard output, messages to standard error."""
        from pyspark.sql.functions import struct, to_json

        from topics_spark.pipelines.building import build

        try:
            check_streaming(self._spark.newSession(), definition, self._config)
            rows = build(self._spark.newSession(), self._sampled(definition), self._config, batch=True)
            sample = [row[0] for row in rows.limit(SAMPLE_ROWS).select(to_json(struct("*"))).collect()]
            say(f"{name}: {rows.schema.simpleString()}")
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

    def _sampled(self, definition: PipelineRequest) -> PipelineRequest:
        sources = {view: self._newest(source) for view, source in definition.sources.items()}
        return msgspec.structs.replace(definition, sources=sources)

    def _newest(self, source: PipelineSource) -> PipelineSource:
        if source.static or len(source.names()) != 1:
            return source
        head_seq = self._client.state(source.names()[0], touch=False).head_seq
        return msgspec.structs.replace(source, start=max(0, head_seq - SAMPLE_RECORDS))


def check_streaming(spark: SparkSession, definition: PipelineRequest, config: RunnerConfig) -> None:
    """A stream does not support everything that a batch does: Spark says so before it runs."""
    from topics_spark.pipelines.building import build
    from topics_spark.pipelines.ready_made import BY_NAME

    if definition.use is not None and BY_NAME[definition.use].job is not None:
        return
    rows: Any = build(spark, definition, config)
    if not rows.isStreaming:
        raise InvalidRequest("sources: a pipeline needs a topic that is not static", field="sources")
    java: Any = cast("Any", spark)._jvm.org.apache.spark.sql
    modes = java.streaming.OutputMode
    mode = {"append": modes.Append, "update": modes.Update, "complete": modes.Complete}[
        definition.output_mode or "append"
    ]
    java.catalyst.analysis.UnsupportedOperationChecker.checkForStreaming(rows._jdf.queryExecution().analyzed(), mode())
