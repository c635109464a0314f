"""The sending side of an HTTP/1 connection: replies leave in request order, all replies of a tick in one write.

send_reply ─┬─ first in line ─▶ out ─▶ flush at the end of the tick ─▶ transport
            └─ not first: kept in request.unsent until those before it are sent
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import ClassVar, Final, Protocol

from topics.http.content_coding import VARY, compress_reply
from topics.http.http1.request import Http1Request
from topics.http.http1.states import SENDING_NEXT, Sending
from topics.http.refusal import Detail
from topics.http.reply_head import BODILESS, CONTINUE, as_parts, body_length, header_lines
from topics.http.request import JSON, Body, Bytes, Header, ReplyStream, Request
from topics.http.service import Service

CODED = b"Content-Encoding: "
JOIN_BYTES_MAX = 64 * 1024  # above this, parts go to the kernel one by one instead of being copied together


# Looked up once: an attribute of an Enum costs as much as a call.
_OPEN: Final = Sending.OPEN
_FINISHING: Final = Sending.FINISHING


class Connection(Protocol):
    """The connection that a writer belongs to."""

    @property
    def mid_request(self) -> bool: ...
    def last_request_came(self) -> None: ...
    def flushed(self) -> None: ...
    def last_reply_sent(self) -> None: ...
    def switch_protocol(self, protocol: asyncio.Protocol) -> None: ...


class Http1Writer:
    """Requests whose handler has been called, in order, and the bytes of their replies."""

    __slots__ = (
        "_connection",
        "_flush_scheduled",
        "_out",
        "_service",
        "_transport",
        "pending",
        "reply_stream",
        "sending",
        "unsent_bytes",
    )
    __deletable__: ClassVar = ["_connection"]

    def __init__(self, service: Service, transport: asyncio.Transport, connection: Connection) -> None:
        self._service = service
        self._transport = transport
        self._connection = connection
        self._out: list[Bytes] = []
        self._flush_scheduled = False
        self.pending: list[Http1Request] = []
        self.unsent_bytes = 0
        self.reply_stream: Http1ReplyStream | None = None  # the first in line has not ended
        self.sending = _OPEN

    @property
    def peer(self) -> str:
        host, port, *_ = self._transport.get_extra_info("peername") or ("", 0)
        return f"{host}:{port}"

    @property
    def closed(self) -> bool:
        """The last reply has been sent, or will never be."""
        return self.sending is not _OPEN and self.sending is not _FINISHING

    @property
    def idle(self) -> bool:
        return not self.pending and not self._out

    @property
    def buffered_bytes(self) -> int:
        return self.unsent_bytes + self._transport.get_write_buffer_size()

    def close(self) -> list[Http1Request]:
        """The connection is lost: nothing more is sent. Returns the requests that did not get their whole reply."""
        self._enter(Sending.CLOSED)
        self._out.clear()
        self.reply_stream = None
        del self._connection  # which refers to this object
        abandoned, self.pending = self.pending, []
        return abandoned

    def send_reply(
        self, request: Request, status: int, body: Body, headers: Sequence[Header], content_type: bytes
    ) -> None:
        if self.sending is not _OPEN:
            return
        service = self._service
        if service.on_reply is not None:
            headers = service.on_reply(request, status, body, headers)
        pending = self.pending
        first = pending[0] if pending else None
        if (
            first is None
            or first is not request
            or not first.is_plain
            or type(body) is not bytes
            or len(body) > JOIN_BYTES_MAX
            or headers
            or content_type is not JSON
            or service.draining
            or status in BODILESS
        ):
            assert isinstance(request, Http1Request)
            self._send_any_reply(request, status, as_parts(body), header_lines(headers), content_type)
            return
        if len(body) < service.limits.gzip_reply_bytes_min:
            data = b"%b%d\r\n\r\n%b" % (service.heads[status], len(body), body)
        elif first.accepts_gzip():
            self._send_any_reply(first, status, (body,), b"", content_type)
            return
        else:
            data = b"%b%d\r\n%b: %b\r\n\r\n%b" % (service.heads[status], len(body), *VARY, body)
        del pending[0]
        self._out.append(data)
        self.unsent_bytes += len(data)
        if not self._flush_scheduled:
            self.schedule_flush()
        if pending:
            self.release()

    def send_error(
        self, request: Request, status: int, code: str, message: str, detail: Detail | None, headers: Sequence[Header]
    ) -> None:
        if self.sending is _OPEN:
            self.send_reply(request, status, self._service.render_error(status, code, message, detail), headers, JSON)

    def open_stream(self, request: Request, status: int, headers: Sequence[Header], content_type: bytes) -> ReplyStream:
        assert isinstance(request, Http1Request)
        chunked = request.http_version == "1.1"
        stream = Http1ReplyStream(self, request, chunked)
        if self.sending is not _OPEN:
            stream.closed = True
            return stream
        if not chunked:
            request.is_last = True
        if self._service.on_reply is not None:
            headers = self._service.on_reply(request, status, None, headers)
        if request.ids is not None:
            headers = (*headers, *request.ids.headers)
        request.release_memory()
        head = b"%bContent-Type: %b\r\n%b%b%b\r\n" % (
            self._service.heads.opening(status),
            content_type,
            header_lines(headers),
            b"Transfer-Encoding: chunked\r\n" if chunked else b"",
            b"Connection: close\r\n" if request.is_last else b"",
        )
        if request.method == "HEAD":
            stream.closed = True
        else:
            request.reply_stream = stream
        self._deliver(request, [head])
        return stream

    def upgrade(self, request: Request, protocol: asyncio.Protocol, headers: Sequence[Header]) -> None:
        if self.sending is not _OPEN:
            return
        assert self.pending == [request], "an upgrade is offered only when no other request is unanswered"
        self.pending.clear()
        if self._service.on_reply is not None:
            headers = self._service.on_reply(request, 101, None, headers)
        if request.ids is not None:
            headers = (*headers, *request.ids.headers)
        self._out.append(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: %b\r\nConnection: Upgrade\r\n%b\r\n"
            % (request.upgrade_to.encode(), header_lines(headers))
        )
        self._write_out()
        self._connection.switch_protocol(protocol)

    def send_continue(self) -> None:
        """Request a client's body; only when no other request is unanswered."""
        assert not self.pending
        self._out.append(CONTINUE)
        self.unsent_bytes += len(CONTINUE)
        self.schedule_flush()

    def finish(self) -> None:
        """No further request will come: close after the replies that are still due."""
        if self.pending:
            self.pending[-1].make_last()
        elif self.sending is _OPEN:
            self._enter(_FINISHING)
            self.schedule_flush()

    def shut(self, *, lingering: bool) -> None:
        """Nothing follows after the transport's buffer; lingering means that the client's bytes are still read."""
        if lingering:
            self._enter(Sending.LINGERING)
            self._transport.write_eof()
        else:
            self._enter(Sending.CLOSING)
            self._transport.close()

    def close_later(self) -> None:
        """The client has left: close when it is this connection's turn, because thousands may leave at once."""
        if not self.closed:
            self._enter(Sending.CLOSING)
        self._service.closing.add(self._transport)

    def flush(self) -> None:
        """End of the tick: one write."""
        self._flush_scheduled = False
        if self.sending is _OPEN:
            if self._out:
                self._write_out()
            self._connection.flushed()
        elif self.sending is _FINISHING:
            if self._out:
                self._write_out()
            self._connection.last_reply_sent()

    # replies that need more than the usual head

    def _send_any_reply(
        self, request: Http1Request, status: int, parts: Sequence[Bytes], lines: bytes, content_type: bytes
    ) -> None:
        request.release_memory()

        def send(parts: Sequence[Bytes], coding: Sequence[Header]) -> None:
            if self.sending is _OPEN:
                rendered = self._render(request, status, parts, lines + header_lines(coding), content_type)
                self._deliver(request, rendered)

        compress_reply(self._service, request, parts, send, coded=CODED in lines)

    def _render(
        self, request: Http1Request, status: int, parts: Sequence[Bytes], lines: bytes, content_type: bytes
    ) -> list[Bytes]:
        if self._service.draining and self.pending[-1:] == [request] and not self._connection.mid_request:
            request.is_last = True
            self._connection.last_request_came()
        head = [self._service.heads.opening(status)]
        if status not in BODILESS:
            head.append(b"Content-Type: %b\r\nContent-Length: %d\r\n" % (content_type, body_length(parts)))
        head.append(lines)
        if request.ids is not None:
            head.append(header_lines(request.ids.headers))
        if request.is_last:
            head.append(b"Connection: close\r\n")
        elif request.http_version == "1.0":
            head.append(b"Connection: keep-alive\r\n")
        head.append(b"\r\n")
        rendered: list[Bytes] = [b"".join(head)]
        if request.method != "HEAD" and status not in BODILESS:
            rendered.extend(parts)
        return rendered

    # order

    def deliver_stream(self, request: Http1Request, parts: list[Bytes]) -> None:
        """More bytes of an open stream."""
        self.unsent_bytes += body_length(parts)
        if request.unsent is not None:
            request.unsent.extend(parts)
        else:
            self._out.extend(parts)
            self.schedule_flush()

    def deliver_piece(self, request: Http1Request, piece: bytes) -> None:
        """Like `deliver_stream`, for the usual case of one small piece."""
        self.unsent_bytes += len(piece)
        if request.unsent is not None:
            request.unsent.append(piece)
            return
        self._out.append(piece)
        if not self._flush_scheduled:
            self.schedule_flush()

    def stream_ended(self, request: Http1Request) -> None:
        """An open stream is complete; if it was the first in line, the next reply may be sent."""
        request.reply_stream = None
        if request.unsent is None:
            self.reply_stream = None
            if self._service.draining:
                request.is_last = True
            request.unsent = []
            self.release()

    def _deliver(self, request: Http1Request, rendered: list[Bytes]) -> None:
        self.unsent_bytes += body_length(rendered)
        request.unsent = rendered
        self.release()

    def release(self) -> None:
        """Move the replies that are first in line and have their bytes to the socket."""
        pending = self.pending
        while pending and pending[0].unsent is not None and self.sending is _OPEN:
            request = pending[0]
            self._out.extend(request.unsent or ())
            request.unsent = None
            self.schedule_flush()
            if isinstance(request.reply_stream, Http1ReplyStream):
                self.reply_stream = request.reply_stream
                return
            del pending[0]
            if request.is_last:
                self._enter(_FINISHING)

    def schedule_flush(self) -> None:
        if not self._flush_scheduled:
            self._flush_scheduled = True
            tick = self._service.tick
            tick.unflushed.append(self)
            if not tick.armed:
                tick.arm()

    def _enter(self, state: Sending) -> None:
        assert state in SENDING_NEXT[self.sending], f"{self.sending} cannot become {state}"
        self.sending = state

    def _write_out(self) -> None:
        out = self._out
        if len(out) == 1:
            written_bytes = len(out[0])
            self._transport.write(out[0])
            out.clear()
        else:
            written_bytes = body_length(out)
            if written_bytes <= JOIN_BYTES_MAX:
                self._transport.write(b"".join(out))
                out.clear()
            else:
                self._out = []
                self._transport.writelines(out)
        self.unsent_bytes -= written_bytes

    def abort(self) -> None:
        self._transport.abort()


class Http1ReplyStream(ReplyStream):
    """A reply without a known end: chunked for HTTP/1.1, ended by the connection's end for 1.0."""

    __slots__ = ("_chunked", "_request", "_writer")

    def __init__(self, writer: Http1Writer, request: Http1Request, chunked: bool) -> None:
        super().__init__()
        self._writer = writer
        self._request = request
        self._chunked = chunked

    @property
    def buffered_bytes(self) -> int:
        return 0 if self.closed else self._writer.buffered_bytes

    def write(self, data: Bytes) -> None:
        if self.closed or not len(data):
            return
        if not self._chunked:
            self._writer.deliver_stream(self._request, [data])
        elif len(data) <= JOIN_BYTES_MAX:
            self._writer.deliver_piece(self._request, b"".join((b"%x\r\n" % len(data), data, b"\r\n")))
        else:
            self._writer.deliver_stream(self._request, [b"%x\r\n" % len(data), data, b"\r\n"])

    def close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._chunked:
            self._writer.deliver_stream(self._request, [b"0\r\n\r\n"])
        self._writer.stream_ended(self._request)

    def abort(self) -> None:
        if not self.closed:
            self._writer.abort()
