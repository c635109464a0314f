"""An HTTP/2 connection (prior knowledge, `h2` library): its streams, when the socket is read, its time limits.

socket ─▶ h2 events ─▶ an Http2Stream each ─▶ handler ─▶ Http2Writer ─▶ socket
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings
from hyperframe.frame import GoAwayFrame

from topics.http.frame_scanner import RateLimit
from topics.http.http2.frames import Http2FrameScanner
from topics.http.http2.request import Http2Request
from topics.http.http2.stream import Http2Stream
from topics.http.http2.writer import Http2Writer
from topics.http.received import abandon, prepare
from topics.http.refusal import BodyTooLarge, Refusal, RequestTimeout
from topics.http.service import Service

# Window updates and pings that a client may send for each frame of a reply.
CONTROL_FRAMES_PER_FRAME = 4


class Http2Connection(asyncio.Protocol):
    """Reads streams into requests; requests of different streams have no order among them."""

    __slots__ = (
        "_h2",
        "_last_stream_id",
        "_part",
        "_read_paused",
        "_resets",
        "_scanner",
        "_service",
        "_since_s",
        "_transport",
        "_unfed",
        "_unfed_at",
        "_waiting",
        "_writer",
    )

    # from the moment the transport is there
    _transport: asyncio.Transport
    _writer: Http2Writer

    def __init__(self, service: Service) -> None:
        self._service = service
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
        self._part = -1
        self._since_s = service.connections.now_s
        self._last_stream_id = 0
        self._resets = 0
        limits = service.limits
        self._scanner = Http2FrameScanner(
            RateLimit(limits.h2_control_frames_max, limits.h2_control_frames_per_s, self._since_s)
        )
        # bytes not yet parsed, and the position of the parser in them
        self._unfed = b""
        self._unfed_at = 0
        self._read_paused = False
        self._waiting: deque[Http2Stream] = deque()  # complete, not yet with their handler

    # called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        service, limits = self._service, self._service.limits
        self._transport = cast("asyncio.Transport", transport)
        self._writer = Http2Writer(service, self._transport, self._h2, self)
        self._part = service.connections.add(self)
        codes = h2.settings.SettingCodes
        self._h2.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                codes.MAX_CONCURRENT_STREAMS: limits.h2_streams_max,
                codes.INITIAL_WINDOW_SIZE: limits.h2_window_bytes,
                codes.MAX_HEADER_LIST_SIZE: 2 * limits.header_bytes_max,
            },
        )
        self._h2.decoder.max_header_list_size = 2 * limits.header_bytes_max
        self._h2.initiate_connection()
        # a stream that waits for memory must not use up the connection's window
        self._h2.increment_flow_control_window(limits.h2_streams_max * limits.h2_window_bytes)
        self._writer.schedule_flush()

    def data_received(self, data: bytes) -> None:
        if self._writer.closed:
            return
        self._since_s = self._service.connections.now_s
        self._scanner.limit.refill(self._since_s)
        under_way = bool(self._unfed)
        self._unfed = self._unfed[self._unfed_at :] + data
        self._unfed_at = 0
        if not under_way and self._feed():
            self._update_reading()
            self._service.slices.add(self._feed)

    def _feed(self) -> bool:
        """Parse a slice of the received bytes, frames of any kind; returns whether more is left."""
        if self._writer.closed:
            self._unfed = b""
            return False
        start = self._unfed_at
        try:
            self._unfed_at = self._scanner.scan(self._unfed, start)
            events = self._h2.receive_data(self._unfed[start : self._unfed_at])
        except h2.exceptions.ProtocolError as error:
            self._h2.close_connection(error.error_code)
            self._go_away()
            return False
        self._handle_events(events)
        self._writer.schedule_flush()
        if self._unfed_at < len(self._unfed):
            return True
        self._unfed, self._unfed_at = b"", 0
        self._update_reading()
        return False

    def _update_reading(self) -> None:
        """Read when all received bytes are parsed and the client accepts what it is sent."""
        pause = bool(self._unfed) or self._writer.write_paused
        if pause != self._read_paused and self._part >= 0 and not self._writer.closed:
            self._read_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def eof_received(self) -> bool:
        """Requests without a reply end with it."""
        if self._writer.streams:
            return False
        self._service.closing.add(self._transport)
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio names it)
        service = self._service
        service.connections.remove(self, self._part)
        self._part = -1
        self._waiting.clear()
        for request in self._writer.close():
            abandon(service, request)
        vars(self._h2).clear()  # its table of methods refers to it, and cycles are not collected here
        service.connection_left()

    def pause_writing(self) -> None:
        self._writer.write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._writer.write_paused = False
        self._update_reading()
        self._writer.schedule_flush()

    # streams to requests

    def _handle_events(self, events: list[h2.events.Event]) -> None:
        """h2 has read the whole batch already, so a stream that is reset later in it is closed from the start."""
        resets = {event.stream_id for event in events if isinstance(event, h2.events.StreamReset)}
        for stream_id in resets:
            self._client_reset(stream_id)
        for event in events:
            if self._writer.closed:
                return
            match event:
                case h2.events.RequestReceived():
                    if event.stream_id not in resets:
                        self._open_stream(event)
                case h2.events.DataReceived():
                    self._read_body(event)
                case h2.events.StreamEnded():
                    self._end_body(event.stream_id)
                case h2.events.ConnectionTerminated():
                    self._go_away()  # h2 sends nothing after the client's GOAWAY
                case _:
                    pass  # windows and settings: h2 keeps them, the writer reads them when it flushes

    def _open_stream(self, event: h2.events.RequestReceived) -> None:
        stream_id = event.stream_id
        self._last_stream_id = max(self._last_stream_id, stream_id)
        if self._service.draining:
            self._h2.reset_stream(stream_id, h2.errors.ErrorCodes.REFUSED_STREAM)
            return
        request = Http2Request(self._writer, stream_id)
        stream = Http2Stream(stream_id, request, self._service.connections.now_s)
        self._writer.streams[stream_id] = stream
        try:
            request.has_body = event.stream_ended is None
            request.read_head(event.headers, self._service.limits)
            # Decompressing costs more than sending: the server may refuse before it.
            if request.header(b"content-encoding") is not None:
                if not self._check_head(stream):
                    return
                request.read_content_encoding()
            announced_bytes = int(request.header(b"content-length") or 0)
            if announced_bytes > self._service.limits.large_body_bytes:
                self._admit_large(stream, announced_bytes)
            if (request.header(b"expect") or b"").lower() == b"100-continue" and self._check_head(stream):
                self._h2.send_headers(stream_id, [(b":status", b"100")])
        except Refusal as refusal:
            self._refuse(stream, refusal)

    def _check_head(self, stream: Http2Stream) -> bool:
        """The server may refuse by the head, before a body is requested or kept; False if it has replied."""
        if not stream.head_checked:
            stream.head_checked = True
            self._service.check_head(stream.request)
        if stream.request.answered:
            self._drop_body(stream)
            return False
        return True

    def _admit_large(self, stream: Http2Stream, body_bytes: int) -> None:
        """Check the head, then the size, then reserve memory; before that, no more of the body is requested."""
        if not self._check_head(stream):
            return
        request, service = stream.request, self._service
        body_bytes_max = service.limits.body_bytes_max
        if body_bytes > body_bytes_max:
            raise BodyTooLarge(body_bytes_max)
        length = request.header(b"content-length")
        size_bytes = body_bytes_max if request.compressed or length is None else int(length)

        def granted() -> None:
            stream.since_s = service.connections.now_s
            service.loop.call_soon(self._acknowledge, stream)

        request.memory = service.budget.reserve(size_bytes, granted)

    def _read_body(self, event: h2.events.DataReceived) -> None:
        stream = self._writer.streams.get(event.stream_id)
        if stream is None or stream.parts is None:
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            return
        stream.unacknowledged_bytes += event.flow_controlled_length
        body_bytes = stream.body_bytes + len(event.data)
        try:
            self._check_growth(stream, body_bytes)
        except Refusal as refusal:
            self._refuse(stream, refusal)
        if stream.request.answered:
            return
        stream.body_bytes = body_bytes
        stream.parts.append(event.data)
        if not stream.request.awaits_memory:
            self._acknowledge(stream)

    def _check_growth(self, stream: Http2Stream, body_bytes: int) -> None:
        """Small bodies need no reservation, unless those of one connection add up to more than a large one."""
        limits = self._service.limits
        if body_bytes > limits.body_bytes_max:
            self._admit_large(stream, body_bytes)
        elif stream.request.memory is None:
            small_bytes = sum([other.small_body_bytes for other in self._writer.streams.values()])
            if small_bytes + body_bytes - stream.body_bytes > limits.large_body_bytes:
                self._admit_large(stream, body_bytes)

    def _acknowledge(self, stream: Http2Stream) -> None:
        """Let the client send more."""
        if self._writer.streams.get(stream.stream_id) is stream and stream.unacknowledged_bytes:
            acknowledged_bytes, stream.unacknowledged_bytes = stream.unacknowledged_bytes, 0
            self._h2.acknowledge_received_data(acknowledged_bytes, stream.stream_id)
            self._writer.schedule_flush()

    def _drop_body(self, stream: Http2Stream) -> None:
        """No more of the body is wanted."""
        stream.parts = None
        self._acknowledge(stream)

    def _end_body(self, stream_id: int) -> None:
        stream = self._writer.streams.get(stream_id)
        if stream is None:
            return
        stream.body_complete = True
        parts = stream.parts
        self._drop_body(stream)
        if parts is None or stream.request.answered:
            return
        if stream.body_bytes > self._service.limits.large_body_bytes:
            stream.request.body_parts = parts
        else:
            stream.request.body = b"".join(parts)
        prepare(self._service, stream.request, self._pump)
        self._waiting.append(stream)
        self._pump()

    def _pump(self) -> None:
        """Call handlers as far as there is room; a stream that is being decompressed does not block the others."""
        unsent_bytes_max = self._service.limits.unsent_bytes_max
        for _ in range(len(self._waiting)):
            if self._writer.queued_bytes > unsent_bytes_max or self._writer.write_paused:
                return
            stream = self._waiting.popleft()
            if stream.request.held:
                self._waiting.append(stream)
            elif stream.request.refusal is not None:
                self._refuse(stream, stream.request.refusal)
            elif not stream.request.gone:
                self._service.tick.arm()
                self._service.run_handler(stream.request)

    def _refuse(self, stream: Http2Stream, refusal: Refusal) -> None:
        if not stream.request.answered and not stream.request.gone:
            stream.request.reply_refusal(refusal)
        self._drop_body(stream)

    def _client_reset(self, stream_id: int) -> None:
        """A reset costs a client less than the server: too many of them end the connection."""
        stream = self._writer.drop(stream_id)
        if stream is not None:
            abandon(self._service, stream.request)
        self._resets += 1
        if self._resets > self._service.limits.h2_resets_max and not self._writer.closed:
            self._h2.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            self._go_away()

    # called by the writer

    def data_sent(self, frames: int) -> None:
        self._scanner.limit.refill(self._service.connections.now_s, CONTROL_FRAMES_PER_FRAME * frames)

    def flushed(self) -> None:
        if self._waiting:
            self._pump()
        if self._service.draining and not self._writer.streams:
            self._transport.close()

    # called by the listener

    def expire(self, now_s: float) -> None:
        """Close what takes too long: half-sent bodies, a client that does not read, an idle connection."""
        limits = self._service.limits
        streams = self._writer.streams
        if self._writer.closed:
            self._transport.abort()
            return
        if not streams:
            if (now_s - self._since_s) * 1000 > limits.idle_ms_max:
                self._h2.close_connection()
                self._go_away()
            return
        stalled = (now_s - self._writer.progress_s) * 1000 > limits.write_stall_ms_max
        if stalled and any(stream.queued_bytes and stream.reply_stream is None for stream in streams.values()):
            self._transport.abort()
            return
        for stream in list(streams.values()):
            if stream.parts is not None and not stream.request.awaits_memory:
                self._check_deadline(stream, now_s)

    def _check_deadline(self, stream: Http2Stream, now_s: float) -> None:
        limits = self._service.limits
        large = stream.request.memory is not None
        bytes_per_s_min = limits.large_body_bytes_per_s_min if large else limits.body_bytes_per_s_min
        if now_s - stream.since_s > limits.body_ms_max / 1000 + stream.body_bytes / bytes_per_s_min:
            self._refuse(stream, RequestTimeout("the body of the request took too long"))

    def drain(self) -> None:
        """Announce the end, finish the requests that have begun, then close."""
        # h2 would end its own state with this frame, though streams up to the id in it continue
        self._transport.write(self._h2.data_to_send() + GoAwayFrame(0, self._last_stream_id).serialize())
        if not self._writer.streams:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _go_away(self) -> None:
        self._writer.closed = True
        self._transport.write(self._h2.data_to_send())
        self._transport.close()
