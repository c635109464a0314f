"""Values that are sent to topics and read from them, with types."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import Any, Literal, TypedDict

import msgspec
from msgspec import Raw

from topics.client.errors import InvalidRequest
from topics.client.request import encode
from topics.model.cloudevents.mappings import stored_event
from topics.model.requests.config import TopicConfig
from topics.model.requests.nesting import decode_deep
from topics.model.tracing import TRACEPARENT

_decode = msgspec.json.Decoder().decode
_decode_meta = msgspec.json.Decoder(dict[str, Any] | None).decode
_NOTHING = Raw(b"null")

# JSON text that is sent unchanged, instead of a Python object to be encoded.
Json = Raw


class RecordBase(msgspec.Struct, dict=True):
    """Fields of records and jobs. `raw` is the payload byte for byte as it was sent, `data` the same decoded."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    payload: Raw = msgspec.field(name="data", default=_NOTHING)
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    headers: Raw = msgspec.field(name="meta", default=_NOTHING)

    @property
    def raw(self) -> bytes:
        return bytes(self.payload)

    @cached_property
    def data(self) -> Any:
        return decode_deep(_decode, self.raw)

    @cached_property
    def meta(self) -> dict[str, Any] | None:
        return decode_deep(_decode_meta, bytes(self.headers))

    @cached_property
    def event(self) -> dict[str, Any] | None:
        """The CloudEvent that this was sent as, with its attributes and `data` (bytes if it is not JSON), or None."""
        return stored_event(self.raw, bytes(self.headers))

    @property
    def raw_meta(self) -> bytes | None:
        """The meta as it was sent, or None."""
        return None if self.headers == _NOTHING else bytes(self.headers)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"{kind}(seq={self.seq}, ts={self.ts}, node={self.node!r}, tag={self.tag!r}, raw={self.raw!r})"


class Record(RecordBase, dict=True):
    """A record that was read."""


class Tombstone(msgspec.Struct, kw_only=True):
    """Records from `gap_from` to `gap_to` are no longer available, and why. `topic` is set in live events."""

    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int = 0
    earliest_seq: int = 0
    head_seq: int = 0
    topic: str = ""

    @property
    def records(self) -> list[Record]:
        """None: every event of a live stream has `records`, so that a loop need not check its class."""
        return []


class Diff(msgspec.Struct, kw_only=True):
    """One page: pass `next_from_seq` to the next call."""

    topic: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int = 0
    epoch: int = 0
    tombstone: Tombstone | None = None


class JobGroup(msgspec.Struct, frozen=True):
    """Jobs that end together: when `size` of those with this name have ended, a record about it goes to `notify`."""

    name: str
    size: int
    notify: str


class Outgoing(msgspec.Struct, omit_defaults=True):
    """A record to append that has more than data.

    `delay_ms`, `unique_key`, `job_priority` (0 to 9) and `group` are for queues; `topic` is for transactions, whose
    records may go to several.
    """

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, Any] | None = None
    delay_ms: int = 0
    unique_key: str | None = None
    topic: str | None = None
    job_priority: int = 0
    group: JobGroup | Mapping[str, Any] | None = None


# Records to send: each an Outgoing or plain data; or a JSON array of records in bytes.
Outgoings = Iterable[Any] | bytes


def check_records(records: object) -> None:
    """Refuse a single record: the keys of a dict, or the characters of a text, would become records."""
    kind = type(records).__name__
    if isinstance(records, bytes):
        if records.lstrip()[:1] == b"[":
            return
        message = "records in bytes must be a JSON array of records"
    elif isinstance(records, Mapping | str | bytearray | memoryview | Outgoing):
        message = f"records must be a list of records, not {kind}"
    else:
        return
    raise InvalidRequest(f"{message}; use append for one record", field="records")


def records_json(records: Outgoings, traceparent: str | None = None) -> bytes:
    """The `records` of a body; bytes are used unchanged. A `traceparent` becomes part of each record's meta."""
    check_records(records)
    if isinstance(records, bytes):
        return records
    wrapped = [record if isinstance(record, Outgoing) else Outgoing(record) for record in records]
    if traceparent is not None:
        carried = {TRACEPARENT: traceparent}
        wrapped = [msgspec.structs.replace(record, meta={**carried, **(record.meta or {})}) for record in wrapped]
    return encode(wrapped, "records")


