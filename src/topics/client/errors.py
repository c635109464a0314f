"""Every way a call can fail, as one exception class for each `error.code`.

The classes of the server's codes are shared with the server and the embedded database, so `except` clauses hold for
all of them; those declared here mean that there is no usable reply.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from topics.model.errors import (
    BatchTooLarge,
    BucketAway,
    Fenced,
    Forbidden,
    HeadersTooLarge,
    Internal,
    InvalidRequest,
    JobGroupConflict,
    JobGroupNotFound,
    JobNotFound,
    MethodNotAllowed,
    NotAcceptable,
    NotAQueue,
    NotFound,
    NotPrimary,
    NotReady,
    NotReplicated,
    PayloadTooLarge,
    PipelineNotFound,
    PrimaryAlive,
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
    TopicExistsIncompatible,
    TopicFull,
    TopicNotEmpty,
    TopicNotFound,
    TopicsError,
    Unauthorized,
    UnsupportedMediaType,
    UriTooLong,
    WebhookNotFound,
)

__all__ = [
    "GROUP_CODES",
    "KINDS",
    "WAY_OUT",
    "BadAnswer",
    "BatchTooLarge",
    "BucketAway",
    "Closed",
    "ConnectionFailed",
    "Fenced",
    "Forbidden",
    "HeadersTooLarge",
    "Internal",
    "InvalidRequest",
    "JobCancelled",
    "JobFailed",
    "JobGroupConflict",
    "JobGroupNotFound",
    "JobNotFound",
    "MethodNotAllowed",
    "NotAQueue",
    "NotAcceptable",
    "NotFound",
    "NotPrimary",
    "NotReady",
    "NotReplicated",
    "PayloadTooLarge",
    "PipelineNotFound",
    "PrimaryAlive",
    "ReadOnly",
    "RecordTooLarge",
    "RequestTimeout",
    "ResultTimeout",
    "RouterCycle",
    "RouterNotFound",
    "ScheduleNotFound",
    "ShuttingDown",
    "StageNotFound",
    "StorageFull",
    "TableTaken",
    "Throttled",
    "Timeout",
    "TopicExistsIncompatible",
    "TopicFull",
    "TopicNotEmpty",
    "TopicNotFound",
    "TopicsError",
    "Unauthorized",
    "UnsupportedMediaType",
    "UriTooLong",
    "WebhookNotFound",
    "error_of",
]


# The end of a message about a server that cannot be reached.
WAY_OUT: Final = "start a server with `topics serve`, or name another one by its URL, TOPICS_URL or TOPICS_PORT"


class ConnectionFailed(TopicsError):
    """The server cannot be reached, or the connection broke before the reply was complete."""

    code = "connection_failed"


class Timeout(TopicsError):
    """No reply within `timeout_s`; whether the request was carried out is unknown."""

    code = "timeout"


class BadAnswer(TopicsError):
    """A reply that this API does not send: from another server, a proxy's error page, a truncated body."""

    code = "bad_answer"


class Closed(TopicsError):
    """The client, producer, stream or socket was closed."""

    code = "closed"


class JobFailed(TopicsError):
    """The job is a dead letter: it has no result. The message is what its last worker said."""

    code = "job_failed"


class JobCancelled(TopicsError):
    """The job was cancelled: it has no result."""

    code = "job_cancelled"


class ResultTimeout(TopicsError, TimeoutError):
    """The job has not ended in the time that was given; it goes on."""

    code = "result_timeout"


KINDS: Final[Mapping[str, type[TopicsError]]] = {
    kind.code: kind
    for kind in (
        *(InvalidRequest, BatchTooLarge, RecordTooLarge, PayloadTooLarge, UriTooLong, HeadersTooLarge, RequestTimeout),
        *(UnsupportedMediaType, NotAcceptable, MethodNotAllowed, Unauthorized, Forbidden, NotFound, TopicNotFound),
        *(
            RouterNotFound,
            PipelineNotFound,
            ScheduleNotFound,
            JobNotFound,
            JobGroupNotFound,
            JobGroupConflict,
            WebhookNotFound,
            TopicExistsIncompatible,
            TopicNotEmpty,
            NotAQueue,
            RouterCycle,
        ),
        *(
            StageNotFound,
            Fenced,
            PrimaryAlive,
            TableTaken,
            TopicFull,
            Throttled,
            NotPrimary,
            NotReady,
            NotReplicated,
            BucketAway,
            ShuttingDown,
            ReadOnly,
            StorageFull,
            Internal,
        ),
    )
}

# The consumer groups' routes have codes of their own.
GROUP_CODES: Final[Mapping[str, str]] = {
    "BAD_REQUEST": "invalid_request",
    "NOT_FOUND": "topic_not_found",
    "INTERNAL_ERROR": "internal",
    "MISSING_AUTHORIZATION": "unauthorized",
    "TOKEN_EXPIRED": "unauthorized",
    "INVALID_CREDENTIALS": "unauthorized",
}


def error_of(
    code: str, message: str, status: int, detail: Mapping[str, Any] | None = None, retry_after_s: float | None = None
) -> TopicsError:
    """The exception for a code; an unknown code becomes a plain TopicsError with that code."""
    code = GROUP_CODES.get(code, code.lower())
    return KINDS.get(code, TopicsError).reported(message, code, status, detail, retry_after_s)
