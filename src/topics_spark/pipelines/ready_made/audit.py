"""Audit: compares a topic with its archive or its copy: counts, gaps and checksums, range by range."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql.functions import (
    array_sort,
    bit_xor,
    coalesce,
    col,
    collect_list,
    count,
    lit,
    row_number,
    slice,
    xxhash64,
)
from pyspark.sql.functions import floor as floor_of
from pyspark.sql.functions import min as least

from topics.model.requests.ready_made import AuditOptions
from topics_spark.pipelines.delivery import deliver
from topics_spark.pipelines.sources import read_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from topics_spark.pipelines.jobs import Work

GAPS_SHOWN: Final = 20


def run(work: Work, options: AuditOptions) -> None:
    views = read_views(work.spark, work.assignment.definition, work.config, batch=True)
    work.done(deliver(work, rows(views, options)))


def rows(views: dict[str, DataFrame], options: AuditOptions) -> DataFrame:
    """A row for every range; `equal` says whether both sides have the same records in it."""
    original, copy = (_numbered(views[view], options) for view in (options.original, options.copy))
    if options.by == "seq":
        # Records that the topic has dropped are not missing in it.
        first = original.agg(least("number").alias("first"))
        copy = copy.crossJoin(first).where(col("number") >= col("first")).drop("first")
    both = _summed(original, options, "original").join(_summed(copy, options, "copy"), "range", "full")
    gaps = _missing(original, copy, options, "missing").join(
        _missing(copy, original, options, "surplus"), "range", "full"
    )
    size = lit(options.range_records)
    found = both.join(gaps, "range", "left")
    zero = lit(0)
    return found.select(
        (col("range") * size + 1).alias("from_number"),
        ((col("range") + 1) * size).alias("to_number"),
        *(coalesce(col(f"{side}_count"), zero).alias(f"{side}_count") for side in ("original", "copy")),
        *(coalesce(col(f"{side}_checksum"), zero).alias(f"{side}_checksum") for side in ("original", "copy")),
        *(coalesce(col(f"{side}_count"), zero).alias(f"{side}_count") for side in ("missing", "surplus")),
        "missing_numbers",
        "surplus_numbers",
        (
            (coalesce(col("original_checksum"), zero) == coalesce(col("copy_checksum"), zero))
            & (coalesce(col("original_count"), zero) == coalesce(col("copy_count"), zero))
        ).alias("equal"),
    ).orderBy("from_number")


def _numbered(view: DataFrame, options: AuditOptions) -> DataFrame:
    number = col("seq") if options.by == "seq" else row_number().over(Window.orderBy("seq"))
    return view.select(number.cast("long").alias("number"), xxhash64("data", "tag").alias("hash"))


def _range(options: AuditOptions):
    return floor_of((col("number") - 1) / lit(options.range_records)).alias("range")


def _summed(side: DataFrame, options: AuditOptions, name: str) -> DataFrame:
    checksum = bit_xor(xxhash64("number", "hash"))
    return side.groupBy(_range(options)).agg(count(lit(1)).alias(f"{name}_count"), checksum.alias(f"{name}_checksum"))


def _missing(here: DataFrame, there: DataFrame, options: AuditOptions, name: str) -> DataFrame:
    """Records that are on one side only: how many, and the first of them."""
    absent = here.join(there.select("number"), "number", "left_anti")
    numbers = slice(array_sort(collect_list("number")), 1, GAPS_SHOWN)
    return absent.groupBy(_range(options)).agg(count(lit(1)).alias(f"{name}_count"), numbers.alias(f"{name}_numbers"))
