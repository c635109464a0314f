"""Requests that are refused before any handler sees them: a class each, with status, code and message."""

from __future__ import annotations

import json
from typing import Any, ClassVar

Detail = dict[str, Any]


class Refusal(Exception):
    """A request that cannot be served as it was sent. Handlers may raise it too."""

    status: ClassVar[int] = 400
    code: ClassVar[str] = "invalid_request"
    headers: ClassVar[tuple[tuple[bytes, bytes], ...]] = ()

    def __init__(self, message: str, detail: Detail | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.detail = detail

    def without_trace(self) -> Refusal:
        """To be kept with a request: a traceback would refer to frames that refer to the request, a cycle."""
        self.__traceback__ = self.__context__ = None
        return self


class BadRequest(Refusal):
    """The bytes are not a request that this server understands, or are ambiguous."""


class RequestTimeout(Refusal):
    status = 408
    code = "request_timeout"


class BodyTooLarge(Refusal):
    status = 413
    code = "payload_too_large"

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"the body is larger than {bytes_max} bytes", {"max": bytes_max})


class UriTooLong(Refusal):
    status = 414
    code = "uri_too_long"

    def __init__(self, bytes_max: int) -> None:
        super().__init__(f"the request target is longer than {bytes_max} bytes", {"max": bytes_max})


class UnsupportedEncoding(Refusal):
    status = 415
    code = "unsupported_media_type"

    def __init__(self, encoding: str) -> None:
        super().__init__(f"content-encoding {encoding!r} is not supported, only gzip is", {"encoding": encoding})


class TooManyConnections(Refusal):
    status = 429
    code = "throttled"
    headers = ((b"Retry-After", b"1"),)

    def __init__(self, connections_max: int) -> None:
        super().__init__(
            f"{connections_max} connections are open, which is the limit; try again later",
            {"limit": "max_connections", "max": connections_max},
        )


class HeadersTooLarge(Refusal):
    status = 431
    code = "headers_too_large"

    def __init__(self, message: str, bytes_or_count_max: int) -> None:
        super().__init__(message, {"max": bytes_or_count_max})


def render_error(status: int, code: str, message: str, detail: Detail | None) -> bytes:
    """The error envelope, for listeners without a renderer of their own."""
    del status
    error: Detail = {"code": code, "message": message}
    if detail is not None:
        error["detail"] = detail
    return json.dumps({"error": error}, separators=(",", ":")).encode()
