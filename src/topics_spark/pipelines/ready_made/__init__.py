"""Ready-made pipelines by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from topics.model.requests.ready_made import options_of
from topics_spark.pipelines.ready_made import archive, audit, dead_letters, dedupe, join, replay, windows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from topics.model.requests.pipelines import PipelineRequest
    from topics_spark.pipelines.jobs import Work

Views = dict[str, "DataFrame"]


@dataclass(frozen=True, slots=True)
class ReadyMade:
    """Either `rows`, which a query writes to the definition's sink, or `job`, which ends by itself.

    A job with `rows` makes them of its views in one step; they are what `check` shows.
    """

    rows: Callable[[Views, Any], DataFrame]
    job: Callable[[Work, Any], None] | None = None
    # How a table is partitioned into folders, unless the definition says otherwise.
    partition_by: tuple[str, ...] = ()


BY_NAME: Final = {
    "aggregate": ReadyMade(rows=windows.aggregate),
    "archive": ReadyMade(rows=archive.rows, partition_by=archive.PARTITION_BY),
    "audit": ReadyMade(rows=audit.rows, job=audit.run),
    "dead-letter-report": ReadyMade(rows=dead_letters.preview, job=dead_letters.run),
    "dedupe": ReadyMade(rows=dedupe.rows),
    "join": ReadyMade(rows=join.rows),
    "replay": ReadyMade(rows=replay.preview, job=replay.run),
    "sessionize": ReadyMade(rows=windows.sessionize),
}


def rows_of(definition: PipelineRequest) -> Callable[[Views], DataFrame]:
    assert definition.use is not None
    options = options_of(definition.use, definition.options)
    make = BY_NAME[definition.use].rows
    return lambda views: make(views, options)
