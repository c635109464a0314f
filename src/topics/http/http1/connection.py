"""An HTTP/1 connection: its states, the requests that wait for their handler, when the socket is read, its time limits.

socket ─▶ RequestReader ─▶ accept ─┬─▶ handler ─▶ Http1Writer ─▶ socket
                                   └─ no room, gzip, large body, upgrade: in line, and reading stops meanwhile
"""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial
from typing import Final, cast

from topics.http.closing import has_left
from topics.http.http1.reader import FEED_BYTES_MAX, SLICE_WEIGHT_MAX, RequestReader
from topics.http.http1.request import Http1Request
from topics.http.http1.states import RECEIVING_NEXT, Receiving
from topics.http.http1.writer import Http1Writer
from topics.http.http2.connection import Http2Connection
from topics.http.http2.frames import PREFACE
from topics.http.received import abandon_all, prepare
from topics.http.refusal import Refusal, RequestTimeout, TooManyConnections
from topics.http.service import Service

# What is read in a crowded iteration and kept for a later one; more is parsed in slices of its own.
LATE_BYTES_MAX = 4 * 1024

# Looked up once: an attribute of an Enum costs as much as a call.
_READING: Final = Receiving.READING
_CLOSED: Final = Receiving.CLOSED


class Http1Connection(asyncio.Protocol):
    """An accepted socket until it closes, switches to HTTP/2, or is handed over to another protocol."""

    __slots__ = (
        "_continue_for",
        "_discarded_bytes",
        "_early",
        "_late",
        "_memory_waits",
        "_part",
        "_quiet_since_s",
        "_read_paused",
        "_reader",
        "_receiving",
        "_service",
        "_slice_scheduled",
        "_transport",
        "_unfed",
        "_waiting",
        "_write_paused",
        "_writer",
    )

    # from the moment the transport is there
    _transport: asyncio.Transport
    _writer: Http1Writer

    def __init__(self, service: Service) -> None:
        self._service = service
        self._reader: RequestReader | None = None
        self._receiving = Receiving.DETECTING
        self._part = -1
        self._quiet_since_s = service.connections.now_s
        # requests that have not reached their handler yet, and bytes that are not parsed yet
        self._waiting: deque[Http1Request] | None = None
        self._unfed: bytes | None = None
        self._slice_scheduled = False
        self._early = b""  # kept until the protocol is detected, or for the one the client may upgrade to
        self._late = b""  # read in a crowded iteration: waits for its turn
        self._continue_for: Http1Request | None = None
        self._discarded_bytes = 0
        # why reading stops, and whether it has
        self._memory_waits = 0
        self._write_paused = False
        self._read_paused = False

    def _enter(self, state: Receiving) -> None:
        assert state in RECEIVING_NEXT[self._receiving], f"{self._receiving} cannot become {state}"
        self._receiving = state

    # called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        service = self._service
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(
            high=service.limits.write_high_bytes, low=service.limits.write_low_bytes
        )
        self._writer = Http1Writer(service, self._transport, self)
        connections_max, connections = service.limits.connections_max, len(service.connections)
        self._part = service.connections.add(self)
        if connections >= connections_max:
            service.refused_total += 1
            self.refuse(TooManyConnections(connections_max), None)
            if connections >= connections_max + service.limits.refused_max:
                self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._late:
            # There is more of it: ordered by being read as one.
            data, self._late = self._late + data, b""
        elif self._service.tick.crowded and len(data) <= LATE_BYTES_MAX:
            self._late = data
            self._service.tick.late.add(self._receive_late)
            return
        reader = self._reader
        if reader is None or self._receiving is not _READING:
            self._receive_carefully(data)
            return
        request = reader.recognise(data)
        if request is not None:
            self.accept(request)
            return
        if len(data) > FEED_BYTES_MAX:
            self._feed_pieces(data)
            return
        rest = reader.feed(data)
        if rest:
            self._feed_pieces(rest)

    def _receive_late(self) -> bool:
        late, self._late = self._late, b""
        if late:
            tick = self._service.tick
            tick.make_room()
            self.data_received(late)
            # It did not take the time of those that are read next.
            tick.make_room()
        return False

    def eof_received(self) -> bool:
        """A client may close its sending side and still wait for short replies; parked requests count as abandoned."""
        self._receive_late()
        self.last_request_came()
        if self._writer.pending:
            self._service.closing.leave(self._end_after_input)
        else:
            self._end_after_input()
        return True

    def _end_after_input(self) -> None:
        if self._receiving is _CLOSED:
            return
        writer, waiting = self._writer, self._waiting
        if any(request.on_disconnect or request.reply_stream for request in writer.pending):
            abandon_all(self._service, tuple(writer.pending))
            writer.close_later()
        elif writer.closed or (writer.idle and not waiting):
            writer.close_later()
        elif waiting:
            waiting[-1].make_last()
        else:
            writer.finish()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio names it)
        if self._receiving is not _CLOSED:
            self._detach()

    def pause_writing(self) -> None:
        self._write_paused = True
        self._quiet_since_s = self._service.connections.now_s
        self._update_reading()
        if self._writer.reply_stream is not None:
            self._writer.reply_stream.client_paused()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._quiet_since_s = self._service.connections.now_s
        if self._writer.reply_stream is not None:
            self._writer.reply_stream.client_resumed()
        self._pump()

    # bytes to requests

    def _receive_carefully(self, data: bytes) -> None:
        """All other cases: first bytes, large reads, bytes after the last request."""
        if self._receiving is Receiving.DETECTING:
            data = self._early + data
            if PREFACE.startswith(data[: len(PREFACE)]):
                self._early = data
                if len(data) >= len(PREFACE):
                    self._switch_to_http2(data)
                return
            self._early = b""
            self._enter(_READING)
            self._reader = RequestReader(
                self._writer,
                self,
                self._service.limits,
                self._service.connections,
                self._service.digest_key,
            )
        if self._receiving is _READING:
            self._feed_pieces(data)
            return
        self._discarded_bytes += len(data)
        if self._discarded_bytes > self._service.limits.linger_bytes_max:
            self._transport.abort()

    def _feed_pieces(self, data: bytes) -> None:
        """Feed in pieces, so that a pause takes effect soon; the rest is fed when the pause is over.

        A slice ends after a few milliseconds of work; the next one waits until other connections have had their turn.
        """
        view = memoryview(data)
        if self._reader is not None:
            self._reader.weight = 0
        while view and self._receiving is _READING and self._reader is not None:
            if self._must_pause() or self._reader.weight > SLICE_WEIGHT_MAX:
                self._unfed = bytes(view)
                if not self._must_pause():
                    self._slice_scheduled = True
                    self._service.slices.add(self._next_slice)
                self._update_reading()
                return
            piece_bytes = self._reader.feed_bytes_max()
            rest = self._reader.feed(view[:piece_bytes])
            view = view[piece_bytes:]
            if rest is not None:
                view = memoryview(rest + bytes(view))

    def _next_slice(self) -> bool:
        self._slice_scheduled = False
        self._pump()
        return False

    # called by the reader

    def accept(self, request: Http1Request) -> None:
        """A request is complete."""
        if self._receiving is not _READING:
            return  # it follows the last one in the same packet
        service, writer = self._service, self._writer
        limits = service.limits
        if (
            request.is_plain
            and self._waiting is None
            and not self._write_paused
            and len(writer.pending) < limits.pipelined_max
            and writer.unsent_bytes <= limits.unsent_bytes_max
        ):
            writer.pending.append(request)
            if not service.tick.armed:
                service.tick.arm()
            service.run_handler(request)
        else:
            if request.is_last:
                self._enter(Receiving.DONE)
            self._continue_for = None
            self._hold(request)

    def refuse(self, refusal: Refusal, request: Http1Request | None) -> None:
        """The rest of this connection's bytes cannot be trusted or is not needed: reply in order, then close."""
        if self._receiving is not _READING and self._receiving is not Receiving.DETECTING:
            return
        if request is None:
            request = Http1Request(self._writer, "GET", [])
        self._enter(Receiving.REFUSED)
        self._continue_for = self._unfed = None
        request.make_last()
        request.refusal = refusal.without_trace()
        self._hold(request)

    def offer_upgrade(self, request: Http1Request, early: bytes) -> None:
        """Later bytes belong to another protocol, if the handler accepts the upgrade; else the connection ends."""
        if self._receiving is not _READING:
            return
        self._enter(Receiving.UPGRADING)
        self._early = early
        request.make_last()
        self._hold(request)

    def check_head(self, request: Http1Request) -> bool:
        """Let the server refuse a request by its head; that is the last reply of this connection."""
        request.is_plain = False
        was_last, request.is_last = request.is_last, True
        if not self._service.check_head(request):
            return False
        request.is_last = was_last
        return True

    def expect_continue(self, request: Http1Request) -> None:
        """Request the body, but not before earlier requests have their replies: the client counts replies."""
        self._continue_for = request
        self._send_continue()

    def reserve_memory(self, request: Http1Request, size_bytes: int) -> None:
        """Memory for a large body; reading stops until it is granted."""

        def granted() -> None:
            self._memory_waits -= 1
            if request.held:
                prepare(self._service, request, self._pump)
            if self._reader is not None:
                self._reader.restart_body_clock(self._service.connections.now_s)
            self._service.loop.call_soon(self._pump)

        request.memory = self._service.budget.reserve(size_bytes, granted)
        if not request.memory.granted:
            self._memory_waits += 1
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
        return self._waiting is not None or self._memory_waits > 0 or self._write_paused

    def _update_reading(self) -> None:
        """Read only what can be handled soon; bytes after the last request are read and discarded."""
        if self._receiving is _READING:
            pause = self._must_pause() or self._unfed is not None
        elif self._receiving is not _CLOSED:
            pause = self._receiving is Receiving.UPGRADING
        else:
            return
        if pause == self._read_paused:
            return
        self._read_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _hold(self, request: Http1Request) -> None:
        """Put a request in line; handlers are called in request order."""
        if self._waiting is None:
            self._waiting = deque()
        self._waiting.append(request)
        if request.awaits_memory:
            request.held = True
        else:
            prepare(self._service, request, self._pump)
        self._pump()

    def _pump(self) -> None:
        """Continue: requests in line, then bytes not yet parsed, then the socket."""
        if self._receiving is _CLOSED:
            return
        waiting = self._waiting
        while waiting and not waiting[0].held and self._has_room():
            if waiting[0].upgrade_to and self._writer.pending:
                break
            self._dispatch(waiting.popleft())
        if not waiting:
            self._waiting = None
        if self._unfed is not None and not self._slice_scheduled and not self._must_pause():
            unfed, self._unfed = self._unfed, None
            self._feed_pieces(unfed)
        self._send_continue()
        self._update_reading()

    def _send_continue(self) -> None:
        if self._continue_for is None or self._writer.pending or self._waiting or self._memory_waits:
            return
        self._continue_for = None
        self._writer.send_continue()

    def _dispatch(self, request: Http1Request) -> None:
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

    # called by the writer

    @property
    def mid_request(self) -> bool:
        """Whether a request has begun to arrive that has not reached its handler."""
        if self._waiting or self._unfed is not None or self._late:
            return True
        return self._reader is not None and not self._reader.idle and self._receiving is _READING

    def last_request_came(self) -> None:
        """No further request is read; if one was refused or may upgrade, none is anyway."""
        if self._receiving is _READING or self._receiving is Receiving.DETECTING:
            self._enter(Receiving.DONE)

    def flushed(self) -> None:
        self._quiet_since_s = self._service.connections.now_s
        if self._waiting is not None or self._unfed is not None or self._continue_for is not None:
            self._pump()

    def last_reply_sent(self) -> None:
        """A client that is still sending gets the time to read the reply before the reset that its bytes cause."""
        if self._receiving is Receiving.UPGRADING:
            self._enter(Receiving.REFUSED)
        self._shut(lingering=self._receiving is Receiving.REFUSED)

    def _shut(self, *, lingering: bool) -> None:
        """All replies are sent."""
        self.last_request_came()
        self._quiet_since_s = self._service.connections.now_s
        self._unfed = None
        unanswered, self._waiting = self._waiting, None
        abandon_all(self._service, unanswered or ())
        if lingering:
            self._update_reading()
        self._writer.shut(lingering=lingering)

    def switch_protocol(self, protocol: asyncio.Protocol) -> None:
        """The handler has accepted the upgrade, and the client has the reply."""
        transport, early = self._transport, self._early
        if self._read_paused:
            transport.resume_reading()
        self._detach()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if early:
            protocol.data_received(early)

    # called by the listener

    def expire(self, now_s: float) -> None:
        """Close what takes too long: a half-sent request, a client that does not read, an idle connection."""
        limits = self._service.limits
        quiet_ms = (now_s - self._quiet_since_s) * 1000
        if self._writer.closed:
            unsent = self._transport.get_write_buffer_size() > 0
            if quiet_ms > (limits.write_stall_ms_max if unsent else limits.linger_ms_max):
                self._transport.abort()
        elif self._write_paused:
            if quiet_ms > limits.write_stall_ms_max and self._writer.reply_stream is None:
                self._transport.abort()
        elif self._memory_waits or any(request.awaits_memory for request in self._waiting or ()):
            # The socket is not read until there is memory, so the end of its input is not seen either.
            if has_left(self._transport):
                self._transport.abort()
        elif self._waiting or self._writer.pending or self._late:
            return
        elif self._reader is not None and not self._reader.idle:
            try:
                self._reader.check_deadline(now_s)
            except RequestTimeout as timeout:
                self.refuse(timeout, self._reader.incoming)
        elif quiet_ms > limits.idle_ms_max:
            self._shut(lingering=False)

    def drain(self) -> None:
        """Finish the requests that have begun, then close."""
        if self._writer.idle and not self.mid_request and not self._writer.closed:
            self._shut(lingering=False)

    def abort(self) -> None:
        self._transport.abort()

    # closing

    def _switch_to_http2(self, data: bytes) -> None:
        self._detach()
        successor = Http2Connection(self._service)
        self._transport.set_protocol(successor)
        successor.connection_made(self._transport)
        successor.data_received(data)

    def _detach(self) -> None:
        """The socket is lost, or handed over: free what unanswered requests hold and break every cycle."""
        service = self._service
        service.connections.remove(self, self._part)
        self._part = -1
        self._enter(_CLOSED)
        abandoned = self._writer.close()
        abandoned.extend(self._waiting or ())
        reader, self._reader = self._reader, None
        if reader is not None:
            if reader.incoming is not None:
                abandoned.append(reader.incoming)
            reader.close()
        self._waiting = self._unfed = self._continue_for = None
        self._late = b""
        if abandoned:
            service.closing.leave(partial(abandon_all, service, abandoned))
        service.connection_left()
