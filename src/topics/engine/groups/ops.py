"""Ops of consumer groups: claims, acks, resets and starts, each with its bytes.

    GroupClaimed | 40 | topic u32 | from_seq u64 | to_seq u64 | deadline u64 | group_len u16 | group | member |
    GroupAcked   | 41 | topic u32 | ranges u32 | group_len u16 | group | (from_seq u64, to_seq u64)×ranges |
    GroupReset   | 42 | topic u32 | committed u64 (2⁶⁴−1: the group is forgotten) | group_len u16 | group |
    GroupPlaced  | 80 | topic u32 | latest_seq u64 | group_len u16 | group |

A partition is a topic of its own, so the topic of an op says which partition it concerns.
"""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

from topics.engine.log.seq_ranges import SeqRange

GROUP_CLAIMED, GROUP_ACKED, GROUP_RESET, GROUP_PLACED = 40, 41, 42, 80
# In place of a committed seq: the group is forgotten.
FORGOTTEN = 2**64 - 1

_CLAIMED = struct.Struct("<BIQQQH")
_ACKED = struct.Struct("<BIIH")
_RESET = struct.Struct("<BIQH")


class GroupClaimed(NamedTuple):
    """A consumer of the group got these records and alone has them until the deadline."""

    topic_id: int
    group: str
    from_seq: int
    to_seq: int
    deadline: int
    # "": not known
    member: str = ""

    def encode(self) -> bytes:
        group = self.group.encode()
        head = _CLAIMED.pack(GROUP_CLAIMED, self.topic_id, self.from_seq, self.to_seq, self.deadline, len(group))
        return head + group + self.member.encode()


class GroupAcked(NamedTuple):
    """The group is done with these records."""

    topic_id: int
    group: str
    ranges: list[SeqRange]

    def encode(self) -> bytes:
        group = self.group.encode()
        flat = array("Q", [seq for seqs in self.ranges for seq in seqs]).tobytes()
        return _ACKED.pack(GROUP_ACKED, self.topic_id, len(self.ranges), len(group)) + group + flat


class GroupReset(NamedTuple):
    """The group continues after `committed`; its claims are void."""

    topic_id: int
    group: str
    committed: int

    def encode(self) -> bytes:
        group = self.group.encode()
        return _RESET.pack(GROUP_RESET, self.topic_id, self.committed, len(group)) + group


class GroupPlaced(NamedTuple):
    """From now on `Latest` means this seq to the group, until it commits."""

    topic_id: int
    group: str
    latest_seq: int

    def encode(self) -> bytes:
        group = self.group.encode()
        return _RESET.pack(GROUP_PLACED, self.topic_id, self.latest_seq, len(group)) + group


GroupOp = GroupClaimed | GroupAcked | GroupReset | GroupPlaced


def decode_claimed(body: bytes) -> GroupClaimed:
    _, topic_id, from_seq, to_seq, deadline, size = _CLAIMED.unpack_from(body)
    member = body[_CLAIMED.size + size :].decode()
    return GroupClaimed(topic_id, _text(body, _CLAIMED.size, size), from_seq, to_seq, deadline, member)


def decode_acked(body: bytes) -> GroupAcked:
    _, topic_id, count, size = _ACKED.unpack_from(body)
    flat = array("Q", body[_ACKED.size + size : _ACKED.size + size + 16 * count])
    ranges = [SeqRange(*pair) for pair in zip(flat[0::2], flat[1::2], strict=True)]
    return GroupAcked(topic_id, _text(body, _ACKED.size, size), ranges)


def decode_reset(body: bytes) -> GroupReset:
    _, topic_id, seq, size = _RESET.unpack_from(body)
    return GroupReset(topic_id, _text(body, _RESET.size, size), seq)


def decode_placed(body: bytes) -> GroupPlaced:
    _, topic_id, seq, size = _RESET.unpack_from(body)
    return GroupPlaced(topic_id, _text(body, _RESET.size, size), seq)


def _text(body: bytes, at: int, size: int) -> str:
    return body[at : at + size].decode()
