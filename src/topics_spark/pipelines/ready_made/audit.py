"""Audit: compares topics with their archive, or one with its copy: counts, gaps and checksums, range by range."""

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
    nullif,
    row_number,
    slice,
    xxhash64,
)
from pyspark.sql.functions import floor as floor_of
from pyspark.sql.functions import min as least

from topics.model.errors import InvalidRequest
from topics.model.requests.ready_made import AuditOptions
from topics_spark.pipelines.delivery import deliver
from topics_spark.pipelines.sources import read_views

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from topics_spark.pipelines.jobs import Work

GAPS_SHOWN: Final = 20
RANGE: Final = ("topic", "range")


def run(work: Work, options: AuditOptions) -> None:
    views = read_views(work.spark, work.assignment.definition, work.config, batch=True)
    work.done(deliver(work, rows(views, options)))


def rows(views: dict[str, DataFrame], options: AuditOptions) -> DataFrame:
    """A row for every range of a topic; `equal` says whether both sides have the same records in it."""
    original, copy = (_numbered(views[view], options, view) for view in (options.original, options.copy))
    if options.by == "seq":
        # Records that the topic has dropped are not missing in it, nor are those of an earlier topic of its name.
        first = original.groupBy("topic").agg(least("number").alias("first"), least("ts").alias("first_ts"))
        kept = (col("number") >= col("first")) & (col("ts") >= col("first_ts"))
        copy = copy.join(first, "topic").where(kept).drop("first", "first_ts")
    both = _summed(original, options, "original").join(_summed(copy, options, "copy"), [*RANGE], "full")
    gaps = _missing(original, copy, options, "missing").join(
        _missing(copy, original, options, "surplus"), [*RANGE], "full"
    )
    size = lit(options.range_records)
    found = both.join(gaps, [*RANGE], "left")
    zero = lit(0)
    return found.select(
        nullif(col("topic"), lit("")).alias("topic"),
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
    ).orderBy("topic", "from_number")


def _numbered(view: DataFrame, options: AuditOptions, name: str) -> DataFrame:
    """Records by topic and seq; a copy has a name and seqs of its own, and is compared by the order of its records."""
    topic, number = col("topic"), col("seq")
    if options.by == "rank":
        _check_one_topic(view, name)
        topic, number = lit(""), row_number().over(Window.orderBy("seq"))
    return view.select(
        topic.alias("topic"), number.cast("long").alias("number"), "ts", xxhash64("data", "tag").alias("hash")
    )


def _check_one_topic(view: DataFrame, name: str) -> None:
    found = [row["topic"] for row in view.select("topic").distinct().limit(2).collect()]
    if len(found) > 1:
        raise InvalidRequest(
            f"sources.{name} has several topics, {' and '.join(sorted(found))}, which have no common order: "
            'compare each with its copy, or use options.by = "seq"',
            field=f"sources.{name}",
        )


def _range(options: AuditOptions):
    return floor_of((col("number") - 1) / lit(options.range_records)).alias("range")


def _summed(side: DataFrame, options: AuditOptions, name: str) -> DataFrame:
    checksum = bit_xor(xxhash64("number", "hash"))
    summed = count(lit(1)).alias(f"{name}_count"), checksum.alias(f"{name}_checksum")
    return side.groupBy("topic", _range(options)).agg(*summed)


def _missing(here: DataFrame, there: DataFrame, options: AuditOptions, name: str) -> DataFrame:
    """Records that are on one side only: how many, and the first of them."""
    absent = here.join(there.select("topic", "number"), ["topic", "number"], "left_anti")
    numbers = slice(array_sort(collect_list("number")), 1, GAPS_SHOWN)
    listed = count(lit(1)).alias(f"{name}_count"), numbers.alias(f"{name}_numbers")
    return absent.groupBy("topic", _range(options)).agg(*listed)
