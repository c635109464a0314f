"""What a piece has of the log files: whole frames of one file, and no more than a slow line can take in one request."""

from __future__ import annotations

import errno
import os

from topics.storage.disk import Disk
from topics.storage.wal.frame import FRAME_HEADER_BYTES
from topics.storage.wal.log_scan import whole_frame_bytes
from topics.storage.wal.wal import LogSpan

# What is due has more than `piece_bytes` if much was synced at once, or a start finds what was not shipped. A request
# is given up after some seconds and repeated with the same bytes, so one that is too long would never end.
PIECE_BYTES_TIMES_MAX = 4
# Frames are looked for between reads, which let other threads run.
WINDOW_BYTES = 256 * 1024


def read_frames(disk: Disk, span: LogSpan, bytes_max: int) -> bytes:
    """The frames at the start of a span: those that fit, and always the first one."""
    wanted_bytes, bytes_max = span.to_position - span.from_position, max(bytes_max, FRAME_HEADER_BYTES)
    fd = disk.open(span.path, os.O_RDONLY)
    try:
        if wanted_bytes <= bytes_max:
            return _read(disk, fd, span, 0, wanted_bytes)
        data, end, frame_bytes = bytearray(), 0, None
        while len(data) < bytes_max:
            data += _read(disk, fd, span, len(data), min(WINDOW_BYTES, bytes_max - len(data)))
            while (frame_bytes := _frame_bytes(data, end, span)) and end + frame_bytes <= len(data):
                end += frame_bytes
        if end:
            return bytes(data[:end])
        if not frame_bytes:
            raise OSError(errno.EIO, f"{span.path} has no frame at position {span.from_position}")
        return _read(disk, fd, span, 0, frame_bytes)
    finally:
        disk.close(fd)


def _read(disk: Disk, fd: int, span: LogSpan, start: int, length: int) -> bytes:
    data = disk.pread(fd, length, span.offset_of(span.from_position + start))
    if len(data) != length:
        raise OSError(errno.EIO, f"{span.path} ends before position {span.to_position}")
    return data


def _frame_bytes(data: bytearray, at: int, span: LogSpan) -> int | None:
    return whole_frame_bytes(bytes(data[at : at + FRAME_HEADER_BYTES]), span.from_position + at, span.salt)
