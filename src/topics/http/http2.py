"""The receiving side of an HTTP/2 connection (prior knowledge, `h2` library) and its life; same limits as HTTP/1.

socket ─▶ h2 events ─▶ a Lane per stream ─▶ handler ─▶ Http2Outlet ─▶ socket
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

from topics.http.http2_gauge import FrameGauge
from topics.http.http2_lane import Lane
from topics.http.http2_outlet import Http2Outlet
from topics.http.http2_request import read_request
from topics.http.intake import read_content_encoding
from topics.http.message import Request
from topics.http.preparation import prepare
from topics.http.refusal import BodyTooLarge, Refusal, RequestTimeout
from topics.http.service import Service

# Window updates and pings that a client may send for each frame of a reply.
CREDIT_PER_FRAME = 4


class Http2Connection(asyncio.Protocol):
    """Reads streams into requests; requests of different streams have no order among them."""

    __slots__ = (
        "_bucket",
        "_gauge",
        "_h2",
        "_last_number",
        "_outlet",
        "_read_paused",
        "_resets",
        "_service",
        "_since_s",
        "_transport",
        "_unfed",
        "_unfed_at",
        "_waiting",
    )

    def __init__(self, service: Service) -> None:
        self._service = service
        self._transport = cast("asyncio.Transport", None)
        self._outlet = cast("Http2Outlet", None)
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding=None))
        self._bucket = -1
        self._since_s = service.wheel.now_s
        self._last_number = 0
        self._resets = 0
        limits = service.limits
        self._gauge = FrameGauge(limits.h2_control_frames_max, limits.h2_control_frames_per_s, self._since_s)
        # bytes not yet parsed, and how far that is
        self._unfed = b""
        self._unfed_at = 0
        self._read_paused = False
        self._waiting: deque[Lane] = deque()  # complete, not yet with their handler

    # the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        service, limits = self._service, self._service.limits
        self._transport = cast("asyncio.Transport", transport)
        self._outlet = Http2Outlet(service, self._transport, self._h2, self)
        self._bucket = service.wheel.add(self)
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
        # no stream may starve the others of the connection's window while it waits for memory
        self._h2.increment_flow_control_window(limits.h2_streams_max * limits.h2_window_bytes)
        self._outlet.mark_dirty()

    def data_received(self, data: bytes) -> None:
        if self._outlet.closed:
            return
        self._since_s = self._service.wheel.now_s
        self._gauge.earn(0, self._since_s)
        under_way = bool(self._unfed)
        self._unfed = self._unfed[self._unfed_at :] + data
        self._unfed_at = 0
        if not under_way and self._feed():
            self._update_reading()
            self._service.slices.add(self._feed)

    def _feed(self) -> bool:
        """Parse a slice of what has arrived, frames of any kind; returns whether more is left."""
        if self._outlet.closed:
            self._unfed = b""
            return False
        start = self._unfed_at
        try:
            self._unfed_at = self._gauge.measure(self._unfed, start)
            events = self._h2.receive_data(self._unfed[start : self._unfed_at])
        except h2.exceptions.ProtocolError as error:
            self._h2.close_connection(error.error_code)
            self._say_goodbye()
            return False
        self._heed(events)
        self._outlet.mark_dirty()
        if self._unfed_at < len(self._unfed):
            return True
        self._unfed, self._unfed_at = b"", 0
        self._update_reading()
        return False

    def _update_reading(self) -> None:
        """Read when all that arrived is parsed and the client takes what it is sent."""
        pause = bool(self._unfed) or self._outlet.write_paused
        if pause != self._read_paused and self._bucket >= 0 and not self._outlet.closed:
            self._read_paused = pause
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio names it)
        service = self._service
        service.wheel.remove(self, self._bucket)
        self._bucket = -1
        self._waiting.clear()
        for request in self._outlet.close():
            service.abandon(request)
        vars(self._h2).clear()  # its table of methods holds it in turn, and nobody collects cycles here
        service.connection_left()

    def pause_writing(self) -> None:
        self._outlet.write_paused = True
        self._update_reading()

    def resume_writing(self) -> None:
        self._outlet.write_paused = False
        self._update_reading()
        self._outlet.mark_dirty()

    # streams to requests

    def _heed(self, events: list[h2.events.Event]) -> None:
        """h2 has read to the end of the batch already, so a stream reset in it is closed whatever came before."""
        resets = {event.stream_id for event in events if isinstance(event, h2.events.StreamReset)}
        for number in resets:
            self._client_reset(number)
        for event in events:
            if self._outlet.closed:
                return
            match event:
                case h2.events.RequestReceived():
                    if event.stream_id not in resets:
                        self._open_lane(event)
                case h2.events.DataReceived():
                    self._read_body(event)
                case h2.events.StreamEnded():
                    self._end_body(event.stream_id)
                case h2.events.ConnectionTerminated():
                    self._say_goodbye()  # h2 lets nothing be sent after the client's goodbye
                case _:
                    pass  # windows and settings: h2 keeps them, the outlet looks at them when it flushes

    def _open_lane(self, event: h2.events.RequestReceived) -> None:
        number = event.stream_id
        self._last_number = max(self._last_number, number)
        if self._service.draining:
            self._h2.reset_stream(number, h2.errors.ErrorCodes.REFUSED_STREAM)
            return
        request = Request(self._outlet, "GET", "2", [])
        request.stream_id = number
        request.plain = False
        lane = Lane(number, request, self._service.wheel.now_s)
        self._outlet.lanes[number] = lane
        try:
            request.has_body = event.stream_ended is None
            read_request(request, event.headers, self._service.limits)
            # Unpacking costs more than sending: the server has a say before it.
            if request.header(b"content-encoding") is not None:
                if not self._judge(lane):
                    return
                read_content_encoding(request)
            announced_bytes = int(request.header(b"content-length") or 0)
            if announced_bytes > self._service.limits.large_body_bytes:
                self._admit_large(lane, announced_bytes)
            if (request.header(b"expect") or b"").lower() == b"100-continue" and self._judge(lane):
                self._h2.send_headers(number, [(b":status", b"100")])
        except Refusal as refusal:
            self._refuse(lane, refusal)

    def _judge(self, lane: Lane) -> bool:
        """The server has a say before a body is asked for, kept or refused; False if it has answered."""
        if not lane.judged:
            lane.judged = True
            self._service.judge_head(lane.request)
        if lane.request.answered:
            self._drop_body(lane)
            return False
        return True

    def _admit_large(self, lane: Lane, body_bytes: int) -> None:
        """The server's say, then the limit, then a share of the budget, without which no more is asked for."""
        if not self._judge(lane):
            return
        request, service = lane.request, self._service
        body_bytes_max = service.limits.body_bytes_max
        if body_bytes > body_bytes_max:
            raise BodyTooLarge(body_bytes_max)
        length = request.header(b"content-length")
        share_bytes = body_bytes_max if request.packed or length is None else int(length)

        def granted() -> None:
            lane.waits_for_share = False
            lane.since_s = service.wheel.now_s
            service.loop.call_soon(self._acknowledge, lane)

        lane.waits_for_share = True
        if service.budget.take(request, share_bytes, granted):
            lane.waits_for_share = False

    def _read_body(self, event: h2.events.DataReceived) -> None:
        lane = self._outlet.lanes.get(event.stream_id)
        if lane is None or lane.parts is None:
            self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            return
        lane.unacknowledged_bytes += event.flow_controlled_length
        body_bytes = lane.body_bytes + len(event.data)
        try:
            self._check_growth(lane, body_bytes)
        except Refusal as refusal:
            self._refuse(lane, refusal)
        if lane.request.answered:
            return
        lane.body_bytes = body_bytes
        lane.parts.append(event.data)
        if not lane.waits_for_share:
            self._acknowledge(lane)

    def _check_growth(self, lane: Lane, body_bytes: int) -> None:
        """Small bodies are free, but those of one connection together may not be more than one large body."""
        limits = self._service.limits
        if body_bytes > limits.body_bytes_max:
            self._admit_large(lane, body_bytes)
        elif not lane.request.reserved_bytes and not lane.waits_for_share:
            small_bytes = sum([other.small_body_bytes for other in self._outlet.lanes.values()])
            if small_bytes + body_bytes - lane.body_bytes > limits.large_body_bytes:
                self._admit_large(lane, body_bytes)

    def _acknowledge(self, lane: Lane) -> None:
        """Let the client send more."""
        if self._outlet.lanes.get(lane.number) is lane and lane.unacknowledged_bytes:
            acknowledged_bytes, lane.unacknowledged_bytes = lane.unacknowledged_bytes, 0
            self._h2.acknowledge_received_data(acknowledged_bytes, lane.number)
            self._outlet.mark_dirty()

    def _drop_body(self, lane: Lane) -> None:
        """No more of the body is wanted."""
        lane.parts = None
        self._acknowledge(lane)

    def _end_body(self, number: int) -> None:
        lane = self._outlet.lanes.get(number)
        if lane is None:
            return
        lane.body_complete = True
        parts = lane.parts
        self._drop_body(lane)
        if parts is None or lane.request.answered:
            return
        lane.request.body = b"".join(parts)
        prepare(self._service, lane.request, self._pump)
        self._waiting.append(lane)
        self._pump()

    def _pump(self) -> None:
        """Call handlers as far as there is room; a lane that is being unpacked does not hold up the others."""
        unsent_bytes_max = self._service.limits.unsent_bytes_max
        for _ in range(len(self._waiting)):
            if self._outlet.queued_bytes > unsent_bytes_max or self._outlet.write_paused:
                return
            lane = self._waiting.popleft()
            if lane.request.held:
                self._waiting.append(lane)
            elif lane.request.refusal is not None:
                self._refuse(lane, lane.request.refusal)
            elif not lane.request.gone:
                self._service.tick.arm()
                self._service.run_handler(lane.request)

    def _refuse(self, lane: Lane, refusal: Refusal) -> None:
        if not lane.request.answered and not lane.request.gone:
            lane.request.reply_refusal(refusal)
        self._drop_body(lane)

    def _client_reset(self, number: int) -> None:
        """Resets are cheap for a client and not for us: one that does little else is sent away."""
        lane = self._outlet.drop(number)
        if lane is not None:
            self._service.abandon(lane.request)
        self._resets += 1
        if self._resets > self._service.limits.h2_resets_max and not self._outlet.closed:
            self._h2.close_connection(h2.errors.ErrorCodes.ENHANCE_YOUR_CALM)
            self._say_goodbye()

    # the outlet's side

    def data_sent(self, frames: int) -> None:
        self._gauge.earn(CREDIT_PER_FRAME * frames, self._service.wheel.now_s)

    def flushed(self) -> None:
        if self._waiting:
            self._pump()
        if self._service.draining and not self._outlet.lanes:
            self._transport.close()

    # the listener's side

    def expire(self, now_s: float) -> None:
        """Close what takes too long: half-sent bodies, a client that takes no bytes, an idle connection."""
        limits = self._service.limits
        lanes = self._outlet.lanes
        if self._outlet.closed:
            self._transport.abort()
            return
        if not lanes:
            if (now_s - self._since_s) * 1000 > limits.idle_ms_max:
                self._h2.close_connection()
                self._say_goodbye()
            return
        stalled = (now_s - self._outlet.progress_s) * 1000 > limits.write_stall_ms_max
        if stalled and any(lane.queued_bytes and lane.stream is None for lane in lanes.values()):
            self._transport.abort()
            return
        for lane in list(lanes.values()):
            if lane.parts is not None and not lane.waits_for_share:
                self._check_deadline(lane, now_s)

    def _check_deadline(self, lane: Lane, now_s: float) -> None:
        limits = self._service.limits
        large = lane.request.reserved_bytes > 0
        bytes_per_s_min = limits.large_body_bytes_per_s_min if large else limits.body_bytes_per_s_min
        if now_s - lane.since_s > limits.body_ms_max / 1000 + lane.body_bytes / bytes_per_s_min:
            self._refuse(lane, RequestTimeout("the body of the request took too long"))

    def drain(self) -> None:
        """Announce the end, finish what was begun, then close."""
        # h2 would end its own state with this frame, though streams below the number named here go on
        self._transport.write(self._h2.data_to_send() + GoAwayFrame(0, self._last_number).serialize())
        if not self._outlet.lanes:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    def _say_goodbye(self) -> None:
        self._outlet.closed = True
        self._transport.write(self._h2.data_to_send())
        self._transport.close()
