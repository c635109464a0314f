"""gzip for bodies, both ways, never with more output than allowed; zlib releases the GIL, so large ones use a thread.

reply      ─▶ up to 64 KiB: at once; above: thread ─▶ loop ─▶ send
open reply ─▶ pending ─▶ thread: compress ─▶ loop ─▶ the stream below     one piece at a time; the writer pauses
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from topics.http.refusal import BadRequest, BodyTooLarge, Refusal
from topics.http.reply_head import body_length
from topics.http.request import Bytes, Header, ReplyStream, Request
from topics.http.service import Service

GZIP_WBITS = 31
GZIP_LEVEL = 1
MEMBERS_MAX = 32  # each one costs a copy of the rest

GZIPPED: Header = (b"Content-Encoding", b"gzip")
VARY: Header = (b"Vary", b"Accept-Encoding")

InThread = Callable[[Callable[[], bytes], Callable[[bytes | Refusal], None]], None]

_zero_weights: Final = (b"q=0", b"q=0.0", b"q=0.00", b"q=0.000")


class Decompression:
    """A gzip body that is being decompressed; it may consist of several members back to back."""

    __slots__ = ("_bytes_max", "_members", "_parts", "_produced_bytes", "_rest", "_stream", "done")

    def __init__(self, compressed: bytes, bytes_max: int) -> None:
        self._rest = compressed
        self._bytes_max = bytes_max
        self._stream = zlib.decompressobj(GZIP_WBITS)
        self._members = 1
        self._parts: list[bytes] = []
        self._produced_bytes = 0
        self.done = False

    def run(self, bytes_max: int) -> None:
        """Decompress until done or until there are more than `bytes_max` bytes of output."""
        while not self.done and self._produced_bytes <= bytes_max:
            self._step(bytes_max + 1 - self._produced_bytes)
        if self._produced_bytes > self._bytes_max:
            raise BodyTooLarge(self._bytes_max)

    def finish(self) -> bytes:
        """Decompress all of it; may be called on another thread."""
        self.run(self._bytes_max)
        assert self.done
        return b"".join(self._parts)

    def _step(self, bytes_wanted: int) -> None:
        try:
            part = self._stream.decompress(self._rest, bytes_wanted)
        except zlib.error:
            raise BadRequest("the body is not valid gzip") from None
        self._parts.append(part)
        self._produced_bytes += len(part)
        if not self._stream.eof:
            self._rest = self._stream.unconsumed_tail
            if not part and not self._rest:
                raise BadRequest("the gzip body ends early")
            return
        self._rest = self._stream.unused_data
        if not self._rest:
            self.done = True
            return
        self._members += 1
        if self._members > MEMBERS_MAX:
            raise BadRequest(f"the gzip body has more than {MEMBERS_MAX} members")
        self._stream = zlib.decompressobj(GZIP_WBITS)


def compress(parts: Sequence[Bytes]) -> bytes:
    """May be called on another thread."""
    compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WBITS)
    compressed = [compressor.compress(part) for part in parts]
    compressed.append(compressor.flush())
    return b"".join(compressed)


def accepts_gzip(accept_encoding: bytes | None) -> bool:
    """Whether the client accepts gzip; not with `gzip;q=0`, nor without the header."""
    if accept_encoding is None or b"gzip" not in accept_encoding.lower():
        return False
    for item in accept_encoding.lower().split(b","):
        coding, *parameters = [part.strip() for part in item.split(b";")]
        if coding == b"gzip":
            return not any(parameter.replace(b" ", b"") in _zero_weights for parameter in parameters)
    return False


def compress_reply(
    service: Service,
    request: Request,
    parts: Sequence[Bytes],
    send: Callable[[Sequence[Bytes], tuple[Header, ...]], None],
    *,
    coded: bool = False,
) -> None:
    """Call `send` with the body to send and the headers that its coding needs; above 64 KiB in a later tick.

    What is `coded` already is sent as it is.
    """
    limits = service.limits
    body_bytes = body_length(parts)
    if coded or body_bytes < limits.gzip_reply_bytes_min:
        send(parts, ())
        return
    if not accepts_gzip(request.header(b"accept-encoding")):
        # A cache must not serve this reply to clients that accept gzip.
        send(parts, (VARY,))
        return

    def compressed(result: bytes | Refusal) -> None:
        assert not isinstance(result, Refusal), "compression is never refused"
        send((result,), (GZIPPED, VARY))

    if body_bytes <= limits.gzip_inline_bytes_max:
        compressed(compress(parts))
    else:
        service.in_thread(partial(compress, parts), compressed)


class GzipReplyStream(ReplyStream):
    """Compresses the written data and passes it to the stream below, whose callbacks it takes over.

    The writer is paused while the thread is busy, as it would be by a slow client.
    """

    __slots__ = ("_below", "_busy", "_closing", "_compressor", "_in_thread", "_pending", "_pending_bytes")

    def __init__(self, below: ReplyStream, in_thread: InThread) -> None:
        super().__init__()
        self._below = below
        self._in_thread = in_thread
        self._compressor = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WBITS)
        self._pending: list[Bytes] = []
        self._pending_bytes = 0
        self._busy = False
        self._closing = False
        self.closed = below.closed
        below.on_resume = self._resume
        below.on_close = self.client_gone

    @property
    def buffered_bytes(self) -> int:
        return self._pending_bytes + self._below.buffered_bytes

    def write(self, data: Bytes) -> None:
        if self.closed or not len(data):
            return
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._compress_pending()
        if not self.paused:
            self.client_paused()

    def close(self) -> None:
        if not self.closed:
            self.closed = self._closing = True
            self._compress_pending()

    def abort(self) -> None:
        self._below.abort()

    def _compress_pending(self) -> None:
        if self._busy:
            return
        self._busy = True
        parts, self._pending = self._pending, []
        last = self._closing

        def work() -> bytes:
            compressed = [self._compressor.compress(part) for part in parts]
            if last:
                compressed.append(self._compressor.flush())
            return b"".join(compressed)

        self._in_thread(work, lambda result: self._compressed(result, last=last))

    def _compressed(self, result: bytes | Refusal, *, last: bool) -> None:
        assert not isinstance(result, Refusal), "compression is never refused"
        self._busy = False
        self._pending_bytes = sum(map(len, self._pending))
        self._below.write(result)
        if last:
            self._below.on_resume = self._below.on_close = None
            self._below.close()
        elif self._pending or self._closing:
            self._compress_pending()
        else:
            self._resume()

    def _resume(self) -> None:
        if self.paused and not self._busy and not self._below.paused and not self.closed:
            self.client_resumed()
