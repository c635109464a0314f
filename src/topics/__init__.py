"""A persistent event engine: append to topics and read them from a cursor, over HTTP or embedded."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from topics.client import AsyncClient, Client
    from topics.client.errors import (
        BatchTooLarge,
        Fenced,
        InvalidRequest,
        JobCancelled,
        JobFailed,
        JobGroupConflict,
        JobGroupNotFound,
        JobNotFound,
        NotAQueue,
        PipelineNotFound,
        ReadOnly,
        RecordTooLarge,
        ResultTimeout,
        RouterCycle,
        RouterNotFound,
        ScheduleNotFound,
        ShuttingDown,
        StageNotFound,
        StorageFull,
        TableTaken,
        Throttled,
        TopicExistsIncompatible,
        TopicFull,
        TopicNotEmpty,
        TopicNotFound,
    )
    from topics.embedded import Appended, Database, Diff, Json, Outgoing, Record, Tombstone, open
    from topics.engine.core.listing import TopicState
    from topics.model.errors import DataDirLocked, TopicsError
    from topics.model.requests.config import TopicConfig
    from topics.model.settings import Settings

__version__ = "0.1.0"

__all__ = [
    "Appended",
    "AsyncClient",
    "BatchTooLarge",
    "Client",
    "DataDirLocked",
    "Database",
    "Diff",
    "Fenced",
    "InvalidRequest",
    "JobCancelled",
    "JobFailed",
    "JobGroupConflict",
    "JobGroupNotFound",
    "JobNotFound",
    "Json",
    "NotAQueue",
    "Outgoing",
    "PipelineNotFound",
    "ReadOnly",
    "Record",
    "RecordTooLarge",
    "ResultTimeout",
    "RouterCycle",
    "RouterNotFound",
    "ScheduleNotFound",
    "Settings",
    "ShuttingDown",
    "StageNotFound",
    "StorageFull",
    "TableTaken",
    "Throttled",
    "Tombstone",
    "TopicConfig",
    "TopicExistsIncompatible",
    "TopicFull",
    "TopicNotEmpty",
    "TopicNotFound",
    "TopicState",
    "TopicsError",
    "__version__",
    "open",
]

# Imported on first use: the command line and the client must not pay for the engine.
_EMBEDDED: Final = frozenset(("Appended", "Database", "Diff", "Json", "Outgoing", "Record", "Tombstone", "open"))
_HOMES: Final = {
    "AsyncClient": "topics.client",
    "Client": "topics.client",
    "DataDirLocked": "topics.model.errors",
    "Settings": "topics.model.settings",
    "TopicConfig": "topics.model.requests.config",
    "TopicState": "topics.engine.core.listing",
    "TopicsError": "topics.model.errors",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'topics' has no attribute {name!r}")
    # A name without an entry is an error class, which embedded databases and clients share.
    home = "topics.embedded" if name in _EMBEDDED else _HOMES.get(name, "topics.client.errors")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
