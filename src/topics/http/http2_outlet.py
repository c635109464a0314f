"""The sending side of an HTTP/2 connection: lanes take turns, frame by frame, as far as windows and socket allow."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

import h2.connection
import h2.errors

from topics.http.http2_lane import Http2Stream, Lane
from topics.http.message import JSON, Body, Bytes, Header, Request, Stream
from topics.http.preparation import pack_reply
from topics.http.refusal import Detail
from topics.http.reply import BODILESS, as_parts, body_length, check_headers
from topics.http.service import Service

BURST_BYTES_MAX = 256 * 1024  # sent in one tick, so that one connection does not hold up the others


class Conversation(Protocol):
    """The connection an outlet belongs to."""

    def flushed(self) -> None: ...
    def data_sent(self, frames: int) -> None: ...


class Http2Outlet:
    """The exchange of all requests of one connection; a lane leaves `lanes` when its reply is sent."""

    __slots__ = (
        "_conversation",
        "_dirty",
        "_h2",
        "_service",
        "_transport",
        "closed",
        "lanes",
        "progress_s",
        "queued_bytes",
        "write_paused",
    )

    def __init__(
        self,
        service: Service,
        transport: asyncio.Transport,
        protocol: h2.connection.H2Connection,
        conversation: Conversation,
    ) -> None:
        self._service = service
        self._transport = transport
        self._h2 = protocol
        self._conversation = conversation
        self._dirty = False
        self.lanes: dict[int, Lane] = {}
        self.queued_bytes = 0
        self.progress_s = service.wheel.now_s
        self.write_paused = False
        self.closed = False

    @property
    def peer(self) -> str:
        host, port, *_ = self._transport.get_extra_info("peername") or ("", 0)
        return f"{host}:{port}"

    def close(self) -> list[Request]:
        """The connection is lost. Returns the requests that were not fully answered."""
        self.closed = True
        lanes = [lane for lane in map(self.drop, list(self.lanes)) if lane is not None]
        del self._conversation  # which holds this object in turn
        return [lane.request for lane in lanes]

    # the handlers' side

    def send_reply(
        self, request: Request, status: int, body: Body, headers: Sequence[Header], content_type: bytes
    ) -> None:
        if self._service.reply_headers is not None:
            headers = (*self._service.reply_headers(request), *headers)
        check_headers(headers)
        self._service.give_back(request)

        def send(parts: Sequence[Bytes], coding: tuple[Header, ...]) -> None:
            lane = self._lane_of(request)
            if lane is None:
                return
            fields = self._fields(status, (*headers, *coding), content_type)
            if status not in BODILESS:
                fields.append((b"content-length", b"%d" % body_length(parts)))
            self._h2.send_headers(lane.number, fields)
            if request.method != "HEAD" and status not in BODILESS:
                for part in parts:
                    self.queue(lane, part)
            self.end(lane)

        pack_reply(self._service, request, as_parts(body), send)

    def send_error(
        self, request: Request, status: int, code: str, message: str, detail: Detail | None, headers: Sequence[Header]
    ) -> None:
        self.send_reply(request, status, self._service.render_error(status, code, message, detail), headers, JSON)

    def open_stream(self, request: Request, status: int, headers: Sequence[Header], content_type: bytes) -> Stream:
        if self._service.reply_headers is not None:
            headers = (*self._service.reply_headers(request), *headers)
        check_headers(headers)
        limits = self._service.limits
        lane = self._lane_of(request)
        stream = Http2Stream(self, lane or Lane(0, request, 0.0), limits.write_high_bytes, limits.write_low_bytes)
        if lane is None:
            stream.closed = True
            return stream
        self._service.give_back(request)
        self._h2.send_headers(lane.number, self._fields(status, headers, content_type))
        if request.method == "HEAD":
            stream.close()
        else:
            lane.stream = request.open_stream = stream
            self.mark_dirty()
        return stream

    def hand_over(self, request: Request, protocol: asyncio.Protocol, headers: Sequence[Header]) -> None:
        raise AssertionError(f"{request.method} {request.raw_path!r}: HTTP/2 offers no upgrade", protocol, headers)

    # the lanes' side

    def queue(self, lane: Lane, data: Bytes) -> None:
        if len(data):
            lane.outgoing.append(memoryview(data))
            lane.queued_bytes += len(data)
            self.queued_bytes += len(data)
            self.mark_dirty()

    def end(self, lane: Lane) -> None:
        lane.ended = True
        lane.stream = lane.request.open_stream = None
        self.mark_dirty()

    def reset(self, lane: Lane) -> None:
        """Drop one client's stream; the others of the connection live on."""
        if not self.closed and self.drop(lane.number) is not None:
            self._h2.reset_stream(lane.number, h2.errors.ErrorCodes.CANCEL)
            self._service.abandon(lane.request)
            self.mark_dirty()

    def drop(self, number: int) -> Lane | None:
        """Forget a lane and what it still owes."""
        lane = self.lanes.pop(number, None)
        if lane is not None:
            self.queued_bytes -= lane.queued_bytes
            lane.outgoing.clear()
            lane.queued_bytes = 0
            lane.stream = None
        return lane

    # the socket's side

    def mark_dirty(self) -> None:
        if not self._dirty and not self.closed:
            self._dirty = True
            self._service.tick.dirty.append(self)
            self._service.tick.arm()

    def flush(self) -> None:
        """End of the tick: fill the windows, then one write."""
        self._dirty = False
        if self.closed:
            return
        if not self.write_paused:
            self._fill_windows()
        data = self._h2.data_to_send()
        if data:
            self._transport.write(data)
        self._conversation.flushed()

    def _fill_windows(self) -> None:
        burst_bytes = frames = 0
        ready = [lane for lane in self.lanes.values() if lane.outgoing or lane.ended]
        while ready and burst_bytes < BURST_BYTES_MAX:
            again: list[Lane] = []
            for lane in ready:
                sent_bytes = self._send_frame(lane)
                burst_bytes += sent_bytes
                frames += sent_bytes > 0
                if sent_bytes and lane.outgoing:
                    again.append(lane)
            ready = again
        if frames:
            self._conversation.data_sent(frames)
        if ready:
            self.mark_dirty()

    def _send_frame(self, lane: Lane) -> int:
        """The next frame of a lane, if its window allows; returns the bytes sent."""
        number = lane.number
        if not lane.outgoing:
            self._h2.end_stream(number)
            self._finish(lane)
            return 0
        window_bytes = min(self._h2.local_flow_control_window(number), self._h2.max_outbound_frame_size)
        if window_bytes <= 0:
            return 0
        data = lane.take(window_bytes)
        self.queued_bytes -= len(data)
        self.progress_s = self._service.wheel.now_s
        last = lane.ended and not lane.outgoing
        self._h2.send_data(number, data, end_stream=last)
        if last:
            self._finish(lane)
        elif lane.stream is not None:
            lane.stream.bytes_left()
        return len(data)

    def _finish(self, lane: Lane) -> None:
        """The reply is sent; a body that is still coming is not wanted any more."""
        self.drop(lane.number)
        if not lane.body_complete:
            self._h2.reset_stream(lane.number, h2.errors.ErrorCodes.NO_ERROR)

    def _lane_of(self, request: Request) -> Lane | None:
        lane = self.lanes.get(request.stream_id)
        return lane if lane is not None and lane.request is request and not self.closed else None

    def _fields(self, status: int, headers: Sequence[Header], content_type: bytes) -> list[Header]:
        fields: list[Header] = [(b":status", b"%d" % status), (b"date", self._service.heads.date)]
        if status not in BODILESS:
            fields.append((b"content-type", content_type))
        fields.extend([(name.lower(), value) for name, value in headers])
        return fields
