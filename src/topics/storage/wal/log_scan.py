"""Reading log files without judging them: which exist, consecutive frames, good frames after a bad one."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from io import BytesIO
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from topics.storage.disk import Disk
from topics.storage.steps import Steps
from topics.storage.wal.frame import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FileHeader,
    FrameHead,
    decode_file_header,
    frame_header,
    frame_magic,
    verify,
)
from topics.storage.wal.log_file import log_number

WINDOW_BYTES = 256 << 10
# A frame of at least this size is read in pieces, each of which takes a fraction of a millisecond.
PIECE_BYTES = 1 << 20
PAGE_BYTES = 4096


class SplitBody(NamedTuple):
    """The body of a large frame in two parts, so that its large part need not be copied out of it."""

    head: bytes
    rest: bytes


# Where to split a body, by its first bytes and its length; 0: it stays in one part.
Split = Callable[[bytes, int], int]


class HeaderState(Enum):
    """What the first bytes of a file with a log name are."""

    GOOD = "good"
    BLANK = "blank"  # new or recycled, but no header was written yet, or not all of it
    DAMAGED = "damaged"


@dataclass(slots=True)
class FoundFile:
    """A log file on disk. `header` is made up unless `state` is GOOD."""

    path: str
    number: int
    size: int
    state: HeaderState
    header: FileHeader

    @property
    def base_position(self) -> int:
        return self.header.base_position

    def offset_of(self, position: int) -> int:
        return FILE_HEADER_BYTES + position - self.header.base_position

    def position_of(self, offset: int) -> int:
        return self.header.base_position + offset - FILE_HEADER_BYTES


def find_files(disk: Disk, wal_path: str, shard: int, same_boot: bool) -> list[FoundFile]:
    """Every file with a log name, by number."""
    found: list[FoundFile] = []
    for name in disk.listdir(wal_path):
        number = log_number(name)
        if number is None:
            continue
        path = os.path.join(wal_path, name)
        fd = disk.open(path, os.O_RDONLY)
        try:
            size = disk.size(fd)
            page = disk.pread(fd, PAGE_BYTES, 0)
        finally:
            disk.close(fd)
        header = decode_file_header(page)
        state = _state_of(header, page, number, shard, same_boot)
        if header is None or state is not HeaderState.GOOD:
            header = FileHeader(shard, number, 0, 0)
        found.append(FoundFile(path, number, size, state, header))
    return found


def _state_of(header: FileHeader | None, page: bytes, number: int, shard: int, same_boot: bool) -> HeaderState:
    if header is not None:
        if header.file_number != number:
            # Recycled, but its new header did not reach the disk.
            return HeaderState.BLANK
        return HeaderState.GOOD if header.shard == shard else HeaderState.DAMAGED
    if len(page) < FILE_HEADER_BYTES:
        return HeaderState.BLANK
    if not page[FILE_HEADER_BYTES:].strip(b"\0"):
        # Header and first frames are one write, which has ended within the header, if it was begun.
        return HeaderState.BLANK
    # So a frame without a header implies a power failure.
    return HeaderState.DAMAGED if same_boot or page[:FILE_HEADER_BYTES].strip(b"\0") else HeaderState.BLANK


def read_window(data: bytes, position: int, salt: int) -> tuple[list[tuple[int, bytes]], int]:
    """The consecutive frames in `data` from `position` on, as (end_position, body), and where they end.

    This is the hot loop of recovery: about a microsecond a frame.
    """
    frames: list[tuple[int, bytes]] = []
    add = frames.append
    unpack = frame_header.unpack_from
    digest = xxh3_64_intdigest
    magic_wanted = frame_magic(salt)
    length = len(data)
    header_at_max = length - FRAME_HEADER_BYTES
    at = 0
    while at <= header_at_max:
        magic, body_len, checksum, own_position, _ = unpack(data, at)
        end = at + 32 + body_len
        if magic != magic_wanted or own_position != position or end > length:
            break
        covered = data[at + 16 : end]
        if digest(covered, salt ^ position) != checksum:
            break
        position += end - at
        at = end
        add((position, covered[16:]))
    return frames, at


def whole_frame_bytes(data: bytes, position: int, salt: int) -> int | None:
    """The length of the frame at the start of `data` according to its header, if it claims to be at `position`."""
    if len(data) < FRAME_HEADER_BYTES:
        return None
    magic, body_len, _, own_position, _ = frame_header.unpack_from(data)
    return FRAME_HEADER_BYTES + body_len if magic == frame_magic(salt) and own_position == position else None


def read_large(
    disk: Disk, fd: int, file: FoundFile, offset: int, split: Split | None
) -> Steps[bytes | SplitBody | None]:
    """The body of the frame at `offset`, None if it does not verify. Yields between pieces, and copies none twice."""
    position = file.position_of(offset)
    start = disk.pread(fd, FRAME_HEADER_BYTES, offset)
    _, body_len, checksum, _, _ = frame_header.unpack(start)
    digest = xxh3_64(start[16:], seed=file.header.salt ^ position)
    done, end = 0, body_len
    parts: list[bytes] = []
    while done < body_len:
        # The content of a BytesIO is taken out of it without a copy.
        part = BytesIO()
        while done < end:
            piece = disk.pread(fd, min(PIECE_BYTES, end - done), offset + FRAME_HEADER_BYTES + done)
            if not piece:
                return None
            if not done and split is not None and 0 < (split_at := split(piece, body_len)) < body_len:
                end = split_at
                piece = piece[:end]
            digest.update(piece)
            part.write(piece)
            done += len(piece)
            yield
        parts.append(part.getvalue())
        end = body_len
    if digest.intdigest() != checksum:
        return None
    return parts[0] if len(parts) == 1 else SplitBody(*parts)


def good_frames(
    disk: Disk, fd: int, file: FoundFile, offset: int, limit: int
) -> Iterator[tuple[int, FrameHead] | None]:
    """Every complete, undamaged frame that starts at or after `offset`, as (offset, head); None after each stretch."""
    magic = frame_magic(file.header.salt).to_bytes(4, "little")
    while offset + FRAME_HEADER_BYTES <= limit:
        data = disk.pread(fd, min(WINDOW_BYTES, limit - offset), offset)
        resume = offset + max(1, len(data) - FRAME_HEADER_BYTES + 1)
        at = data.find(magic)
        while 0 <= at <= len(data) - FRAME_HEADER_BYTES:
            head = _frame_at(disk, fd, file, data, at, offset + at, limit)
            if head is None:
                at = data.find(magic, at + 1)
                continue
            yield offset + at, head
            at += FRAME_HEADER_BYTES + head.body_len
            resume = max(resume, offset + at)
            at = data.find(magic, at)
        offset = resume
        yield None


def _frame_at(disk: Disk, fd: int, file: FoundFile, data: bytes, at: int, offset: int, limit: int) -> FrameHead | None:
    position = file.position_of(offset)
    _, body_len, _, own_position, _ = frame_header.unpack_from(data, at)
    # A body that happens to contain the magic is recognised here, before its checksum is computed.
    if own_position != position or offset + FRAME_HEADER_BYTES + body_len > limit:
        return None
    if at + FRAME_HEADER_BYTES + body_len <= len(data):
        return verify(data, at, position, file.header.salt)
    return verify(disk.pread(fd, FRAME_HEADER_BYTES + body_len, offset), 0, position, file.header.salt)
