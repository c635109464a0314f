"""The files of the log: their names, how a new one is made, and what happens to an old one.

    wal/00000000000000000007.log     frames, numbered without gaps; the last one is being written
    wal/spare-00000000000000000003   allocated but not in use: an old file to be recycled, or the reserve

The life of a file: spare → log (renamed, new header and salt) → sealed → trimmed → spare again, or unlinked. One spare
is kept as the reserve: on a full disk, only urgent frames (those that free space) may use it.

A new file is as large as the log that is kept, within bounds, so that files grow with use:

    256 KiB | 256 KiB | 512 KiB | 1 MiB | 2 MiB | … | 64 MiB | 64 MiB | …
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from topics.model.errors import StorageError, StorageFull
from topics.storage.disk import FULL, Disk
from topics.storage.wal.frame import FILE_HEADER_BYTES, FileHeader, decode_file_header, encode_file_header

logger = logging.getLogger("topics.storage")

FILE_BYTES = 64 << 20
FIRST_FILE_BYTES = 256 << 10
# The reserve may be smaller than the next file by this factor.
RESERVE_SHARE = 8
# A spare of an earlier run that is larger than this many times the wanted size is unlinked.
SURPLUS_SHARE = 4
SPARES_MAX = 2
LOG_SUFFIX = ".log"
SPARE_PREFIX = "spare-"


def log_name(number: int) -> str:
    return f"{number:020d}{LOG_SUFFIX}"


def log_number(name: str) -> int | None:
    """The number in the name of a log file; None for any other name."""
    stem = name.removesuffix(LOG_SUFFIX)
    return int(stem) if stem != name and len(stem) == 20 and stem.isdecimal() else None


class LogFile:
    """One file of the log. `end_position` is None while frames may be added, `fd` is -1 once it is closed."""

    __slots__ = (
        "base_position",
        "capacity_bytes",
        "end_position",
        "entry_durable",
        "fd",
        "header_pending",
        "number",
        "path",
        "salt",
        "shard",
    )

    def __init__(
        self, path: str, header: FileHeader, capacity_bytes: int, *, fd: int = -1, end_position: int | None = None
    ) -> None:
        self.path = path
        self.shard = header.shard
        self.number = header.file_number
        self.base_position = header.base_position
        self.salt = header.salt
        self.capacity_bytes = capacity_bytes
        self.fd = fd
        self.end_position = end_position
        # Both are set by the first write and the first sync of a new file.
        self.header_pending = fd >= 0
        self.entry_durable = fd < 0

    @property
    def capacity_position(self) -> int:
        """No frame may end after this position."""
        return self.base_position + self.capacity_bytes - FILE_HEADER_BYTES

    def offset_of(self, position: int) -> int:
        return FILE_HEADER_BYTES + position - self.base_position

    def header(self) -> bytes:
        return encode_file_header(FileHeader(self.shard, self.number, self.base_position, self.salt))


class Spare(NamedTuple):
    """An allocated file that is not in use."""

    path: str
    size_bytes: int


class LogTail(NamedTuple):
    """Where the log continues after recovery, and its files so far, oldest first."""

    next_number: int
    position: int
    files: list[LogFile]


class LogFiles:
    """The files of one log. The owner thread calls everything except `prepare` and `unlink_doomed`."""

    def __init__(
        self, disk: Disk, path: str, tail: LogTail, shard: int, file_bytes: int, random_u64: Callable[[], int]
    ) -> None:
        self._disk = disk
        self._shard = shard
        self._random_u64 = random_u64
        self._next_number = tail.next_number
        # Both threads append to it; only the owner removes from it.
        self._spares: list[Spare] = []
        # Unlinking a large file takes many milliseconds, so the commit thread does it.
        self._doomed: list[str] = []
        self.path = path
        self.file_bytes = file_bytes
        # The disk was full when a file was last created.
        self.full = False
        self.sealed: list[LogFile] = list(tail.files)
        self._find_spares(self._size_for(tail.position))
        try:
            self._restock_reserve(tail.position, 1)
        except OSError as error:
            logger.warning("no room for the reserve of the log in %s: %s", path, error)

    @property
    def spares(self) -> int:
        return len(self._spares)

    def take(self, base_position: int, frame_bytes: int, urgent: bool) -> LogFile:
        """A file to continue in, with room for a frame of `frame_bytes`. Its header is not written yet."""
        needed = FILE_HEADER_BYTES + frame_bytes
        path = os.path.join(self.path, log_name(self._next_number))
        try:
            if needed > self.file_bytes:
                fd, size_bytes = self._create(path, needed), needed
            else:
                fd, size_bytes = self._from_spare(path, base_position, needed, urgent)
        except OSError as error:
            raise self._refusal(error) from error
        header = FileHeader(self._shard, self._next_number, base_position, self._random_u64())
        self._next_number += 1
        return LogFile(path, header, size_bytes, fd=fd)

    def replenish(self, position: int) -> None:
        """Make sure that there is a reserve for a log that continues at `position`; raises like `take`."""
        try:
            self._restock_reserve(position, 1)
        except OSError as error:
            raise self._refusal(error) from error

    def _size_for(self, base_position: int, needed: int = 0) -> int:
        """The size of a file that begins at this position: that of the log before it, within bounds."""
        kept = base_position - self.sealed[0].base_position if self.sealed else 0
        return min(self.file_bytes, max(FIRST_FILE_BYTES, _power_of_two(kept), _power_of_two(needed)))

    def _refusal(self, error: OSError) -> StorageError | StorageFull:
        if error.errno in FULL:
            return StorageFull("the disk has no room for another log file; free some space and try again")
        return StorageError(f"cannot create a log file: {error.strerror or error}")

    def give_back(self, file: LogFile, recyclable: bool = True) -> None:
        """Undo `take` for the newest file, to which nothing was written."""
        assert file.header_pending and file.number == self._next_number - 1
        self._next_number = file.number
        self._disk.close(file.fd)
        try:
            if not (recyclable and self._recycle(file)):
                self._disk.unlink(file.path)
        except OSError as error:
            # A file without a header counts as empty, and the next file with this number replaces it.
            logger.warning("cannot remove %s: %s", file.path, error)

    def seal(self, file: LogFile, end_position: int) -> None:
        """No more frames are added to `file`; it ends at `end_position`."""
        file.end_position = end_position
        self.sealed.append(file)

    def unseal(self) -> LogFile:
        """Undo the last `seal`, of a file that is sealed again or given back."""
        return self.sealed.pop()

    def trim(self, position: int) -> None:
        """Recycle or doom files that end at or below `position`, up to the first that the syncer holds open."""
        while self.sealed and _end(self.sealed[0]) <= position and self.sealed[0].fd < 0:
            file = self.sealed.pop(0)
            try:
                recycled = self._recycle(file)
            except OSError as error:
                logger.warning("cannot recycle %s: %s", file.path, error)
                recycled = False
            if not recycled:
                self._doomed.append(file.path)

    def prepare(self, base_position: int) -> None:
        """Create the spare for the next rotation, so that the owner need not wait for the file system."""
        try:
            self._restock(base_position)
        except OSError as error:
            # The rotation tries again; it then refuses frames if necessary.
            logger.warning("cannot create a spare log file in %s: %s", self.path, error)

    def unlink_doomed(self) -> bool:
        """Unlink one trimmed file; False if there is none. May block for long."""
        if not self._doomed:
            return False
        path = self._doomed.pop()
        try:
            self._disk.unlink(path)
        except OSError as error:
            # It is below every position that recovery reads, so the next start removes it.
            logger.warning("cannot unlink %s: %s", path, error)
        return True

    # --- spares ---

    def _find_spares(self, wanted_bytes: int) -> None:
        """Take over the spares of earlier runs if they are wanted and their size fits."""
        highest = 0
        for name in self._disk.listdir(self.path):
            digits = name.removeprefix(SPARE_PREFIX)
            if digits == name or not digits.isdecimal():
                continue
            path = os.path.join(self.path, name)
            highest = max(highest, int(digits))
            size_bytes = self._usable_bytes(path)
            fits = self._size_for(0) <= size_bytes <= SURPLUS_SHARE * wanted_bytes
            if fits and len(self._spares) < SPARES_MAX:
                self._spares.append(Spare(path, size_bytes))
            else:
                self._doomed.append(path)

        self._spare_numbers = count(highest + 1)

    def _usable_bytes(self, path: str) -> int:
        """The size of a spare; 0 if its header could pass for that of a future file.

        After a power failure that undid its renaming, a spare may hold the frames of the log file that it had become.
        With that number again, and before its new header is written, these frames would verify.
        """
        fd = self._disk.open(path, os.O_RDONLY)
        try:
            header = decode_file_header(self._disk.pread(fd, FILE_HEADER_BYTES, 0))
            return self._disk.size(fd) if header is None or header.file_number < self._next_number else 0
        finally:
            self._disk.close(fd)

    def _from_spare(self, path: str, base_position: int, needed: int, urgent: bool) -> tuple[int, int]:
        """A descriptor and the size of its file."""
        # One to take and one to keep; an urgent frame may take the last one if it fits.
        try:
            self._restock(base_position, needed)
        except OSError:
            if not (urgent and any(spare.size_bytes >= needed for spare in self._spares)):
                raise
        # Never more than this count: the commit thread may be appending.
        index = max(range(len(self._spares)), key=lambda index: self._spares[index].size_bytes)
        spare = self._spares[index]
        self._disk.rename(spare.path, path)
        del self._spares[index]
        while len(self._spares) > SPARES_MAX:
            smallest = min(self._spares, key=lambda spare: spare.size_bytes)
            self._spares.remove(smallest)
            self._doomed.append(smallest.path)
        return self._disk.open(path, os.O_RDWR), spare.size_bytes

    def _restock(self, base_position: int, needed: int = 0) -> None:
        """Make sure that there is a spare for the file that begins at this position, and a reserve. Only adds."""
        wanted_bytes = self._size_for(base_position, needed)
        if not any(spare.size_bytes >= wanted_bytes for spare in self._spares):
            self._make_spare(wanted_bytes, max(needed, self._size_for(0)))
        self._restock_reserve(base_position, 2)

    def _restock_reserve(self, position: int, count: int) -> None:
        """Make sure that there are this many spares that are large enough for the reserve."""
        smallest_bytes = self._size_for(0)
        reserve_bytes = max(self._size_for(position) // RESERVE_SHARE, smallest_bytes)
        while sum(spare.size_bytes >= reserve_bytes for spare in self._spares) < count:
            try:
                self._make_spare(reserve_bytes)
            except OSError:
                # A disk that is nearly full: a small reserve is better than refusing writes.
                if len(self._spares) < count:
                    self._make_spare(smallest_bytes)
                return

    def _make_spare(self, size_bytes: int, at_least_bytes: int | None = None) -> None:
        """Allocate a spare; a smaller one if the disk has no room and that is enough."""
        while True:
            path = self._new_spare_path()
            try:
                self._disk.close(self._create(path, size_bytes))
            except OSError as error:
                self.full = error.errno in FULL
                if not self.full or at_least_bytes is None or size_bytes // 2 < at_least_bytes:
                    raise
                size_bytes //= 2
                continue
            self.full = False
            self._spares.append(Spare(path, size_bytes))
            return

    def _recycle(self, file: LogFile) -> bool:
        """Turn a closed file into a spare if one is wanted and its size fits."""
        wanted_bytes = self._size_for(_end(self.sealed[-1]) if self.sealed else 0)
        if len(self._spares) >= SPARES_MAX or not wanted_bytes <= file.capacity_bytes <= self.file_bytes:
            return False
        spare = Spare(self._new_spare_path(), file.capacity_bytes)
        self._disk.rename(file.path, spare.path)
        self._spares.append(spare)
        return True

    def _new_spare_path(self) -> str:
        return os.path.join(self.path, f"{SPARE_PREFIX}{next(self._spare_numbers):020d}")

    def _create(self, path: str, length: int) -> int:
        fd = self._disk.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            self._disk.allocate(fd, length)
        except OSError:
            self._disk.close(fd)
            self._disk.unlink(path)
            raise
        return fd


def _power_of_two(size_bytes: int) -> int:
    """The smallest one of at least this size."""
    return 1 << max(0, size_bytes - 1).bit_length()


def _end(file: LogFile) -> int:
    assert file.end_position is not None
    return file.end_position
