"""The sink: tasks stage records, the driver commits all stages in one step, once for a version.

    task 1  write() ─ stage uuid1: part 0, part 1, … ─┐
    task 2  write() ─ stage uuid2: part 0, …          ├─ messages ─▶ driver: commit(app, version, [uuid1, uuid3])
    task 2  again   ─ stage uuid3: part 0, …          ┘              uuid2 is never named, and expires

`app` and `version` are the same after a crash: the query's id and the batch's number, or the writer's options. A
version that was committed is not changed by committing it again.

Every run of a query takes a token of its app: from then on, tasks and drivers of earlier runs are refused.
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
from typing import TYPE_CHECKING, Any, Final

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from topics.client import Client, TopicsError
from topics.client.errors import BatchTooLarge, Forbidden, PayloadTooLarge
from topics_spark.errors import OptionError, ServerFailed
from topics_spark.options import FOREIGN, URL_DEFAULT, number
from topics_spark.source.links import link_to

if TYPE_CHECKING:
    from topics_spark.sink.outgoing import RecordWriter

log = logging.getLogger("topics_spark")

# The default limit of a server's request, and the number of rows that Spark passes at a time.
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
        "txnNumber",
        "txnVersionBase",
        "txnFence",
        "timeoutSeconds",
    )
)
# Spark's own properties of a task of a streaming query.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
RUN_ID: Final = "spark.jobGroup.id"
# Set for every query of Spark Connect, and for every query of a session that Spark has made for a stream.
CONNECT: Final = "spark.connect.operation_id"
OF_STREAM: Final = "spark.sql.streaming.internal.stateStore.partitions"
FENCES_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class SinkOptions:
    """The checked options of one write. The key is kept out of all texts."""

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
            raise OptionError(unknown[0], "is not an option of this sink; docs/SPARK.md lists the options")
        # `save("orders")` names the topic as well.
        topic = options.get("topic") or options.get("path") or None
        kind = options.get("stringdata", "json").strip().lower()
        if kind not in ("json", "text"):
            raise OptionError("stringData", f"must be json (strings are sent unchanged) or text, not {kind!r}")
        # Where its jars are, Delta refuses a write of any format with `txnVersion` and without its own `txnAppId`.
        version = "txnNumber" if "txnnumber" in options else "txnVersion"
        return cls(
            url=(options.get("url") or os.environ.get("TOPICS_URL", URL_DEFAULT)).rstrip("/"),
            key=options.get("key") or os.environ.get("TOPICS_API_KEY") or None,
            topic=topic,
            sink_name=options.get("sinkname") or topic or "rows",
            plain_text=kind == "text",
            app=options.get("txnapp") or None,
            version=number(options, version, 0, 0, VERSION_MAX) if version.lower() in options else None,
            version_base=number(options, "txnVersionBase", 0, 0, VERSION_MAX),
            fence=number(options, "txnFence", 0, 0, VERSION_MAX) if "txnfence" in options else None,
            timeout_s=float(number(options, "timeoutSeconds", 60, 1, 3_600)),
        )

    def client(self) -> Client:
        return link_to(self.url, self.key or "", self.timeout_s).client


@dataclass(frozen=True, slots=True)
class Batch:
    """What a task belongs to, as far as Spark tells."""

    query_id: str | None
    run_id: str | None
    number: int | None
    # A batch of a stream whose id and number are not known: Spark Connect calls foreachBatch from another thread.
    unknown: bool = False


@dataclass(frozen=True, slots=True)
class Version:
    """The app and version under which rows are committed, and the token; `of_run`: no other run has that token."""

    app: str
    number: int
    fence: int | None
    of_run: bool = False
    # It was committed before, under the name that version 0.1 gave to the query.
    done: bool = False


@dataclass(frozen=True, slots=True)
class Staged(WriterCommitMessage):
    """The stage of a task, and its version."""

    version: Version
    stage: str | None


class Writing:
    """Shared by batches and streams: staging in tasks, committing in the driver."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        self._options = options
        self._schema = schema
        # Reports invalid columns before any task runs.
        self._record_writer()

    def _record_writer(self) -> RecordWriter:
        """Made where it is used: its functions cannot be pickled, and a commit does without importing Arrow."""
        from topics_spark.sink.outgoing import RecordWriter

        return RecordWriter(self._schema, topic=self._options.topic, plain_text=self._options.plain_text)

    def version_of_run(self, app: str, number: int, run_id: str | None) -> Version:
        options = self._options
        if options.fence is not None or run_id is None:
            return Version(app, number, options.fence)
        try:
            return Version(app, number, fence_of(options, app, run_id), of_run=True)
        except TopicsError as error:
            raise ServerFailed(f"cannot take a token at {options.url}: {error}") from error

    def version_of_query(self, batch: Batch, base: int = 0) -> Version:
        """Named after the sink first: a key that may write to the topic may commit under this name."""
        options = self._options
        assert batch.query_id is not None and batch.number is not None, "Spark sets both for a task"
        number = base + batch.number
        version = self.version_of_run(app_of_query(batch.query_id, options.sink_name), number, batch.run_id)
        try:
            earlier = version_of_earlier_name(options, batch.query_id, options.sink_name)
        except TopicsError as error:
            raise ServerFailed(f"cannot read the version at {options.url}: {error}") from error
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
            raise ServerFailed(f"cannot stage the rows at {self._options.url}: {error}") from error
        return Staged(version, stage.name if stage.parts and not stage.done else None)

    def commit_all(self, messages: list[Any]) -> None:
        staged = [message for message in messages if isinstance(message, Staged)]
        stages = [message.stage for message in staged if message.stage is not None]
        if not stages:
            # No rows, or done before. An empty commit might skip more versions than allowed.
            return
        options, version = self._options, staged[0].version
        try:
            done = options.client().commit_txn(version.app, version.number, stages, fence=version.fence)
        except TopicsError as error:
            raise ServerFailed(f"cannot commit the transaction at {options.url}: {error}") from error
        if done.deduped:
            log.info("version %d of %s was already committed", version.number, version.app)

    def abort_all(self, messages: list[Any]) -> None:
        """Best effort: stages that are not aborted expire."""
        staged = [message for message in messages if isinstance(message, Staged) and message.stage is not None]
        if not staged:
            return
        options, version = self._options, staged[0].version
        stages = [message.stage for message in staged if message.stage is not None]
        try:
            options.client().abort_txn(version.app, version.number, stages, fence=version.fence)
        except TopicsError as error:
            log.info("%d stages were not aborted and will expire: %s", len(stages), error)


