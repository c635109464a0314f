"""The options of ready-made pipelines, so that a definition is checked when it is created."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from topics.model.requests.config import U64

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Duration = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,8} (millisecond|second|minute|hour|day|week)s?$")]

Time = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,6})?(Z|[+-]\d\d:\d\d)$")]
Share = Annotated[float, Meta(ge=0, le=1)]


class ReadyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ready-made pipeline with several views reads them in the order of their names."""


class AggregateOptions(ReadyOptions, frozen=True):
    """Counts, sums and percentiles per window of time and key; rows later than `late` are dropped."""

    window: Duration
    key: list[Name] = []
    slide: Duration | None = None
    time: Name = "ts"
    late: Duration = "10 minutes"
    sum: list[Name] = []
    percentiles: dict[Name, list[Share]] = {}


class ArchiveOptions(ReadyOptions, frozen=True):
    """Records unchanged; the sink is a table."""


class AuditOptions(ReadyOptions, frozen=True):
    """Which views are compared. `by` seq: an archive; `by` rank: a copy, which has its own seqs."""

    original: Name
    copy: Name
    by: Literal["seq", "rank"] = "seq"
    range_records: Annotated[int, Meta(ge=1, le=10_000_000)] = 10_000


class DeadLetterReportOptions(ReadyOptions, frozen=True):
    """Why jobs die: at most `reasons`, the most frequent first."""

    reasons: Annotated[int, Meta(ge=1, le=1_000)] = 20


class DedupeOptions(ReadyOptions, frozen=True):
    """One row of each key within the horizon; later rows are dropped."""

    key: list[Name]
    horizon: Duration = "1 day"


class JoinOptions(ReadyOptions, frozen=True):
    """Rows of `left` with the rows of `right` that have the same key; two streams: at most `within` apart in time."""

    left: Name
    right: Name
    on: list[Name]
    within: Duration = "10 minutes"
    how: Literal["inner", "left"] = "inner"


class ReplayOptions(ReadyOptions, frozen=True):
    """A range of topics or of their archive, at once or at `rate` records a second; seqs are those of one topic."""

    from_seq: U64 = 0
    to_seq: U64 | None = None
    from_time: Time | None = None
    to_time: Time | None = None
    filter: Annotated[str, Meta(max_length=10_000)] | None = None
    rate: Annotated[int, Meta(ge=0, le=10_000_000)] = 0


class SessionizeOptions(ReadyOptions, frozen=True):
    """Sessions of a key; a session ends when there was no row for `gap`."""

    key: list[Name]
    gap: Duration = "30 minutes"
    time: Name = "ts"
    late: Duration = "10 minutes"


READY_OPTIONS: Final[dict[str, type[ReadyOptions]]] = {
    "aggregate": AggregateOptions,
    "archive": ArchiveOptions,
    "audit": AuditOptions,
    "dead-letter-report": DeadLetterReportOptions,
    "dedupe": DedupeOptions,
    "join": JoinOptions,
    "replay": ReplayOptions,
    "sessionize": SessionizeOptions,
}


def options_of(use: str, options: dict[str, Any] | None) -> ReadyOptions:
    """The checked options of a ready-made pipeline; msgspec's ValidationError says what is wrong."""
    return msgspec.convert(options or {}, READY_OPTIONS[use])
