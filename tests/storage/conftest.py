"""Files that are written, damaged and read again, in memory."""

from tests.in_memory import tmp_path

__all__ = ["tmp_path"]
