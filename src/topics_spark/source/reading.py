"""A batch query, and tasks: each reads its share of the records and passes them to Spark as Arrow batches."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from topics_spark.options import SourceOptions
from topics_spark.source.backends import backend_of
from topics_spark.source.planning import batch_ranges
from topics_spark.source.ranges import FileShare, Share
from topics_spark.source.rows import Batch, RowBuilder, merged
from topics_spark.source.server import Server


class TopicsReader(DataSourceReader):
    """A batch: the ranges are fixed when Spark plans the query, and then read by tasks."""

    def __init__(self, schema: StructType, options: SourceOptions) -> None:
        self._schema = schema
        self._options = options
        # Reports an invalid schema before any task runs.
        RowBuilder(schema, options)

    def partitions(self) -> list[InputPartition]:
        with contextlib.closing(backend_of(self._options)) as backend:
            return backend.shares(batch_ranges(backend, self._options))

    def read(self, partition: InputPartition) -> Iterator[Batch]:
        return read_share(partition, self._schema, self._options)


def read_share(share: InputPartition, schema: StructType, options: SourceOptions) -> Iterator[Batch]:
    return merged(_batches(share, schema, options))


def _batches(share: InputPartition, schema: StructType, options: SourceOptions) -> Iterator[Batch]:
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
