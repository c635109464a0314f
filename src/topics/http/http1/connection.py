"""The receiving side of an HTTP/1 connection and its life: requests reach handlers in order, as far as there is room.

socket ─▶ RequestReader ─▶ accept ─┬─▶ handler ─▶ Http1Writer
                            └─ no room, gzip, large body, upgrade: in line, and reading stops meanwhile
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import cast

from topics.http.http1.reader import FEED_BYTES_MAX, SLICE_WEIGHT_MAX, RequestReader
from topics.http.http1.writer import Http1Writer
from topics.http.http2.connection import Http2Connection
from topics.http.http2.frame_scanner import PREFACE
from topics.http.preparation import prepare
from topics.http.refusal import Overcrowded, Refusal, RequestTimeout
from topics.http.request import Request
from topics.http.service import Service


class Http1Connection(asyncio.Protocol):
    """An accepted socket until it closes, speaks HTTP/2, or is handed over to another protocol."""

    __slots__ = (
        "_bucket",
        "_continue_for",
        "_early",
        "_ended",
        "_linger",
        "_offering",
        "_read_paused",
        "_reader",
        "_service",
        "_shares_awaited",
        "_shut",
        "_since_s",
        "_sliced",
        "_swallowed_bytes",
        "_transport",
        "_unfed",
        "_waiting",
        "_write_paused",
        "_writer",
    )

    def __init__(self, service: Service) -> None:
        # per connection
        self._service = service
        self._transport = cast("asyncio.Transport", None)
        self._writer = cast("Http1Writer", None)
        self._reader: RequestReader | None = None
        self._bucket = -1
        self._since_s = service.wheel.now_s
        # requests not yet with their handler, and bytes not yet parsed
        self._waiting: deque[Request] | None = None
        self._unfed: bytes | None = None
        self._sliced = False  # they wait for their slice of the loop's time
        self._early = b""
        self._continue_for: Request | None = None
        # why reading stops
        self._shares_awaited = 0
        self._write_paused = False
        self._read_paused = False
        self._offering = False  # an upgrade: what follows may be another protocol's
        # the end
        self._ended = False  # no further request is read
        self._linger = False  # the client may still be sending when the last reply leaves
        self._swallowed_bytes = 0
        self._shut = False

    # the transport's side

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        service = self._service
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(
            high=service.limits.write_high_bytes, low=service.limits.write_low_bytes
        )
        self._writer = Http1Writer(service, self._transport, self)
        connections_max, connections = service.limits.connections_max, len(service.wheel)
        self._bucket = service.wheel.add(self)
        if connections >= connections_max:
            service.refused_total += 1
            self.refuse(Overcrowded(connections_max), None)
            if connections >= connections_max + service.limits.refused_max:
                self._transport.abort()

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if reader is None or len(data) > FEED_BYTES_MAX or self._ended:
            self._receive_carefully(data)
            return
        rest = reader.feed(data)
        if rest:
            self._feed_pieces(rest)

    def eof_received(self) -> bool:
        """A client may close its sending side and still wait for short answers; parked requests count as abandoned."""
        self._ended = True
        service, writer, waiting = self._service, self._writer, self._waiting
        if any(request.on_disconnect or request.open_stream for request in writer.pending):
            for request in tuple(writer.pending):
                service.abandon(request)
            service.closing.add(self._transport)
        elif self._shut or (writer.idle and not waiting):
            service.closing.add(self._transport)
        elif waiting:
            waiting[-1].keep_alive = waiting[-1].plain = False
        else:
            writer.finish()
        return True

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio names it)
        if self._bucket >= 0:
            self._leave()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._since_s = self._service.wheel.now_s
        self._update_reading()
        if self._writer.live_stream is not None:
            self._writer.live_stream.client_paused()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._since_s = self._service.wheel.now_s
        if self._writer.live_stream is not None:
            self._writer.live_stream.client_resumed()
        self._pump()

    # bytes to requests

    def _receive_carefully(self, data: bytes) -> None:
        """Everything but the usual: first bytes, large reads, bytes after the last request."""
        if self._ended:
            self._swallowed_bytes += len(data)
            if self._swallowed_bytes > self._service.limits.linger_bytes_max:
                self._transport.abort()
            return
        if self._reader is None:
            data = self._early + data
            if PREFACE.startswith(data[: len(PREFACE)]):
                self._early = data
                if len(data) >= len(PREFACE):
                    self._become_http2(data)
                return
            self._early = b""
            self._reader = RequestReader(self._writer, self, self._service.limits, self._service.wheel)
        self._feed_pieces(data)

    def _feed_pieces(self, data: bytes) -> None:
        """Feed in pieces, so that a pause takes effect soon; what is left is fed when the pause is over.

        A slice ends after a few milliseconds of work; the next one has to wait until others had their turn.
        """
        view = memoryview(data)
        if self._reader is not None:
            self._reader.weight = 0
        while view and not self._ended and self._reader is not None:
            if self._must_pause() or self._reader.weight > SLICE_WEIGHT_MAX:
                self._unfed = bytes(view)
                if not self._must_pause():
                    self._sliced = True
                    self._service.slices.add(self._next_slice)
                self._update_reading()
                return
            piece_bytes = self._reader.swallow_bytes_max()
            rest = self._reader.feed(view[:piece_bytes])
            view = view[piece_bytes:]
            if rest is not None:
                view = memoryview(rest + bytes(view))

    def _next_slice(self) -> bool:
        self._sliced = False
        self._pump()
        return False

    def accept(self, request: Request) -> None:
        """A request is complete."""
        if self._ended:
            return  # it follows the last one in the same packet
        if not request.keep_alive:
            self._ended = True
        if request.plain and self._waiting is None and self._has_room():
            service = self._service
            self._writer.pending.append(request)
            if not service.tick.armed:
                service.tick.arm()
            service.run_handler(request)
        else:
            self._continue_for = None
            self._hold(request)

    def refuse(self, refusal: Refusal, request: Request | None) -> None:
        """The rest of this connection's bytes cannot be trusted or is not wanted: answer in order, then close."""
        if self._ended:
            return
        if request is None:
            request = Request(self._writer, "GET", "1.1", [])
        self._ended = self._linger = True
        self._continue_for = self._unfed = None
        request.plain = request.keep_alive = False
        request.refusal = refusal.without_trace()
        self._hold(request)

    def offer_upgrade(self, request: Request, early: bytes) -> None:
        """What follows is another protocol's, if the handler takes the offer; else the connection ends."""
        self._ended = self._linger = self._offering = True
        self._early = early
        request.plain = request.keep_alive = False
        self._hold(request)

    def check_head(self, request: Request) -> bool:
        """Ask the server what it thinks of a head; if it answers, that is the last reply of this connection."""
        request.plain = False
        keep_alive, request.keep_alive = request.keep_alive, False
        if not self._service.check_head(request):
            return False
        request.keep_alive = keep_alive
        return True

    def want_continue(self, request: Request) -> None:
        """Ask for the body, but not before earlier requests are answered: the client counts answers."""
        self._continue_for = request
        self._send_continue()

    def want_share(self, request: Request, share_bytes: int) -> None:
        """Memory for a large body; reading stops until there is some."""

        def granted() -> None:
            self._shares_awaited -= 1
            request.awaits_share = False
            if request.held:
                prepare(self._service, request, self._pump)
            if self._reader is not None:
                self._reader.restart_body_clock(self._service.wheel.now_s)
            self._service.loop.call_soon(self._pump)

        if not self._service.budget.take(request, share_bytes, granted):
            self._shares_awaited += 1
            request.awaits_share = True
            self._update_reading()

    # room, and requests that have to wait for it

    def _has_room(self) -> bool:
        limits = self._service.limits
        writer = self._writer
        return (
            len(writer.pending) < limits.pipelined_max
            and writer.unsent_bytes <= limits.unsent_bytes_max
            and not self._write_paused
        )

    def _must_pause(self) -> bool:
        return self._waiting is not None or self._shares_awaited > 0 or self._write_paused

    def _update_reading(self) -> None:
        """Read only what can be handled soon; what follows the last request is read and dropped."""
        pause = self._offering if self._ended else self._must_pause() or self._unfed is not None
        if pause == self._read_paused or self._bucket < 0:
            return
        self._read_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _hold(self, request: Request) -> None:
        """Put a request in line; handlers are called in request order."""
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(request)
        if request.awaits_share:
            request.held = True
        else:
            prepare(self._service, request, self._pump)
        self._pump()

    def _pump(self) -> None:
        """Move on: whoever waits in line, then bytes not yet parsed, then the socket."""
        if self._bucket < 0:
            return
        waiting = self._waiting
        while waiting and not waiting[0].held and self._has_room():
            if waiting[0].upgrade_to and self._writer.pending:
                break
            self._dispatch(waiting.popleft())
        if self._bucket < 0:
            return
        if not waiting:
            self._waiting = None
        if self._unfed is not None and not self._sliced and not self._must_pause():
            unfed, self._unfed = self._unfed, None
            self._feed_pieces(unfed)
        self._send_continue()
        self._update_reading()

    def _send_continue(self) -> None:
        if self._continue_for is None or self._writer.pending or self._waiting or self._shares_awaited:
            return
        self._continue_for = None
        self._writer.send_continue()

    def _dispatch(self, request: Request) -> None:
        self._writer.pending.append(request)
        service = self._service
        refusal = request.refusal
        if refusal is None:
            if not service.tick.armed:
                service.tick.arm()
            service.run_handler(request)
        elif request.answered:
            self._writer.release()
        else:
            request.reply_refusal(refusal)

    # the writer's side

    @property
    def mid_request(self) -> bool:
        """Whether more requests than those with their handlers have begun to arrive."""
        if self._waiting or self._unfed is not None:
            return True
        return self._reader is not None and not self._reader.idle and not self._ended

    def stop_reading(self) -> None:
        self._ended = True

    def flushed(self) -> None:
        self._since_s = self._service.wheel.now_s
        if self._waiting is not None or self._unfed is not None or self._continue_for is not None:
            self._pump()

    def last_reply_sent(self) -> None:
        """Close; a client that is still sending gets the time to read the reply before the reset its bytes cause."""
        if self._shut:
            return
        self._shut = self._ended = True
        self._offering = False
        self._since_s = self._service.wheel.now_s
        self._waiting = self._unfed = None
        if self._linger:
            self._update_reading()
            self._transport.write_eof()
        else:
            self._transport.close()

    def switch_protocol(self, protocol: asyncio.Protocol) -> None:
        transport, early = self._transport, self._early
        if self._read_paused:
            transport.resume_reading()
        self._leave()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if early:
            protocol.data_received(early)

    # the listener's side

    def expire(self, now_s: float) -> None:
        """Close what takes too long: a half-sent request, a client that does not read, an idle connection."""
        limits = self._service.limits
        quiet_ms = (now_s - self._since_s) * 1000
        if self._shut:
            unsent = self._transport.get_write_buffer_size() > 0
            if quiet_ms > (limits.write_stall_ms_max if unsent else limits.linger_ms_max):
                self._transport.abort()
        elif self._write_paused:
            if quiet_ms > limits.write_stall_ms_max and self._writer.live_stream is None:
                self._transport.abort()
        elif self._shares_awaited or self._waiting or self._writer.pending:
            return
        elif self._reader is not None and not self._reader.idle:
            try:
                self._reader.check_deadline(now_s)
            except RequestTimeout as timeout:
                self.refuse(timeout, self._reader.incoming)
        elif quiet_ms > limits.idle_ms_max:
            self._transport.close()

    def drain(self) -> None:
        """Finish what was begun, then close."""
        if self._writer.idle and not self.mid_request and not self._shut:
            self._transport.close()

    def abort(self) -> None:
        self._transport.abort()

    # leaving

    def _become_http2(self, data: bytes) -> None:
        self._leave()
        successor = Http2Connection(self._service)
        self._transport.set_protocol(successor)
        successor.connection_made(self._transport)
        successor.data_received(data)

    def _leave(self) -> None:
        """The socket is lost or another's: free what unanswered requests hold and break every cycle."""
        service = self._service
        service.wheel.remove(self, self._bucket)
        self._bucket = -1
        abandoned = self._writer.close()
        abandoned.extend(self._waiting or ())
        reader, self._reader = self._reader, None
        if reader is not None:
            if reader.incoming is not None:
                abandoned.append(reader.incoming)
            reader.close()
        self._waiting = self._unfed = self._continue_for = None
        for request in abandoned:
            service.abandon(request)
        service.connection_left()
