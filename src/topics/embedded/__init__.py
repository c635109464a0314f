"""The engine inside a Python program, opened by its directory."""

from topics.embedded.database import Database, open
from topics.embedded.values import Appended, Diff, Json, Outgoing, Record

__all__ = ["Appended", "Database", "Diff", "Json", "Outgoing", "Record", "open"]
