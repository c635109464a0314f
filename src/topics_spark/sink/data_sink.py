"""The sink: tasks lay records aside in stages, the driver commits them all in one step, once for a version.

    task 1  write() ─ stage uuid1: part 0, part 1, … ─┐
    task 2  write() ─ stage uuid2: part 0, …          ├─ messages ─▶ driver: commit(app, version, [uuid1, uuid3])
    task 2  again   ─ stage uuid3: part 0, …          ┘              uuid2 is never named, and expires

`app` and `version` are what a crash leaves the same: the query's id and the batch's number, or what the writer was
told. A version that was committed is left alone, however often and by whomever it is committed again.

Every run of a query takes a token of its app: tasks and drivers of the runs before it are refused from then on.
"""
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

import functools
import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from topics.client import Client, TopicsError
from topics.client.errors import BatchTooLarge, Forbidden, PayloadTooLarge
from topics_spark.errors import OptionError, ServerFailed
from topics_spark.options import FOREIGN, URL_DEFAULT, number
from topics_spark.sink.outgoing import RecordWriter
from topics_spark.source.server import client_for

log = logging.getLogger("topics_spark")

# What a server takes in one request unless it is set otherwise, and as many rows as Spark hands over at a time.
PART_RECORDS: Final = 10_000
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
RUN_ID: Final = "spark.jobGroup.id"
FENCES_MAX: Final = 64


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
class Batch:
    """What a task works for, as far as Spark tells."""

    query_id: str | None
    run_id: str | None
    number: int | None


@dataclass(frozen=True, slots=True)
class Version:
    """Under what name and number rows are committed, and with which token; `of_run`: no other run has that token."""

    app: str
    number: int
    fence: int | None
    of_run: bool = False
    # It was committed before, under the name that version 0.1 gave to the query.
    done: bool = False


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """What a task has laid aside, and for which version."""

    version: Version
    stage: str | None


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

    def version_of_run(self, app: str, number: int, run_id: str | None) -> Version:
        options = self._options
        if options.fence is not None or run_id is None:
            return Version(app, number, options.fence)
        try:
            return Version(app, number, fence_of(options, app, run_id), of_run=True)
        except TopicsError as error:
            raise ServerFailed(f"no token could be taken at {options.url}: {error}") from error

    def version_of_query(self, batch: Batch, base: int = 0) -> Version:
        """Named after the sink first: a key that may write to the topic may commit under this name."""
        options = self._options
        assert batch.query_id is not None and batch.number is not None, "Spark tells a task what it works for"
        number = base + batch.number
        version = self.version_of_run(app_of_query(batch.query_id, options.sink_name), number, batch.run_id)
        try:
            earlier = version_of_earlier_name(options, batch.query_id, options.sink_name)
        except TopicsError as error:
            raise ServerFailed(f"no version could be read at {options.url}: {error}") from error
        return replace(version, done=number <= earlier)

    def stage(self, batches: Iterator[Any], version: Version) -> Staged:
        if version.done:
            return Staged(version, None)
        stage = Stage(self._options, self._record_writer(), version)
        try:
            for batch in batches:
                for start, stop in _parts(batch):
                    stage.add(batch, start, stop)
        except TopicsError as error:
            raise ServerFailed(f"the rows could not be staged at {self._options.url}: {error}") from error
        return Staged(version, stage.name if stage.parts and not stage.done else None)

    def commit_all(self, messages: list[Any]) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        stages = [message.stage for message in staged if message.stage is not None]
        if not stages:
            # No rows, or done before. An empty commit might have to leave out more versions than it may.
            return
        options, version = self._options, staged[0].version
        try:
            done = options.client().commit_txn(version.app, version.number, stages, fence=version.fence)
        except TopicsError as error:
            raise ServerFailed(f"the transaction could not be committed at {options.url}: {error}") from error
        if done.deduped:
            log.info("version %d of %s had been committed before", version.number, version.app)

    def abort_all(self, messages: list[Any]) -> None:
        """Best effort: what is not aborted expires."""
        staged = [message for message in messages if isinstance(message, Staged) and message.stage is not None]
        if not staged:
            return
        options, version = self._options, staged[0].version
        stages = [message.stage for message in staged if message.stage is not None]
        try:
            options.client().abort_txn(version.app, version.number, stages, fence=version.fence)
        except TopicsError as error:
            log.info("%d stages are left to expire: %s", len(stages), error)


