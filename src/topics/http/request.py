"""A request as handlers see it, and the stream that its reply may be; the same for every version of HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from mypy_extensions import mypyc_attr

from topics.http import target
from topics.http.refusal import Detail, Refusal

Bytes = bytes | bytearray | memoryview
Header = tuple[bytes, bytes]
Body = Bytes | Sequence[Bytes]

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"


class AlreadyAnswered(Exception):
    """A handler replied twice to the same request: a bug in the handler."""


class ReplyWriter(Protocol):
    """The sending side of the connection that a request came from."""

    @property
    def peer(self) -> str: ...

    def send_reply(
        self, request: Request, status: int, body: Body, headers: Sequence[Header], content_type: bytes
    ) -> None: ...

    def send_error(
        self, request: Request, status: int, code: str, message: str, detail: Detail | None, headers: Sequence[Header]
    ) -> None: ...

    def open_stream(
        self, request: Request, status: int, headers: Sequence[Header], content_type: bytes
    ) -> ReplyStream: ...

    def upgrade(self, request: Request, protocol: asyncio.Protocol, headers: Sequence[Header]) -> None: ...


class RequestIds:
    """What the client calls its request; empty if it does not say. Both are sent back with the reply."""

    __slots__ = ("request_id", "traceparent")

    def __init__(self, request_id: bytes, traceparent: bytes) -> None:
        self.request_id = request_id
        self.traceparent = traceparent

    @property
    def headers(self) -> tuple[Header, ...]:
        found = ((b"X-Request-Id", self.request_id), (b"traceparent", self.traceparent))
        return tuple([header for header in found if header[1]])


class Request:
    """One request, complete. Reply exactly once: `reply`, `reply_error`, `stream` or `upgrade`, now or later."""

    __slots__ = (
        "answered",
        "body",
        "gone",
        "has_body",
        "headers",
        "http_version",
        "ids",
        "judged",
        "keep_alive",
        "method",
        "observed",
        "on_disconnect",
        "path_segments",
        "query",
        "raw_path",
        "received_s",
        "upgrade_to",
        "writer",
    )

    def __init__(self, writer: ReplyWriter, method: str, http_version: str, headers: list[Header]) -> None:
        # the request
        self.method = method
        self.http_version = http_version
        self.headers = headers
        self.raw_path = b""
        self.path_segments: list[str] = []
        self.query = b""
        self.body = b""
        self.has_body = False
        self.upgrade_to = ""
        self.keep_alive = True  # the client wants to send further requests
        self.received_s = 0.0
        self.ids: RequestIds | None = None
        # For the log of requests: what it needs to know of this one. It is dropped with the reply.
        self.observed: object = None
        # The handler's conclusions from the head alone. If it sets this, a connection may keep the head, and passes
        # this to the next request with the same head.
        self.judged: object = None
        # the reply
        self.writer = writer
        self.answered = False
        self.gone = False
        self.on_disconnect: Callable[[], None] | None = None

    @property
    def peer(self) -> str:
        return self.writer.peer

    def header(self, name: bytes) -> bytes | None:
        """The first value of a header; `name` must be in lower case."""
        for key, value in self.headers:
            if key == name:
                return value.strip(b" \t")
        return None

    def header_values(self, name: bytes) -> list[bytes]:
        return [value.strip(b" \t") for key, value in self.headers if key == name]

    def query_pairs(self) -> list[tuple[str, str]]:
        return target.query_pairs(self.query)

    def query_value(self, name: str) -> str | None:
        """The first value of a query field, form-decoded."""
        if not self.query:
            return None
        for key, value in target.query_pairs(self.query):
            if key == name:
                return value
        return None

    def reply(
        self, status: int, body: Body = b"", *, headers: Sequence[Header] = (), content_type: bytes = JSON
    ) -> None:
        """Reply; parts of a body are sent one after the other without being joined."""
        if self.answered:
            raise AlreadyAnswered(f"{self.method} {self.raw_path!r}")
        self.writer.send_reply(self, status, body, headers, content_type)
        self.answered = True

    def reply_error(
        self, status: int, code: str, message: str, detail: Detail | None = None, headers: Sequence[Header] = ()
    ) -> None:
        """Reply with the error envelope of the listener."""
        if self.answered:
            raise AlreadyAnswered(f"{self.method} {self.raw_path!r}")
        self.writer.send_error(self, status, code, message, detail, headers)
        self.answered = True

    def reply_refusal(self, refusal: Refusal) -> None:
        self.reply_error(refusal.status, refusal.code, refusal.message, refusal.detail, refusal.headers)

    def stream(
        self, status: int = 200, *, headers: Sequence[Header] = (), content_type: bytes = EVENT_STREAM
    ) -> ReplyStream:
        """Reply with a body that has no known end."""
        if self.answered:
            raise AlreadyAnswered(f"{self.method} {self.raw_path!r}")
        stream = self.writer.open_stream(self, status, headers, content_type)
        self.answered = True
        return stream

    def upgrade(self, protocol: asyncio.Protocol, headers: Sequence[Header] = ()) -> None:
        """Reply 101 and hand the transport, with all bytes that came early, to another protocol."""
        if self.answered:
            raise AlreadyAnswered(f"{self.method} {self.raw_path!r}")
        assert self.upgrade_to, "the client did not request an upgrade"
        self.writer.upgrade(self, protocol, headers)
        self.answered = True


@mypyc_attr(allow_interpreted_subclasses=True)
class ReplyStream:
    """An open reply. Writes are sent at the end of the tick; callbacks report whether the client keeps up."""

    __slots__ = ("closed", "on_close", "on_pause", "on_resume", "paused")

    def __init__(self) -> None:
        self.closed = False
        self.paused = False
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None
        self.on_close: Callable[[], None] | None = None

    @property
    def buffered_bytes(self) -> int:
        """Bytes that the kernel has not yet accepted."""
        raise NotImplementedError

    def write(self, data: Bytes) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """End the body."""
        raise NotImplementedError

    def abort(self) -> None:
        """Drop the client without ending the body."""
        raise NotImplementedError

    def client_paused(self) -> None:
        self.paused = True
        if self.on_pause is not None:
            self.on_pause()

    def client_resumed(self) -> None:
        self.paused = False
        if self.on_resume is not None:
            self.on_resume()

    def client_gone(self) -> None:
        """The connection is lost: notify the writer, once."""
        if self.closed:
            return
        self.closed = True
        callback, self.on_close = self.on_close, None
        self.on_pause = self.on_resume = None
        if callback is not None:
            callback()
