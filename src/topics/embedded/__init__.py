"""The engine inside a Python program, opened by its directory."""

from topics.client.values import Outgoing
from topics.embedded.database import Database, open
from topics.embedded.values import Appended, Diff, Json, Record, Tombstone

__all__ = ["Appended", "Database", "Diff", "Json", "Outgoing", "Record", "Tombstone", "open"]
