"""Replies as structs: what OpenAPI shows and tests decode with. Request bodies are in topics.model.requests."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.engine.core.configuration import Change
from topics.model.requests.config import LimitName, TopicConfig

# Absent if there is no warning.
Warnings = list[str] | UnsetType


class Performance(msgspec.Struct):
    """How long the server took, and what it did in that time; a field that does not apply is absent."""

    server_total_ms: float
    wal_append_ms: float | UnsetType = UNSET
    fsync_ms: float | UnsetType = UNSET
    records_scanned: int | UnsetType = UNSET
    throttle_wait_ms: float | UnsetType = UNSET
    cold_segments_read: int | UnsetType = UNSET


class ErrorBody(msgspec.Struct):
    code: str
    message: str
    detail: dict[str, Any] | UnsetType = UNSET


class ErrorReply(msgspec.Struct):
    error: ErrorBody
    performance: Performance | UnsetType = UNSET


class ConfiguredReply(msgspec.Struct):
    topic: str
    created: bool
    config: TopicConfig
    performance: Performance
    warnings: Warnings = UNSET


class EditedReply(msgspec.Struct):
    """`config` is the topic's after the change, or what it would be; `evicts`: how many records this removes."""

    topic: str
    config: TopicConfig
    changes: dict[str, Change]
    evicts: int
    dry_run: bool
    performance: Performance
    warnings: Warnings = UNSET


class QueueCounters(msgspec.Struct):
    """`delayed` jobs wait for a later time; they are neither ready nor in flight.

    `dead_lettered` counts all jobs ever moved to the dead-letter topic, `dead` those that are there now.
    `dead_letter_error` is why a job that should be there is still here. `claimers` counts the claims that wait and the
    work streams that are open now; `last_claim_ts` is when jobs were last asked for, null: not since the start.
    `limited_by` is the limit that holds back all ready jobs, as far as claims have met them; `held_back` counts those
    that limits of their tags hold back.
    """

    ready: int
    in_flight: int
    dead_lettered: int
    delayed: int
    paused: bool
    dead: int
    dead_letter_error: str | None = None
    claimers: int = 0
    last_claim_ts: int | None = None
    held_back: int = 0
    limited_by: LimitName | None = None


class StateReply(msgspec.Struct):
    topic: str
    type: str
    epoch: int
    head_seq: int
    earliest_seq: int
    next_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    performance: Performance
    queue: QueueCounters | UnsetType = UNSET


class TopicItem(msgspec.Struct):
    topic: str
    type: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    durable: bool
    effective_priority: int
    durability: str
    last_write_ts: int | None
    epoch: int
    queue: QueueCounters | UnsetType = UNSET


class TopicList(msgspec.Struct):
    topics: list[TopicItem]
    performance: Performance
    next_cursor: str | UnsetType = UNSET


class DroppedReply(msgspec.Struct):
    topic: str
    deleted: bool
    routers_removed: list[str]
    performance: Performance
    # of a dry run: how many records and bytes would go
    records: int | UnsetType = UNSET
    bytes: int | UnsetType = UNSET
    dry_run: bool | UnsetType = UNSET


class RouterPutReply(msgspec.Struct):
    router: str
    created: bool
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: str | list[str] | None
    allow_cycle: bool
    guarantee: str
    performance: Performance
    warnings: Warnings = UNSET


class RouterReply(msgspec.Struct):
    """`lag`: seqs of the source not processed yet, 0 if no record is left; `last_error`: what stops it, or null."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: str | list[str] | None
    allow_cycle: bool
    guarantee: str
    forwarded_total: int
    lag: int
    last_error: str | None
    performance: Performance


class RouterItem(msgspec.Struct):
    router: str
    source: str
    dest: str
    guarantee: str
    forwarded_total: int
    lag: int
    last_error: str | None


class RouterList(msgspec.Struct):
    routers: list[RouterItem]
    performance: Performance
    next_cursor: str | UnsetType = UNSET


class RouterDroppedReply(msgspec.Struct):
    router: str
    deleted: bool
    performance: Performance


class AppendReply(msgspec.Struct):
    topic: str
    first_seq: int
    last_seq: int
    head_seq: int
    count: int
    created: bool
    deduped: bool
    performance: Performance
    seqs: list[int] | UnsetType = UNSET
    warnings: Warnings = UNSET


class Record(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    data: Raw = msgspec.field()
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    meta: dict[str, Any] | UnsetType = UNSET


class TombstoneReply(msgspec.Struct):
    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int


class DiffReply(msgspec.Struct):
    topic: str
    epoch: int
    records: list[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    caught_up: bool
    lag: int
    tombstone: TombstoneReply | None
    performance: Performance


class DeletedReply(msgspec.Struct):
    topic: str
    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int
    performance: Performance
    warnings: Warnings = UNSET
    # nothing was deleted: `deleted` is how many would be
    dry_run: bool | UnsetType = UNSET


class BucketHealth(msgspec.Struct):
    """The copy in the bucket; `lag_ms`: the age of the oldest synced byte that is not there; on a standby, how old its
    state is at most."""

    state: Literal["ok", "away", "gap", "fenced"]
    term: int
    lag_ms: int
    lag_bytes: int


Role = Literal["primary", "standby"]


class HealthReply(msgspec.Struct):
    status: str
    version: str
    variant: Literal["compiled", "pure"]
    uptime_ms: int
    performance: Performance
    bucket: BucketHealth | msgspec.UnsetType = msgspec.UNSET
    role: Role | msgspec.UnsetType = msgspec.UNSET


class ReadyReply(msgspec.Struct):
    status: str
    wal_replay_complete: bool
    topics: int
    performance: Performance
    role: Role | msgspec.UnsetType = msgspec.UNSET


class WatchedTopic(msgspec.Struct):
    from_seq: int
    head_seq: int
    earliest_seq: int


class WatchReply(msgspec.Struct):
    wid: str
    stream_url: str
    session_ttl_ms: int
    topics: dict[str, WatchedTopic]
    performance: Performance
