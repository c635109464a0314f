"""Pipeline definitions as requests: sources, transformation, sink and trigger.

The server checks only the shape. The runner, which has the schemas, checks the SQL.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from topics.model.errors import InvalidRequest
from topics.model.names import check_topic_name
from topics.model.requests.config import U64
from topics.model.requests.mistakes import BODY, mistake
from topics.model.requests.ready_made import READY_OPTIONS, options_of

Guarantee = Literal["at_least_once", "exactly_once"]
OutputMode = Literal["append", "update", "complete"]
TableFormat = Literal["parquet", "delta", "iceberg"]
SOURCES_MAX = 16
TOPICS_MAX = 256
TEXT_CHARS_MAX = 64 * 1024
STATUS_BYTES_MAX = 1024 * 1024
POSITIONS_MAX = 10_000
LOG_LINES_MAX = 50
LOG_MESSAGE_CHARS_MAX = 300
EXPECTATIONS_MAX = 64
BATCH_RECORDS_LIMIT = 100_000_000
LONG_STATE_S = 3_600
UNITS_S: Final = {"millisecond": 0.001, "second": 1, "minute": 60, "hour": 3_600, "day": 86_400, "week": 604_800}
# What a definition may set. Others are the runner's: they could open files, load classes or change other pipelines.
SPARK_SETTINGS: Final = (
    "spark.sql.adaptive.*",
    "spark.sql.ansi.enabled",
    "spark.sql.autoBroadcastJoinThreshold",
    "spark.sql.caseSensitive",
    "spark.sql.files.maxPartitionBytes",
    "spark.sql.parquet.compression.codec",
    "spark.sql.session.timeZone",
    "spark.sql.shuffle.partitions",
    "spark.sql.streaming.maxBatchesToRetainInMemory",
    "spark.sql.streaming.minBatchesToRetain",
    "spark.sql.streaming.multipleWatermarkPolicy",
    "spark.sql.streaming.noDataMicroBatches.enabled",
    "spark.sql.streaming.stateStore.minDeltasForSnapshot",
    "spark.sql.streaming.stateStore.rocksdb.*",
)
QUARANTINE: Final = "quarantine to "
# They end by themselves, and are no streams of rows.
JOBS: Final = frozenset(("audit", "dead-letter-report", "replay"))
_VIEW = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_TABLE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", re.ASCII)
_DURATION = re.compile(r"[1-9][0-9]{0,8} (millisecond|second|minute|hour|day|week)s?", re.ASCII)
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)", re.ASCII)
_CRON_FIELD = re.compile(r"(\*|\d+(-\d+)?)(/[1-9]\d*)?(,(\*|\d+(-\d+)?)(/[1-9]\d*)?)*", re.ASCII)
_CRON_BOUNDS: Final = (("minute", 0, 59), ("hour", 0, 23), ("day", 1, 31), ("month", 1, 12), ("weekday", 0, 7))

Text = Annotated[str, Meta(max_length=TEXT_CHARS_MAX)]


class Watermark(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Rows whose `column` is older than the newest one seen by more than `delay` are late."""

    column: str
    delay: str


class Expectation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A condition on rows, and what happens to one for which it is not true: `warn`, `drop`, `quarantine to TOPIC` or
    `fail`.
    """

    condition: Text
    otherwise: Annotated[str, Meta(max_length=512)] = "warn"

    @property
    def topic(self) -> str | None:
        """Where rows go that do not meet it."""
        return self.otherwise.removeprefix(QUARANTINE) if self.otherwise.startswith(QUARANTINE) else None


# By name; a condition alone only warns.
Expectations = dict[str, Text | Expectation]


def expectations(given: Expectations | None) -> dict[str, Expectation]:
    """The same, with all conditions in one form."""
    return {name: Expectation(each) if isinstance(each, str) else each for name, each in (given or {}).items()}


class PipelineSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The input of one view: one topic, several, all whose names match, or a table."""

    topic: str | None = None
    topics: list[str] | None = None
    pattern: Text | None = None
    # A table of the runner, read in full.
    table: str | None = None
    # Where the first run starts: "earliest", "latest", after a seq, or at a time.
    start: str | U64 | None = None
    schema: Text | None = None
    watermark: Watermark | None = None
    # Read in full at the start of a run instead of as a stream: the table side of a join.
    static: bool | None = None
    # Of its records, before the transformation.
    expect: Expectations | None = None
    # The topic for records that do not fit the schema; without it their fields are null.
    dead_letter: str | None = None

    def names(self) -> list[str]:
        """The topics it names; a pattern names none."""
        if self.topic is not None:
            return [self.topic]
        return self.topics or []