class Stage:
    """What one attempt of one task lays aside, under a name that no other attempt has."""

    def __init__(self, options: SinkOptions, records: RecordWriter, version: Version) -> None:
        self.name = uuid.uuid4().hex
        self.parts = 0
        self.done = False
        self._options = options
        self._records = records
        self._version = version
        self._client = options.client()

    def add(self, batch: Any, start: int, stop: int) -> None:
        if self.done:
            return
        version = self._version
        body = self._records.records(batch, start, stop)
        try:
            told = self._client.stage(
                version.app, version.number, self.name, self.parts, body, self._options.topic, version.fence
            )
        except (BatchTooLarge, PayloadTooLarge):
            # The server is set to less than is usual.
            if stop - start < 2:
                raise
            middle = (start + stop) // 2
            self.add(batch, start, middle)
            self.add(batch, middle, stop)
            return
        if told.done and version.of_run and told.fence == version.fence:
            # A run does each batch once, so it was another write of the same batch, and these rows would be lost.
            raise OptionError(
                "sinkName",
                f"must be given: another write of batch {version.number} has the name {self._options.sink_name!r}, too",
            )
        self.done = told.done
        self.parts += 1


class BatchWriter(Writing, DataSourceArrowWriter):
    """`df.write`. Inside foreachBatch the query's id and batch number make it exactly once without being told."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        super().__init__(schema, options)
        if (options.app is None) != (options.version is None):
            raise OptionError("txnVersion", "and `txnApp` belong together: give both or neither")
        self._app_of_this_write = f"{options.sink_name}:spark:write:{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.stage(iterator, self._version())

    def _version(self) -> Version:
        options, batch = self._options, _batch()
        if options.app is not None and options.version is not None:
            return Version(options.app, options.version, options.fence)
        if batch.query_id is not None and batch.number is not None:
            return self.version_of_query(batch)
        return Version(self._app_of_this_write, 0, None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.commit_all(messages)
        if any(isinstance(message, Staged) and message.version.app == self._app_of_this_write for message in messages):
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
        options, batch = self._options, _batch()
        if options.app is None:
            return self.stage(iterator, self.version_of_query(batch, options.version_base))
        assert batch.number is not None, "Spark tells a task what it works for"
        number = options.version_base + batch.number
        return self.stage(iterator, self.version_of_run(options.app, number, batch.run_id))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        del batchId
        self.commit_all(messages)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        del batchId
        self.abort_all(messages)


@functools.lru_cache(maxsize=FENCES_MAX)
def fence_of(options: SinkOptions, app: str, run_id: str) -> int:
    """The token of this run: every task of it asks, and is told the same."""
    return options.client().take_fence(app, owner=run_id)


def app_of_query(query_id: str, sink_name: str) -> str:
    """Two sinks of one query must not take each other's versions for their own."""
    return f"{sink_name}:spark:{query_id}"


@functools.lru_cache(maxsize=FENCES_MAX)
def version_of_earlier_name(options: SinkOptions, query_id: str, sink_name: str) -> int:
    """The highest version of the query under its name of version 0.1; -1 if there is none, or none for this key."""
    try:
        version = options.client().txn(f"spark:{query_id}:{sink_name}").version
    except Forbidden:
        return -1
    return -1 if version is None else version


def _batch() -> Batch:
    context = TaskContext.get()
    if context is None:
        return Batch(None, None, None)
    number = context.getLocalProperty(BATCH_ID)
    return Batch(
        context.getLocalProperty(QUERY_ID), context.getLocalProperty(RUN_ID), None if number is None else int(number)
    )


def _parts(batch: Any) -> Iterator[tuple[int, int]]:
    """Rows of a batch in stretches that fit a request."""
    rows = batch.num_rows
    if not rows:
        return
    step = max(1, min(PART_RECORDS, rows * PART_BYTES // max(1, batch.nbytes)))
    for start in range(0, rows, step):
        yield start, min(rows, start + step)
