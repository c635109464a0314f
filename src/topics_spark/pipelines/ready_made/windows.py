"""Windows of time: counts, sums and percentiles, and sessions; late rows are dropped once their window is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.functions import col, count, lit, percentile_approx, session_window, window
from pyspark.sql.functions import max as greatest
from pyspark.sql.functions import min as least
from pyspark.sql.functions import sum as total

from topics.model.requests.ready_made import AggregateOptions, SessionizeOptions

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

# The metadata of a column in which Spark stores how late rows may be.
WATERMARK = "spark.watermarkDelayMs"


def aggregate(views: dict[str, DataFrame], options: AggregateOptions) -> DataFrame:
    (events,) = views.values()
    slot = window(options.time, options.window, options.slide)
    sums = [total(name).alias(f"sum_{name}") for name in options.sum]
    percentiles = [
        percentile_approx(name, share).alias(f"p{_digits(share)}_{name}")
        for name, shares in options.percentiles.items()
        for share in shares
    ]
    grouped = watermarked(events, options.time, options.late).groupBy(slot.alias("slot"), *options.key)
    return _flat(grouped.agg(count(lit(1)).alias("count"), *sums, *percentiles), "slot", "window")


def sessionize(views: dict[str, DataFrame], options: SessionizeOptions) -> DataFrame:
    (events,) = views.values()
    visit = session_window(options.time, options.gap).alias("slot")
    grouped = watermarked(events, options.time, options.late).groupBy(visit, *options.key)
    told: list[Column] = [
        count(lit(1)).alias("count"),
        least("seq").alias("first_seq"),
        greatest("seq").alias("last_seq"),
    ]
    return _flat(grouped.agg(*told), "slot", "session")


def watermarked(events: DataFrame, time: str, late: str) -> DataFrame:
    """A watermark in the definition's source takes precedence."""
    return events if WATERMARK in events.schema[time].metadata else events.withWatermark(time, late)


def _flat(rows: DataFrame, slot: str, name: str) -> DataFrame:
    rest = [column for column in rows.columns if column != slot]
    return rows.select(col(f"{slot}.start").alias(f"{name}_start"), col(f"{slot}.end").alias(f"{name}_end"), *rest)


def _digits(share: float) -> str:
    """0.5 is 50, 0.999 is 99_9."""
    return f"{100 * share:g}".replace(".", "_")
