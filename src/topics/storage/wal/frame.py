"""An op as bytes with a checksum, and the header of the file that holds them.

A frame; `position` is its start in the log, `synced_to` the position up to which the log was durable at that time:

    0          4          8                   16                  24                  32            32+body_len
    +----------+----------+-------------------+-------------------+-------------------+-------------------+
    | magic    | body_len | checksum          | position          | synced_to         | body              |
    | u32      | u32      | u64               | u64               | u64               | body_len bytes    |
    +----------+----------+-------------------+-------------------+-------------------+-------------------+
                                              |<------------- covered by the checksum ------------------->|

The checksum is xxh3_64 seeded with `salt ^ position`. Every file has its own salt, so old bytes in a recycled one never
verify. The magic is mixed with the salt, too, so that a search for the next frame skips such bytes quickly. A wrong
`body_len` covers other bytes, so the checksum protects it as well.

A file header; all numbers are little endian:

    0          4          8          12         16                  24                  32
    +----------+----------+----------+----------+-------------------+-------------------+
    | magic    | version  | shard    | zero     | file_number       | base_position     |
    | u32      | u32      | u32      | u32      | u64               | u64               |
    +----------+----------+----------+----------+-------------------+-------------------+
    | salt                | zeros                                   | checksum          |
    | u64                 | 16 bytes                                | u64 over 0..56    |
    +---------------------+-----------------------------------------+-------------------+
    32                    40                                        56                  64
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from topics.storage.disk import Deferred

FRAME_MAGIC = 0x314D5246  # "FRM1"
FRAME_HEADER_BYTES = 32
FRAME_BODY_BYTES_MAX = 1 << 30

FILE_MAGIC = 0x314C4157  # "WAL1"
FILE_HEADER_BYTES = 64
FORMAT_VERSION = 1

frame_header = Struct("<IIQQQ")
_frame_start = Struct("<IIQ").pack
_frame_rest = Struct("<QQ").pack
_file_header = Struct("<IIIIQQQ16x")
_file_checksum = Struct("<Q")


COPIED_BYTES_MAX = 256 * 1024


def frame_magic(salt: int) -> int:
    """The first bytes of each frame in a file with this salt."""
    return FRAME_MAGIC ^ (salt & 0xFFFFFFFF)


def encode(body: bytes, position: int, synced_to: int, salt: int) -> tuple[bytes, bytes]:
    """A frame in two pieces; a large body is one of them and is not copied."""
    rest = _frame_rest(position, synced_to)
    magic = FRAME_MAGIC ^ (salt & 0xFFFFFFFF)
    if len(body) > COPIED_BYTES_MAX:
        digest = xxh3_64(rest, salt ^ position)
        digest.update(body)
        return _frame_start(magic, len(body), digest.intdigest()) + rest, body
    rest += body
    return _frame_start(magic, len(body), xxh3_64_intdigest(rest, salt ^ position)), rest


class DeferredFrame(NamedTuple):
    """A frame whose body is made, and whose checksum is computed, when it is written."""

    body: Deferred
    position: int
    synced_to: int
    salt: int

    def buffers(self) -> list[bytes]:
        """The frame in pieces. Making and checksumming a large body releases the interpreter lock."""
        bodies = self.body.buffers()
        rest = _frame_rest(self.position, self.synced_to)
        digest = xxh3_64(rest, self.salt ^ self.position)
        for body in bodies:
            digest.update(body)
        return [_frame_start(frame_magic(self.salt), len(self.body), digest.intdigest()) + rest, *bodies]


class FrameHead(NamedTuple):
    """The header of a verified frame."""

    position: int
    synced_to: int
    body_len: int


def verify(buffer: bytes, offset: int, position: int, salt: int) -> FrameHead | None:
    """The frame at `offset` if it is complete, undamaged, and belongs at `position`."""
    if offset + FRAME_HEADER_BYTES > len(buffer):
        return None
    magic, body_len, checksum, own_position, synced_to = frame_header.unpack_from(buffer, offset)
    end = offset + FRAME_HEADER_BYTES + body_len
    if magic != frame_magic(salt) or own_position != position or end > len(buffer):
        return None
    if xxh3_64_intdigest(memoryview(buffer)[offset + 16 : end], salt ^ position) != checksum:
        return None
    return FrameHead(position, synced_to, body_len)


class FileHeader(NamedTuple):
    """Which log file it is. Positions count frames only: a frame at `offset` has `base_position + offset - 64`."""

    shard: int
    file_number: int
    base_position: int
    salt: int


def encode_file_header(header: FileHeader) -> bytes:
    start = _file_header.pack(
        FILE_MAGIC, FORMAT_VERSION, header.shard, 0, header.file_number, header.base_position, header.salt
    )
    return start + _file_checksum.pack(xxh3_64_intdigest(start))


def decode_file_header(data: bytes) -> FileHeader | None:
    """The header if it is complete and of this version, else None."""
    if len(data) < FILE_HEADER_BYTES:
        return None
    start = data[: _file_header.size]
    (checksum,) = _file_checksum.unpack_from(data, _file_header.size)
    if xxh3_64_intdigest(start) != checksum:
        return None
    magic, version, shard, _, file_number, base_position, salt = _file_header.unpack(start)
    if magic != FILE_MAGIC or version != FORMAT_VERSION:
        return None
    return FileHeader(shard, file_number, base_position, salt)
