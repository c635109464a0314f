"""Ops: what the log stores, in the past tense, each with its bytes.

Every op starts with its code; integers are little-endian. An op tells outcomes (seqs, time, floors, which records
died), so that folding it needs neither a clock nor another topic.

    Appended   | 1 | flags u8 | count u32 | topic u32 | first_seq u64 | ts u64 | floor u64 | blob_len u32 |
               | key 16 if flags&1 | ends u32×count if count>1 |
               | nodes if flags&2: names_len u32, names (JSON array), u32×count |
               | tags if flags&4: tags_len u32, ends u32×count, bytes | metas u32×count if flags&8 |
               | jobs if flags&16: delays u32×count, unique keys 16×count |
               | answer if flags&32: records u32, seqs u64×records | blob |
    Deleted    | 2 | topic u32 | ts u64 | runs u32 | packed u8 | (from_seq u64, seqs u64, bytes u64)×runs |
    Created    | 3 | topic u32 | epoch u64 | ts u64 | ceiling u64 | name_len u16 | name | config JSON |
    Configured | 4 | topic u32 | head_seq u64 | ceiling u64 | floor u64 | config JSON |
    Dropped    | 5 | topic u32 |
    Reserved   | 6 | topic u32 | ceiling u64 |
    Skipped    | 7 | topic u32 | head_seq u64 | ceiling u64 |
    Resumed    | 88 | topic u32 | head_seq u64 | ceiling u64 | lost u64 |
    Floored    | 13 | topic u32 | floor u64 |
    Leased, Released, Extended, Paused | 8 to 11 | see engine/queues/ops.py
    Moved      | 12 | kind u8 | topic u32 | ts u64 | runs u32 | (from_seq u64, seqs u64, bytes u64)×runs | Appended |
    KeyNoted   | 14 | topic u32 | ts u64 | key 16 | seqs u64… |
    Forwarded  | 32 | see engine/routers/ops.py
    RouterPut  | 33 | dest u32 | source u32 | cursor u64 (2⁶⁴−1: where it was) | name_len u16 | name | config JSON |
    RouterDropped | 34 | dest u32 |
    Txn…       | 48 to 52 | see engine/transactions/ops.py
    Timed      | 84 | steady u64 | wall u64 |
    Buried     | 86 | queue u32 | letters u32 | Appended, Deleted or nothing |
    Appended   | 85 | time from which delays count u64 | Appended |   if that is not its ts
    MultiAppended | 92 | parts u32 | lengths u32×parts | Created, Appended or KeyNoted, of several topics… |
"""

from __future__ import annotations

import struct
import zlib
from array import array
from itertools import chain
from typing import Final, NamedTuple

from topics.engine.core.appended import (
    APPEND_CODES,
    APPENDED_BYTES,
    Appended,
    DeferredBody,
    blob_start,
    decode_appended,
)
from topics.engine.groups.ops import GROUP_CODES, GroupOp, decode_group_op
from topics.engine.queues.ops import LEASE_CODES, LeaseOp, Paused, decode_lease_op
from topics.model.clock import Moment
from topics.model.requests.batch import DEFERRED_BYTES_MIN
from topics.model.requests.config import TopicConfig, decode_config, encode_config
from topics.model.requests.routers import RouterConfig, decode_router_config, encode_router_config

DELETED, CREATED, CONFIGURED, DROPPED, RESERVED, SKIPPED = range(2, 8)
MOVED, FLOORED, KEY_NOTED = range(12, 15)
FORWARDED, ROUTER_PUT, ROUTER_DROPPED = range(32, 35)
RESUMED = 88
TXN_CODES = range(48, 53)
TIMED, BURIED, MULTI_APPENDED = 84, 86, 92

_DELETED = struct.Struct("<BIQIB")
_CREATED = struct.Struct("<BIQQQH")
_CONFIGURED = struct.Struct("<BIQQQ")
_DROPPED = struct.Struct("<BI")
_RESERVED = struct.Struct("<BIQ")
_SKIPPED = struct.Struct("<BIQQ")
_RESUMED = struct.Struct("<BIQQQ")
_MOVED = struct.Struct("<BBIQI")
_KEY_NOTED = struct.Struct("<BIQ16s")
_ROUTER_PUT = struct.Struct("<BIIQH")
_TIMED = struct.Struct("<BQQ")
_BURIED = struct.Struct("<BII")
_MULTI = struct.Struct("<BI")

RUNS_COMPRESSED_FROM = 64


class Run(NamedTuple):
    """Records `from_seq … from_seq + seqs − 1` died and gave back `size` bytes."""

    from_seq: int
    seqs: int
    size: int


