"""Requests of consumer groups: bodies, where reading starts, and which topic is which partition.

A partition is a topic: partition 0 has the topic's own name, partition k is named `<topic>:p<k>`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from topics.model.errors import InvalidRequest
from topics.model.requests.config import U64
from topics.model.requests.records import check_u64

LIMIT_DEFAULT, LIMIT_MAX = 100, 1_000
# Clients use the same value as poll time and as request timeout, so the reply must arrive well before.
WAIT_SHARE, WAIT_MS_MAX = 0.8, 20_000
# Of a group, and of a member.
NAME_BYTES_MAX = 256
PARTITIONS_ASKED_MAX = 1_000
ALL: Final = "all"

Number = int | float
Partition = Annotated[int, Meta(ge=0)] | str | None
_PARTITION_NAME = re.compile(r"(.+):p([1-9][0-9]{0,8})", re.ASCII)


class ConsumeRequest(msgspec.Struct):
    topic_id: str
    group_id: str | None = None
    start: str | dict[str, int] | None = "Latest"
    limit: Number | None = LIMIT_DEFAULT
    partition_id: Annotated[Partition, Meta(description="Absent: 0, or all of them with all_partitions.")] = None
    all_partitions: bool | None = False
    timeout_seconds: Number | None = None
    member: Annotated[
        str | None, Meta(description="A name for this consumer, shown with what it holds; absent: the user's name.")
    ] = None


class GroupAckRequest(msgspec.Struct):
    topic_id: str
    group_id: str
    upto_offset: U64
    partition_id: Annotated[int, Meta(ge=0)] | None = 0
    from_offset: Annotated[
        U64 | None, Meta(description="Absent: ack everything up to `upto_offset`; given: only the range from here.")
    ] = None


class ResetRequest(msgspec.Struct):
    """Where the group continues; `forget` removes it instead."""

    topic_id: str
    group_id: str
    start: str | dict[str, int] | None = None
    partition_id: Annotated[Partition, Meta(description="Absent: 0, or all of them with all_partitions.")] = None
    all_partitions: bool | None = False
    forget: bool | None = False
    dry_run: bool | None = False


class GroupResetRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The same by API key. `partition` is a number; absent: all of them."""

    topic: str
    group: str
    start: str | dict[str, int] | None = None
    partition: Annotated[int, Meta(ge=0)] | None = None
    forget: bool | None = False
    dry_run: bool | None = False

    def plain(self) -> ResetRequest:
        every = ALL if self.partition is None else self.partition
        return ResetRequest(self.topic, self.group, self.start, every, forget=self.forget, dry_run=self.dry_run)


class PartitionRequest(msgspec.Struct):
    topic_id: str
    partition_id: Annotated[int, Meta(ge=0)] | None = 0


class LatestOffsetsRequest(msgspec.Struct):
    partitions: list[PartitionRequest]


class ConsumeStart(msgspec.Struct, frozen=True):
    """The `offset` of the first record to read; negative: LATEST, only new records."""

    offset: int

    def seq(self, head_seq: int) -> int:
        """The first seq to read in a topic with this head."""
        return head_seq + 1 if self.offset < 0 else self.offset + 1


LATEST = ConsumeStart(-1)
EARLIEST = ConsumeStart(0)


def parse_start(start: str | dict[str, int] | None) -> ConsumeStart:
    """`Latest` and `Earliest` in any case, or an object with the first offset wanted."""
    if isinstance(start, dict):
        offset = start.get("Offset", start.get("offset", -1))
        if 0 <= offset < 2**63:
            return ConsumeStart(offset)
    elif start is None or start.lower() == "latest":
        return LATEST
    elif start.lower() == "earliest":
        return EARLIEST
    raise InvalidRequest('start must be "Latest", "Earliest" or {"Offset": n}', field="start")


def clamp_limit(limit: Number | None) -> int:
    if limit is None:
        return LIMIT_DEFAULT
    if limit < 0:
        raise InvalidRequest(f"limit must not be negative, but is {limit}", field="limit")
    return int(max(1, min(LIMIT_MAX, _whole(limit, "limit"))))


def wait_ms(timeout_seconds: Number | None) -> int:
    return 0 if timeout_seconds is None else int(max(0, min(WAIT_MS_MAX, WAIT_SHARE * 1000 * timeout_seconds)))


def _whole(number: Number, field: str) -> Number:
    if isinstance(number, float) and not number.is_integer():
        raise InvalidRequest(f"{field} must be a whole number", field=field)
    return number


def wants_all(partition: Partition, all_partitions: bool | None) -> bool:
    """Whether all partitions are meant: `"all"`, or the switch if no partition is named."""
    if isinstance(partition, str):
        if partition.lower() != ALL:
            raise InvalidRequest('partition_id must be a whole number or "all"', field="partition_id")
        return True
    return partition is None and bool(all_partitions)


def check_id(text: str, field: str) -> str:
    """Refuse an empty id."""
    if not text.strip():
        raise InvalidRequest(f"{field} must not be empty", field=field)
    return text


def check_group(text: str) -> str:
    return check_short(check_id(text, "group_id"), "group_id")


def check_short(text: str, field: str) -> str:
    """Refuse what is too long for a name, or cannot be encoded."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field} is not valid Unicode", field=field) from None
    if size > NAME_BYTES_MAX:
        raise InvalidRequest(f"{field} must be at most {NAME_BYTES_MAX} bytes", field=field)
    return text


def check_ack(request: GroupAckRequest) -> tuple[int, int | None]:
    """The last acked seq, and the first one if only a range is acked."""
    check_id(request.topic_id, "topic_id")
    check_group(request.group_id)
    upto_offset, from_offset = check_u64(request.upto_offset, "upto_offset"), request.from_offset
    if from_offset is None:
        return upto_offset + 1, None
    if check_u64(from_offset, "from_offset") > upto_offset:
        message = f"from_offset must be at most upto_offset ({upto_offset}), but is {from_offset}"
        raise InvalidRequest(message, field="from_offset")
    return upto_offset + 1, from_offset + 1


def check_reset(request: ResetRequest) -> None:
    check_id(request.topic_id, "topic_id")
    check_group(request.group_id)
    if request.start is None and not request.forget:
        raise InvalidRequest('start is required, unless "forget" is true', field="start")


def check_latest(request: LatestOffsetsRequest) -> None:
    if len(request.partitions) > PARTITIONS_ASKED_MAX:
        raise InvalidRequest(f"partitions must name at most {PARTITIONS_ASKED_MAX}", field="partitions")
    for asked in request.partitions:
        check_id(asked.topic_id, "partitions.topic_id")


def partition_name(topic: str, partition: int) -> str:
    """The topic that holds this partition."""
    return f"{topic}:p{partition}" if partition else topic


def split_partition(name: str) -> tuple[str, int]:
    """The topic and the partition that a topic's name stands for."""
    found = _PARTITION_NAME.fullmatch(name)
    return (found[1], int(found[2])) if found else (name, 0)


def offset_of(seq: int) -> int | None:
    """The offset of the record with this seq; None for seq 0, which no record has."""
    return seq - 1 if seq > 0 else None


def partition_for(tag: str, partitions: int) -> int:
    """Where a record with this tag belongs: the same for every writer, in every process and version."""
    return int.from_bytes(hashlib.blake2b(tag.encode(), digest_size=8).digest(), "big") % partitions
