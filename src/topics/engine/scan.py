"""An alias: the path under which reading a data directory without its server was documented first."""

from topics.engine.opening.scan import Chunk, Part, Scan, ScannedTopic, Vanished, read_part

__all__ = ["Chunk", "Part", "Scan", "ScannedTopic", "Vanished", "read_part"]
