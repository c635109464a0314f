"""The sending side of an HTTP/2 connection: streams take turns, frame by frame, as far as windows and socket allow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar, Protocol

import h2.connection
import h2.errors

from topics.http.content_coding import compress_reply
from topics.http.http2.request import Http2Request
from topics.http.http2.stream import Http2ReplyStream, Http2Stream
from topics.http.received import abandon
from topics.http.refusal import Detail
from topics.http.reply_head import BODILESS, as_parts, body_length, check_headers
from topics.http.request import JSON, Body, Bytes, Header, ReplyStream, Request
from topics.http.service import Service

BURST_BYTES_MAX = 256 * 1024  # sent in one tick, so that one connection does not delay the others


class Connection(Protocol):
    """The connection that a writer belongs to."""

    def flushed(self) -> None: ...
    def data_sent(self, frames: int) -> None: ...


class Http2Writer:
    """The replies to all requests of one connection; a stream leaves `streams` when its reply is sent."""

    __slots__ = (
        "_connection",
        "_flush_scheduled",
        "_h2",
        "_service",
        "_transport",
        "closed",
        "progress_s",
        "queued_bytes",
        "streams",
        "write_paused",
    )
    __deletable__: ClassVar = ["_connection"]

    def __init__(
        self,
        service: Service,
        transport: asyncio.Transport,
        protocol: h2.connection.H2Connection,
        connection: Connection,
    ) -> None:
        self._service = service
        self._transport = transport
        self._h2 = protocol
        self._connection = connection
        self._flush_scheduled = False
        self.streams: dict[int, Http2Stream] = {}
        self.queued_bytes = 0
        self.progress_s = service.connections.now_s
        self.write_paused = False
        self.closed = False

    @property
    def peer(self) -> str:
        host, port, *_ = self._transport.get_extra_info("peername") or ("", 0)
        return f"{host}:{port}"

    def close(self) -> list[Http2Request]:
        """The connection is lost. Returns the requests that did not get their whole reply."""
        self.closed = True
        streams = [stream for stream in map(self.drop, list(self.streams)) if stream is not None]
        del self._connection  # which refers to this object
        return [stream.request for stream in streams]

    # called by handlers

    def send_reply(
        self, request: Request, status: int, body: Body, headers: Sequence[Header], content_type: bytes
    ) -> None:
        assert isinstance(request, Http2Request)
        if self._service.on_reply is not None:
            headers = self._service.on_reply(request, status, body, headers)
        if request.ids is not None:
            headers = (*headers, *request.ids.headers)
        check_headers(headers)
        request.release_memory()

        def send(parts: Sequence[Bytes], coding: tuple[Header, ...]) -> None:
            stream = self._stream_of(request)
            if stream is None:
                return
            fields = self._fields(status, (*headers, *coding), content_type)
            if status not in BODILESS:
                fields.append((b"content-length", b"%d" % body_length(parts)))
            self._h2.send_headers(stream.stream_id, fields)
            if request.method != "HEAD" and status not in BODILESS:
                for part in parts:
                    self.queue(stream, part)
            self.end(stream)

        coded = any(name == b"Content-Encoding" for name, _ in headers)
        compress_reply(self._service, request, as_parts(body), send, coded=coded)

    def send_error(
        self, request: Request, status: int, code: str, message: str, detail: Detail | None, headers: Sequence[Header]
    ) -> None:
        self.send_reply(request, status, self._service.render_error(status, code, message, detail), headers, JSON)

    def open_stream(self, request: Request, status: int, headers: Sequence[Header], content_type: bytes) -> ReplyStream:
        assert isinstance(request, Http2Request)
        if self._service.on_reply is not None:
            headers = self._service.on_reply(request, status, None, headers)
        if request.ids is not None:
            headers = (*headers, *request.ids.headers)
        check_headers(headers)
        limits = self._service.limits
        stream = self._stream_of(request)
        reply_stream = Http2ReplyStream(
            self, stream or Http2Stream(0, request, 0.0), limits.write_high_bytes, limits.write_low_bytes
        )
        if stream is None:
            reply_stream.closed = True
            return reply_stream
        request.release_memory()
        self._h2.send_headers(stream.stream_id, self._fields(status, headers, content_type))
        if request.method == "HEAD":
            reply_stream.close()
        else:
            stream.reply_stream = request.reply_stream = reply_stream
            self.schedule_flush()
        return reply_stream

    def upgrade(self, request: Request, protocol: asyncio.Protocol, headers: Sequence[Header]) -> None:
        raise AssertionError(f"{request.method} {request.raw_path!r}: HTTP/2 offers no upgrade", protocol, headers)

    # called by streams

    def queue(self, stream: Http2Stream, data: Bytes) -> None:
        if len(data):
            stream.outgoing.append(memoryview(data))
            stream.queued_bytes += len(data)
            self.queued_bytes += len(data)
            self.schedule_flush()

    def end(self, stream: Http2Stream) -> None:
        stream.ended = True
        stream.reply_stream = stream.request.reply_stream = None
        self.schedule_flush()

    def reset(self, stream: Http2Stream) -> None:
        """Drop one client's stream; the other streams of the connection continue."""
        if not self.closed and self.drop(stream.stream_id) is not None:
            self._h2.reset_stream(stream.stream_id, h2.errors.ErrorCodes.CANCEL)
            abandon(self._service, stream.request)
            self.schedule_flush()

    def drop(self, stream_id: int) -> Http2Stream | None:
        """Remove a stream and its unsent bytes."""
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self.queued_bytes -= stream.queued_bytes
            stream.outgoing.clear()
            stream.queued_bytes = 0
            stream.reply_stream = None
        return stream

    # called by the socket

    def schedule_flush(self) -> None:
        if not self._flush_scheduled and not self.closed:
            self._flush_scheduled = True
            self._service.tick.unflushed.append(self)
            self._service.tick.arm()

    def flush(self) -> None:
        """End of the tick: fill the windows, then one write."""
        self._flush_scheduled = False
        if self.closed:
            return
        if not self.write_paused:
            self._fill_windows()
        data = self._h2.data_to_send()
        if data:
            self._transport.write(data)
        self._connection.flushed()

    def _fill_windows(self) -> None:
        burst_bytes = frames = 0
        ready = [stream for stream in self.streams.values() if stream.outgoing or stream.ended]
        while ready and burst_bytes < BURST_BYTES_MAX:
            again: list[Http2Stream] = []
            for stream in ready:
                sent_bytes = self._send_frame(stream)
                burst_bytes += sent_bytes
                frames += sent_bytes > 0
                if sent_bytes and stream.outgoing:
                    again.append(stream)
            ready = again
        if frames:
            self._connection.data_sent(frames)
        if ready:
            self.schedule_flush()

    def _send_frame(self, stream: Http2Stream) -> int:
        """The next frame of a stream, if its window allows; returns the bytes sent."""
        stream_id = stream.stream_id
        if not stream.outgoing:
            self._h2.end_stream(stream_id)
            self._finish(stream)
            return 0
        window_bytes = min(self._h2.local_flow_control_window(stream_id), self._h2.max_outbound_frame_size)
        if window_bytes <= 0:
            return 0
        data = stream.take(window_bytes)
        self.queued_bytes -= len(data)
        self.progress_s = self._service.connections.now_s
        last = stream.ended and not stream.outgoing
        self._h2.send_data(stream_id, data, end_stream=last)
        if last:
            self._finish(stream)
        elif stream.reply_stream is not None:
            stream.reply_stream.bytes_left()
        return len(data)

    def _finish(self, stream: Http2Stream) -> None:
        """The reply is sent; the rest of the request's body is no longer needed."""
        self.drop(stream.stream_id)
        if not stream.body_complete:
            self._h2.reset_stream(stream.stream_id, h2.errors.ErrorCodes.NO_ERROR)

    def _stream_of(self, request: Http2Request) -> Http2Stream | None:
        stream = self.streams.get(request.stream_id)
        return stream if stream is not None and stream.request is request and not self.closed else None

    def _fields(self, status: int, headers: Sequence[Header], content_type: bytes) -> list[Header]:
        fields: list[Header] = [(b":status", b"%d" % status), (b"date", self._service.heads.date)]
        if status not in BODILESS:
            fields.append((b"content-type", content_type))
        fields.extend([(name.lower(), value) for name, value in headers])
        return fields
