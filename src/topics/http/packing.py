"""gzip for an answer without a known end: pieces are packed one after the other, away from the loop.

write ─▶ pending ─▶ thread: compress ─▶ loop: the stream below      one piece at a time; meanwhile the writer is paused
"""

from __future__ import annotations

import zlib
from collections.abc import Callable

from topics.http.coding import GZIP_LEVEL, GZIP_WBITS
from topics.http.message import Bytes, Stream
from topics.http.refusal import Refusal

InThread = Callable[[Callable[[], bytes], Callable[[bytes | Refusal], None]], None]


class PackedStream(Stream):
    """Stands before another stream and has its callbacks; whoever writes takes a pause as from a slow client."""

    __slots__ = ("_below", "_busy", "_closing", "_in_thread", "_packer", "_pending", "_pending_bytes")

    def __init__(self, below: Stream, in_thread: InThread) -> None:
        super().__init__()
        self._below = below
        self._in_thread = in_thread
        self._packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WBITS)
        self._pending: list[Bytes] = []
        self._pending_bytes = 0
        self._busy = False
        self._closing = False
        self.closed = below.closed
        below.on_resume = self._go_on
        below.on_close = self.client_gone

    @property
    def buffered_bytes(self) -> int:
        return self._pending_bytes + self._below.buffered_bytes

    def write(self, data: Bytes) -> None:
        if self.closed or not len(data):
            return
        self._pending.append(data)
        self._pending_bytes += len(data)
        self._pack()
        if not self.paused:
            self.client_paused()

    def close(self) -> None:
        if not self.closed:
            self.closed = self._closing = True
            self._pack()

    def abort(self) -> None:
        self._below.abort()

    def _pack(self) -> None:
        if self._busy:
            return
        self._busy = True
        parts, self._pending = self._pending, []
        last = self._closing

        def work() -> bytes:
            packed = [self._packer.compress(part) for part in parts]
            if last:
                packed.append(self._packer.flush())
            return b"".join(packed)

        self._in_thread(work, lambda result: self._packed(result, last=last))

    def _packed(self, result: bytes | Refusal, *, last: bool) -> None:
        assert not isinstance(result, Refusal), "packing cannot be refused"
        self._busy = False
        self._pending_bytes = sum(map(len, self._pending))
        self._below.write(result)
        if last:
            self._below.on_resume = self._below.on_close = None
            self._below.close()
        elif self._pending or self._closing:
            self._pack()
        else:
            self._go_on()

    def _go_on(self) -> None:
        if self.paused and not self._busy and not self._below.paused and not self.closed:
            self.client_resumed()
