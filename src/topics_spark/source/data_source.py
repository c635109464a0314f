"""The data source `topics`: schemas, readers and writers for Spark.

Spark starts a process of Python for each step: one finds this class, one asks for the schema. What they do not need is
imported where it is used.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructField, StructType

from topics_spark.errors import NoTable, OptionError
from topics_spark.options import SourceOptions
from topics_spark.source.row_types import row_ddl, row_type

if TYPE_CHECKING:
    from topics_spark.sink.data_sink import BatchWriter, StreamWriter
    from topics_spark.source.reading import TopicsReader
    from topics_spark.source.stream import TopicsStreamReader

# Samples for an inferred schema come from at most this many topics.
SAMPLE_TOPICS_MAX = 20


class TopicsSource(DataSource):
    """`format("topics")` of `spark.read`, `spark.readStream`, `df.write` and `df.writeStream`."""

    @classmethod
    def name(cls) -> str:
        return "topics"

    def schema(self) -> StructType | str:
        check_not_table(self.options)
        options = SourceOptions.parse(self.options)
        if not options.infer_schema:
            return row_ddl(options, None if options.schema is None else f"STRUCT<{options.schema}>")
        payload = self._inferred(options)
        return StructType([StructField(name, row_type(name, payload)) for name in options.columns])

    def _inferred(self, options: SourceOptions) -> StructType:
        from topics_spark.payloads import inference
        from topics_spark.source.backends import backend_of

        kept = None if options.schema_location is None else inference.SchemaFile(options)
        if kept is not None and (schema := kept.load()) is not None:
            return schema
        with contextlib.closing(backend_of(options)) as backend:
            topics = sorted(backend.heads(options.subscription))[:SAMPLE_TOPICS_MAX]
            each = max(2, options.sample_records // max(1, len(topics)))
            schema = inference.inferred(payload for topic in topics for payload in backend.sample(topic, each))
        if schema is None:
            raise inference.nothing_to_infer()
        if kept is not None:
            kept.store(schema)
        return schema

    def reader(self, schema: StructType) -> TopicsReader:
        from topics_spark.source.reading import TopicsReader

        check_not_table(self.options)
        return TopicsReader(schema, SourceOptions.parse(self.options))

    def streamReader(self, schema: StructType) -> TopicsStreamReader:  # noqa: N802
        from topics_spark.source.stream import TopicsStreamReader

        options = SourceOptions.parse(self.options)
        if options.infer_schema and options.schema_location is None:
            raise OptionError(
                "inferSchema",
                "in a stream needs `schemaLocation`, the directory of its checkpoint, to store the schema",
            )
        return TopicsStreamReader(schema, options)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from topics_spark.sink.data_sink import BatchWriter, SinkOptions

        if overwrite:
            raise OptionError("mode", "cannot be overwrite for a topic: append, or delete the topic first")
        return BatchWriter(schema, SinkOptions.parse(self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        from topics_spark.sink.data_sink import SinkOptions, StreamWriter

        # In mode complete a batch is the whole result, and is appended as such.
        del overwrite
        return StreamWriter(schema, SinkOptions.parse(self.options))


def check_not_table(options: Mapping[str, str]) -> None:
    """Options of a table of the catalog begin with this word."""
    if any(name.lower().startswith("option.") for name in options):
        raise NoTable
