"""Every way a call can fail, as one exception class for each `error.code`, with its detail.

Where the engine knows the failure, too, its class is a base of the one here: an embedded database raises these as well,
so `except` clauses hold for both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from topics.model import errors


class TopicsError(errors.TopicsError):
    """Base of everything the client raises. `status` is 0 if no server has answered."""

    CODE: ClassVar[str] = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        status: int = 0,
        detail: Mapping[str, Any] | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        # The bases know their messages by themselves, and take what these are made of.
        Exception.__init__(self, message)
        self.code = code or self.CODE
        self.message = message
        self.status = status
        self.detail: dict[str, Any] = dict(detail or {})
        # How long the server asks to wait before the next attempt; None if it does not say.
        self.retry_after_s = retry_after_s

    def __reduce__(self) -> tuple[Any, ...]:
        """Errors travel between processes whole."""
        return _rebuilt, (type(self), self.message, self.code, self.status, self.detail, self.retry_after_s)


def _rebuilt(
    kind: type[TopicsError],
    message: str,
    code: str,
    status: int,
    detail: dict[str, Any],
    retry_after_s: float | None,
) -> TopicsError:
    return kind(message, code=code, status=status, detail=detail, retry_after_s=retry_after_s)


# --- no usable answer ---


class ConnectionFailed(TopicsError):
    """The server cannot be reached, or the connection broke before the answer was complete."""

    CODE = "connection_failed"


class Timeout(TopicsError):
    """No answer within `timeout_s`; whether the request was carried out is unknown."""

    CODE = "timeout"


class BadAnswer(TopicsError):
    """Something answered, but not as this API does: another server, a proxy's error page, a cut body."""

    CODE = "bad_answer"


class Closed(TopicsError):
    """The client, producer, stream or socket was closed."""

    CODE = "closed"


# --- the request is wrong ---


class InvalidRequest(TopicsError, errors.InvalidRequest):
    """`detail["field"]` names the place."""

    CODE = "invalid_request"


class BatchTooLarge(TopicsError, errors.BatchTooLarge):
    CODE = "batch_too_large"


class RecordTooLarge(TopicsError, errors.RecordTooLarge):
    CODE = "record_too_large"


class PayloadTooLarge(TopicsError):
    CODE = "payload_too_large"


class UriTooLong(TopicsError):
    CODE = "uri_too_long"


class HeadersTooLarge(TopicsError):
    CODE = "headers_too_large"


class RequestTimeout(TopicsError):
    """The server gave up waiting for the rest of the request."""

    CODE = "request_timeout"


class UnsupportedMediaType(TopicsError):
    CODE = "unsupported_media_type"


class NotAcceptable(TopicsError):
    CODE = "not_acceptable"


class MethodNotAllowed(TopicsError):
    CODE = "method_not_allowed"


# --- not allowed, not there ---


class Unauthorized(TopicsError):
    CODE = "unauthorized"


class Forbidden(TopicsError):
    CODE = "forbidden"


class NotFound(TopicsError):
    """A path that the server does not have."""

    CODE = "not_found"


class TopicNotFound(TopicsError, errors.TopicNotFound):
    CODE = "topic_not_found"


class RouterNotFound(TopicsError, errors.RouterNotFound):
    CODE = "router_not_found"


class PipelineNotFound(TopicsError, errors.PipelineNotFound):
    CODE = "pipeline_not_found"


# --- the state of the server forbids it ---


class TopicExistsIncompatible(TopicsError, errors.TopicExistsIncompatible):
    CODE = "topic_exists_incompatible"


class TopicNotEmpty(TopicsError, errors.TopicNotEmpty):
    CODE = "topic_not_empty"


class NotAQueue(TopicsError, errors.NotAQueue):
    CODE = "not_a_queue"


class RouterCycle(TopicsError, errors.RouterCycle):
    """`detail["cycle"]` is the way round."""

    CODE = "router_cycle"


class StageNotFound(TopicsError, errors.StageNotFound):
    """A transaction names a stage that is unknown or has expired."""

    CODE = "stage_not_found"


class Fenced(TopicsError, errors.Fenced):
    """Somebody took a higher fencing token for this application."""

    CODE = "fenced"


class TopicFull(TopicsError, errors.TopicFull):
    CODE = "topic_full"


# --- not now ---


class Throttled(TopicsError, errors.Throttled):
    """A cap is reached (`detail["limit"]`, `["max"]`), or there is pressure (`detail["retry_after_ms"]`)."""

    CODE = "throttled"


class NotReady(TopicsError, errors.NotReady):
    CODE = "not_ready"


class ShuttingDown(TopicsError, errors.ShuttingDown):
    CODE = "shutting_down"


class ReadOnly(TopicsError, errors.ReadOnly):
    CODE = "read_only"


class StorageFull(TopicsError, errors.StorageFull):
    CODE = "storage_full"


class Internal(TopicsError):
    """A bug in the server, or a disk that refused; `detail["trace_id"]` is in the server's log."""

    CODE = "internal"


KINDS: Final[Mapping[str, type[TopicsError]]] = {
    kind.CODE: kind
    for kind in (
        *(InvalidRequest, BatchTooLarge, RecordTooLarge, PayloadTooLarge, UriTooLong, HeadersTooLarge, RequestTimeout),
        *(UnsupportedMediaType, NotAcceptable, MethodNotAllowed, Unauthorized, Forbidden, NotFound, TopicNotFound),
        *(
            RouterNotFound,
            PipelineNotFound,
            TopicExistsIncompatible,
            TopicNotEmpty,
            NotAQueue,
            RouterCycle,
            StageNotFound,
            Fenced,
        ),
        *(TopicFull, Throttled, NotReady, ShuttingDown, ReadOnly, StorageFull, Internal),
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
    """The exception for a code; one that this version does not know is a plain TopicsError with that code."""
    code = GROUP_CODES.get(code, code.lower())
    kind = KINDS.get(code, TopicsError)
    return kind(message, code=code, status=status, detail=detail, retry_after_s=retry_after_s)
