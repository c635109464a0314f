"""The options of ready-made pipelines: what each takes, so that a definition is judged when it is made."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

Name = Annotated[str, Meta(min_length=1, max_length=256)]
Duration = Annotated[str, Meta(pattern=r"^[1-9][0-9]{0,8} (millisecond|second|minute|hour|day|week)s?$")]


class ReadyOptions(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A ready-made pipeline reads the views of its definition in the order of their names, if it has several."""


class ArchiveOptions(ReadyOptions, frozen=True):
    """Records as they are; the sink is a table."""


class DedupeOptions(ReadyOptions, frozen=True):
    """One row of each key within the horizon; rows that come later than that are late, and left out."""

    key: list[Name]
    horizon: Duration = "1 day"


READY_OPTIONS: Final[dict[str, type[ReadyOptions]]] = {
    "archive": ArchiveOptions,
    "dedupe": DedupeOptions,
}


def options_of(use: str, options: dict[str, Any] | None) -> ReadyOptions:
    """The options of a ready-made pipeline, checked; msgspec's ValidationError says what is wrong."""
    return msgspec.convert(options or {}, READY_OPTIONS[use])
