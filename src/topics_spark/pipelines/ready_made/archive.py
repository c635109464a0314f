"""Archive: topics as Parquet files by topic and day, every record once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql.functions import to_date

from topics.model.requests.ready_made import ArchiveOptions
from topics_spark.options import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

PARTITION_BY: Final = ("topic", "day")


def rows(views: dict[str, DataFrame], options: ArchiveOptions) -> DataFrame:
    del options
    (events,) = views.values()
    return events.select(*COLUMNS, to_date("ts").alias("day"))