class Stage:
    """The stage of one attempt of one task, under a unique name."""

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
            # The server's limit is lower than the default.
            if stop - start < 2:
                raise
            middle = (start + stop) // 2
            self.add(batch, start, middle)
            self.add(batch, middle, stop)
            return
        if told.done and version.of_run and told.fence == version.fence:
            # A run writes each batch once, so this is another write of the same batch, and these rows would be lost.
            raise OptionError(
                "sinkName",
                f"must be given: another write of batch {version.number} also has the name {self._options.sink_name!r}",
            )
        self.done = told.done
        self.parts += 1


class BatchWriter(Writing, DataSourceArrowWriter):
    """`df.write`. Inside foreachBatch the query's id and batch number make it exactly once without options."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        super().__init__(schema, options)
        if (options.app is None) != (options.version is None):
            raise OptionError("txnVersion", "and `txnApp` must be given together")
        self._app_of_this_write = f"{options.sink_name}:spark:write:{uuid.uuid4().hex}"

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        return self.stage(iterator, self._version())

    def _version(self) -> Version:
        options, batch = self._options, _batch()
        if options.app is not None and options.version is not None:
            return Version(options.app, options.version, options.fence)
        if batch.query_id is not None and batch.number is not None:
            return self.version_of_query(batch)
        if batch.unknown:
            raise OptionError(
                "txnApp",
                "and `txnVersion` must be given in foreachBatch under Spark Connect, which does not tell the sink the "
                'query and its batch, so that a repeated batch would be written twice: .option("txnApp", "a name of '
                'this query").option("txnVersion", batch_id)',
            )
        return Version(self._app_of_this_write, 0, None)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        self.commit_all(messages)
        if any(isinstance(message, Staged) and message.version.app == self._app_of_this_write for message in messages):
            self._forget()

    def _forget(self) -> None:
        """This version is not needed any more; with a key that may not delete, its entry stays."""
        try:
            self._options.client().forget_txn(self._app_of_this_write)
        except TopicsError as error:
            log.info("the server keeps the app of a finished write: %s", error)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        self.abort_all(messages)


class StreamWriter(Writing, DataSourceStreamArrowWriter):
    """`df.writeStream`. Spark makes one for each batch."""

    def __init__(self, schema: StructType, options: SinkOptions) -> None:
        if options.version is not None:
            raise OptionError("txnVersion", "cannot be given for a stream, whose batches have numbers of their own")
        super().__init__(schema, options)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        options, batch = self._options, _batch()
        if options.app is None:
            return self.stage(iterator, self.version_of_query(batch, options.version_base))
        assert batch.number is not None, "Spark sets it for a task"
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
    """The token of this run: all its tasks ask for it and get the same."""
    return options.client().take_fence(app, owner=run_id)


def app_of_query(query_id: str, sink_name: str) -> str:
    """Two sinks of one query must not use each other's versions."""
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
    query_id, run_id, number, connect, of_stream = map(
        context.getLocalProperty, (QUERY_ID, RUN_ID, BATCH_ID, CONNECT, OF_STREAM)
    )
    unknown = query_id is None and connect is not None and of_stream is not None
    return Batch(query_id, run_id, None if number is None else int(number), unknown)


def _parts(batch: Any) -> Iterator[tuple[int, int]]:
    """Rows of a batch in runs that fit a request."""
    rows = batch.num_rows
    if not rows:
        return
    step = max(1, min(PART_RECORDS, rows * PART_BYTES // max(1, batch.nbytes)))
    for start in range(0, rows, step):
        yield start, min(rows, start + step)
