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


def read_frames(disk: Disk, span: LogSpan, bytes_max: int) -> bytes:
    """The frames at the start of a span: those that fit, and always the first one."""
    wanted_bytes = span.to_position - span.from_position
    fd = disk.open(span.path, os.O_RDONLY)
    try:
        data = _read(disk, fd, span, min(wanted_bytes, max(bytes_max, FRAME_HEADER_BYTES)))
        if len(data) == wanted_bytes:
            return data
        end = _frames_end(data, span)
        return data[:end] if end <= len(data) else _read(disk, fd, span, end)
    finally:
        disk.close(fd)


def _read(disk: Disk, fd: int, span: LogSpan, length: int) -> bytes:
    data = disk.pread(fd, length, span.offset_of(span.from_position))
    if len(data) != length:
        raise OSError(errno.EIO, f"{span.path} ends before position {span.to_position}")
    return data


def _frames_end(data: bytes, span: LogSpan) -> int:
    """Where the last whole frame ends, or the first one, of which there may be more than `data` has."""
    end = 0
    while True:
        frame_bytes = whole_frame_bytes(data[end : end + FRAME_HEADER_BYTES], span.from_position + end, span.salt)
        if end and (frame_bytes is None or end + frame_bytes > len(data)):
            return end
        if frame_bytes is None:
            raise OSError(errno.EIO, f"{span.path} has no frame at position {span.from_position}")
        end += frame_bytes
