"""Ops of topics and records: what the log stores, in the past tense, each with its bytes.

Every op starts with its code; integers are little-endian. An op states outcomes (seqs, time, floors, which records
died), so that folding it needs neither a clock nor another topic. The ops of a feature are in its `ops.py`.

    Appended   | 1 | flags u8 | count u32 | topic u32 | first_seq u64 | ts u64 | floor u64 | blob_len u32 |
               | key 16 if flags&1 | ends u32×count if count>1 |
               | nodes if flags&2: names_len u32, names (JSON array), u32×count |
               | tags if flags&4: tags_len u32, ends u32×count, bytes | metas u32×count if flags&8 |
               | jobs if flags&16: delays u32×count, unique keys 16×count, priorities u8×count if flags&64, |
               |   groups if flags&128: groups_len u32, groups (JSON: name, size, notify of each), u32×count |
               | answer if flags&32: records u32, seqs u64×records | blob |
    Deleted    | 2 | topic u32 | ts u64 | runs u32 | packed u8 | (from_seq u64, seqs u64, bytes u64)×runs |
    Created    | 3 | topic u32 | epoch u64 | ts u64 | ceiling u64 | name_len u16 | name | config JSON |
    Configured | 4 | topic u32 | head_seq u64 | ceiling u64 | floor u64 | config JSON |
    Dropped    | 5 | topic u32 |
    Reserved   | 6 | topic u32 | ceiling u64 |
    Skipped    | 7 | topic u32 | head_seq u64 | ceiling u64 |
    Resumed    | 88 | topic u32 | head_seq u64 | ceiling u64 | lost u64 |
    Floored    | 13 | topic u32 | floor u64 |
    KeyNoted   | 14 | topic u32 | ts u64 | key 16 | seqs u64… |
    Timed      | 84 | steady u64 | wall u64 |
    Appended   | 85 | time from which delays count u64 | Appended |   if that is not its ts
    MultiAppended | 92 | parts u32 | lengths u32×parts | Created, Appended or KeyNoted, of several topics… |

Only in a snapshot, after everything else: an op from before its position that waited for the bucket.

    Carried    | 118 | position u64 | op |

Codes of the features: queues 8 to 12, 86 and 104 to 106, routers 32 to 34, groups 40 to 42 and 80, transactions 48
to 52, schedules 93 to 95, webhooks 112 to 116.
"""

from __future__ import annotations

import struct
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from topics.engine.core.appended import (
    APPENDED_BYTES,
    APPENDED_LATE,
    Appended,
    DeferredBody,
    blob_start,
    decode_appended,
)
from topics.engine.log.deletion import Run
from topics.model.clock import Moment
from topics.model.requests.batch import DEFERRED_BYTES_MIN, Batch
from topics.model.requests.config import TopicConfig, decode_config, encode_config

DELETED, CREATED, CONFIGURED, DROPPED, RESERVED, SKIPPED = range(2, 8)
FLOORED, KEY_NOTED = 13, 14
TIMED, RESUMED, MULTI_APPENDED = 84, 88, 92
CARRIED = 118

_DELETED = struct.Struct("<BIQIB")
_DELETED_RUN = struct.Struct("<BIQIBQQQ")
_CREATED = struct.Struct("<BIQQQH")
_CONFIGURED = struct.Struct("<BIQQQ")
_DROPPED = struct.Struct("<BI")
_RESERVED = struct.Struct("<BIQ")
_SKIPPED = struct.Struct("<BIQQ")
_RESUMED = struct.Struct("<BIQQQ")
_KEY_NOTED = struct.Struct("<BIQ16s")
_TIMED = struct.Struct("<BQQ")
_MULTI = struct.Struct("<BI")
_CARRIED = struct.Struct("<BQ")

RUNS_COMPRESSED_FROM = 64


