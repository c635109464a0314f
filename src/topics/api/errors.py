"""Errors as HTTP replies: the one table from codes to statuses, headers, and the envelope."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

import msgspec

from topics.http.request import Header, Request
from topics.model.errors import TopicsError

STATUSES: Final[Mapping[str, int]] = {
    "invalid_request": 400,
    "batch_too_large": 400,
    "record_too_large": 400,
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "topic_not_found": 404,
    "router_not_found": 404,
    "pipeline_not_found": 404,
    "schedule_not_found": 404,
    "job_not_found": 404,
    "job_group_not_found": 404,
    "webhook_not_found": 404,
    "method_not_allowed": 405,
    "not_acceptable": 406,
    "request_timeout": 408,
    "not_a_queue": 409,
    "job_group_conflict": 409,
    "primary_alive": 409,
    "router_cycle": 409,
    "fenced": 409,
    "stage_not_found": 409,
    "table_taken": 409,
    "topic_exists_incompatible": 409,
    "topic_not_empty": 409,
    "payload_too_large": 413,
    "uri_too_long": 414,
    "unsupported_media_type": 415,
    "topic_full": 422,
    "throttled": 429,
    "headers_too_large": 431,
    "internal": 500,
    "not_primary": 503,
    "not_ready": 503,
    "not_replicated": 503,
    "read_only": 503,
    "shutting_down": 503,
    "storage_full": 507,
}

RETRY_AFTER_S: Final[Mapping[str, int]] = {
    "not_primary": 1,
    "not_ready": 1,
    "not_replicated": 1,
    "read_only": 60,
    "shutting_down": 5,
    "storage_full": 10,
    "throttled": 1,
}

_encode = msgspec.json.Encoder().encode


def status_of(code: str) -> int:
    return STATUSES.get(code, 500)


def headers_of(error: TopicsError) -> tuple[Header, ...]:
    """Headers that go with an error: when to retry, how to authenticate, which methods the path has."""
    match error.code:
        case "unauthorized":
            return ((b"WWW-Authenticate", b"Bearer"),)
        case "method_not_allowed":
            return ((b"Allow", ", ".join(error.detail["allow"]).encode()),)
        case code if code in RETRY_AFTER_S:
            wait_ms = error.detail.get("retry_after_ms")
            seconds = RETRY_AFTER_S[code] if wait_ms is None else max(1, -(-int(wait_ms) // 1000))
            return ((b"Retry-After", b"%d" % seconds),)
        case _:
            return ()


def envelope(code: str, message: str, detail: Mapping[str, Any] | None, server_total_ms: float | None = None) -> bytes:
    error: dict[str, Any] = {"code": code, "message": message}
    if detail:
        error["detail"] = detail
    body: dict[str, Any] = {"error": error}
    if server_total_ms is not None:
        body["performance"] = {"server_total_ms": round(server_total_ms, 3)}
    return _encode(body)


def render_error(status: int, code: str, message: str, detail: Mapping[str, Any] | None) -> bytes:
    """The same envelope for errors that the HTTP layer finds."""
    del status
    return envelope(code, message, detail)


def reply_error(request: Request, error: TopicsError) -> None:
    """Before a request is complete it has no time of receipt, and the reply has no `performance`."""
    server_total_ms = (perf_counter() - request.received_s) * 1000 if request.received_s else None
    body = envelope(error.code, error.message, error.detail, server_total_ms)
    request.reply(status_of(error.code), body, headers=headers_of(error))
