"""The ops of schedules and their bytes.

SchedulePut     | 93 | schedule u32 | anchor u64 | next u64 | name_len u16 | name | config JSON |
ScheduleDropped | 94 | schedule u32 |
ScheduleRan     | 95 | runs u32 | (due u64, next u64, last_seq u64, ts u64, schedule u32, records u32)×runs |
                | Appended, or nothing |
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from topics.engine.core.appended import Appended, decode_appended
from topics.model.schedules.schedule_config import ScheduleConfig, decode_schedule_config, encode_schedule_config

SCHEDULE_PUT, SCHEDULE_DROPPED, SCHEDULE_RAN = 93, 94, 95

_PUT = struct.Struct("<BIQQH")
_DROPPED = struct.Struct("<BI")
_RAN = struct.Struct("<BI")
_RUN = struct.Struct("<QQQQII")


class SchedulePut(NamedTuple):
    """A schedule was created or changed. `next_ms` is its next due time, or 0; intervals count from `anchor_ms`."""

    topic_id: int
    anchor_ms: int
    next_ms: int
    name: str
    config: ScheduleConfig

    def encode(self) -> bytes:
        name = self.name.encode()
        head = _PUT.pack(SCHEDULE_PUT, self.topic_id, self.anchor_ms, self.next_ms, len(name))
        return head + name + encode_schedule_config(self.config)


class ScheduleDropped(NamedTuple):
    topic_id: int

    def encode(self) -> bytes:
        return _DROPPED.pack(SCHEDULE_DROPPED, self.topic_id)


class ScheduledRun(NamedTuple):
    """One schedule has handled its due times up to `due_ms`, with `records` of the op's batch, up to `last_seq`."""

    due_ms: int
    next_ms: int
    last_seq: int
    ts: int
    schedule_id: int
    records: int


class ScheduleRan(NamedTuple):
    """Schedules of one topic became due: their records and the advance of each are one step.

    Without a batch there was nothing to append, or the records are those of an ephemeral topic, which the log does not
    store.
    """

    runs: list[ScheduledRun]
    appended: Appended | None

    @property
    def topic_id(self) -> int:
        return self.appended.topic_id if self.appended is not None else self.runs[0].schedule_id

    def encode(self) -> bytes:
        return self.head() + (b"" if self.appended is None else self.appended.encode())

    def head(self) -> bytes:
        """The bytes before the batch."""
        return _RAN.pack(SCHEDULE_RAN, len(self.runs)) + b"".join([_RUN.pack(*run) for run in self.runs])


def decode_schedule_put(body: bytes) -> SchedulePut:
    _, schedule_id, anchor_ms, next_ms, name_len = _PUT.unpack_from(body)
    name_end = _PUT.size + name_len
    config = decode_schedule_config(body[name_end:])
    return SchedulePut(schedule_id, anchor_ms, next_ms, body[_PUT.size : name_end].decode(), config)


def decode_schedule_dropped(body: bytes) -> ScheduleDropped:
    return ScheduleDropped(*_DROPPED.unpack_from(body)[1:])


def decode_schedule_ran(body: bytes) -> ScheduleRan:
    runs_end = _RAN.size + _RUN.size * _RAN.unpack_from(body)[1]
    runs = [ScheduledRun(*fields) for fields in _RUN.iter_unpack(body[_RAN.size : runs_end])]
    return ScheduleRan(runs, decode_appended(body[runs_end:]) if len(body) > runs_end else None)
