"""Dedupe: exactly one row of each key within a horizon, the first one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from topics.model.requests.ready_made import DedupeOptions

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rows(views: dict[str, DataFrame], options: DedupeOptions) -> DataFrame:
    (events,) = views.values()
    if not events.isStreaming:
        # Spark has no watermark in a batch: a check, a test or a backfill, whose records are all there.
        return events.dropDuplicates(options.key)
    return events.withWatermark("ts", options.horizon).dropDuplicatesWithinWatermark(options.key)
