"""Messages of consumer groups, and how far the groups are."""

from __future__ import annotations

from base64 import b64decode
from functools import cached_property
from typing import Any, Literal

import msgspec

from topics.model.requests.nesting import decode_deep

_decode = msgspec.json.Decoder().decode

# "Latest", "Earliest", or the first offset to read.
Start = Literal["Latest", "Earliest"] | int
Partition = int | Literal["all"]


class Message(msgspec.Struct, dict=True, kw_only=True):
    """A record as a group sees it: `offset` is its seq − 1, `key` its tag, `user` its node, `data` its payload."""

    topic: str = msgspec.field(name="topic_id")
    partition: int = msgspec.field(name="partition_id")
    offset: int
    payload: str
    key: str | None = None
    timestamp_ms: int = 0
    user: str = ""
    op: str = "Insert"

    @property
    def seq(self) -> int:
        return self.offset + 1

    @cached_property
    def raw(self) -> bytes:
        return b64decode(self.payload)

    @cached_property
    def data(self) -> Any:
        return decode_deep(_decode, self.raw)


class NextOffset(msgspec.Struct, kw_only=True):
    partition: int = msgspec.field(name="partition_id")
    next_offset: int


class OffsetRange(msgspec.Struct):
    from_offset: int
    to_offset: int


class Consumed(msgspec.Struct, kw_only=True):
    """A batch. With all partitions, `partitions` has the next offset of each."""

    messages: list[Message]
    next_offset: int
    has_more: bool
    partitions: list[NextOffset] = []

    def last_offsets(self) -> dict[int, int]:
        """The highest offset of each partition in the batch: what to commit if there is only one consumer."""
        return {message.partition: message.offset for message in self.messages}

    def ranges(self) -> dict[int, OffsetRange]:
        """The range that the batch covers in each partition."""
        first = {message.partition: message.offset for message in reversed(self.messages)}
        return {partition: OffsetRange(first[partition], last) for partition, last in self.last_offsets().items()}


class Committed(msgspec.Struct, kw_only=True):
    """`acknowledged_offset` is the committed offset, None if there is none.

    `held_back`: the range below a committed range that is not done and keeps the committed offset from moving.
    """

    success: bool
    acknowledged_offset: int | None
    committed_offset: int | None = None
    held_back: list[OffsetRange] = []


class LatestOffset(msgspec.Struct, kw_only=True):
    topic: str = msgspec.field(name="topic_id")
    partition: int = msgspec.field(name="partition_id")
    next_offset: int
    last_offset: int | None = None


class GroupStanding(msgspec.Struct, kw_only=True):
    """How far a group is in a partition; `lag` counts the records that are not acked."""

    topic: str = msgspec.field(name="topic_id")
    partition: int = msgspec.field(name="partition_id")
    group: str = msgspec.field(name="group_id")
    committed_offset: int | None
    next_offset: int
    last_offset: int | None
    lag: int
    open_claims: int = 0
    expired_claims: int = 0
    acked_ahead: int = 0


class LatestOffsets(msgspec.Struct):
    offsets: list[LatestOffset]


class GroupList(msgspec.Struct):
    groups: list[GroupStanding]


class Reset(msgspec.Struct):
    success: bool
    partitions: list[NextOffset]


def start_json(start: Start | None) -> str | dict[str, int] | None:
    return {"Offset": start} if isinstance(start, int) else start
