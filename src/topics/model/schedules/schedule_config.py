"""Schedules: the request, and the resolved configuration."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, UnsetType

from topics.model.errors import InvalidRequest, RecordTooLarge
from topics.model.names import check_topic_name
from topics.model.requests.batch import BatchLimits, check_batch
from topics.model.requests.config import U64
from topics.model.requests.records import AppendRequest, RecordRequest
from topics.model.schedules.due_times import TIME_MS_MAX, Timing, check_cron, check_timezone, shortest_gap_ms

Missed = Literal["skip", "once", "all"]

EVERY_MS_MIN, EVERY_MS_MAX = 100, 366 * 86_400_000
JITTER_MS_MAX = 86_400_000
NULL = Raw(b"null")
# What `meta` of a record adds to its data: the names of its fields, a time, and the longest name of a schedule.
META_BYTES_MAX = 384


class ScheduleRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a PUT: exactly one of `cron`, `every_ms` and `at`. `null` means absent, except for numbers."""

    topic: str
    cron: str | None = None
    every_ms: U64 | UnsetType = UNSET
    at: Annotated[U64 | UnsetType, Meta(description="In ms since the epoch.")] = UNSET
    timezone: str | None = "UTC"
    data: Raw | UnsetType = UNSET
    tag: str | None = None
    missed: Missed | None = "once"
    jitter_ms: U64 = 0
    paused: bool | None = False


class ScheduleRunRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A run takes no fields."""


class ScheduleConfig(msgspec.Struct, frozen=True):
    """A resolved configuration: what is stored and shown."""

    topic: str
    cron: str | None = None
    every_ms: int | None = None
    at: int | None = None
    timezone: str = "UTC"
    data: Raw = NULL
    tag: str | None = None
    missed: Missed = "once"
    jitter_ms: int = 0
    paused: bool = False

    def timing(self, anchor_ms: int) -> Timing:
        return Timing(self.cron, self.every_ms or 0, self.at or 0, self.timezone, anchor_ms)

    def is_due_like(self, other: ScheduleConfig) -> bool:
        """Whether both have the same due times."""
        return self.timing(0) == other.timing(0)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(ScheduleConfig)


def encode_schedule_config(config: ScheduleConfig) -> bytes:
    return _encoder.encode(config)


def decode_schedule_config(data: bytes) -> ScheduleConfig:
    return _decoder.decode(data)


def resolve_schedule(request: ScheduleRequest, limits: BatchLimits, now_ms: int) -> ScheduleConfig:
    """Fill in defaults; refuse a configuration that cannot work."""
    check_topic_name(request.topic)
    given = [
        name
        for name, value in (("cron", request.cron), ("every_ms", request.every_ms), ("at", request.at))
        if value is not None and value is not UNSET
    ]
    if len(given) != 1:
        found = "none is" if not given else " and ".join(given) + " are"
        raise InvalidRequest(
            f"exactly one of cron, every_ms and at must be given; {found}", field=(given or ["cron"])[0]
        )
    timezone = request.timezone or "UTC"
    check_timezone(timezone)
    if request.cron is not None:
        check_cron(request.cron, timezone, now_ms)
    if request.every_ms is not UNSET and not EVERY_MS_MIN <= request.every_ms <= EVERY_MS_MAX:
        raise InvalidRequest(
            f"every_ms must be {EVERY_MS_MIN} to {EVERY_MS_MAX}, not {request.every_ms}", field="every_ms"
        )
    if request.at is not UNSET and request.at > TIME_MS_MAX:
        raise InvalidRequest(f"at must be at most {TIME_MS_MAX}, in milliseconds since 1970", field="at")
    jitter_ms_max = JITTER_MS_MAX if request.every_ms is UNSET else min(JITTER_MS_MAX, request.every_ms)
    if request.cron is not None and request.jitter_ms:
        # What is handled after the next due time counts as missed.
        jitter_ms_max = min(jitter_ms_max, shortest_gap_ms(request.cron, now_ms))
    if request.jitter_ms > jitter_ms_max:
        raise InvalidRequest(
            f"jitter_ms must be at most {jitter_ms_max}, not {request.jitter_ms}", field="jitter_ms", max=jitter_ms_max
        )
    config = ScheduleConfig(
        topic=request.topic,
        cron=request.cron,
        every_ms=None if request.every_ms is UNSET else request.every_ms,
        at=None if request.at is UNSET else request.at,
        timezone=timezone,
        data=NULL if request.data is UNSET else request.data.copy(),
        tag=request.tag,
        missed=request.missed or "once",
        jitter_ms=request.jitter_ms,
        paused=bool(request.paused),
    )
    _check_record(config, limits)
    return config


def _check_record(config: ScheduleConfig, limits: BatchLimits) -> None:
    """The record must be one that can be appended."""
    size, bytes_max = len(config.data) + META_BYTES_MAX, limits.max_record_bytes
    if size > bytes_max:
        raise RecordTooLarge(
            f"data has {len(config.data)} bytes; at most {bytes_max - META_BYTES_MAX} fit a record of a schedule",
            field="data",
            max=bytes_max - META_BYTES_MAX,
        )
    try:
        check_batch(AppendRequest(records=[RecordRequest(data=config.data, tag=config.tag)]), limits)
    except InvalidRequest as error:
        message = error.message.replace("records[0].", "")
        raise InvalidRequest(message, field="tag") from None
