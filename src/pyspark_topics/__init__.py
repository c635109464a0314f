"""Found by Spark's search for data sources: importing this registers `format("topics")`."""

from topics_spark.source.data_source import TopicsSource as DefaultSource

__all__ = ["DefaultSource"]