class Appended(msgspec.Struct, kw_only=True):
    """Where records are. `deduped`: they were appended before, and these are their seqs."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    given_seqs: list[int] | None = msgspec.field(name="seqs", default=None)
    # warnings about what was probably not meant; logged as well
    warnings: list[str] = []

    @property
    def seqs(self) -> list[int]:
        """The seq of each record, in the order of the request."""
        return list(range(self.first_seq, self.last_seq + 1)) if self.given_seqs is None else self.given_seqs


class TopicBatch(msgspec.Struct):
    """The batch for one of several topics, with more than records."""

    records: Outgoings
    node: str | None = None
    create: bool = True
    config: Mapping[str, Any] | None = None


def topics_json(topics: Mapping[str, Outgoings | TopicBatch], node: str | None) -> dict[str, dict[str, Any]]:
    """The `topics` of a body; `node` is for those without their own."""
    parts: dict[str, dict[str, Any]] = {}
    for name, given in topics.items():
        batch = given if isinstance(given, TopicBatch) else TopicBatch(given)
        part = {
            "records": Raw(records_json(batch.records)),
            "node": batch.node or node,
            "create": None if batch.create else False,
            "config": batch.config,
        }
        parts[name] = {field: value for field, value in part.items() if value is not None}
    return parts


class AppendedTo(msgspec.Struct, kw_only=True):
    """Where the records of one of several topics are."""

    first_seq: int
    last_seq: int
    head_seq: int
    created: bool
    given_seqs: list[int] | None = msgspec.field(name="seqs", default=None)

    @property
    def seqs(self) -> list[int]:
        """The seq of each record, in the order of the request."""
        return list(range(self.first_seq, self.last_seq + 1)) if self.given_seqs is None else self.given_seqs


class AppendedAll(msgspec.Struct, kw_only=True):
    """Where records of several topics are. `deduped`: they were appended before, and nothing was written."""

    topics: dict[str, AppendedTo]
    deduped: bool
    # warnings about what was probably not meant; logged as well
    warnings: list[str] = []


class QueueCounters(msgspec.Struct, kw_only=True):
    """`dead_lettered` counts all jobs that ever became dead letters, `dead` those in the dead-letter topic now.

    `dead_letter_error`: why jobs cannot be moved there. `claimers`: claims that wait for jobs, and work streams that
    are open now; `last_claim_ts`: when jobs were last asked for since the server started. Servers before 0.2 send
    neither `dead` nor `claimers`. `limited_by`: the limit that holds back all ready jobs, as far as claims have met
    them; `held_back`: how many of them limits of their tags hold back.
    """

    ready: int
    in_flight: int
    dead_lettered: int
    dead: int | None = None
    delayed: int = 0
    paused: bool = False
    dead_letter_error: str | None = None
    claimers: int | None = None
    last_claim_ts: int | None = None
    held_back: int = 0
    limited_by: str | None = None


class TopicState(msgspec.Struct, kw_only=True):
    topic: str
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    type: str = "log"
    epoch: int = 0
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    # only for queues
    queue: QueueCounters | None = None


class TopicItem(msgspec.Struct, kw_only=True):
    """A topic in a list."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    # Servers before 0.2 do not send these.
    type: str = "log"
    epoch: int = 0


class Configured(msgspec.Struct, kw_only=True):
    """`created`: this call has created the topic."""

    topic: str
    created: bool
    config: TopicConfig
    # warnings about what was probably not meant; logged as well
    warnings: list[str] = []


class Change(msgspec.Struct, kw_only=True):
    """A field of a configuration before and after; None: it has no value."""

    before: Any = msgspec.field(name="from")
    after: Any = msgspec.field(name="to")


class Edited(msgspec.Struct, kw_only=True):
    """`config` after the change, or as it would be after a dry run; `evicts`: how many records that removes."""

    topic: str
    config: TopicConfig
    changes: dict[str, Change]
    evicts: int
    dry_run: bool
    warnings: list[str] = []


class Backoff(TypedDict, total=False):
    """How long a job waits after a failed delivery."""

    initial_ms: int
    factor: float
    max_ms: int
    jitter: float


class TopicFields(TypedDict, total=False):
    """The fields of a topic's configuration, as in `create` and `edit`."""

    type: Literal["log", "queue"]
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Literal["old", "reject"]
    durable: bool
    durability: Literal["ephemeral", "memory", "disk", "fsync", "replicated"]
    priority: int | None
    auto_priority: bool
    auto_create: bool
    idempotency_window_ms: int
    dedupe_node: bool
    lease_ms: int
    claim_jitter_ms: int
    max_deliveries: int
    dead_letter: str | None
    leases_durable: bool
    retry_backoff: Backoff | Mapping[str, float] | None
    keep_results_ms: int
    max_in_flight: int | None
    max_in_flight_per_tag: int | None
    rate_per_s: float | None
    burst: int | None
    rate_per_s_per_tag: float | None
    burst_per_tag: int | None
    # set by SQS clients
    sqs: Mapping[str, Any] | None


class Dropped(msgspec.Struct, kw_only=True):
    topic: str
    deleted: bool
    routers_removed: list[str]


class Deleted(msgspec.Struct, kw_only=True):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int
    warnings: list[str] = []


class Router(msgspec.Struct, kw_only=True):
    """`lag`: seqs of the source that are not processed yet; `last_error`: what stops the router, if anything."""

    router: str
    source: str
    dest: str
    guarantee: str = "at_least_once"
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: str | list[str] | None = None
    allow_cycle: bool = False
    # only in replies to `router` and, the total, to `routers`
    forwarded_total: int = 0
    lag: int = 0
    last_error: str | None = None
    # only in replies to `route`
    created: bool = False
    warnings: list[str] = []


