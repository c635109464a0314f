"""Splitting a bulk read into chunks at line ends, without parsing the lines."""

from __future__ import annotations

import msgspec

from topics.client.errors import BadAnswer
from topics.model.requests.nesting import decode_deep

ARROW = "application/vnd.apache.arrow.stream"
_END = b'{"end":'


class ExportEnd(msgspec.Struct, kw_only=True):
    """The content of the last line of a bulk read."""

    next_from_seq: int
    head_seq: int
    earliest_seq: int = 0
    epoch: int = 0
    records: int = 0


class _EndLine(msgspec.Struct):
    end: ExportEnd


class _Gap(msgspec.Struct):
    gap_to: int


class _Line(msgspec.Struct):
    seq: int | None = msgspec.field(name="$seq", default=None)
    tombstone: _Gap | None = None


_end_decoder = msgspec.json.Decoder(_EndLine)
_line_decoder = msgspec.json.Decoder(_Line)


class Cutter:
    """Pieces of any size in, chunks of about `chunk_bytes` out, each ending with a newline."""

    __slots__ = ("_chunk_bytes", "_parts", "_size", "end")

    def __init__(self, chunk_bytes: int) -> None:
        self._chunk_bytes = chunk_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self.end: ExportEnd | None = None

    def feed(self, piece: bytes) -> bytes | None:
        """A chunk, if there is enough for one."""
        self._parts.append(piece)
        self._size += len(piece)
        if self._size < self._chunk_bytes:
            return None
        return self._cut()

    def _cut(self) -> bytes | None:
        last = self._parts[-1]
        cut = last.rfind(b"\n") + 1
        if not cut:
            # One very long line, or a line end in an earlier part: search all of it, but less often.
            whole = b"".join(self._parts)
            cut = whole.rfind(b"\n") + 1
            self._parts, self._size = [whole[cut:]], len(whole) - cut
            return whole[:cut] or None
        self._parts[-1] = last[:cut]
        chunk = b"".join(self._parts)
        rest = last[cut:]
        self._parts, self._size = ([rest], len(rest)) if rest else ([], 0)
        return chunk

    def finish(self, chunk: bytes | None = None) -> bytes:
        """What remains when the reply has ended: complete lines, without the last one, which describes the end."""
        whole = b"".join(self._parts)
        self._parts, self._size = [], 0
        lines = whole[: whole.rfind(b"\n") + 1] if whole else b""
        return self._without_end(lines if chunk is None else chunk + lines)

    def _without_end(self, lines: bytes) -> bytes:
        at = lines.rfind(b"\n", 0, len(lines) - 1) + 1
        if lines.startswith(_END, at):
            try:
                self.end = _end_decoder.decode(lines[at:]).end
            except msgspec.DecodeError as error:
                raise BadAnswer(f"the last line of the export cannot be read: {error}") from None
            return lines[:at]
        return lines


def last_seq(chunk: bytes) -> int:
    """The position of the last line of a chunk: where an interrupted export continues."""
    line = chunk[chunk.rfind(b"\n", 0, len(chunk) - 1) + 1 :]
    try:
        found = decode_deep(_line_decoder.decode, line)
    except msgspec.DecodeError as error:
        raise BadAnswer(f"a line of the export cannot be read: {error}") from None
    if found.tombstone is not None:
        return found.tombstone.gap_to
    if found.seq is None:
        raise BadAnswer(f"a line of the export has no $seq: {line[:120]!r}")
    return found.seq
