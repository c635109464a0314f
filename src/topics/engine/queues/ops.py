"""The ops of queues and their bytes: jobs that were leased, returned, extended or moved, and dead letters.

Leased     | 8 | topic u32 | cursor u64 | deadline u64 | rest u32 | jobs u32 | node_len u16 | node |
           | (seq u64, lease u64, deliveries u64)×jobs |
Released   | 9 | topic u32 | due u64 | jobs u32 | error_len u16 | error | seq u64×jobs |
Extended   | 10 | topic u32 | deadline u64 | rest u32 | jobs u32 | seq u64×jobs |
Paused     | 11 | topic u32 | paused u8 |
Moved      | 12 | kind u8 | topic u32 | ts u64 | runs u32 | (from_seq u64, seqs u64, bytes u64)×runs | Appended |
Buried     | 86 | queue u32 | letters u32 | Appended, Deleted or nothing |
"""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

from topics.engine.core.appended import APPEND_CODES, Appended, decode_appended
from topics.engine.core.ops import Deleted, decode_deleted, decode_runs, encode_runs
from topics.engine.log.deletion import Run

LEASED, RELEASED, EXTENDED, PAUSED, MOVED = range(8, 13)
BURIED = 86

_LEASED = struct.Struct("<BIQQIIH")
_RELEASED = struct.Struct("<BIQIH")
_EXTENDED = struct.Struct("<BIQII")
_PAUSED = struct.Struct("<BI?")
_MOVED = struct.Struct("<BBIQI")
_BURIED = struct.Struct("<BII")


class FreshRun(NamedTuple):
    """Neighbouring jobs that are delivered for the first time, with leases numbered from `lease` on."""

    first_seq: int
    seqs: int
    lease: int


class Leased(NamedTuple):
    """Jobs (seq, lease, deliveries) were leased to a worker. `rest_ms` is how long they rest if the lease expires.

    `cursor` is how far fresh jobs have been handed out; a job that waited for its time may be before it.

    No other worker may get the same job in the meantime, so the ops of leases are folded when they are decided. Such an
    op is `ahead` when it is published: its fold was done. Two fields are not in the log, and are empty in an op read
    from it: `now_ms`, when it was decided, and `stream`, the connection that the jobs are pushed to. Nor is it told
    there whether the jobs were a FreshRun.
    """

    topic_id: int
    cursor: int
    deadline: int
    rest_ms: int
    node: str
    jobs: list[tuple[int, int, int]] | FreshRun
    ahead: bool = False
    now_ms: int = 0
    stream: int = 0

    def encode(self) -> bytes:
        node, jobs = self.node.encode(), self.jobs
        if isinstance(jobs, FreshRun):
            count = jobs.seqs
            # Every number is 1 until the seqs and leases are put in.
            numbers = array("Q", (1,)) * (3 * count)
            numbers[0::3] = array("Q", range(jobs.first_seq, jobs.first_seq + count))
            numbers[1::3] = array("Q", range(jobs.lease, jobs.lease + count))
        else:
            count = len(jobs)
            numbers = array("Q", [number for job in jobs for number in job])
        times = self.cursor, self.deadline, self.rest_ms
        return _LEASED.pack(LEASED, self.topic_id, *times, count, len(node)) + node + numbers.tobytes()

    def lease_numbers(self) -> dict[int, int]:
        """The lease on each job, by seq."""
        jobs = self.jobs
        if isinstance(jobs, FreshRun):
            return dict(
                zip(
                    range(jobs.first_seq, jobs.first_seq + jobs.seqs),
                    range(jobs.lease, jobs.lease + jobs.seqs),
                    strict=True,
                )
            )
        return {seq: lease for seq, lease, _ in jobs}


class Released(NamedTuple):
    """Jobs were given back by their worker, to be claimed again from `due` on."""

    topic_id: int
    due: int
    error: str
    seqs: list[int]
    ahead: bool = False
    now_ms: int = 0

    def encode(self) -> bytes:
        error = self.error.encode()
        head = _RELEASED.pack(RELEASED, self.topic_id, self.due, len(self.seqs), len(error))
        return head + error + array("Q", self.seqs).tobytes()


class Extended(NamedTuple):
    """Leases got a new deadline."""

    topic_id: int
    deadline: int
    rest_ms: int
    seqs: list[int]
    ahead: bool = False

    def encode(self) -> bytes:
        head = _EXTENDED.pack(EXTENDED, self.topic_id, self.deadline, self.rest_ms, len(self.seqs))
        return head + array("Q", self.seqs).tobytes()


class Paused(NamedTuple):
    """A queue stopped handing out jobs, or resumed."""

    topic_id: int
    paused: bool

    def encode(self) -> bytes:
        return _PAUSED.pack(PAUSED, self.topic_id, self.paused)


class Moved(NamedTuple):
    """Records moved from one topic to another in one step: dead letters, or a redrive."""

    topic_id: int
    dead: bool
    ts: int
    runs: list[Run]
    appended: Appended

    @property
    def to_id(self) -> int:
        return self.appended.topic_id

    def encode(self) -> bytes:
        head = _MOVED.pack(MOVED, self.dead, self.topic_id, self.ts, len(self.runs))
        return head + encode_runs(self.runs) + self.appended.encode()


class Buried(NamedTuple):
    """Dead letters left a queue for another topic, and only `rest` of that survives a restart."""

    topic_id: int
    letters: int
    rest: Appended | Deleted | None

    def encode(self) -> bytes:
        rest = b"" if self.rest is None else self.rest.encode()
        return _BURIED.pack(BURIED, self.topic_id, self.letters) + rest


LeaseOp = Leased | Released | Extended


def decode_leased(body: bytes) -> Leased:
    _, topic_id, cursor, deadline, rest_ms, _, node_len = _LEASED.unpack_from(body)
    jobs_at = _LEASED.size + node_len
    numbers = array("Q", body[jobs_at:])
    jobs = list(zip(numbers[0::3], numbers[1::3], numbers[2::3], strict=True))
    return Leased(topic_id, cursor, deadline, rest_ms, body[_LEASED.size : jobs_at].decode(), jobs)


def decode_released(body: bytes) -> Released:
    _, topic_id, due, _, error_len = _RELEASED.unpack_from(body)
    seqs_at = _RELEASED.size + error_len
    return Released(topic_id, due, body[_RELEASED.size : seqs_at].decode(), array("Q", body[seqs_at:]).tolist())


def decode_extended(body: bytes) -> Extended:
    _, topic_id, deadline, rest_ms, _ = _EXTENDED.unpack_from(body)
    return Extended(topic_id, deadline, rest_ms, array("Q", body[_EXTENDED.size :]).tolist())


def decode_paused(body: bytes) -> Paused:
    return Paused(*_PAUSED.unpack_from(body)[1:])


def decode_moved(body: bytes) -> Moved:
    _, dead, topic_id, ts, count = _MOVED.unpack_from(body)
    runs_end = _MOVED.size + 24 * count
    runs = decode_runs(body[_MOVED.size : runs_end], count)
    return Moved(topic_id, bool(dead), ts, runs, decode_appended(body[runs_end:]))


def decode_buried(body: bytes) -> Buried:
    _, topic_id, letters = _BURIED.unpack_from(body)
    rest = body[_BURIED.size :]
    if not rest:
        return Buried(topic_id, letters, None)
    return Buried(topic_id, letters, decode_appended(rest) if rest[0] in APPEND_CODES else decode_deleted(rest))
