"""What a client may ask of live delivery: the body of POST /v0/watch, and the part of it that a subscription shares."""

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
    """Where to begin in one topic: behind a seq, at a time, or with what comes next."""

    from_seq: U64 = 0
    tail: bool | None = False
    from_ts: Ts | UnsetType = UNSET


class FollowRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What frames shall hold."""

    node: str | list[str] | None = None
    limit: U64 = DIFF_LIMIT_DEFAULT
    max_batch_bytes: U64 = FRAME_BYTES_DEFAULT
    include_meta: Annotated[bool, Meta(description="Absent: shown if include_data is true.")] | None = None
    include_tags: bool | None = False
    include_data: bool | None = True
    consistency: Literal["eventual", "strong"] | None = "eventual"

    def shows_meta(self) -> bool:
        """Without data a record has its meta only if that is asked for."""
        return self.include_data is not False if self.include_meta is None else self.include_meta

    def nodes(self, bytes_max: int) -> frozenset[str]:
        return node_set(self.node, bytes_max)

    def frame_records_max(self, limit_max: int) -> int:
        return min(self.limit or DIFF_LIMIT_DEFAULT, limit_max)

    def frame_bytes_max(self) -> int:
        """0 stands for the server's own choice; a frame holds one record even if that is larger."""
        return min(self.max_batch_bytes or FRAME_BYTES_SERVER, FRAME_BYTES_MAX)


class WatchRequest(FollowRequest, kw_only=True):
    topics: dict[str, StartRequest | None] | None = None
    heartbeat_ms: U64 = HEARTBEAT_MS_DEFAULT
    # Positions of an earlier stream, as its ids tell them; they win over those in `topics`.
    cursor: str | None = None