class Schedule(msgspec.Struct, kw_only=True):
    """`next_ts`: its next due time; `last_due_ts`: that of its last record, which was appended at `last_ts`.

    `last_error`: what keeps it from running, if anything.
    """

    schedule: str
    topic: str
    cron: str | None = None
    every_ms: int | None = None
    at: int | None = None
    timezone: str = "UTC"
    data: Any = None
    tag: str | None = None
    missed: str = "once"
    jitter_ms: int = 0
    paused: bool = False
    next_ts: int | None = None
    last_due_ts: int | None = None
    last_ts: int | None = None
    last_seq: int | None = None
    runs_total: int = 0
    last_error: str | None = None
    # only in replies to `put_schedule`
    created: bool = False


class SchedulePage(msgspec.Struct):
    schedules: list[Schedule]
    next_cursor: str | None = None


class ScheduleDone(msgspec.Struct):
    seq: int


class WebhookSecret(msgspec.Struct):
    hint: str
    until_ts: int | None = None


class WebhookAttempt(msgspec.Struct, kw_only=True):
    """`status` is 0 if there was no answer; `next_ts`: when the record is tried again."""

    seq: int
    attempt: int
    ts: int
    took_ms: int
    status: int
    error: str | None = None
    next_ts: int | None = None


class Webhook(msgspec.Struct, kw_only=True):
    """`cursor`: everything up to it is delivered; `lag`: records after it that are not."""

    webhook: str
    topic: str
    url: str
    tag: str | None = None
    format: str = "record"
    # names only: their values are not shown
    headers: dict[str, str] = {}
    timeout_ms: int
    concurrency: int
    order: str
    max_attempts: int
    backoff_ms: int
    backoff_ms_max: int
    dead_letter: str | None = None
    pause_after: int
    paused: bool
    paused_reason: str | None = None
    paused_ts: int | None = None
    secrets: list[WebhookSecret]
    cursor: int
    lag: int
    in_flight: int
    retrying: int
    next_retry_ts: int | None = None
    failures_in_a_row: int
    delivered_total: int
    failed_total: int
    dead_total: int
    lost_total: int
    last_error: str | None = None
    # not in lists
    attempts: list[WebhookAttempt] = []
    # only in the reply to the call that made the server draw it
    secret: str | None = None
    # only in replies to `put_webhook`
    created: bool = False


class WebhookPage(msgspec.Struct):
    webhooks: list[Webhook]
    next_cursor: str | None = None


class WebhookTest(msgspec.Struct, kw_only=True):
    """What came of a test: `answer` is the beginning of what the receiver answered."""

    webhook: str
    id: str
    delivered: bool
    status: int
    took_ms: int
    error: str | None = None
    answer: str = ""


def ms_of(time: int | datetime | None) -> int | None:
    """A time as the API has it: in ms since the epoch."""
    if not isinstance(time, datetime):
        return time
    if time.tzinfo is None:
        raise InvalidRequest("a datetime must have a time zone, as datetime.now(UTC) has", field="at")
    return round(time.timestamp() * 1000)


class Health(msgspec.Struct, kw_only=True):
    status: str
    version: str
    # compiled or pure; empty from a server that does not say
    variant: str = ""
    uptime_ms: int
    # primary or standby
    role: str = "primary"


class Readiness(msgspec.Struct, kw_only=True):
    status: str
    wal_replay_complete: bool
    topics: int
    role: str = "primary"


class Promoted(msgspec.Struct, kw_only=True):
    """The server that was asked is primary, in this term."""

    role: str
    term: int


class TopicPage(msgspec.Struct):
    topics: list[TopicItem]
    next_cursor: str | None = None


class RouterPage(msgspec.Struct):
    routers: list[Router]
    next_cursor: str | None = None


class Removed(msgspec.Struct):
    deleted: bool


class PipelineInput(msgspec.Struct):
    """A topic that a pipeline reads, up to `seq` so far; `oldest_unread_ts` is of the first record after it."""

    topic: str
    seq: int
    head_seq: int
    lag: int
    oldest_unread_ts: int | None = None


class Pipeline(msgspec.Struct, kw_only=True):
    """A pipeline's definition, and the last report of its runner.

    `generation` is the revision since which a checkpoint of the pipeline fits its definition. `lag` is measured against
    the heads of its topics now; None: its positions are unknown.
    """

    pipeline: str
    definition: dict[str, Any]
    revision: int
    generation: int
    updated_ts: int
    status: dict[str, Any] | None = None
    lag: int | None = None
    oldest_unread_ts: int | None = None
    # not in lists
    inputs: list[PipelineInput] = []
    # only in replies to `put_pipeline`; `effect` is created, same, continues (from its checkpoint) or starts_again
    created: bool = False
    effect: str | None = None
    changed: list[str] = []


class PipelinePage(msgspec.Struct):
    pipelines: list[Pipeline]
    next_cursor: str | None = None
