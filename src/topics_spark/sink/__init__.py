"""The Spark sink: rows appended to topics."""
