"""Replies of the queue endpoints as structs: what OpenAPI shows and tests decode with."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.api.schema import Performance, Warnings
from topics.model.requests.config import LimitName


class ClaimedJob(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    lease_id: str = msgspec.field()
    deadline: int = msgspec.field()
    ts: int = msgspec.field(name="$ts")
    deliveries: int = msgspec.field()
    data: Raw = msgspec.field()
    node: str | UnsetType = msgspec.field(name="$node", default=UNSET)
    tag: str | UnsetType = msgspec.field(name="$tag", default=UNSET)
    meta: dict[str, Any] | UnsetType = UNSET


class ClaimReply(msgspec.Struct):
    """`count` below `max` means that the queue is (nearly) empty, unless `more` is true.

    Then the jobs were too large, or the limit that `limited_by` names holds back those that are ready.
    """

    topic: str
    claimed: list[ClaimedJob]
    count: int
    ready: int
    performance: Performance
    more: bool | UnsetType = UNSET
    limited_by: LimitName | UnsetType = UNSET


class AckReply(msgspec.Struct):
    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance
    warnings: Warnings = UNSET


class NackReply(msgspec.Struct):
    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class ExtendReply(msgspec.Struct):
    """`cancelled`: those of `skipped` that were cancelled while the worker had them; absent if there are none."""

    topic: str
    extended: int
    skipped: list[int]
    deadlines: dict[str, int]
    performance: Performance
    cancelled: list[int] | UnsetType = UNSET


class CancelReply(msgspec.Struct):
    """`skipped`: seqs that were no jobs of the queue any more."""

    topic: str
    cancelled: int
    skipped: list[int]
    ready: int
    in_flight: int
    performance: Performance


class JobReply(msgspec.Struct):
    """A job. A leased one has `worker` to `deadline`, a delayed one `due`, one that has ended `ended_ts` to `result`.

    `error` is what the last worker said when it gave up; `progress` and `result` are as the worker sent them.
    """

    topic: str
    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    state: Literal["ready", "leased", "delayed", "done", "dead", "cancelled"] = msgspec.field()
    deliveries: int = msgspec.field()
    performance: Performance = msgspec.field()
    job_priority: int | UnsetType = UNSET
    worker: str | UnsetType = UNSET
    claimed_ts: int | UnsetType = UNSET
    deadline: int | UnsetType = UNSET
    due: int | UnsetType = UNSET
    ended_ts: int | UnsetType = UNSET
    # when it is forgotten
    forgotten_ts: int | UnsetType = UNSET
    error: str | UnsetType = UNSET
    progress: Raw | UnsetType = UNSET
    result: Raw | UnsetType = UNSET


class JobGroupReply(msgspec.Struct):
    """A job group: how many of its jobs were added, and how many have ended in which way.

    `complete` once `size` of them have ended; the record about that is `notified_seq` of the topic `notify`, and
    `error` says why it could not be written so far.
    """

    topic: str
    group: str
    size: int
    notify: str
    added: int
    done: int
    dead: int
    cancelled: int
    removed: int
    complete: bool
    opened_ts: int
    performance: Performance
    notified_ts: int | UnsetType = UNSET
    notified_seq: int | UnsetType = UNSET
    error: str | UnsetType = UNSET


class RedriveReply(msgspec.Struct):
    """`skipped` dead letters have no queue to move back to, or one that the key may not use."""

    topic: str
    moved: int
    to: dict[str, int]
    skipped: int
    more: bool
    dry_run: bool
    performance: Performance
    warnings: Warnings = UNSET


class PausedReply(msgspec.Struct):
    topic: str
    paused: bool
    ready: int
    in_flight: int
    performance: Performance


class Lease(msgspec.Struct):
    seq: int = msgspec.field(name="$seq")
    node: str = msgspec.field()
    lease_id: str = msgspec.field()
    deadline: int = msgspec.field()
    deliveries: int = msgspec.field()
    # pushed over a work stream
    pushed: bool = msgspec.field()
    # absent if that was before the server started: the log has only the deadline
    claimed_ts: int | UnsetType = UNSET
    # the error that the previous worker gave with its nack
    error: str | UnsetType = UNSET


class LeaseList(msgspec.Struct):
    topic: str
    leases: list[Lease]
    in_flight: int
    performance: Performance
    next_cursor: str | UnsetType = UNSET


class LeasePlace(msgspec.Struct):
    """The place in a list of leases."""

    deadline: int
    seq: int
