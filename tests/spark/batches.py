"""Columns of records as whole Arrow batches."""

import pyarrow as pa

from topics.engine.log.run_columns import Columns
from topics_spark.payloads.columns import SCHEMA


def record_batch(topic: str, columns: Columns, count: int) -> pa.RecordBatch:
    """All columns as a batch of `SCHEMA`; what is not among them is null."""
    arrays = [columns[name] if name in columns else pa.nulls(count, SCHEMA.field(name).type) for name in SCHEMA.names]
    arrays[0] = pa.repeat(pa.scalar(topic, pa.string()), count)
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
