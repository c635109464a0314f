"""gzip both ways, never with more output than allowed; zlib lets go of the GIL, so both may run on a thread."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

from topics.http.message import Bytes
from topics.http.refusal import BadRequest, BodyTooLarge

GZIP_WBITS = 31
GZIP_LEVEL = 1
MEMBERS_MAX = 32  # each one costs a copy of what is left


class Inflation:
    """One gzip body being unpacked; a body may be several members back to back."""

    __slots__ = ("_bytes_max", "_members", "_parts", "_produced_bytes", "_rest", "_stream", "done")

    def __init__(self, packed: bytes, bytes_max: int) -> None:
        self._rest = packed
        self._bytes_max = bytes_max
        self._stream = zlib.decompressobj(GZIP_WBITS)
        self._members = 1
        self._parts: list[bytes] = []
        self._produced_bytes = 0
        self.done = False

    def run(self, bytes_max: int) -> None:
        """Unpack until done or until more than `bytes_max` bytes are out."""
        while not self.done and self._produced_bytes <= bytes_max:
            self._step(bytes_max + 1 - self._produced_bytes)
        if self._produced_bytes > self._bytes_max:
            raise BodyTooLarge(self._bytes_max)

    def finish(self) -> bytes:
        """Unpack all of it; may be called on another thread."""
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


def deflate(parts: Sequence[Bytes]) -> bytes:
    """A reply packed; may be called on another thread."""
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, GZIP_WBITS)
    packed = [packer.compress(part) for part in parts]
    packed.append(packer.flush())
    return b"".join(packed)
