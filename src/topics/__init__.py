"""A persistent event engine: topics you append to and read from a cursor, served over HTTP or embedded."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from topics.embedded import Appended, Database, Diff, Json, Outgoing, Record, open
    from topics.engine.listing import TopicState
    from topics.engine.retention import Tombstone
    from topics.model.config import TopicConfig
    from topics.model.errors import TopicsError
    from topics.model.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "Appended",
    "Database",
    "Diff",
    "Json",
    "Outgoing",
    "Record",
    "Settings",
    "Tombstone",
    "TopicConfig",
    "TopicState",
    "TopicsError",
    "__version__",
    "open",
]

# Imported when first asked for: the command line and the client must not pay for the engine.
_HOMES: Final = {
    "Settings": "topics.model.settings",
    "Tombstone": "topics.engine.retention",
    "TopicConfig": "topics.model.config",
    "TopicState": "topics.engine.listing",
    "TopicsError": "topics.model.errors",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'topics' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "topics.embedded")), name)
