"""Transformations that definitions in tests name."""

from pyspark.sql import DataFrame


def doubled(views: dict[str, DataFrame]) -> DataFrame:
    return views["numbers"].selectExpr("n * 2 AS n")
