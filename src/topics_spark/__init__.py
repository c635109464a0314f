"""Spark support: the data source of `format("topics")`, and sessions that are ready to use it."""

from topics_spark.errors import ConnectorError, DataLost, MalformedPayload, OptionError, SchemaError, ServerFailed
from topics_spark.start import session

__all__ = [
    "ConnectorError",
    "DataLost",
    "MalformedPayload",
    "OptionError",
    "SchemaError",
    "ServerFailed",
    "session",
]