class PipelineSink(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A topic, or a table in the runner's tables directory: Parquet files with a manifest, Delta or Iceberg."""

    topic: str | None = None
    # The column that becomes the record's tag.
    tag: str | None = None
    table: str | None = None
    partition_by: list[str] | None = None
    # Continue a table that another pipeline has written; if that still exists, it is disabled.
    take_over: bool | None = None
    format: TableFormat | None = None
    # The table has one row of each key, the newest one: the last to arrive, or the one with the highest `newest_by`.
    key: list[str] | None = None
    newest_by: str | None = None
    # A column of booleans, which is not stored: a row with true deletes the row of its key.
    deleted: str | None = None
    # Compaction sorts rows by these columns.
    cluster_by: list[str] | None = None


class PipelineTrigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Continuously, once over the existing records, or that at certain times (UTC)."""

    every: str | None = None
    once: bool | None = None
    cron: str | None = None


class PipelineRestart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`start`: from its checkpoint, or as a new pipeline from where its sources say, which repeats its output."""

    start: Literal["checkpoint", "sources"] = "checkpoint"


class PipelineRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A definition, as sent by PUT and as stored; absent fields have the runner's defaults."""

    sources: dict[str, PipelineSource]
    description: Text | None = None
    # exactly one of the three
    sql: Text | None = None
    python: str | None = None
    use: str | None = None
    # of a ready-made one
    options: dict[str, Any] | None = None
    sink: PipelineSink | None = None
    trigger: PipelineTrigger | None = None
    output_mode: OutputMode | None = None
    guarantee: Guarantee | None = None
    state_retention: str | None = None
    enabled: bool | None = None
    # Of the rows that the transformation makes.
    expect: Expectations | None = None
    # At most this many records of each source in a batch.
    batch_records: Annotated[int, Meta(ge=1, le=BATCH_RECORDS_LIMIT)] | None = None
    # Where the state of joins, windows and keys is while it runs: in the memory of Java, or in RocksDB on disk.
    state_store: Literal["memory", "rocksdb"] | None = None
    # Settings of Spark for its session.
    spark: dict[str, str | int | float | bool] | None = None

    def store(self) -> Literal["memory", "rocksdb"]:
        """RocksDB by default for state that is kept for an hour or longer: it can outgrow the memory."""
        if self.state_store is not None:
            return self.state_store
        return "rocksdb" if any(seconds(kept) >= LONG_STATE_S for kept in self._kept_for()) else "memory"

    def _kept_for(self) -> list[str]:
        options = self.options or {}
        named = [options.get(name) for name in ("horizon", "within", "late", "gap")]
        if self.use == "dedupe" and "horizon" not in options:
            named.append("1 day")
        delays = [source.watermark.delay for source in self.sources.values() if source.watermark is not None]
        return [each for each in (self.state_retention, *named, *delays) if isinstance(each, str)]

    def ends(self) -> list[tuple[str, str]]:
        """The topics that it names, with the field of each. A pattern may match any topic: the empty prefix."""
        ends = [
            (name, f"sources.{view}")
            for view, source in self.sources.items()
            for name in ([""] if source.pattern is not None else source.names())
        ]
        if self.sink is not None and self.sink.topic is not None:
            ends.append((self.sink.topic, "sink.topic"))
        return ends + self.rejects()

    def rejects(self) -> list[tuple[str, str]]:
        """The topics for what is not accepted, each with the field that names it."""
        found = [
            (source.dead_letter, f"sources.{view}.dead_letter")
            for view, source in self.sources.items()
            if source.dead_letter is not None
        ]
        given = [(f"sources.{view}.expect", source.expect) for view, source in self.sources.items()]
        for field, expect in (*given, ("expect", self.expect)):
            topics = {name: each.topic for name, each in expectations(expect).items()}
            found += [(topic, f"{field}.{name}") for name, topic in topics.items() if topic is not None]
        return found

    def judges(self) -> bool:
        """Whether there is anything that a row can fail to meet."""
        return bool(self.expect) or any(source.expect or source.dead_letter for source in self.sources.values())

    def table_of(self, pipeline: str) -> str:
        """The table of its rows, unless they go to a topic: named in the sink, otherwise the name of the pipeline."""
        return (self.sink.table if self.sink is not None else None) or pipeline

    def table_written(self, pipeline: str) -> str | None:
        """The table that it owns; None if it writes to a topic."""
        return self.table_of(pipeline) if self.sink is None or self.sink.topic is None else None


class Position(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last seq of a topic that a pipeline has processed; epoch 0: of whichever topic has the name."""

    epoch: U64 = 0
    seq: U64 = 0


class PipelineLogLine(msgspec.Struct, forbid_unknown_fields=True):
    """What a runner has to say about a pipeline, when (its own clock), and how grave it is."""

    ts: int
    level: Literal["info", "warning", "error"]
    message: Annotated[str, Meta(max_length=LOG_MESSAGE_CHARS_MAX)]


class PipelineStatus(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A runner's report on a pipeline. `progress` is Spark's report on the last batch, `log` the end of its log."""

    state: Literal["starting", "running", "idle", "restarting", "failed", "stopped"]
    runner: Annotated[str, Meta(max_length=256)]
    # The definition that it is about.
    revision: U64 = 0
    batch: int | None = None
    rows_total: U64 = 0
    rows_per_second: float = 0.0
    # Records of the sources that are not processed yet; measured by the server where there are positions.
    lag: U64 = 0
    # Rows dropped because they came after the watermark, since the runner has the pipeline.
    late_rows: U64 = 0
    # Rows that did not meet an expectation, by its name, since the runner has the pipeline.
    unmet: Annotated[dict[str, U64], Meta(max_length=POSITIONS_MAX)] = {}
    restarts: U64 = 0
    last_error: Text | None = None
    # When that happened, in ms.
    last_error_ts: U64 = 0
    # Why it needs a decision of its operator: a code; `last_error` has the choices.
    problem: Annotated[str, Meta(max_length=64)] | None = None
    # Where the runner has its checkpoint, and its table if it writes one.
    checkpoint: Text | None = None
    table: Text | None = None
    # Where it is in each topic after its last finished batch.
    positions: Annotated[dict[str, Position], Meta(max_length=POSITIONS_MAX)] | None = None
    progress: dict[str, Any] | None = None
    log: Annotated[list[PipelineLogLine], Meta(max_length=LOG_LINES_MAX)] = []
    # Spark's own web pages, if the runner has them.
    spark_ui: Annotated[str, Meta(max_length=1_024)] | None = None
    # When the server received it.
    ts: int = 0


def check_status_size(body: bytes) -> None:
    if len(body) > STATUS_BYTES_MAX:
        raise InvalidRequest(f"a status must be at most {STATUS_BYTES_MAX} bytes", field=BODY, max=STATUS_BYTES_MAX)


def check_pipeline(request: PipelineRequest) -> PipelineRequest:
    """Refuse a definition that no runner could run, naming the field."""
    if not 1 <= len(request.sources) <= SOURCES_MAX:
        raise InvalidRequest(f"sources must name 1 to {SOURCES_MAX} views", field="sources")
    for view, source in request.sources.items():
        if _VIEW.fullmatch(view) is None:
            raise InvalidRequest(
                f"sources: {view!r} is not a valid view name: use letters, digits and _", field="sources"
            )
        _check_source(source, f"sources.{view}")
    _check_exactly_one("the transformation", "sql", sql=request.sql, python=request.python, use=request.use)
    if request.python is not None and _FUNCTION.fullmatch(request.python) is None:
        raise InvalidRequest("python must be module:function", field="python")
    if request.use is not None:
        _check_ready_made(request.use, request.options)
    if request.options is not None and request.use is None:
        raise InvalidRequest("options belong to a ready-made pipeline: name it in use", field="options")
    _check_expectations(request.expect, "expect")
    if request.use in JOBS and request.judges():
        raise InvalidRequest(f"expect and dead_letter are not possible with {request.use}, which is a job", field="use")
    if request.sink is not None:
        _check_sink(request.sink)
    elif request.use is None:
        raise InvalidRequest("sink must name a topic or a table", field="sink")
    _check_not_fed_by_itself(request)
    if request.sink is not None and request.sink.key is not None and request.output_mode == "complete":
        raise InvalidRequest("sink.key: in mode complete every batch replaces the table", field="sink.key")
    if request.trigger is not None:
        _check_trigger(request.trigger)
    for name in request.spark or ():
        _check_setting(name)
    if request.state_retention is not None:
        _check_duration(request.state_retention, "state_retention")
    return request


def _check_ready_made(use: str, options: dict[str, Any] | None) -> None:
    if use not in READY_OPTIONS:
        raise InvalidRequest(f"use must be one of {', '.join(READY_OPTIONS)}", field="use")
    try:
        options_of(use, options)
    except msgspec.ValidationError as error:
        raise mistake(error, READY_OPTIONS[use], "options") from None


def _check_source(source: PipelineSource, field: str) -> None:
    choices = {"topic": source.topic, "topics": source.topics, "pattern": source.pattern, "table": source.table}
    _check_exactly_one(field, f"{field}.topic", **choices)
    if source.table is not None:
        _check_table(source.table, f"{field}.table")
    if source.topics is not None and not 1 <= len(source.topics) <= TOPICS_MAX:
        raise InvalidRequest(f"{field}.topics must name 1 to {TOPICS_MAX} topics", field=f"{field}.topics")
    for name in source.names():
        check_topic_name(name, f"{field}.topic")
    if source.pattern is not None:
        try:
            re.compile(source.pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise InvalidRequest(f"{field}.pattern: {error}", field=f"{field}.pattern") from None
    start = source.start
    if isinstance(start, int) and source.pattern is not None:
        raise InvalidRequest(f"{field}.start: a seq is allowed only for topics given by name", field=f"{field}.start")
    if isinstance(start, str) and start not in ("earliest", "latest") and _TIME.fullmatch(start) is None:
        raise InvalidRequest(
            f'{field}.start must be "earliest", "latest", a seq or a time like 2026-01-31T12:00:00Z',
            field=f"{field}.start",
        )
    if source.watermark is not None:
        _check_duration(source.watermark.delay, f"{field}.watermark.delay")
    _check_expectations(source.expect, f"{field}.expect")
    if (source.expect or source.dead_letter is not None) and (source.static or source.table is not None):
        raise InvalidRequest(
            f"{field}: expect and dead_letter are for streams; this source is read as a whole", field=field
        )
    if source.dead_letter is not None:
        check_topic_name(source.dead_letter, f"{field}.dead_letter")
        if source.schema is None:
            raise InvalidRequest(
                f"{field}.dead_letter needs {field}.schema: without it every payload fits", field=f"{field}.dead_letter"
            )


def _check_expectations(expect: Expectations | None, field: str) -> None:
    if expect is not None and len(expect) > EXPECTATIONS_MAX:
        raise InvalidRequest(f"{field} must have at most {EXPECTATIONS_MAX} conditions", field=field)
    for name, each in expectations(expect).items():
        if _VIEW.fullmatch(name) is None:
            raise InvalidRequest(f"{field}: {name!r} is not a valid name: use letters, digits and _", field=field)
        if each.topic is not None:
            check_topic_name(each.topic, f"{field}.{name}.otherwise")
        elif each.otherwise not in ("warn", "drop", "fail"):
            raise InvalidRequest(
                f'{field}.{name}.otherwise must be "warn", "drop", "fail" or "quarantine to TOPIC", '
                f"not {each.otherwise!r}",
                field=f"{field}.{name}.otherwise",
            )


def _check_sink(sink: PipelineSink) -> None:
    _check_exactly_one("sink", "sink", topic=sink.topic, table=sink.table)
    if sink.topic is not None:
        check_topic_name(sink.topic, "sink.topic")
        for field in ("partition_by", "take_over", "format", "key", "newest_by", "deleted", "cluster_by"):
            if getattr(sink, field) is not None:
                raise InvalidRequest(f"sink.{field} is allowed only for a table", field=f"sink.{field}")
    elif sink.tag is not None:
        raise InvalidRequest("sink.tag is allowed only for a topic", field="sink.tag")
    elif sink.table is not None:
        _check_table(sink.table, "sink.table")
        _check_keys(sink)


def _check_keys(sink: PipelineSink) -> None:
    for field, columns in (("key", sink.key), ("cluster_by", sink.cluster_by)):
        if columns is not None and (not columns or len(set(columns)) < len(columns)):
            raise InvalidRequest(f"sink.{field} must name columns, each once", field=f"sink.{field}")
    for field in ("newest_by", "deleted"):
        if getattr(sink, field) is not None and sink.key is None:
            raise InvalidRequest(f"sink.{field} needs sink.key, the columns that identify a row", field=f"sink.{field}")
    if sink.cluster_by is not None and sink.format in (None, "parquet"):
        raise InvalidRequest(
            "sink.cluster_by is allowed only for the formats delta and iceberg", field="sink.cluster_by"
        )
    if sink.cluster_by is not None and sink.partition_by and sink.format == "delta":
        raise InvalidRequest(
            "sink.cluster_by: a Delta table is either partitioned or clustered; leave one out", field="sink.cluster_by"
        )


def _check_not_fed_by_itself(request: PipelineRequest) -> None:
    """A stream of its own output never ends. Patterns are matched by runners: matching can take any time."""
    written = request.rejects()
    if request.sink is not None and request.sink.topic is not None:
        written.insert(0, (request.sink.topic, "sink.topic"))
    for view, source in request.sources.items():
        for topic, field in written:
            if topic in source.names() and not source.static:
                raise InvalidRequest(
                    f"{field} {topic} is read by sources.{view}: the pipeline would feed itself", field=field
                )


def _check_table(name: str, field: str) -> None:
    if _TABLE.fullmatch(name) is None:
        raise InvalidRequest(
            f"{field} must be 1 to 128 characters of A-Z a-z 0-9 . _ - and start with a letter or digit", field=field
        )


def _check_trigger(trigger: PipelineTrigger) -> None:
    _check_exactly_one("trigger", "trigger", every=trigger.every, once=trigger.once or None, cron=trigger.cron)
    if trigger.every is not None:
        _check_duration(trigger.every, "trigger.every")
    if trigger.cron is not None:
        check_cron(trigger.cron)


def _check_setting(name: str) -> None:
    allowed = any(name == each or (each.endswith("*") and name.startswith(each[:-1])) for each in SPARK_SETTINGS)
    if not allowed or name.endswith("Class"):
        raise InvalidRequest(
            f"spark.{name!r} is not a setting of a pipeline, only of its runner (--conf). "
            f"Allowed here: {', '.join(SPARK_SETTINGS)}",
            field="spark",
        )


def seconds(duration: str) -> float:
    """Of a duration like `10 minutes`; 0 if it is none."""
    number, _, unit = duration.partition(" ")
    return int(number) * UNITS_S.get(unit.removesuffix("s"), 0) if number.isdecimal() else 0.0


def check_cron(cron: str) -> str:
    fields = cron.split()
    if len(fields) != len(_CRON_BOUNDS):
        raise InvalidRequest("trigger.cron must be five fields: minute hour day month weekday", field="trigger.cron")
    for text, (name, low, high) in zip(fields, _CRON_BOUNDS, strict=True):
        if _CRON_FIELD.fullmatch(text) is None:
            raise InvalidRequest(f"trigger.cron: {text!r} is not a valid {name}", field="trigger.cron")
        bounds = [int(number) for part in text.split(",") for number in re.findall(r"\d+", part.partition("/")[0])]
        if any(not low <= number <= high for number in bounds):
            raise InvalidRequest(f"trigger.cron: {name} must be {low} to {high}", field="trigger.cron")
    return cron


def _check_duration(text: str, field: str) -> None:
    if _DURATION.fullmatch(text) is None:
        raise InvalidRequest(f'{field} must be a duration like "10 seconds", not {text!r}', field=field)


def _check_exactly_one(what: str, at: str, **choices: object) -> None:
    given = [name for name, value in choices.items() if value is not None]
    if len(given) != 1:
        found = f"not {' and '.join(given)}" if given else "none is given"
        raise InvalidRequest(f"{what} must have exactly one of {', '.join(choices)}: {found}", field=at)
