"""Requests of live delivery: the body of POST /v0/watch, and the fields that it shares with subscriptions."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from topics.model.requests.config import U64
from topics.model.requests.records import DIFF_LIMIT_DEFAULT, node_set

FRAME_BYTES_DEFAULT = 256 * 1024
FRAME_BYTES_SERVER = 1024 * 1024
FRAME_BYTES_MAX = 8 * 1024 * 1024
HEARTBEAT_MS_DEFAULT = 15_000

Ts = Annotated[int, Meta(ge=0)]


class StartRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Where to start in one topic: after a seq, at a time, or with the next record."""

    from_seq: U64 = 0
    tail: bool | None = False
    from_ts: Ts | UnsetType = UNSET


class FollowRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of frames."""

    node: str | list[str] | None = None
    limit: U64 = DIFF_LIMIT_DEFAULT
    max_batch_bytes: U64 = FRAME_BYTES_DEFAULT
    include_meta: Annotated[bool, Meta(description="Absent: shown if include_data is true.")] | None = None
    include_tags: bool | None = False
    include_data: bool | None = True
    consistency: Literal["eventual", "strong"] | None = "eventual"

    def shows_meta(self) -> bool:
        """Without data, a record has its meta only if that is requested."""
        return self.include_data is not False if self.include_meta is None else self.include_meta

    def nodes(self, bytes_max: int) -> frozenset[str]:
        return node_set(self.node, bytes_max)

    def frame_records_max(self, limit_max: int) -> int:
        return min(self.limit or DIFF_LIMIT_DEFAULT, limit_max)

    def frame_bytes_max(self) -> int:
        """0 means the server's default; a frame has at least one record, even if that is larger."""
        return min(self.max_batch_bytes or FRAME_BYTES_SERVER, FRAME_BYTES_MAX)


class WatchRequest(FollowRequest, kw_only=True):
    topics: dict[str, StartRequest | None] | None = None
    heartbeat_ms: U64 = HEARTBEAT_MS_DEFAULT
    # Positions of an earlier stream, from its ids; they take precedence over those in `topics`.
    cursor: str | None = None
