"""One HTTP/2 stream: the request that is read from it and the bytes of its reply that are still to be sent."""

from __future__ import annotations

from collections import deque
from typing import Protocol

from topics.http.http2.request import Http2Request
from topics.http.request import Bytes, ReplyStream


class Http2Stream:
    """A stream of an HTTP/2 connection until its reply is sent."""

    __slots__ = (
        "body_bytes",
        "body_complete",
        "ended",
        "head_checked",
        "outgoing",
        "parts",
        "queued_bytes",
        "reply_stream",
        "request",
        "since_s",
        "stream_id",
        "unacknowledged_bytes",
    )

    def __init__(self, stream_id: int, request: Http2Request, now_s: float) -> None:
        self.stream_id = stream_id
        self.request = request
        # receiving
        self.parts: list[bytes] | None = []  # None once the body is complete or no longer needed
        self.body_bytes = 0
        self.body_complete = False
        self.unacknowledged_bytes = 0
        self.head_checked = False
        self.since_s = now_s
        # sending
        self.outgoing: deque[memoryview] = deque()
        self.queued_bytes = 0
        self.ended = False  # nothing will be added to `outgoing`
        self.reply_stream: Http2ReplyStream | None = None

    @property
    def small_body_bytes(self) -> int:
        """The bytes kept for it without a reservation."""
        return self.body_bytes if self.parts is not None and self.request.memory is None else 0

    def take(self, bytes_max: int) -> bytes:
        """The next bytes to send, at most `bytes_max`."""
        first = self.outgoing[0]
        if len(first) <= bytes_max:
            self.outgoing.popleft()
        else:
            self.outgoing[0] = first[bytes_max:]
            first = first[:bytes_max]
        self.queued_bytes -= len(first)
        return bytes(first)


class StreamWriter(Protocol):
    """The sending side of the connection a stream belongs to."""

    def queue(self, stream: Http2Stream, data: Bytes) -> None: ...
    def end(self, stream: Http2Stream) -> None: ...
    def reset(self, stream: Http2Stream) -> None: ...


class Http2ReplyStream(ReplyStream):
    """An open reply on a stream; its buffer holds what flow control and the kernel have not yet accepted."""

    __slots__ = ("_high_bytes", "_low_bytes", "_sender", "_stream")

    def __init__(self, sender: StreamWriter, stream: Http2Stream, high_bytes: int, low_bytes: int) -> None:
        super().__init__()
        self._sender = sender
        self._stream = stream
        self._high_bytes = high_bytes
        self._low_bytes = low_bytes

    @property
    def buffered_bytes(self) -> int:
        return 0 if self.closed else self._stream.queued_bytes

    def write(self, data: Bytes) -> None:
        if self.closed or not len(data):
            return
        self._sender.queue(self._stream, data)
        if not self.paused and self._stream.queued_bytes > self._high_bytes:
            self.client_paused()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._sender.end(self._stream)

    def abort(self) -> None:
        if not self.closed:
            self._sender.reset(self._stream)

    def bytes_left(self) -> None:
        """The stream has sent something."""
        if self.paused and not self.closed and self._stream.queued_bytes <= self._low_bytes:
            self.client_resumed()
