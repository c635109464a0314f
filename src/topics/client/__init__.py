"""The Python client: every verb of the server, synchronous (`Client`) and asynchronous (`AsyncClient`)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from topics.client.errors import (
    BadAnswer,
    BatchTooLarge,
    Closed,
    ConnectionFailed,
    Fenced,
    Forbidden,
    HeadersTooLarge,
    Internal,
    InvalidRequest,
    MethodNotAllowed,
    NotAcceptable,
    NotAQueue,
    NotFound,
    NotReady,
    PayloadTooLarge,
    PipelineNotFound,
    ReadOnly,
    RecordTooLarge,
    RequestTimeout,
    RouterCycle,
    RouterNotFound,
    ScheduleNotFound,
    ShuttingDown,
    StageNotFound,
    StorageFull,
    TableTaken,
    Throttled,
    Timeout,
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
    TopicsError,
    Unauthorized,
    UnsupportedMediaType,
    UriTooLong,
)

if TYPE_CHECKING:
    from topics.client.aio.client import AsyncClient
    from topics.client.aio.export import AsyncArrowExport, AsyncExport
    from topics.client.aio.producer import AsyncProducer, AsyncTicket
    from topics.client.aio.watch import AsyncWatch
    from topics.client.aio.wire.socket import AsyncSocket
    from topics.client.aio.work import AsyncWork
    from topics.client.exporting import ExportEnd
    from topics.client.jobs import Job, Lease
    from topics.client.live import Arrived, CaughtUp, TopicDeleted, TopicFailed
    from topics.client.messages import Consumed, GroupStanding, Message
    from topics.client.sync.client import Client
    from topics.client.sync.export import ArrowExport, Export
    from topics.client.sync.producer import Producer, Ticket
    from topics.client.sync.watch import Watch
    from topics.client.sync.wire.socket import Socket
    from topics.client.sync.work import Work
    from topics.client.transactions import CommittedTxn, Staged, Txn
    from topics.client.values import (
        Appended,
        AppendedAll,
        AppendedTo,
        Change,
        Configured,
        Diff,
        Edited,
        Json,
        Outgoing,
        Pipeline,
        Record,
        Router,
        Schedule,
        Tombstone,
        TopicBatch,
        TopicFields,
        TopicItem,
        TopicState,
    )
    from topics.model.requests.config import TopicConfig

__all__ = [
    "Appended",
    "AppendedAll",
    "AppendedTo",
    "Arrived",
    "ArrowExport",
    "AsyncArrowExport",
    "AsyncClient",
    "AsyncExport",
    "AsyncProducer",
    "AsyncSocket",
    "AsyncTicket",
    "AsyncWatch",
    "AsyncWork",
    "BadAnswer",
    "BatchTooLarge",
    "CaughtUp",
    "Change",
    "Client",
    "Closed",
    "CommittedTxn",
    "Configured",
    "ConnectionFailed",
    "Consumed",
    "Diff",
    "Edited",
    "Export",
    "ExportEnd",
    "Fenced",
    "Forbidden",
    "GroupStanding",
    "HeadersTooLarge",
    "Internal",
    "InvalidRequest",
    "Job",
    "Json",
    "Lease",
    "Message",
    "MethodNotAllowed",
    "NotAQueue",
    "NotAcceptable",
    "NotFound",
    "NotReady",
    "Outgoing",
    "PayloadTooLarge",
    "Pipeline",
    "PipelineNotFound",
    "Producer",
    "ReadOnly",
    "Record",
    "RecordTooLarge",
    "RequestTimeout",
    "Router",
    "RouterCycle",
    "RouterNotFound",
    "Schedule",
    "ScheduleNotFound",
    "ShuttingDown",
    "Socket",
    "StageNotFound",
    "Staged",
    "StorageFull",
    "TableTaken",
    "Throttled",
    "Ticket",
    "Timeout",
    "Tombstone",
    "TopicBatch",
    "TopicConfig",
    "TopicDeleted",
    "TopicExistsIncompatible",
    "TopicFailed",
    "TopicFields",
    "TopicFull",
    "TopicItem",
    "TopicNotEmpty",
    "TopicNotFound",
    "TopicState",
    "TopicsError",
    "Txn",
    "Unauthorized",
    "UnsupportedMediaType",
    "UriTooLong",
    "Watch",
    "Work",
]

# Imported on first use: a program that uses one half does not load the other.
_HOMES: Final = {
    "Txn": "transactions",
    "CommittedTxn": "transactions",
    "Staged": "transactions",
    "AsyncSocket": "aio.wire.socket",
    "AsyncWatch": "aio.watch",
    "Socket": "sync.wire.socket",
    "Watch": "sync.watch",
    "Arrived": "live",
    "CaughtUp": "live",
    "TopicDeleted": "live",
    "TopicFailed": "live",
    "Consumed": "messages",
    "GroupStanding": "messages",
    "Message": "messages",
    "ExportEnd": "exporting",
    "AsyncClient": "aio.client",
    "ArrowExport": "sync.export",
    "AsyncArrowExport": "aio.export",
    "AsyncExport": "aio.export",
    "AsyncProducer": "aio.producer",
    "AsyncTicket": "aio.producer",
    "AsyncWork": "aio.work",
    "Client": "sync.client",
    "Export": "sync.export",
    "Producer": "sync.producer",
    "Ticket": "sync.producer",
    "Work": "sync.work",
    "Job": "jobs",
    "Lease": "jobs",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'topics.client' has no attribute {name!r}")
    return getattr(import_module(f"topics.client.{_HOMES.get(name, 'values')}"), name)
