"""A persistent event engine: topics you append to and read from a cursor, served over HTTP or embedded."""

__version__ = "0.1.0"