class Deleted(NamedTuple):
    topic_id: int
    ts: int
    runs: list[Run]

    def encode(self) -> bytes:
        runs = self.runs
        if len(runs) == 1:
            return _DELETED_RUN.pack(DELETED, self.topic_id, self.ts, 1, 0, *runs[0])
        flat = encode_runs(runs)
        packed = len(runs) >= RUNS_COMPRESSED_FROM
        head = _DELETED.pack(DELETED, self.topic_id, self.ts, len(runs), packed)
        return head + (zlib.compress(flat, 1) if packed else flat)


class Created(NamedTuple):
    topic_id: int
    epoch: int
    ts: int
    ceiling: int
    name: str
    config: TopicConfig

    def encode(self) -> bytes:
        name = self.name.encode()
        head = _CREATED.pack(CREATED, self.topic_id, self.epoch, self.ts, self.ceiling, len(name))
        return head + name + encode_config(self.config)


class Configured(NamedTuple):
    """`head_seq` and `floor` are not known from the log alone: seqs assigned while the topic was `ephemeral`, and what
    expired before a new TTL might bring it back."""

    topic_id: int
    head_seq: int
    ceiling: int
    floor: int
    config: TopicConfig

    def encode(self) -> bytes:
        head = _CONFIGURED.pack(CONFIGURED, self.topic_id, self.head_seq, self.ceiling, self.floor)
        return head + encode_config(self.config)


class Dropped(NamedTuple):
    topic_id: int

    def encode(self) -> bytes:
        return _DROPPED.pack(DROPPED, self.topic_id)


class Reserved(NamedTuple):
    """Seqs up to `ceiling` may be assigned without being durable."""

    topic_id: int
    ceiling: int

    def encode(self) -> bytes:
        return _RESERVED.pack(RESERVED, self.topic_id, self.ceiling)


class Skipped(NamedTuple):
    """Seqs up to `head_seq` were assigned, and their records are not in the log: those of an `ephemeral` topic.

    Version 0.1 wrote it after a crash, for seqs that may have been assigned.
    """

    topic_id: int
    head_seq: int
    ceiling: int

    def encode(self) -> bytes:
        return _SKIPPED.pack(SKIPPED, self.topic_id, self.head_seq, self.ceiling)


class Resumed(NamedTuple):
    """Seqs up to `head_seq` may have been seen before a crash and are never used again; about `lost` were records."""

    topic_id: int
    head_seq: int
    ceiling: int
    lost: int

    def encode(self) -> bytes:
        return _RESUMED.pack(RESUMED, self.topic_id, self.head_seq, self.ceiling, self.lost)


class Floored(NamedTuple):
    """Retention had dropped everything below `floor` when the next op was decided."""

    topic_id: int
    floor: int

    def encode(self) -> bytes:
        return _RESERVED.pack(FLOORED, self.topic_id, self.floor)


class KeyNoted(NamedTuple):
    """A write with this idempotency key added nothing: its records are the jobs of these seqs, pending already."""

    topic_id: int
    ts: int
    key: bytes
    seqs: list[int]

    def encode(self) -> bytes:
        return _KEY_NOTED.pack(KEY_NOTED, self.topic_id, self.ts, self.key) + array("Q", self.seqs).tobytes()


class MultiAppended(NamedTuple):
    """Batches were added to several topics in one step. A topic that it creates comes before its records."""

    parts: list[Created | Appended | KeyNoted]

    @property
    def topic_id(self) -> int:
        return self.parts[0].topic_id

    @property
    def batches(self) -> list[Appended]:
        return [part for part in self.parts if isinstance(part, Appended)]

    def encode(self) -> bytes:
        bodies = [part.encode() for part in self.parts]
        return b"".join((self._head(list(map(len, bodies))), *bodies))

    def body(self) -> bytes | DeferredBody:
        """The same as buffers to write: those of large batches need not exist yet."""
        if sum([appended.batch.size for appended in self.batches]) <= DEFERRED_BYTES_MIN:
            return self.encode()
        lengths: list[int] = []
        pieces: list[bytes | Batch] = []
        for part in self.parts:
            body: Sequence[bytes | Batch] = part.pieces() if isinstance(part, Appended) else (part.encode(),)
            lengths.append(len(DeferredBody(body)))
            pieces += body
        return DeferredBody([self._head(lengths), *pieces])

    def _head(self, lengths: list[int]) -> bytes:
        return _MULTI.pack(MULTI_APPENDED, len(lengths)) + array("I", lengths).tobytes()


