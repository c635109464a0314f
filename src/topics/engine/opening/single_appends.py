"""Appends of one record each, read from the log: neighbours that go into the same block are folded as one op.

    | Appended t 7 | Appended t 8 | Appended t 9 | Deleted t 3 |  ─▶  Appended t 7 … 9, Deleted t 3

The state is the same as if each were folded alone: a joined op ends where a block or a segment would.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from struct import Struct

from topics.engine.core.appended import APPENDED, APPENDED_BYTES, Appended, decode_appended
from topics.engine.core.op_table import Op
from topics.engine.core.state import State
from topics.model.requests.batch import Batch
from topics.storage.wal.log_scan import SplitBody
from topics.storage.wal.replay import LargeFrame, Window

# Code, flags and count of an append of one record with data only; then its topic, and the rest.
_start = Struct("<BBII")
_rest = Struct("<QQQI")
_PLAIN_SINGLE = _start.pack(APPENDED, 0, 1, 0)[:6]
NEVER = 1 << 64


def ops_of(state: State, frames: Window, border: int, *, join: bool) -> Iterator[tuple[int, Op]]:
    """The ops of these frames with their positions, each to be folded before the next is requested.

    None of them joins frames from both sides of the position `border`.
    """
    decode = state.ops.decode
    if isinstance(frames, LargeFrame):
        large = frames.body
        yield frames.position, decode_appended(*large) if isinstance(large, SplitBody) else decode(large)
        return
    at = 0
    while at < len(frames):
        position, body = frames[at]
        if join and body.startswith(_PLAIN_SINGLE):
            joined = _join(state, frames, at, border)
            if joined is not None:
                at += joined.batch.count
                yield frames[at - 1][0], joined
                continue
        at += 1
        yield position, decode(body)


def _join(state: State, frames: Sequence[tuple[int, bytes]], at: int, border: int) -> Appended | None:
    """One op for the frames from here on that can be joined, a record each; None if there are fewer than two."""
    position, body = frames[at]
    start = body[: _start.size]
    topic_id: int = _start.unpack(start)[3]
    topic = state.by_id.get(topic_id)
    room = None if topic is None or topic.content is not None else state.room_in_tail(topic)
    if topic is None or room is None:
        return None
    stop = min(len(frames), at + room.records)
    position_max = border if position <= border else NEVER
    size_max, before_ts, floor_max = room.bytes, room.before_ts, topic.logged_floor
    seq = first_seq = topic.head_seq + 1
    size = ts = 0
    blobs: list[bytes] = []
    ends: list[int] = []
    unpack = _rest.unpack_from
    for position, body in frames[at:stop]:
        if position > position_max or not body.startswith(start):
            break
        own_seq, own_ts, floor, blob_bytes = unpack(body, 10)
        if own_seq != seq or floor > floor_max or size + blob_bytes > size_max or own_ts >= before_ts:
            break
        seq += 1
        ts = own_ts
        size += blob_bytes
        blobs.append(body[APPENDED_BYTES:])
        ends.append(size)
    if len(ends) < 2:
        return None
    batch = Batch(first_seq, ts, len(ends), b"".join(blobs), array("I", ends))
    return Appended(topic_id, topic.logged_floor, b"", batch)
