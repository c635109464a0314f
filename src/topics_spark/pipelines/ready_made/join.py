"""Join: rows of a stream with rows of another stream or of a table that have the same key."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.functions import col, expr, lit

from topics.model.requests.ready_made import JoinOptions
from topics_spark.options import COLUMNS
from topics_spark.pipelines.ready_made.windows import watermarked

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def rows(views: dict[str, DataFrame], options: JoinOptions) -> DataFrame:
    """The columns of the left side, and those of the right side with its name before them: `payments_amount`."""
    left, right = views[options.left], views[options.right]
    prefix = f"{options.right}_"
    if left.isStreaming and right.isStreaming:
        left, right = (watermarked(side, "ts", options.within) for side in (left, right))
    right = right.select(*(col(name).alias(f"{prefix}{name}") for name in right.columns))
    matches = lit(True)
    for name in options.on:
        matches = matches & (left[name] == right[f"{prefix}{name}"])
    if left.isStreaming and f"{prefix}ts" in right.columns and right.isStreaming:
        apart = expr(f"INTERVAL {options.within}")
        matches = matches & right[f"{prefix}ts"].between(left["ts"] - apart, left["ts"] + apart)
    joined = left.join(right, matches, options.how)
    left_out = {*COLUMNS, *(f"{prefix}{name}" for name in (*COLUMNS, *options.on))} - {
        "seq",
        "ts",
        *options.on,
    }
    return joined.select(*(name for name in joined.columns if name not in left_out))