class Deleted(NamedTuple):
    topic_id: int
    ts: int
    runs: list[Run]

    def encode(self) -> bytes:
        flat = array("Q", [number for run in self.runs for number in run]).tobytes()
        packed = len(self.runs) >= RUNS_COMPRESSED_FROM
        head = _DELETED.pack(DELETED, self.topic_id, self.ts, len(self.runs), packed)
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
    """`head_seq` and `floor` keep what the log alone does not tell: seqs handed out while the topic was `ephemeral`,
    and what expired before a new TTL might bring it back."""

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
    """Seqs up to `ceiling` may be handed out without being durable."""

    topic_id: int
    ceiling: int

    def encode(self) -> bytes:
        return _RESERVED.pack(RESERVED, self.topic_id, self.ceiling)


class Skipped(NamedTuple):
    """Seqs up to `head_seq` were handed out, and their records are not in the log: those of an `ephemeral` topic.

    Version 0.1 wrote it after a crash, of seqs that may have been handed out.
    """

    topic_id: int
    head_seq: int
    ceiling: int

    def encode(self) -> bytes:
        return _SKIPPED.pack(SKIPPED, self.topic_id, self.head_seq, self.ceiling)


class Resumed(NamedTuple):
    """Seqs up to `head_seq` may have been seen before a crash and are never used again; about `lost` of them were."""

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


class Moved(NamedTuple):
    """Records left one topic for another, in one step: a dead letter, or one on its way home."""

    topic_id: int
    dead: bool
    ts: int
    runs: list[Run]
    appended: Appended

    @property
    def to_id(self) -> int:
        return self.appended.topic_id

    def encode(self) -> bytes:
        flat = array("Q", [number for run in self.runs for number in run]).tobytes()
        head = _MOVED.pack(MOVED, self.dead, self.topic_id, self.ts, len(self.runs))
        return head + flat + self.appended.encode()


class Buried(NamedTuple):
    """Dead letters left a queue for another topic, and only `rest` of that outlives a restart."""

    topic_id: int
    letters: int
    rest: Appended | Deleted | None

    def encode(self) -> bytes:
        rest = b"" if self.rest is None else self.rest.encode()
        return _BURIED.pack(BURIED, self.topic_id, self.letters) + rest


class KeyNoted(NamedTuple):
    """A write with this idempotency key added nothing: its records are the jobs of these seqs, pending already."""

    topic_id: int
    ts: int
    key: bytes
    seqs: list[int]

    def encode(self) -> bytes:
        return _KEY_NOTED.pack(KEY_NOTED, self.topic_id, self.ts, self.key) + array("Q", self.seqs).tobytes()


class MultiAppended(NamedTuple):
    """Batches became part of several topics in one step. A topic that it made comes before what it got."""

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
        """The same, to be written: those of large batches need not be there yet."""
        if sum([appended.batch.size for appended in self.batches]) <= DEFERRED_BYTES_MIN:
            return self.encode()
        bodies = [part.pieces() if isinstance(part, Appended) else (part.encode(),) for part in self.parts]
        return DeferredBody([self._head([len(DeferredBody(body)) for body in bodies]), *chain(*bodies)])

    def _head(self, lengths: list[int]) -> bytes:
        return _MULTI.pack(MULTI_APPENDED, len(lengths)) + array("I", lengths).tobytes()


class RouterPut(NamedTuple):
    """A router into this topic exists, with this configuration. `cursor` is KEPT if it goes on where it was."""

    topic_id: int
    source_id: int
    cursor: int
    name: str
    config: RouterConfig

    def encode(self) -> bytes:
        name = self.name.encode()
        head = _ROUTER_PUT.pack(ROUTER_PUT, self.topic_id, self.source_id, self.cursor, len(name))
        return head + name + encode_router_config(self.config)


class RouterDropped(NamedTuple):
    """The router into this topic is gone; what it copied stays."""

    topic_id: int

    def encode(self) -> bytes:
        return _DROPPED.pack(ROUTER_DROPPED, self.topic_id)


class Timed(NamedTuple):
    """What both clocks said when deadlines were written near here. It concerns no topic."""

    moment: Moment
    topic_id: int = 0

    def encode(self) -> bytes:
        return _TIMED.pack(TIMED, *self.moment)


class TxnOp:
    """An op of a transaction; `topic_id` is the id of its app. What it holds is in engine/transactions/ops.py."""

    __slots__ = ("topic_id",)

    topic_id: int

    def encode(self) -> bytes:
        raise NotImplementedError


