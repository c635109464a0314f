"""From bytes to values: a reply is decoded, or becomes the exception it stands for."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from topics.client.errors import BadAnswer, TopicsError, error_of
from topics.model.requests.nesting import decode_deep

T = TypeVar("T")
SHOWN_CHARS_MAX = 120
RETRY_AFTER_S_MAX = 86_400.0


class _Fault(msgspec.Struct):
    code: str = ""
    message: str = ""
    detail: dict[str, Any] | None = None


class _ErrorReply(msgspec.Struct):
    """The error body of /v0, and the two of the consumer groups' routes."""

    error: _Fault | str | None = None
    code: str = ""
    message: str = ""


_log = logging.getLogger("topics.client")
_error_decoder = msgspec.json.Decoder(_ErrorReply)


def value_of(decoder: msgspec.json.Decoder[T], status: int, content_type: str, body: bytes, where: str) -> T:
    """The decoded reply to a request that succeeded."""
    try:
        value = decode_deep(decoder.decode, body)
    except msgspec.DecodeError as error:
        reason = f"{where} answered {status}, but not with what this client expects ({error}): {_shown(body)}"
        raise BadAnswer(f"{reason}. {_hint(content_type)}", status=status) from None
    log_warnings(value)
    return value


def log_warnings(value: object) -> None:
    """Log the warnings of a reply."""
    for warning in getattr(value, "warnings", ()):
        _log.warning("%s", warning)


def failure_of(status: int, headers: Mapping[str, str], body: bytes, where: str) -> TopicsError:
    """The exception for a reply with a status of 400 or above."""
    try:
        reply = _error_decoder.decode(body)
    except msgspec.DecodeError:
        reply = _ErrorReply()
    retry_after_s = _seconds(headers.get("retry-after"))
    match reply.error:
        case _Fault(code=code, message=message, detail=detail) if code:
            wait_ms = (detail or {}).get("retry_after_ms")
            if isinstance(wait_ms, int | float):
                retry_after_s = min(max(0.0, wait_ms / 1000), RETRY_AFTER_S_MAX)
            return error_of(code, message or code, status, detail, retry_after_s)
        case str() as text if text:
            return error_of(reply.code or text, reply.message or text, status, None, retry_after_s)
        case _:
            content_type = headers.get("content-type", "")
            return BadAnswer(
                f"{where} answered {status} without this API's error body: {_shown(body)}. {_hint(content_type)}",
                status=status,
                retry_after_s=retry_after_s,
            )


def _seconds(text: str | None) -> float | None:
    """`Retry-After` as seconds; its other form, a date, is not used by this API."""
    try:
        return None if text is None else min(max(0.0, float(text)), RETRY_AFTER_S_MAX)
    except ValueError:
        return None


def _shown(body: bytes) -> str:
    text = body[: SHOWN_CHARS_MAX * 4].decode("utf-8", "replace").strip()
    return repr(text[:SHOWN_CHARS_MAX] + "…" if len(text) > SHOWN_CHARS_MAX else text)


def _hint(content_type: str) -> str:
    kind = content_type.partition(";")[0].strip()
    if kind == "application/json":
        return "Is this a topics server of a version that this client supports?"
    return f"Its content type is {kind or 'not given'}: is this a topics server, or a proxy in front of one?"
