"""The files of the log: their names, how a new one is had, and what becomes of an old one.

    wal/00000000000000000007.log     frames, numbered without gaps; the last one is being written
    wal/spare-00000000000000000003   allocated and not in use: an old file to be recycled, or the reserve

A file goes round: spare → log (renamed, new header and salt) → sealed → trimmed → spare again, or unlinked. One spare
stays back as the reserve: only urgent frames (those that give space back) may take it when the disk is full.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from topics.model.errors import StorageError, StorageFull
from topics.storage.disk import Disk
from topics.storage.frame import FILE_HEADER_BYTES, FileHeader, decode_file_header, encode_file_header

logger = logging.getLogger("topics.storage")

FILE_BYTES = 64 << 20
SPARES_MAX = 2
LOG_SUFFIX = ".log"
SPARE_PREFIX = "spare-"

_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


def log_name(number: int) -> str:
    return f"{number:020d}{LOG_SUFFIX}"


def log_number(name: str) -> int | None:
    """The number in the name of a log file; None for any other name."""
    stem = name.removesuffix(LOG_SUFFIX)
    return int(stem) if stem != name and len(stem) == 20 and stem.isdecimal() else None


class LogFile:
    """One file of the log. `end_position` is None while frames may still be added, `fd` is -1 once closed."""

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
        # Both are settled by the first write and the first sync of a new file.
        self.header_pending = fd >= 0
        self.entry_durable = fd < 0

    @property
    def capacity_position(self) -> int:
        """No frame may end beyond this."""
        return self.base_position + self.capacity_bytes - FILE_HEADER_BYTES

    def offset_of(self, position: int) -> int:
        return FILE_HEADER_BYTES + position - self.base_position

    def header(self) -> bytes:
        return encode_file_header(FileHeader(self.shard, self.number, self.base_position, self.salt))


class LogTail(NamedTuple):
    """Where the log goes on after recovery, and the files it has so far, oldest first."""

    next_number: int
    position: int
    files: list[LogFile]


class LogFiles:
    """The set of files of one log. The owner thread calls everything but `prepare` and `unlink_doomed`."""

    def __init__(
        self, disk: Disk, path: str, tail: LogTail, shard: int, file_bytes: int, random_u64: Callable[[], int]
    ) -> None:
        self._disk = disk
        self._shard = shard
        self._random_u64 = random_u64
        self._next_number = tail.next_number
        self._spare_numbers = count(1)
        # Both threads add to it, the owner alone takes from it.
        self._spares: list[str] = []
        # Unlinking a large file takes many milliseconds, so the commit thread does it.
        self._doomed: list[str] = []
        self.path = path
        self.file_bytes = file_bytes
        self.sealed: list[LogFile] = list(tail.files)
        self._find_spares()
        try:
            self._restock(1)
        except OSError as error:
            logger.warning("no room for the reserve of the log in %s: %s", path, error)

    @property
    def spares(self) -> int:
        return len(self._spares)

    def take(self, base_position: int, frame_bytes: int, urgent: bool) -> LogFile:
        """A file to go on in, with room for a frame of `frame_bytes`. Its header is not written yet."""
        needed = FILE_HEADER_BYTES + frame_bytes
        path = os.path.join(self.path, log_name(self._next_number))
        try:
            fd = self._create(path, needed) if needed > self.file_bytes else self._from_spare(path, urgent)
        except OSError as error:
            raise self._refusal(error) from error
        header = FileHeader(self._shard, self._next_number, base_position, self._random_u64())
        self._next_number += 1
        return LogFile(path, header, max(needed, self.file_bytes), fd=fd)

    def replenish(self) -> None:
        """See to it that there is a reserve; refuses as `take` does."""
        try:
            self._restock(1)
        except OSError as error:
            raise self._refusal(error) from error

    def _refusal(self, error: OSError) -> StorageError | StorageFull:
        if error.errno in _FULL:
            return StorageFull(f"no room for another log file in {self.path}", path=self.path)
        return StorageError(f"cannot make a log file in {self.path}: {error}", path=self.path)

    def give_back(self, file: LogFile, recyclable: bool = True) -> None:
        """Undo `take` for the newest file, into which nothing was ever written."""
        assert file.header_pending and file.number == self._next_number - 1
        self._next_number = file.number
        self._disk.close(file.fd)
        file.fd = -1
        try:
            if not (recyclable and self._recycle(file)):
                self._disk.unlink(file.path)
        except OSError as error:
            # A file without a header counts as empty, and the next one of this number takes its place.
            logger.warning("cannot put %s away: %s", file.path, error)

    def seal(self, file: LogFile, end_position: int) -> None:
        """No frame is added to `file` any more; it ends at `end_position`."""
        file.end_position = end_position
        self.sealed.append(file)

    def unseal(self) -> LogFile:
        """Undo the last `seal`."""
        file = self.sealed.pop()
        file.end_position = None
        return file

    def trim(self, position: int) -> None:
        """Recycle or doom the files that end at or below `position`, up to the first that the committer holds open."""
        while self.sealed and _end(self.sealed[0]) <= position and self.sealed[0].fd < 0:
            file = self.sealed.pop(0)
            try:
                recycled = self._recycle(file)
            except OSError as error:
                logger.warning("cannot recycle %s: %s", file.path, error)
                recycled = False
            if not recycled:
                self._doomed.append(file.path)

    def prepare(self) -> None:
        """Make the spare that the next rotation takes, so that the owner need not wait for the file system."""
        try:
            self._restock(2)
        except OSError as error:
            # The rotation tries again, and it is the one to refuse frames.
            logger.warning("cannot make a spare log file in %s: %s", self.path, error)

    def unlink_doomed(self) -> bool:
        """Give back the space of one trimmed file; False if there is none. May block for long."""
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

    def _find_spares(self) -> None:
        """Take over the spares of earlier runs, as far as they are wanted and of the right size."""
        highest = 0
        for name in self._disk.listdir(self.path):
            digits = name.removeprefix(SPARE_PREFIX)
            if digits == name or not digits.isdecimal():
                continue
            path = os.path.join(self.path, name)
            highest = max(highest, int(digits))
            if len(self._spares) < SPARES_MAX and self._is_fit(path):
                self._spares.append(path)
            else:
                self._doomed.append(path)

        self._spare_numbers = count(highest + 1)

    def _is_fit(self, path: str) -> bool:
        """Whether a spare has the right size, and no header that could pass for one of a file yet to come.

        After a power failure that undid its renaming, a spare may hold the frames of the log file it had become. Under
        that number again, and before its new header is written, they would verify.
        """
        fd = self._disk.open(path, os.O_RDONLY)
        try:
            header = decode_file_header(self._disk.pread(fd, FILE_HEADER_BYTES, 0))
            return self._disk.size(fd) == self.file_bytes and (header is None or header.file_number < self._next_number)
        finally:
            self._disk.close(fd)

    def _from_spare(self, path: str, urgent: bool) -> int:
        # One to take and one to keep; an urgent frame may take the last one.
        try:
            self._restock(2)
        except OSError:
            if not (urgent and self._spares):
                raise
        # From the front: the commit thread may be adding at the end.
        self._disk.rename(self._spares[0], path)
        del self._spares[0]
        return self._disk.open(path, os.O_RDWR)

    def _restock(self, wanted: int) -> None:
        while len(self._spares) < wanted:
            path = self._new_spare_path()
            self._disk.close(self._create(path, self.file_bytes))
            self._spares.append(path)

    def _recycle(self, file: LogFile) -> bool:
        """Make a spare of a closed file, if one is wanted and it has the right size."""
        if len(self._spares) >= SPARES_MAX or file.capacity_bytes != self.file_bytes:
            return False
        spare = self._new_spare_path()
        self._disk.rename(file.path, spare)
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


def _end(file: LogFile) -> int:
    assert file.end_position is not None
    return file.end_position