KEPT = 2**64 - 1
RouterOp = RouterPut | RouterDropped
Op = (
    GroupOp
    | Appended
    | Deleted
    | Created
    | Configured
    | Dropped
    | Reserved
    | Skipped
    | Resumed
    | Floored
    | LeaseOp
    | Paused
    | Moved
    | Buried
    | KeyNoted
    | MultiAppended
    | RouterOp
    | TxnOp
    | Timed
)


# Ops whose fields are their bytes.
_FIXED: Final = {
    DROPPED: (Dropped, _DROPPED),
    RESERVED: (Reserved, _RESERVED),
    SKIPPED: (Skipped, _SKIPPED),
    RESUMED: (Resumed, _RESUMED),
    FLOORED: (Floored, _RESERVED),
    ROUTER_DROPPED: (RouterDropped, _DROPPED),
}


def decode(body: bytes) -> Op:
    """The op that these bytes of a verified frame stand for."""
    code = body[0]
    if code in APPEND_CODES:
        return decode_appended(body)
    if code in GROUP_CODES:
        return decode_group_op(body)
    if code in LEASE_CODES:
        return decode_lease_op(body)
    if code in _FIXED:
        kind, layout = _FIXED[code]
        return kind(*layout.unpack_from(body)[1:])
    match code:
        case _ if code == DELETED:
            _, topic_id, ts, count, packed = _DELETED.unpack_from(body)
            flat = body[_DELETED.size :]
            numbers = array("Q", zlib.decompress(flat) if packed else flat)
            runs = [Run(*numbers[at : at + 3]) for at in range(0, 3 * count, 3)]
            return Deleted(topic_id, ts, runs)
        case _ if code == CREATED:
            _, topic_id, epoch, ts, ceiling, name_len = _CREATED.unpack_from(body)
            name_end = _CREATED.size + name_len
            config = decode_config(body[name_end:])
            return Created(topic_id, epoch, ts, ceiling, body[_CREATED.size : name_end].decode(), config)
        case _ if code == CONFIGURED:
            _, topic_id, head_seq, ceiling, floor = _CONFIGURED.unpack_from(body)
            return Configured(topic_id, head_seq, ceiling, floor, decode_config(body[_CONFIGURED.size :]))
        case _ if code == MOVED:
            _, dead, topic_id, ts, count = _MOVED.unpack_from(body)
            runs_end = _MOVED.size + 24 * count
            numbers = array("Q", body[_MOVED.size : runs_end])
            runs = [Run(*numbers[at : at + 3]) for at in range(0, 3 * count, 3)]
            return Moved(topic_id, bool(dead), ts, runs, decode_appended(body[runs_end:]))
        case _ if code == TIMED:
            return Timed(Moment(*_TIMED.unpack_from(body)[1:]))
        case _ if code == BURIED:
            return _decode_buried(body)
        case _ if code == MULTI_APPENDED:
            return _decode_multi_appended(body)
        case _ if code == KEY_NOTED:
            _, topic_id, ts, key = _KEY_NOTED.unpack_from(body)
            return KeyNoted(topic_id, ts, key, array("Q", body[_KEY_NOTED.size :]).tolist())
        case _ if code == ROUTER_PUT:
            _, topic_id, source_id, cursor, name_len = _ROUTER_PUT.unpack_from(body)
            name_end = _ROUTER_PUT.size + name_len
            name = body[_ROUTER_PUT.size : name_end].decode()
            return RouterPut(topic_id, source_id, cursor, name, decode_router_config(body[name_end:]))
        case _:
            raise ValueError(f"op code {code} is unknown: the log was written by a newer version")


def _decode_buried(body: bytes) -> Buried:
    rest = decode(body[_BURIED.size :]) if len(body) > _BURIED.size else None
    assert rest is None or isinstance(rest, Appended | Deleted)
    _, topic_id, letters = _BURIED.unpack_from(body)
    return Buried(topic_id, letters, rest)


def _decode_multi_appended(body: bytes) -> MultiAppended:
    count = _MULTI.unpack_from(body)[1]
    at = _MULTI.size + 4 * count
    parts: list[Created | Appended | KeyNoted] = []
    for length in array("I", body[_MULTI.size : at]):
        end = at + length
        blob_at = at + blob_start(body[at : at + APPENDED_BYTES], length)
        part = decode_appended(body[at:blob_at], body[blob_at:end]) if blob_at > at else decode(body[at:end])
        assert isinstance(part, Created | Appended | KeyNoted)
        parts.append(part)
        at = end
    return MultiAppended(parts)
