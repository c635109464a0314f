"""Forwarded: the mark that a router copied records. The copies themselves are not in the log, they are derived again.

| 32 | flags u8 | dest u32 | source u32 | from_seq u64 | to_seq u64 | first_seq u64 | ts u64 | floor u64 | lost u64 |
| count u32 | runs u32 |
| (seq u64, count u64)×runs, of the source, unless flags&1; compressed if flags&2 | Appended if flags&4 |

flags   1 ALL       every seq behind from_seq up to to_seq was copied
        2 PACKED    the runs are compressed
        4 FULL      the copies follow, because the log has nothing to derive them from
        8 VOLATILE  the copies were never meant to outlive the process: only the cursor moves
       16 NO_NODE, 32 NO_TAG, 64 STAMPED   what the copies look like
"""

from __future__ import annotations

import struct
import zlib
from array import array

from topics.engine.core import ops
from topics.engine.core.ops import FORWARDED, RUNS_COMPRESSED_FROM, TXN_CODES, Appended, Op
from topics.engine.transactions.ops import decode_txn_op
from topics.model.requests.batch import Batch

ALL, PACKED, FULL, VOLATILE, NO_NODE, NO_TAG, STAMPED = 1, 2, 4, 8, 16, 32, 64

_FORWARDED = struct.Struct("<BBIIQQQQQQII")


class Forwarded(Appended):
    """Records of a source became part of a topic: an append whose batch is built from the source's own bytes.

    The router has dealt with the source up to `to_seq`; `lost` records before the copies could not be had any more.
    """

    __slots__ = ("derived", "flags", "from_seq", "lost", "runs", "source_id", "to_seq")

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
        super().__init__(topic_id, floor, b"", batch)
        self.source_id = source_id
        self.flags = flags
        self.from_seq = from_seq
        self.to_seq = to_seq
        self.lost = lost
        self.runs = runs
        # False: read back from the log, so that the batch has no bytes yet.
        self.derived = derived

    def encode(self) -> bytes:
        batch, flags, runs = self.batch, self.flags, self.runs
        tail = b""
        if batch.count == self.to_seq - self.from_seq:
            flags, runs = flags | ALL, []
        else:
            tail = array("Q", [number for run in runs for number in run]).tobytes()
            if len(runs) >= RUNS_COMPRESSED_FROM:
                flags |= PACKED
                tail = zlib.compress(tail, 1)
        if flags & FULL:
            tail = len(tail).to_bytes(4, "little") + tail + super().encode()
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


def decode(body: bytes) -> Op:
    """The op that these bytes of a verified frame stand for, whichever it is."""
    code = body[0]
    if code == FORWARDED:
        return _decode_forwarded(body)
    return decode_txn_op(body) if code in TXN_CODES else ops.decode(body)


def _decode_forwarded(body: bytes) -> Forwarded:
    fields = _FORWARDED.unpack_from(body)
    _, flags, topic_id, source_id, from_seq, to_seq, first_seq, ts, floor, lost, count, _ = fields
    batch = Batch(first_seq, ts, count, b"", array("I"))
    tail = body[_FORWARDED.size :]
    if flags & FULL:
        runs_len = int.from_bytes(tail[:4], "little")
        appended = ops.decode(tail[4 + runs_len :])
        assert isinstance(appended, Appended)
        batch, tail = appended.batch, tail[4 : 4 + runs_len]
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
