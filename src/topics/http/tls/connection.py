"""A connection over TLS: a protocol to the socket below, a transport to the HTTP connection above.

socket ─▶ incoming ─▶ handshake, in slices ─▶ read, a limited number of records a slice ─▶ HTTP connection
socket ◀─ outgoing ◀─ encrypt, a limited number of bytes a slice ◀─ queue ◀─ write ◀───────┘

asyncio has such a layer, and this is not it: there a handshake, a millisecond of arithmetic, runs as soon as its bytes
arrive, a thousand of them in one turn of the loop; connections in their handshake are in nobody's count; and a client
that has closed its sending side does not get its replies.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, cast

from topics.http.service import Service
from topics.http.tls.certificate import Tls

log = logging.getLogger("topics.http")

RECORD_BYTES_MAX = 16 * 1024
# A slice of input, and of output: below a millisecond, whatever the records' sizes.
RECORDS_PER_SLICE = 128
OUTPUT_BYTES_PER_SLICE = 256 * 1024
# What a client may send before its handshake is done; certificates of clients are a few KiB.
HANDSHAKE_BYTES_MAX = 128 * 1024
# What OpenSSL calls bytes that begin like a request, and the reply to such a client.
PLAIN_REQUEST = "HTTP_REQUEST"
_PLAIN_ERROR = b'{"error":{"code":"invalid_request","message":"this port serves HTTPS: the URL begins with https://"}}'
PLAIN_REPLY = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%b"
    % (len(_PLAIN_ERROR), _PLAIN_ERROR)
)

MakeProtocol = Callable[[], asyncio.Protocol]


class TlsConnection(asyncio.Protocol, asyncio.Transport):
    """Counts as an open connection until the handshake is done; from then on the one above it does."""

    __slots__ = (
        "_above",
        "_above_paused",
        "_below",
        "_below_paused",
        "_closing",
        "_ended",
        "_handshake_bytes",
        "_incoming",
        "_lost",
        "_make_protocol",
        "_outgoing",
        "_part",
        "_queue",
        "_queued_bytes",
        "_read_paused",
        "_reading",
        "_secure",
        "_sending",
        "_service",
        "_since_s",
        "_socket_ended",
        "_tls",
        "_tls_object",
        "_wants_input",
        "_write_eof",
    )

    # from the moment the transport is there, and from the moment the handshake is done
    _below: asyncio.Transport
    _above: asyncio.Protocol

    def __init__(self, service: Service, tls: Tls, make_protocol: MakeProtocol) -> None:
        super().__init__()
        self._service = service
        self._tls = tls
        self._make_protocol = make_protocol
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._tls_object = tls.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._part = -1
        self._since_s = service.connections.now_s
        self._secure = self._lost = False
        self._handshake_bytes = 0
        # receiving: a slice is due, the one above takes input, the client has sent its last byte
        self._reading = self._read_paused = False
        self._wants_input = True
        self._socket_ended = self._ended = False
        # sending: bytes not yet encrypted, a slice is due, who has to wait, what follows the last byte
        self._queue: deque[memoryview] = deque()
        self._queued_bytes = 0
        self._sending = False
        self._below_paused = self._above_paused = False
        self._write_eof = self._closing = False

    # called by the socket's transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        service = self._service
        limits = service.limits
        self._below = cast("asyncio.Transport", transport)
        if len(service.connections) >= limits.connections_max + limits.refused_max:
            service.refused_total += 1
            self._below.abort()
        self._part = service.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._incoming.write(data)
        if self._secure:
            if not self._reading and self._read():
                self._read_in_slices()
            return
        self._handshake_bytes += len(data)
        if not self._reading:
            self._reading = True
            # A request may follow the handshake at once: it is not read before the step that is due.
            self._update_reading()
            self._service.slices.add(self._shake_hands)

    def eof_received(self) -> bool:
        """Returns whether the socket stays open: the one above closes it, when its replies are sent."""
        self._socket_ended = True
        if self._secure and not self._reading:
            self._read_in_slices()
        return self._secure

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = self._closing = True
        self._queue.clear()
        self._queued_bytes = 0
        if self._secure:
            above = self._above
            del self._above  # which refers to this object
            above.connection_lost(exc)
        else:
            self._leave()
            self._service.connection_left()

    def pause_writing(self) -> None:
        self._below_paused = True
        self._pause_above()

    def resume_writing(self) -> None:
        self._below_paused = False
        self._send_queued()

    # the handshake

    def _shake_hands(self) -> bool:
        """One step, in turn with those of other connections; the next one follows when the client has replied."""
        self._reading = False
        if self._lost:
            return False
        try:
            self._tls_object.do_handshake()
        except ssl.SSLWantReadError:
            self._flush()
            if self._handshake_bytes > HANDSHAKE_BYTES_MAX:
                self._below.abort()
            else:
                self._update_reading()
        except (ssl.SSLError, ssl.CertificateError) as error:
            self._tls.failures_total += 1
            log.debug("a TLS handshake failed: %s", error)
            self._flush()  # the alert that says why
            if error.reason == PLAIN_REQUEST:
                self._below.write(PLAIN_REPLY)
            self._below.close()
        else:
            self._tls.handshakes_total += 1
            self._flush()
            self._secured()
        return False

    def _secured(self) -> None:
        self._leave()
        self._secure = True
        self._above = self._make_protocol()
        self._above.connection_made(self)
        if not self._lost:
            self._read_in_slices()

    def _leave(self) -> None:
        self._service.connections.remove(self, self._part)
        self._part = -1

    # called by the listener, before the handshake is done

    def expire(self, now_s: float) -> None:
        if (now_s - self._since_s) * 1000 > self._service.limits.handshake_ms_max:
            self._below.abort()

    def drain(self) -> None:
        self._below.abort()

    # receiving

    def _read_in_slices(self) -> None:
        self._reading = True
        self._service.slices.add(self._read_slice)
        self._update_reading()

    def _read_slice(self) -> bool:
        more = False
        try:
            more = self._read()
        except Exception:
            self.abort()
            raise
        finally:
            self._reading = more
            self._update_reading()
        return more

    def _read(self) -> bool:
        """Decrypt a slice and pass it on in one piece; returns whether there is more."""
        if self._lost or not self._wants_input:
            return False
        parts: list[bytes] = []
        more = self._decrypt(parts)
        if self._lost:
            return False
        if parts:
            self._above.data_received(parts[0] if len(parts) == 1 else b"".join(parts))
        if more or self._lost or not self._wants_input:
            return more and not self._lost
        if self._socket_ended and not self._ended:
            self._ended = True
            if not self._above.eof_received():
                self.close()
        return False

    def _decrypt(self, parts: list[bytes]) -> bool:
        """Up to a slice of records; returns whether there may be more."""
        incoming = self._incoming
        try:
            for _ in range(RECORDS_PER_SLICE):
                part = self._tls_object.read(RECORD_BYTES_MAX)
                if not part:
                    self._socket_ended = True
                    return False
                parts.append(part)
                if not incoming.pending:
                    return False
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLZeroReturnError:
            self._socket_ended = True
            return False
        except ssl.SSLError as error:
            log.debug("a TLS connection is not continued: %s", error)
            self._flush()
            self._below.abort()
            return False
        finally:
            if self._outgoing.pending:
                self._flush()
        return True

    def _update_reading(self) -> None:
        pause = self._reading or not self._wants_input
        if pause == self._read_paused or self._lost:
            return
        self._read_paused = pause
        if pause:
            self._below.pause_reading()
        else:
            self._below.resume_reading()

    # sending

    def _flush(self) -> None:
        data = self._outgoing.read()
        if data and not self._lost:
            self._below.write(data)

    def _send(self) -> bool:
        """Encrypt a slice, as long as the socket takes it; returns whether more could be sent at once."""
        queue = self._queue
        left_bytes = OUTPUT_BYTES_PER_SLICE
        while queue and left_bytes > 0 and not self._below_paused:
            first = queue[0]
            sent_bytes = self._tls_object.write(first[:left_bytes])
            left_bytes -= sent_bytes
            self._queued_bytes -= sent_bytes
            if sent_bytes == len(first):
                queue.popleft()
            else:
                queue[0] = first[sent_bytes:]
            if self._outgoing.pending >= OUTPUT_BYTES_PER_SLICE // 4:
                self._flush()
        self._flush()
        if queue:
            self._pause_above()
            return not self._below_paused
        if self._write_eof or self._closing:
            self._end()
        elif self._above_paused and not self._below_paused and not self._lost:
            self._above_paused = False
            self._above.resume_writing()
        return False

    def _send_queued(self) -> None:
        """A slice at once; the rest in turn with other connections."""
        if not self._sending and self._send():
            self._sending = True
            self._service.slices.add(self._send_slice)

    def _send_slice(self) -> bool:
        self._sending = False
        try:
            if not self._lost:
                self._send_queued()
        except Exception:
            self.abort()
            raise
        return False

    def _pause_above(self) -> None:
        if not self._above_paused and self._secure and not self._lost:
            self._above_paused = True
            self._above.pause_writing()

    def _end(self) -> None:
        """All is encrypted: tell the client that this was the end, which an attacker cannot do in our name."""
        if not self._lost:
            try:
                self._tls_object.unwrap()
            except ssl.SSLError:
                pass  # the client's own end is not waited for
            self._flush()
            if self._closing:
                self._below.close()
            else:
                self._write_eof = False
                self._below.write_eof()

    # the transport of the connection above

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if len(data) and not self._closing:
            self._queue.append(memoryview(data))
            self._queued_bytes += len(data)
            self._send_queued()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        if self._closing:
            return
        for data in list_of_data:
            if len(data):
                self._queue.append(memoryview(data))
                self._queued_bytes += len(data)
        self._send_queued()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self._write_eof = True
        if not self._queue:
            self._end()

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            if not self._queue:
                self._end()

    def abort(self) -> None:
        self._below.abort()

    def is_closing(self) -> bool:
        return self._closing or self._below.is_closing()

    def pause_reading(self) -> None:
        self._wants_input = False
        self._update_reading()

    def resume_reading(self) -> None:
        self._wants_input = True
        if self._reading or self._lost:
            return
        if self._incoming.pending or self._socket_ended:
            self._read_in_slices()
        else:
            self._update_reading()

    def is_reading(self) -> bool:
        return self._wants_input and not self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._below.set_write_buffer_limits(high=high, low=low)

    def get_write_buffer_size(self) -> int:
        return self._queued_bytes + self._below.get_write_buffer_size()

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._below.get_write_buffer_limits()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._above = cast("asyncio.Protocol", protocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        return self._above

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._tls_object if name == "ssl_object" else self._below.get_extra_info(name, default)