class Timed(NamedTuple):
    """The time of both clocks when deadlines were written near here. It belongs to no topic."""

    moment: Moment
    topic_id: int = 0

    def encode(self) -> bytes:
        return _TIMED.pack(TIMED, *self.moment)


# --- decoding ---


def decode_deleted(body: bytes) -> Deleted:
    _, topic_id, ts, count, packed = _DELETED.unpack_from(body)
    flat = body[_DELETED.size :]
    return Deleted(topic_id, ts, decode_runs(zlib.decompress(flat) if packed else flat, count))


def encode_runs(runs: list[Run]) -> bytes:
    return array("Q", [number for run in runs for number in run]).tobytes()


def decode_runs(flat: bytes, count: int) -> list[Run]:
    numbers = array("Q", flat)
    return [Run(*numbers[at : at + 3]) for at in range(0, 3 * count, 3)]


def decode_created(body: bytes) -> Created:
    _, topic_id, epoch, ts, ceiling, name_len = _CREATED.unpack_from(body)
    name_end = _CREATED.size + name_len
    config = decode_config(body[name_end:])
    return Created(topic_id, epoch, ts, ceiling, body[_CREATED.size : name_end].decode(), config)


def decode_configured(body: bytes) -> Configured:
    _, topic_id, head_seq, ceiling, floor = _CONFIGURED.unpack_from(body)
    return Configured(topic_id, head_seq, ceiling, floor, decode_config(body[_CONFIGURED.size :]))


def decode_dropped(body: bytes) -> Dropped:
    return Dropped(*_DROPPED.unpack_from(body)[1:])


def decode_reserved(body: bytes) -> Reserved:
    return Reserved(*_RESERVED.unpack_from(body)[1:])


def decode_skipped(body: bytes) -> Skipped:
    return Skipped(*_SKIPPED.unpack_from(body)[1:])


def decode_resumed(body: bytes) -> Resumed:
    return Resumed(*_RESUMED.unpack_from(body)[1:])


def decode_floored(body: bytes) -> Floored:
    return Floored(*_RESERVED.unpack_from(body)[1:])


def decode_timed(body: bytes) -> Timed:
    return Timed(Moment(*_TIMED.unpack_from(body)[1:]))


def decode_key_noted(body: bytes) -> KeyNoted:
    _, topic_id, ts, key = _KEY_NOTED.unpack_from(body)
    return KeyNoted(topic_id, ts, key, array("Q", body[_KEY_NOTED.size :]).tolist())


_PART_DECODERS: Final[Mapping[int, Callable[[bytes], Created | Appended | KeyNoted]]] = {
    CREATED: decode_created,
    KEY_NOTED: decode_key_noted,
    APPENDED_LATE: decode_appended,
}


def decode_multi_appended(body: bytes) -> MultiAppended:
    count = _MULTI.unpack_from(body)[1]
    at = _MULTI.size + 4 * count
    parts: list[Created | Appended | KeyNoted] = []
    for length in array("I", body[_MULTI.size : at]):
        end = at + length
        blob_at = at + blob_start(body[at : at + APPENDED_BYTES], length)
        if blob_at > at:
            parts.append(decode_appended(body[at:blob_at], body[blob_at:end]))
        else:
            parts.append(_PART_DECODERS[body[at]](body[at:end]))
        at = end
    return MultiAppended(parts)


def encode_carried(position: int, body: bytes | DeferredBody) -> bytes:
    """A chunk of a snapshot: an op that waits for the bucket."""
    return b"".join((_CARRIED.pack(CARRIED, position), *([body] if isinstance(body, bytes) else body.buffers())))


def decode_carried(chunk: bytes) -> tuple[int, bytes]:
    return _CARRIED.unpack_from(chunk)[1], chunk[_CARRIED.size :]
