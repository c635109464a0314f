"""The position up to which the log was synced, stored beside it: bytes missing below it are damage, not the log's end.

    wal/synced   | slot | zeros to 512 | slot | zeros to 512 |       written alternately, so that one is always intact
    slot         | magic u32 | zero u32 | count u64 | position u64 | checksum u64 |

A mark is one small write by the commit thread after each sync of the log, so it survives a killed process. The file is
synced about once a second. After a power failure a mark may be too old, but never too new.
"""

from __future__ import annotations

import logging
import os
from struct import Struct

from xxhash import xxh3_64_intdigest

from topics.storage.disk import Disk, write_all

logger = logging.getLogger("topics.storage")

NAME = "synced"
SYNC_EVERY_S = 1.0
MAGIC = 0x314B524D  # "MRK1"
SLOT_BYTES = 512
SLOTS = 2

_slot = Struct("<IIQQ")
_checksum = Struct("<Q")


class SyncMark:
    """Written by the commit thread while it runs. A failed mark only costs certainty after a crash."""

    def __init__(self, disk: Disk, wal_path: str) -> None:
        self._disk = disk
        self._path = os.path.join(wal_path, NAME)
        is_new = not disk.exists(self._path)
        self._fd = disk.open(self._path, os.O_RDWR | os.O_CREAT)
        self._count = max((count for count, _ in _slots(disk, self._fd)), default=0)
        self._synced_s = float("-inf")
        self._noted = False
        if is_new:
            disk.allocate(self._fd, SLOTS * SLOT_BYTES)
            disk.fsync_dir(wal_path)

    def note(self, position: int) -> None:
        """The log is durable up to `position`."""
        if self._fd < 0:
            return
        self._count += 1
        start = _slot.pack(MAGIC, 0, self._count, position)
        data = start + _checksum.pack(xxh3_64_intdigest(start))
        try:
            write_all(self._disk, self._fd, [data], self._count % SLOTS * SLOT_BYTES)
        except OSError as error:
            self._give_up(error)
        else:
            self._noted = True

    def due_in_s(self, now_s: float) -> float | None:
        """How long until `sync` is due; None if there is nothing to sync."""
        return max(0.0, self._synced_s + SYNC_EVERY_S - now_s) if self._noted else None

    def sync(self, now_s: float) -> bool:
        """Make the last mark durable if it is due; returns whether it was."""
        if self.due_in_s(now_s) != 0.0:
            return False
        self._noted, self._synced_s = False, now_s
        try:
            self._disk.fdatasync(self._fd)
        except OSError as error:
            self._give_up(error)
        return True

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1

    def _give_up(self, error: OSError) -> None:
        logger.warning("%s cannot be written any more; a truncated log may go unnoticed: %s", self._path, error)
        self._noted = False
        self.close()


def noted_position(disk: Disk, wal_path: str) -> int:
    """The highest known synced position; 0 without a mark, as in a directory of version 0.1."""
    path = os.path.join(wal_path, NAME)
    if not disk.exists(path):
        return 0
    fd = disk.open(path, os.O_RDONLY)
    try:
        return max((position for _, position in _slots(disk, fd)), default=0)
    finally:
        disk.close(fd)


def _slots(disk: Disk, fd: int) -> list[tuple[int, int]]:
    """Count and position of every valid slot."""
    found: list[tuple[int, int]] = []
    for number in range(SLOTS):
        data = disk.pread(fd, _slot.size + _checksum.size, number * SLOT_BYTES)
        if len(data) == _slot.size + _checksum.size:
            start = data[: _slot.size]
            magic, _, count, position = _slot.unpack(start)
            if magic == MAGIC and _checksum.unpack_from(data, _slot.size)[0] == xxh3_64_intdigest(start):
                found.append((count, position))
    return found
