"""What is sent to topics and read from them, as plain typed values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, Literal, TypedDict

import msgspec
from msgspec import Raw

from topics.client.request import encode
from topics.model.requests.config import TopicConfig
from topics.model.requests.nesting import decode_deep

_decode = msgspec.json.Decoder().decode
_decode_meta = msgspec.json.Decoder(dict[str, Any] | None).decode
_NOTHING = Raw(b"null")

# JSON text that is sent as it is, instead of a Python object to be encoded.
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

    @property
    def raw_meta(self) -> bytes | None:
        """The headers as they were sent, or None."""
        return None if self.headers == _NOTHING else bytes(self.headers)

    def __repr__(self) -> str:
        kind = type(self).__name__
        return f"{kind}(seq={self.seq}, ts={self.ts}, node={self.node!r}, tag={self.tag!r}, raw={self.raw!r})"


class Record(RecordBase, dict=True):
    """A record that was read."""


class Tombstone(msgspec.Struct, kw_only=True):
    """Records between `gap_from` and `gap_to` are no longer available, and why. `topic` is set in live events."""

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
    """One step of reading: hand `next_from_seq` to the next one."""

    topic: str
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int = 0
    epoch: int = 0
    tombstone: Tombstone | None = None


class Outgoing(msgspec.Struct, omit_defaults=True):
    """A record to append, when it has more than data.

    `delay_ms` and `unique_key` are for queues; `topic` is for transactions, where records may go to several.
    """

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Mapping[str, Any] | None = None
    delay_ms: int = 0
    unique_key: str | None = None
    topic: str | None = None


# Records to be sent: each an Outgoing or plain data; or a JSON array of records, ready-made.
Outgoings = Iterable[Any] | bytes


def records_json(records: Outgoings) -> bytes:
    """The `records` of a body; ready-made bytes are taken as they are."""
    if isinstance(records, bytes):
        return records
    wrapped = [record if isinstance(record, Outgoing) else Outgoing(record) for record in records]
    return encode(wrapped, "records")


class Appended(msgspec.Struct, kw_only=True):
    """Where records went. `deduped`: they were appended before, and these are their seqs."""

    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    given_seqs: list[int] | None = msgspec.field(name="seqs", default=None)
    # what may not be what the caller meant; logged as well
    warnings: list[str] = []

    @property
    def seqs(self) -> list[int]:
        """The seq of each record, in the order they were given."""
        return list(range(self.first_seq, self.last_seq + 1)) if self.given_seqs is None else self.given_seqs


class TopicBatch(msgspec.Struct):
    """What one of several topics gets, when that is more than records."""

    records: Outgoings
    node: str | None = None
    create: bool = True
    config: Mapping[str, Any] | None = None


def topics_json(topics: Mapping[str, Outgoings | TopicBatch], node: str | None) -> dict[str, dict[str, Any]]:
    """The `topics` of a body; `node` is for those that have none of their own."""
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
    """Where the records of one of several topics went."""

    first_seq: int
    last_seq: int
    head_seq: int
    created: bool
    given_seqs: list[int] | None = msgspec.field(name="seqs", default=None)

    @property
    def seqs(self) -> list[int]:
        """The seq of each record, in the order they were given."""
        return list(range(self.first_seq, self.last_seq + 1)) if self.given_seqs is None else self.given_seqs


class AppendedAll(msgspec.Struct, kw_only=True):
    """Where records of several topics went. `deduped`: they were appended before, and nothing was written."""

    topics: dict[str, AppendedTo]
    deduped: bool
    # what may not be what the caller meant; logged as well
    warnings: list[str] = []


class QueueCounters(msgspec.Struct, kw_only=True):
    """`dead_lettered` counts every job that became a dead letter, `dead` those that are in the dead-letter topic now.

    `dead_letter_error`: why jobs cannot be moved there. Servers before 0.2 do not say `dead`.
    """

    ready: int
    in_flight: int
    dead_lettered: int
    dead: int | None = None
    delayed: int = 0
    paused: bool = False
    dead_letter_error: str | None = None


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
    # only of queues
    queue: QueueCounters | None = None


class TopicItem(msgspec.Struct, kw_only=True):
    """What a list tells of a topic."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    # Servers before 0.2 do not say.
    type: str = "log"


class Configured(msgspec.Struct, kw_only=True):
    """`created`: this call brought the topic into existence."""

    topic: str
    created: bool
    config: TopicConfig
    # what may not be what the caller meant; logged as well
    warnings: list[str] = []


class Change(msgspec.Struct, kw_only=True):
    """A field of a configuration before and after; None: it has no value."""

    before: Any = msgspec.field(name="from")
    after: Any = msgspec.field(name="to")


class Edited(msgspec.Struct, kw_only=True):
    """`config` as it is after the change, or after a dry run would be; `evicts`: how many records that takes."""

    topic: str
    config: TopicConfig
    changes: dict[str, Change]
    evicts: int
    dry_run: bool
    warnings: list[str] = []


class Backoff(TypedDict, total=False):
    """How long a job rests after a failed delivery."""

    initial_ms: int
    factor: float
    max_ms: int
    jitter: float


class TopicFields(TypedDict, total=False):
    """The fields of a topic's configuration, as `create` and `edit` take them."""

    type: Literal["log", "queue"]
    ttl_ms: int
    cap_records: int
    cap_bytes: int
    discard: Literal["old", "reject"]
    durable: bool
    durability: Literal["ephemeral", "memory", "disk", "fsync"]
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
    """`lag`: seqs of the source not dealt with yet; `last_error`: what stops the router, if something does."""

    router: str
    source: str
    dest: str
    guarantee: str = "at_least_once"
    preserve_node: bool = True
    preserve_tag: bool = True
    filter: str | list[str] | None = None
    allow_cycle: bool = False
    # only in answers to `router` and, the total, to `routers`
    forwarded_total: int = 0
    lag: int = 0
    last_error: str | None = None
    # only in answers to `route`
    created: bool = False
    warnings: list[str] = []


class Health(msgspec.Struct, kw_only=True):
    status: str
    version: str
    uptime_ms: int


class Readiness(msgspec.Struct, kw_only=True):
    status: str
    wal_replay_complete: bool
    topics: int


class TopicPage(msgspec.Struct):
    topics: list[TopicItem]
    next_cursor: str | None = None


class RouterPage(msgspec.Struct):
    routers: list[Router]
    next_cursor: str | None = None


class Removed(msgspec.Struct):
    deleted: bool


class Pipeline(msgspec.Struct, kw_only=True):
    """A pipeline as it is defined, and what its runner said last.

    `generation` is the revision since which a checkpoint of the pipeline fits its definition.
    """

    pipeline: str
    definition: dict[str, Any]
    revision: int
    generation: int
    updated_ts: int
    status: dict[str, Any] | None = None
    # only in answers to `put_pipeline`
    created: bool = False


class PipelinePage(msgspec.Struct):
    pipelines: list[Pipeline]
    next_cursor: str | None = None
