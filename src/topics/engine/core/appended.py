"""Appended: a batch as the log stores it, by itself or within other ops; `engine/core/ops.py` draws its bytes."""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Sequence

import msgspec

from topics.model.requests.batch import Batch, JobColumns
from topics.model.requests.records import GroupColumn, JobGroupRequest

APPENDED, APPENDED_LATE = APPEND_CODES = 1, 85
KEYED, WITH_NODES, WITH_TAGS, WITH_METAS, WITH_JOBS, WITH_ANSWER, WITH_PRIORITIES = 1, 2, 4, 8, 16, 32, 64
WITH_GROUPS = 128
KEY_BYTES = 16

_APPENDED = struct.Struct("<BBIIQQQI")
_LATE = struct.Struct("<BQ")
_U32 = struct.Struct("<I")
# The fields that every append starts with.
APPENDED_BYTES = _APPENDED.size

assert sys.byteorder == "little" and array("I").itemsize == 4 and array("Q").itemsize == 8, "columns are stored as is"


class Appended:
    """A batch was added to a topic. `floor` is the involuntary floor before this batch.

    `answer` has the seqs of all records that were requested with `key`, if some of them are not of this batch.
    """

    __slots__ = ("answer", "batch", "floor", "key", "topic_id")

    def __init__(self, topic_id: int, floor: int, key: bytes, batch: Batch, answer: list[int] | None = None) -> None:
        self.answer = answer
        self.topic_id = topic_id
        self.floor = floor
        self.key = key
        self.batch = batch

    def encode(self) -> bytes:
        return b"".join((*self._columns(), self.batch.blob))

    def body(self) -> bytes | DeferredBody:
        """The same as buffers to write: those of a large batch need not exist yet."""
        return self.encode() if self.batch.parts is None else DeferredBody(self.pieces())

    def pieces(self) -> tuple[bytes, Batch]:
        return b"".join(self._columns()), self.batch

    def _columns(self) -> list[bytes]:
        """The bytes before the blob."""
        batch = self.batch
        flags = 0
        parts: list[bytes] = [b""]
        if self.key:
            flags = KEYED
            parts.append(self.key)
        if batch.count > 1:
            parts.append(batch.ends.tobytes())
        if batch.nodes is not None:
            flags |= WITH_NODES
            names = msgspec.json.encode(batch.node_names)
            parts += (_U32.pack(len(names)), names, batch.nodes.tobytes())
        if batch.tags is not None and batch.tag_ends is not None:
            flags |= WITH_TAGS
            parts += (_U32.pack(len(batch.tags)), batch.tag_ends.tobytes(), batch.tags)
        if batch.metas is not None:
            flags |= WITH_METAS
            parts.append(batch.metas.tobytes())
        if batch.jobs is not None:
            flags |= WITH_JOBS
            parts += (batch.jobs.delays.tobytes(), batch.jobs.unique)
            if batch.jobs.priorities:
                flags |= WITH_PRIORITIES
                parts.append(batch.jobs.priorities)
            if batch.jobs.groups is not None:
                flags |= WITH_GROUPS
                groups, numbers = batch.jobs.groups
                names = msgspec.json.encode([(group.name, group.size, group.notify) for group in groups])
                parts += (_U32.pack(len(names)), names, numbers.tobytes())
        if self.answer is not None:
            flags |= WITH_ANSWER
            parts += (_U32.pack(len(self.answer)), array("Q", self.answer).tobytes())
        parts[0] = _APPENDED.pack(
            APPENDED, flags, batch.count, self.topic_id, batch.first_seq, batch.ts, self.floor, batch.size
        )
        if batch.jobs is not None and batch.jobs.from_ms != batch.ts:
            parts.insert(0, _LATE.pack(APPENDED_LATE, batch.jobs.from_ms))
        return parts


class DeferredBody:
    """An op with large batches; its bytes are made when they are written, by the thread that writes them.

    `unlogged` is joined then as well, and not written: a batch that the log never gets.
    """

    __slots__ = ("_pieces", "_size", "_unlogged")

    def __init__(self, pieces: Sequence[bytes | Batch], unlogged: Batch | None = None) -> None:
        self._pieces = pieces
        self._unlogged = unlogged
        self._size = sum([len(piece) if isinstance(piece, bytes) else piece.size for piece in pieces])

    def __len__(self) -> int:
        return self._size

    def buffers(self) -> list[bytes]:
        if self._unlogged is not None:
            self._unlogged.join()
        return [piece if isinstance(piece, bytes) else piece.join() for piece in self._pieces]


def blob_start(start: bytes, body_len: int) -> int:
    """Where the blob begins in the body of an append that starts like this; 0 for any other op."""
    return body_len - _APPENDED.unpack_from(start)[-1] if start[0] == APPENDED else 0


def decode_appended(body: bytes, blob: bytes | None = None) -> Appended:
    """The append in a body, or in one whose blob was removed."""
    if body[0] == APPENDED_LATE:
        appended = decode_appended(body[_LATE.size :], blob)
        assert appended.batch.jobs is not None
        appended.batch.jobs = appended.batch.jobs._replace(from_ms=_LATE.unpack_from(body)[1])
        return appended
    _, flags, count, topic_id, first_seq, ts, floor, blob_len = _APPENDED.unpack_from(body)
    columns_end = len(body)
    if blob is None:
        columns_end -= blob_len
        blob = body[columns_end:]
    at = APPENDED_BYTES
    key = b""
    if flags & KEYED:
        key = body[at : at + KEY_BYTES]
        at += KEY_BYTES
    if count == 1:
        batch = Batch(first_seq, ts, 1, blob, array("I", (blob_len,)))
    else:
        batch = Batch(first_seq, ts, count, blob, array("I", body[at : at + 4 * count]))
        at += 4 * count
    answer = None
    if flags > KEYED:
        at = _decode_columns(batch, body, at, flags)
        if flags & WITH_ANSWER:
            answer = array("Q", body[at + 4 : columns_end]).tolist()
    return Appended(topic_id, floor, key, batch, answer)


def _decode_columns(batch: Batch, body: bytes, at: int, flags: int) -> int:
    """Where the columns end."""
    width = 4 * batch.count
    if flags & WITH_NODES:
        (size,) = _U32.unpack_from(body, at)
        batch.node_names = msgspec.json.decode(body[at + 4 : at + 4 + size], type=list[str])
        at += 4 + size
        batch.nodes = array("I", body[at : at + width])
        at += width
    if flags & WITH_TAGS:
        (size,) = _U32.unpack_from(body, at)
        batch.tag_ends = array("I", body[at + 4 : at + 4 + width])
        at += 4 + width
        batch.tags = body[at : at + size]
        at += size
    if flags & WITH_METAS:
        batch.metas = array("I", body[at : at + width])
        at += width
    if flags & WITH_JOBS:
        delays = array("I", body[at : at + width])
        at += width
        unique = body[at : at + 16 * batch.count]
        at += 16 * batch.count
        priorities = b""
        if flags & WITH_PRIORITIES:
            priorities = body[at : at + batch.count]
            at += batch.count
        groups = None
        if flags & WITH_GROUPS:
            (size,) = _U32.unpack_from(body, at)
            named = msgspec.json.decode(body[at + 4 : at + 4 + size], type=list[tuple[str, int, str]])
            at += 4 + size
            groups = GroupColumn([JobGroupRequest(*each) for each in named], array("I", body[at : at + width]))
            at += width
        batch.jobs = JobColumns(delays, unique, batch.ts, priorities, groups)
    return at
