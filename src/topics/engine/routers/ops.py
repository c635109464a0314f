"""Ops of routers: created, changed, removed, and the mark that records were copied, each with its bytes.

The copies themselves are not in the log; they are derived again.

RouterPut     | 33 | dest u32 | source u32 | cursor u64 (2⁶⁴−1: where it was) | name_len u16 | name | config JSON |
RouterDropped | 34 | dest u32 |
Forwarded
| 32 | flags u8 | dest u32 | source u32 | from_seq u64 | to_seq u64 | first_seq u64 | ts u64 | floor u64 | lost u64 |
| count u32 | runs u32 |
| (seq u64, count u64)×runs, of the source, unless flags&1; compressed if flags&2 | Appended if flags&4 |

flags   1 ALL       every seq after from_seq up to to_seq was copied
        2 PACKED    the runs are compressed
        4 FULL      the copies follow, because the log has nothing to derive them from
        8 VOLATILE  the copies are not kept after a restart: only the cursor moves
       16 NO_NODE, 32 NO_TAG, 64 STAMPED   the form of the copies
"""

from __future__ import annotations

import struct
import zlib
from array import array
from typing import NamedTuple

from topics.engine.core.appended import Appended, decode_appended
from topics.engine.core.ops import RUNS_COMPRESSED_FROM
from topics.model.requests.batch import Batch
from topics.model.requests.routers import RouterConfig, decode_router_config, encode_router_config

FORWARDED, ROUTER_PUT, ROUTER_DROPPED = range(32, 35)
# In place of a cursor: it is unchanged.
KEPT = 2**64 - 1
ALL, PACKED, FULL, VOLATILE, NO_NODE, NO_TAG, STAMPED = 1, 2, 4, 8, 16, 32, 64

_FORWARDED = struct.Struct("<BBIIQQQQQQII")
_ROUTER_PUT = struct.Struct("<BIIQH")
_ROUTER_DROPPED = struct.Struct("<BI")


class RouterPut(NamedTuple):
    """A router into this topic exists, with this configuration. `cursor` is KEPT if it is unchanged."""

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
    """The router into this topic is removed; its copies stay."""

    topic_id: int

    def encode(self) -> bytes:
        return _ROUTER_DROPPED.pack(ROUTER_DROPPED, self.topic_id)


class Forwarded:
    """Records of a source were copied into a topic: a batch that is built from the source's own bytes.

    The router has processed the source up to `to_seq`; `lost` records before the copies were no longer available.
    """

    __slots__ = (
        "batch",
        "derived",
        "flags",
        "floor",
        "from_seq",
        "lost",
        "runs",
        "source_id",
        "to_seq",
        "topic_id",
    )

    def __init__(
        self,
        topic_id: int,
        source_id: int,
        flags: int,
        floor: int,
        batch: Batch,
        *,
        from_seq: int,
        to_seq: int,
        lost: int,
        runs: list[tuple[int, int]],
        derived: bool = True,
    ) -> None:
        self.topic_id = topic_id
        self.floor = floor
        self.batch = batch
        self.source_id = source_id
        self.flags = flags
        self.from_seq = from_seq
        self.to_seq = to_seq
        self.lost = lost
        self.runs = runs
        # False: read from the log, so that the batch has no bytes yet.
        self.derived = derived

    @property
    def appended(self) -> Appended:
        """The copies, as ordinary records."""
        return Appended(self.topic_id, self.floor, b"", self.batch)

    def encode(self) -> bytes:
        return self._encode(self.flags)

    def encode_with_copies(self) -> bytes:
        """With the copies, so that its fold does not need the source as it was."""
        return self._encode(self.flags | FULL if self.batch.count and not self.flags & VOLATILE else self.flags)

    def _encode(self, flags: int) -> bytes:
        batch, runs = self.batch, self.runs
        tail = b""
        if batch.count == self.to_seq - self.from_seq:
            flags, runs = flags | ALL, []
        else:
            tail = array("Q", [number for run in runs for number in run]).tobytes()
            if len(runs) >= RUNS_COMPRESSED_FROM:
                flags |= PACKED
                tail = zlib.compress(tail, 1)
        if flags & FULL:
            tail = len(tail).to_bytes(4, "little") + tail + self.appended.encode()
        head = _FORWARDED.pack(
            FORWARDED,
            flags,
            self.topic_id,
            self.source_id,
            self.from_seq,
            self.to_seq,
            batch.first_seq,
            batch.ts,
            self.floor,
            self.lost,
            batch.count,
            len(runs),
        )
        return head + tail


def decode_router_put(body: bytes) -> RouterPut:
    _, topic_id, source_id, cursor, name_len = _ROUTER_PUT.unpack_from(body)
    name_end = _ROUTER_PUT.size + name_len
    name = body[_ROUTER_PUT.size : name_end].decode()
    return RouterPut(topic_id, source_id, cursor, name, decode_router_config(body[name_end:]))


def decode_router_dropped(body: bytes) -> RouterDropped:
    return RouterDropped(*_ROUTER_DROPPED.unpack_from(body)[1:])


def decode_forwarded(body: bytes) -> Forwarded:
    fields = _FORWARDED.unpack_from(body)
    _, flags, topic_id, source_id, from_seq, to_seq, first_seq, ts, floor, lost, count, _ = fields
    batch = Batch(first_seq, ts, count, b"", array("I"))
    tail = body[_FORWARDED.size :]
    if flags & FULL:
        runs_len = int.from_bytes(tail[:4], "little")
        batch, tail = decode_appended(tail[4 + runs_len :]).batch, tail[4 : 4 + runs_len]
    if flags & ALL:
        runs = [(from_seq + 1, count)] if count else []
    else:
        numbers = array("Q", zlib.decompress(tail) if flags & PACKED else tail)
        runs = list(zip(numbers[0::2], numbers[1::2], strict=True))
    derived = bool(flags & FULL) or not count
    return Forwarded(
        topic_id,
        source_id,
        flags,
        floor,
        batch,
        from_seq=from_seq,
        to_seq=to_seq,
        lost=lost,
        runs=runs,
        derived=derived,
    )
