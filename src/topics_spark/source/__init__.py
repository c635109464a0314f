"""The Spark source: topics as tables and streams."""
