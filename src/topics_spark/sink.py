"""The sink: tasks lay records aside in stages, the driver commits them all in one step, once for a version.

    task 1  write() ─ stage uuid1: part 0, part 1, … ─┐
    task 2  write() ─ stage uuid2: part 0, …          ├─ messages ─▶ driver: commit(app, version, [uuid1, uuid3])
    task 2  again   ─ stage uuid3: part 0, …          ┘              uuid2 is never named, and expires

`app` and `version` are what a crash leaves the same: the query's id and the batch's number, or what the writer was
told. A version that was committed is left alone, however often and by whomever it is committed again.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from topics.client import Client, TopicsError
from topics_spark.errors import OptionError, ServerFailed
from topics_spark.options import FOREIGN, URL_DEFAULT, number
from topics_spark.outgoing import RecordWriter
from topics_spark.server import client_for

log = logging.getLogger("topics_spark")

PART_RECORDS: Final = 5_000
PART_BYTES: Final = 4 * 1024 * 1024
VERSION_MAX: Final = 2**63 - 1
KNOWN: Final = frozenset(
    name.lower()
    for name in (
        "url",
        "key",
        "topic",
        "sinkName",
        "stringData",
        "txnApp",
        "txnVersion",
        "txnVersionBase",
        "txnFence",
        "timeoutSeconds",
    )
)
# Spark's own notes for a task of a streaming query.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The options of one write, checked. The key is kept out of every text made of this."""

    url: str
    key: str | None = field(repr=False)
    topic: str | None
    sink_name: str
    plain_text: bool
    app: str | None
    version: int | None
    version_base: int
    fence: int | None
    timeout_s: float

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> SinkOptions:
        options = {name.lower(): value for name, value in given.items()}
        if unknown := sorted(set(options) - KNOWN - FOREIGN - {"path"}):
            raise OptionError(unknown[0], "is not an option of this sink; docs/SPARK.md lists them")
        # `save("orders")` says the topic as well.
        topic = options.get("topic") or options.get("path") or None
        kind = options.get("stringdata", "json").strip().lower()
        if kind not in ("json", "text"):
            raise OptionError("stringData", f"takes json (strings are sent as they are) or text, not {kind!r}")
        return cls(
            url=(options.get("url") or os.environ.get("TOPICS_URL", URL_DEFAULT)).rstrip("/"),
            key=options.get("key") or os.environ.get("TOPICS_API_KEY") or None,
            topic=topic,
            sink_name=options.get("sinkname") or topic or "rows",
            plain_text=kind == "text",
            app=options.get("txnapp") or None,
            version=number(options, "txnVersion", 0, 0, VERSION_MAX) if "txnversion" in options else None,
            version_base=number(options, "txnVersionBase", 0, 0, VERSION_MAX),
            fence=number(options, "txnFence", 0, 0, VERSION_MAX) if "txnfence" in options else None,
            timeout_s=float(number(options, "timeoutSeconds", 60, 1, 3_600)),
        )

    def client(self) -> Client:
        return client_for(self.url, self.key or "", self.timeout_s)


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What a task has laid aside, and for which version."""

    app: str
    version: int
    stage: str | None
    records: int


class Writing:
    """What batches and streams have in common: staging in tasks, committing at the driver."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._options = options
        self._schema = schema
        # Says what is wrong with the columns before any task runs.
        self._record_writer()

    def _record_writer(self) -> RecordWriter:
        """Made where it is used: it holds functions, and those do not travel."""
        return RecordWriter(self._schema, topic=self._options.topic, plain_text=self._options.plain_text)

    def stage(self, batches: Iterator[Any], app: str, version: int) -> Staged:
        options, client, records = self._options, self._options.client(), self._record_writer()
        stage, part, total = uuid.uuid4().hex, 0, 0
        try:
            for batch in batches:
                for start, stop in _parts(batch):
                    body = records.records(batch, start, stop)
                    told = client.stage(app, version, stage, part, body, topic=options.topic, fence=options.fence)
                    if told.done:
                        return Staged(app, version, None, 0)
                    part += 1
                    total += stop - start
        except TopicsError as error:
            raise ServerFailed(f"the rows could not be staged at {options.url}: {error}") from error
        return Staged(app, version, stage if part else None, total)

    def commit_all(self, messages: list[Any]) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        if not staged:
            return
        options = self._options
        stages = [message.stage for message in staged if message.stage is not None]
        try:
            done = options.client().commit_txn(staged[0].app, staged[0].version, stages, fence=options.fence)
        except TopicsError as error:
            raise ServerFailed(f"the transaction could not be committed at {options.url}: {error}") from error
        if done.deduped:
            log.info("version %d of %s had been committed before", staged[0].version, staged[0].app)

    def abort_all(self, messages: list[Any]) -> None:
        """Best effort: what is not aborted expires."""
        options = self._options
        for message in messages:
            if isinstance(message, Staged) and message.stage is not None:
                try:
                    options.client().abort_txn(message.app, message.version, [message.stage], fence=options.fence)
                except TopicsError as error:
                    log.info("a stage is left to expire: %s", error)


class BatchWriter(Writing, DataSourceArrowWriter):
    """`df.write`. Inside foreachBatch the query's id and batch number make it exactly once without being told."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        super().__init__(schema, options)
        if (options.app is None) != (options.version is None):
            raise OptionError("txnVersion", "and `txnApp` belong together: give both or neither")
        self._app_of_this_write = f"spark:write:{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        options = self._options
        query_id, batch_id = _query_and_batch()
        if options.app is not None and options.version is not None:
            return self.stage(iterator, options.app, options.version)
        if query_id is not None and batch_id is not None:
            return self.stage(iterator, app_of_query(query_id, options.sink_name), batch_id)
        return self.stage(iterator, self._app_of_this_write, 0)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.commit_all(messages)
        if any(isinstance(message, Staged) and message.app == self._app_of_this_write for message in messages):
            self._forget()

    def _forget(self) -> None:
        """Nobody asks for this version again; a key that may not delete leaves a line behind."""
        try:
            self._options.client().forget_txn(self._app_of_this_write)
        except TopicsError as error:
            log.info("the server keeps the name of a finished write: %s", error)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.abort_all(messages)


class StreamWriter(Writing, DataSourceStreamArrowWriter):
    """`df.writeStream`. Spark makes one for every batch."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        if options.version is not None:
            raise OptionError("txnVersion", "has no place in a stream, whose batches have numbers of their own")
        super().__init__(schema, options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        options = self._options
        query_id, batch_id = _query_and_batch()
        assert query_id is not None and batch_id is not None, "Spark tells a task of a stream what it works for"
        app = options.app or app_of_query(query_id, options.sink_name)
        return self.stage(iterator, app, options.version_base + batch_id)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        del batchId
        self.commit_all(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        del batchId
        self.abort_all(messages)


def app_of_query(query_id: str, sink_name: str) -> str:
    """Two sinks of one query must not take each other's versions for their own."""
    return f"spark:{query_id}:{sink_name}"


def _query_and_batch() -> tuple[str | None, int | None]:
    context = TaskContext.get()
    if context is None:
        return None, None
    batch_id = context.getLocalProperty(BATCH_ID)
    return context.getLocalProperty(QUERY_ID), None if batch_id is None else int(batch_id)


def _parts(batch: Any) -> Iterator[tuple[int, int]]:
    """Rows of a batch in stretches that fit a request."""
    rows = batch.num_rows
    if not rows:
        return
    step = max(1, min(PART_RECORDS, rows * PART_BYTES // max(1, batch.nbytes)))
    for start in range(0, rows, step):
        yield start, min(rows, start + step)
