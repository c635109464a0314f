"""One request and its reply without a connection: what a handler sends is kept until the caller fetches it.

httpx2.Request ─▶ request_of ─▶ Server.accept ─▶ handler ─▶ Exchange ─▶ head, then pieces of the body
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from topics.api.errors import render_error
from topics.http.limits import HttpLimits
from topics.http.refusal import Detail
from topics.http.reply_head import as_parts
from topics.http.request import JSON, Body, Bytes, Header, ReplyStream, Request
from topics.http.target import split_target

# Unfetched bytes of a stream above which its writer pauses, as on a connection.
UNREAD_BYTES_MAX = HttpLimits().write_high_bytes


class Exchange:
    """The reply to one request: a status and headers, then a body in one or several pieces."""

    def __init__(self, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._call_soon = call_soon
        self.status = 0
        self.headers: list[Header] = []
        self.pieces: list[bytes] = []
        self.unread_bytes = 0
        self.ended = False
        self.aborted = False
        self._stream: InlineStream | None = None

    # --- the handler's side ---

    @property
    def peer(self) -> str:
        return "inline"

    def send_reply(
        self,
        request: Request,  # noqa: ARG002  (an exchange has only one)
        status: int,
        body: Body,
        headers: Sequence[Header],
        content_type: bytes,
    ) -> None:
        self._begin(status, headers, content_type)
        self.pieces.append(b"".join(as_parts(body)))
        self.ended = True

    def send_error(
        self, request: Request, status: int, code: str, message: str, detail: Detail | None, headers: Sequence[Header]
    ) -> None:
        self.send_reply(request, status, render_error(status, code, message, detail), headers, JSON)

    def open_stream(
        self,
        request: Request,  # noqa: ARG002  (an exchange has only one)
        status: int,
        headers: Sequence[Header],
        content_type: bytes,
    ) -> ReplyStream:
        self._begin(status, headers, content_type)
        self._stream = InlineStream(self)
        return self._stream

    def upgrade(self, request: Request, protocol: asyncio.Protocol, headers: Sequence[Header]) -> None:
        raise NotImplementedError("a WebSocket needs a connection: start a server for it")

    def _begin(self, status: int, headers: Sequence[Header], content_type: bytes) -> None:
        self.status = status
        # There is no connection, so nothing can come after this request.
        self.headers = [(b"content-type", content_type), *[pair for pair in headers if pair[0] != b"Connection"]]

    def add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.unread_bytes += len(piece)
        if self.unread_bytes > UNREAD_BYTES_MAX and self._stream is not None and not self._stream.paused:
            self._call_soon(self._pause)

    def _pause(self) -> None:
        stream = self._stream
        if stream is not None and not stream.closed and not stream.paused and self.unread_bytes > UNREAD_BYTES_MAX:
            stream.client_paused()

    def _resume(self) -> None:
        stream = self._stream
        if stream is not None and not stream.closed and stream.paused:
            stream.client_resumed()

    # --- the caller's side ---

    @property
    def has_news(self) -> bool:
        return bool(self.pieces) or self.ended or self.aborted

    def take(self) -> bytes:
        """The bytes since the last call."""
        taken, self.pieces, self.unread_bytes = b"".join(self.pieces), [], 0
        if self._stream is not None and self._stream.paused:
            self._call_soon(self._resume)
        return taken

    def disconnect(self, request: Request) -> None:
        """The caller does not want the rest of the reply."""
        request.gone = True
        callback, request.on_disconnect = request.on_disconnect, None
        if self._stream is not None:
            self._stream.client_gone()
        elif callback is not None and not request.answered:
            callback()


class InlineStream(ReplyStream):
    __slots__ = ("_exchange",)

    def __init__(self, exchange: Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    @property
    def buffered_bytes(self) -> int:
        return 0 if self.closed else self._exchange.unread_bytes

    def write(self, data: Bytes) -> None:
        if not self.closed and len(data):
            self._exchange.add(bytes(data))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._exchange.ended = True

    def abort(self) -> None:
        if not self.closed:
            self._exchange.aborted = True
            self.client_gone()


def request_of(exchange: Exchange, method: str, target: bytes, headers: Sequence[Header], body: bytes) -> Request:
    request = Request(exchange, method, "1.1", [(name.lower(), value) for name, value in headers])
    request.raw_path, request.path_segments, request.query = split_target(target, method)
    request.body, request.has_body = body, bool(body)
    return request
