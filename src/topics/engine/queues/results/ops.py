"""The ops of results and their bytes: jobs that ended and what became of them, progress, groups that end.

Ended         | 104 | state u8 | topic u32 | jobs_len u32 | jobs, as `ended.py` draws them | Deleted, Moved or Buried |
Progressed    | 105 | topic u32 | progress_len u32 | progress (JSON) | seq u64… |
GroupNotified | 106 | topic u32 | ts u64 | seq u64 | name_len u16 | name | Appended, or nothing |
GroupsForgotten | 107 | topic u32 | number u64… |
"""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

from topics.engine.core.appended import Appended, decode_appended
from topics.engine.core.ops import DELETED, Deleted, decode_deleted
from topics.engine.queues.ops import MOVED, Buried, Moved, decode_buried, decode_moved
from topics.engine.queues.results.ended import EndState

ENDED, PROGRESSED, GROUP_NOTIFIED, GROUPS_FORGOTTEN = range(104, 108)

_ENDED = struct.Struct("<BBII")
_PROGRESSED = struct.Struct("<BII")
_NOTIFIED = struct.Struct("<BIQQH")
_FORGOTTEN = struct.Struct("<BI")


class Ended(NamedTuple):
    """Jobs ended by another op, which is part of this one: so is what the queue keeps of them."""

    state: EndState
    jobs: bytes
    by: Deleted | Moved | Buried

    @property
    def topic_id(self) -> int:
        return self.by.topic_id

    def encode(self) -> bytes:
        return self.around(self.by.encode())

    def around(self, by: bytes) -> bytes:
        """With these bytes of the other op: only a part of it may be for the log."""
        return _ENDED.pack(ENDED, self.state, self.topic_id, len(self.jobs)) + self.jobs + by


class Progressed(NamedTuple):
    """A worker reported how far some jobs are. Folded when it is decided, like the ops of leases."""

    topic_id: int
    progress: bytes
    seqs: list[int]
    ahead: bool = False

    def encode(self) -> bytes:
        head = _PROGRESSED.pack(PROGRESSED, self.topic_id, len(self.progress))
        return head + self.progress + array("Q", self.seqs).tobytes()


class GroupNotified(NamedTuple):
    """The record that says that a job group is complete was written, with this seq.

    Without a batch, the record is of an ephemeral topic, which the log does not store.
    """

    topic_id: int
    ts: int
    seq: int
    name: str
    appended: Appended | None

    def encode(self) -> bytes:
        return self.head() + (b"" if self.appended is None else self.appended.encode())

    def head(self) -> bytes:
        """The bytes before the batch."""
        name = self.name.encode()
        return _NOTIFIED.pack(GROUP_NOTIFIED, self.topic_id, self.ts, self.seq, len(name)) + name


class GroupsForgotten(NamedTuple):
    """Groups that have no job left made room for others; which ones is not for a replay to decide."""

    topic_id: int
    numbers: list[int]

    def encode(self) -> bytes:
        return _FORGOTTEN.pack(GROUPS_FORGOTTEN, self.topic_id) + array("Q", self.numbers).tobytes()


def decode_ended_op(body: bytes) -> Ended:
    _, state, _, jobs_len = _ENDED.unpack_from(body)
    by_at: int = _ENDED.size + jobs_len
    code = body[by_at]
    decode = decode_deleted if code == DELETED else decode_moved if code == MOVED else decode_buried
    return Ended(EndState(state), body[_ENDED.size : by_at], decode(body[by_at:]))


def decode_progressed(body: bytes) -> Progressed:
    _, topic_id, progress_len = _PROGRESSED.unpack_from(body)
    seqs_at = _PROGRESSED.size + progress_len
    return Progressed(topic_id, body[_PROGRESSED.size : seqs_at], array("Q", body[seqs_at:]).tolist())


def decode_group_notified(body: bytes) -> GroupNotified:
    _, topic_id, ts, seq, name_len = _NOTIFIED.unpack_from(body)
    name_end = _NOTIFIED.size + name_len
    appended = decode_appended(body[name_end:]) if len(body) > name_end else None
    return GroupNotified(topic_id, ts, seq, body[_NOTIFIED.size : name_end].decode(), appended)


def decode_groups_forgotten(body: bytes) -> GroupsForgotten:
    return GroupsForgotten(_FORGOTTEN.unpack_from(body)[1], array("Q", body[_FORGOTTEN.size :]).tolist())
