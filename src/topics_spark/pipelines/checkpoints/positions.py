"""Where a pipeline is in its topics: read from its checkpoint, so that it is known while nothing runs, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from topics_spark.pipelines.checkpoints.resuming import OFFSETS, batches
from topics_spark.source import offsets
from topics_spark.source.offsets import Position

if TYPE_CHECKING:
    from topics.model.requests.pipelines import PipelineRequest, PipelineSource

COMMITS: Final = "commits"
# The lines of a file of offsets before those of the sources: its version, and Spark's own settings.
HEAD_LINES: Final = 2
# The epoch of a topic that was not read yet: whichever has the name.
ANY: Final = 0


def positions(checkpoint: Path, definition: PipelineRequest, listed: Callable[[str], Iterable[str]]) -> dict[str, Any]:
    """The position in each topic after the last finished batch; `listed` has the topics that match a pattern."""
    found = finished(checkpoint)
    begun = bool(found)
    for source in definition.sources.values():
        first = first_position(source, begun=begun)
        if source.table is not None or source.static or first is None:
            continue
        for name in source.names() if source.pattern is None else listed(source.pattern):
            found.setdefault(name, first)
    return {name: {"epoch": at.epoch, "seq": at.seq} for name, at in found.items()}


def first_position(source: PipelineSource, *, begun: bool) -> Position | None:
    """Of a topic that is in no offset yet: a pipeline that runs reads a new one from its first record."""
    if begun or source.start in (None, "earliest"):
        return Position(ANY, 0)
    return Position(ANY, source.start) if isinstance(source.start, int) else None


def finished(checkpoint: Path) -> dict[str, Position]:
    """The end of the last finished batch, or the beginning of the first; for two readers of a topic the slower one."""
    done = max(batches(checkpoint / COMMITS), default=None)
    found: dict[str, Position] = {}
    for line in _lines(checkpoint / OFFSETS / str(done or 0)):
        for name, at in offsets.decoded(line).items():
            reached = at if done is not None else at._replace(seq=at.begin or 0)
            before = found.get(name)
            found[name] = reached if before is None or reached.seq < before.seq else before
    return found


def _lines(path: Path) -> Iterable[dict[str, Any]]:
    """The offsets of each source of topics."""
    try:
        lines = path.read_text().splitlines()[HEAD_LINES:]
    except FileNotFoundError:
        return
    for line in lines:
        # A source without an offset is a dash.
        decoded = json.loads(line) if line.startswith("{") else None
        if isinstance(decoded, dict) and all(map(_is_offset, cast("dict[str, Any]", decoded).values())):
            yield cast("dict[str, Any]", decoded)


def _is_offset(value: Any) -> bool:
    return isinstance(value, dict) and {"epoch", "seq"} <= cast("dict[str, Any]", value).keys()
