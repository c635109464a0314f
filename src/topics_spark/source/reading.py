"""A task: reads its share of the records and passes them to Spark as Arrow batches."""

from __future__ import annotations

from collections.abc import Iterator

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from topics_spark.options import SourceOptions
from topics_spark.source.ranges import FileShare, Share
from topics_spark.source.rows import Batch, RowBuilder
from topics_spark.source.server import Server


def read_share(share: InputPartition, schema: StructType, options: SourceOptions) -> Iterator[Batch]:
    rows = RowBuilder(schema, options)
    fail = options.fail_on_data_loss
    match share:
        case Share():
            server = Server(options)
            for wanted in share.ranges:
                for records in server.read(wanted, options.nodes, rows.wants, fail_on_data_loss=fail):
                    yield rows.batch(wanted.topic, records)
        case FileShare():
            from topics_spark.source.files import read_files

            for topic, records in read_files(share, rows.wants, fail_on_data_loss=fail):
                yield rows.batch(topic, records)
        case _:
            # Spark needs one empty partition if there are none.
            return
