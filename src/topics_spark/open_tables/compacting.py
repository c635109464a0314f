"""Compaction of Delta and Iceberg tables by their own means, in a session of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics.model.requests.pipelines import PipelineSink


def compact_open(place: str, sink: PipelineSink, conf: Mapping[str, str]) -> tuple[int, int]:
    """Files that were replaced, and files that replace them."""
    from topics_spark.open_tables.formats import admin, open_table
    from topics_spark.source.progress import waiting
    from topics_spark.start import session

    with waiting("starting Spark", "Spark is ready"):
        spark = session("topics pipelines compact", config=conf, quick=True)
    try:
        return open_table(admin(spark), place, sink.format or "").compact(sink.cluster_by or ())
    finally:
        spark.stop()
