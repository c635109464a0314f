"""Jobs that have ended: what became of each, kept for a time, the oldest dropped first if there are too many.

One job, in the log, in memory and in a snapshot:

    | seq u64 | state u8 | appended u64 | claimed u64 | ended u64 | deliveries u32 |
    | worker_len u16 | error_len u16 | progress_len u16 | result_len u32 | worker | error | progress | result |
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

# Of one queue. What comes on top of them goes on account of the oldest ones.
ENDED_MAX = 100_000
ENDED_BYTES_MAX = 64 * 1024 * 1024
# About what the tables need for one job besides its bytes.
ENDED_EXTRA_BYTES = 200

_ENDED = struct.Struct("<QBQQQIHHHI")


class EndState(IntEnum):
    """How a job ended. `REMOVED`: its record was deleted as a record, or expired; no more is known of it."""

    REMOVED = 0
    DONE = 1
    DEAD = 2
    CANCELLED = 3


class EndedJob(NamedTuple):
    """Times are in ms since 1970, 0: unknown. `progress` and `result` are JSON as the worker sent it, empty: none."""

    seq: int
    state: EndState
    appended_ts: int
    claimed_ts: int
    ended_ts: int
    deliveries: int
    worker: str
    error: str
    progress: bytes
    result: bytes

    def encode(self) -> bytes:
        worker, error = self.worker.encode(), self.error.encode()
        numbers = self[:6]
        lengths = len(worker), len(error), len(self.progress), len(self.result)
        return b"".join((_ENDED.pack(*numbers, *lengths), worker, error, self.progress, self.result))


def decode_ended(data: bytes) -> EndedJob:
    seq, state, appended, claimed, ended, deliveries, *lengths = _ENDED.unpack_from(data)
    parts: list[bytes] = []
    at = _ENDED.size
    for length in lengths:
        parts.append(data[at : at + length])
        at += length
    worker, error, progress, result = parts
    return EndedJob(
        seq, EndState(state), appended, claimed, ended, deliveries, worker.decode(), error.decode(), progress, result
    )


def split_ended(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Jobs that are stored back to back, by seq."""
    at = 0
    while at < len(data):
        seq, *_, worker, error, progress, result = _ENDED.unpack_from(data, at)
        end = at + _ENDED.size + worker + error + progress + result
        yield seq, data[at:end]
        at = end


class EndedJobs:
    """Those of one queue by seq, and their seqs in the order in which they ended."""

    __slots__ = ("_by_seq", "_bytes", "_order")

    def __init__(self) -> None:
        self._by_seq: dict[int, bytes] = {}
        self._order: deque[int] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._order)

    def add(self, jobs: Iterable[tuple[int, bytes]]) -> None:
        """A job that is here already keeps its place: the log may say again what a snapshot says."""
        by_seq = self._by_seq
        for seq, data in jobs:
            before = by_seq.get(seq)
            if before is None:
                self._order.append(seq)
                self._bytes += ENDED_EXTRA_BYTES
            self._bytes += len(data) - len(before or b"")
            by_seq[seq] = data
        while len(self._order) > ENDED_MAX or self._bytes > ENDED_BYTES_MAX:
            self._drop_oldest()

    def find(self, seq: int, ended_after: int) -> EndedJob | None:
        """The job, unless it ended at this time or before."""
        data = self._by_seq.get(seq)
        ended = None if data is None else decode_ended(data)
        return ended if ended is not None and ended.ended_ts > ended_after else None

    def forget(self, ended_until: int, most: int) -> bool:
        """Drop those that ended until then, `most` of them; whether there may be more."""
        for _ in range(most):
            if not self._order or _ended_ts(self._by_seq[self._order[0]]) > ended_until:
                return False
            self._drop_oldest()
        return True

    def _drop_oldest(self) -> None:
        data = self._by_seq.pop(self._order.popleft())
        self._bytes -= len(data) + ENDED_EXTRA_BYTES

    def pieces(self, jobs_max: int, bytes_max: int) -> Iterator[bytes]:
        """All of them back to back, in pieces; each as it is when its piece is taken."""
        some: list[bytes] = []
        size = 0
        for seq in list(self._order):
            data = self._by_seq.get(seq)
            if data is not None:
                some.append(data)
                size += len(data)
            if len(some) >= jobs_max or size >= bytes_max:
                yield b"".join(some)
                some, size = [], 0
        if some:
            yield b"".join(some)


def _ended_ts(data: bytes) -> int:
    return _ENDED.unpack_from(data)[4]
