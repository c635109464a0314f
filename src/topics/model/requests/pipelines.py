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
SOURCES_MAX = 16
TOPICS_MAX = 256
TEXT_CHARS_MAX = 64 * 1024
STATUS_BYTES_MAX = 64 * 1024
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

    def names(self) -> list[str]:
        """The topics it names; a pattern names none."""
        if self.topic is not None:
            return [self.topic]
        return self.topics or []


class PipelineSink(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A topic, or a table of Parquet files in the runner's tables directory."""

    topic: str | None = None
    # The column that becomes the record's tag.
    tag: str | None = None
    table: str | None = None
    partition_by: list[str] | None = None


class PipelineTrigger(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Continuously, once over the existing records, or that at certain times (UTC)."""

    every: str | None = None
    once: bool | None = None
    cron: str | None = None


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

    def table_of(self, pipeline: str) -> str:
        """The table of its rows, unless they go to a topic: named in the sink, otherwise the name of the pipeline."""
        return (self.sink.table if self.sink is not None else None) or pipeline

    def substance(self) -> PipelineRequest:
        """The fields that a checkpoint depends on: after a change of other fields a run continues where it was."""
        return msgspec.structs.replace(
            self, description=None, trigger=None, state_retention=None, enabled=None, guarantee=None
        )


class PipelineStatus(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A runner's report on a pipeline. `progress` is Spark's report on the last batch."""

    state: Literal["starting", "running", "idle", "restarting", "failed", "stopped"]
    runner: Annotated[str, Meta(max_length=256)]
    # The definition that it is about.
    revision: U64 = 0
    batch: int | None = None
    rows_total: U64 = 0
    rows_per_second: float = 0.0
    # Records of the sources that are not processed yet.
    lag: U64 = 0
    restarts: U64 = 0
    last_error: Text | None = None
    progress: dict[str, Any] | None = None
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
    if request.sink is not None:
        _check_sink(request.sink)
    elif request.use is None:
        raise InvalidRequest("sink must name a topic or a table", field="sink")
    if request.trigger is not None:
        _check_trigger(request.trigger)
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


def _check_sink(sink: PipelineSink) -> None:
    _check_exactly_one("sink", "sink", topic=sink.topic, table=sink.table)
    if sink.topic is not None:
        check_topic_name(sink.topic, "sink.topic")
        if sink.partition_by is not None:
            raise InvalidRequest("sink.partition_by is allowed only for a table", field="sink.partition_by")
    elif sink.tag is not None:
        raise InvalidRequest("sink.tag is allowed only for a topic", field="sink.tag")
    elif sink.table is not None:
        _check_table(sink.table, "sink.table")


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
