"""What a task does: read its share of the records and hand them to Spark as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.types import StructType

from topics_spark.options import SourceOptions
from topics_spark.ranges import Share
from topics_spark.rows import Batch, RowBuilder
from topics_spark.server import Server


def read_share(share: Share, schema: StructType, options: SourceOptions) -> Iterator[Batch]:
    rows = RowBuilder(schema, options)
    server = Server(options)
    for wanted in share.ranges:
        for records in server.read(wanted, options.nodes, rows.wants, fail_on_data_loss=options.fail_on_data_loss):
            yield rows.from_columns(wanted.topic, records.columns, records.rows)
