"""Where Spark looks for data sources on its own: importing this makes `format("topics")` known."""

from topics_spark.source.data_source import TopicsSource as DefaultSource

__all__ = ["DefaultSource"]
