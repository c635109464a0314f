"""One process per data directory: locks that the kernel releases when their holder ends, for whatever reason.

the directory itself    cannot be removed while it is in use, so no second process gets in
<dir>/lock              keeps version 0.1 out, and names the holder to a process that is refused
"""

from __future__ import annotations

import errno
import logging
import os

from topics.model.errors import DataDirLocked, StorageError
from topics.storage.disk import Disk, write_all

logger = logging.getLogger("topics.storage")

LOCK = "lock"
# A network file system may refuse to lock a file that is open only for reading, as a directory always is.
_CANNOT_LOCK_A_DIRECTORY = frozenset({errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP})


class DirectoryLock:
    """Held from `acquire` to `release`; `verify` checks that it is still the lock of this directory."""

    def __init__(self, disk: Disk, directory: str) -> None:
        self._disk = disk
        self._directory = directory
        self._path = os.path.join(directory, LOCK)
        self._directory_fd = -1
        self._fd = -1

    def acquire(self) -> None:
        self._directory_fd = self._disk.open_dir(self._directory)
        try:
            self._lock_directory()
            self._take_file()
        except BaseException:
            self.release()
            raise

    def acquire_to_read(self) -> None:
        """Keep other processes out without creating or writing anything."""
        self._directory_fd = self._disk.open_dir(self._directory)
        try:
            self._lock_directory()
            if self._disk.exists(self._path):
                self._fd = self._disk.open(self._path, os.O_RDONLY)
                if not self._disk.try_lock(self._fd):
                    raise self._refusal()
        except BaseException:
            self.release()
            raise

    def release(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
        if self._directory_fd >= 0:
            self._disk.close_dir(self._directory_fd)
            self._directory_fd = -1

    def verify(self) -> None:
        """Raise StorageError if another process may be using the directory: it, or its lock file, was replaced.

        Clients get to read why a server is read-only, and have no business with its paths.
        """
        held = self._disk.identity(self._directory_fd)
        try:
            if self._disk.identity(self._directory) != held:
                raise StorageError("the data directory was replaced by another directory")
        except FileNotFoundError:
            raise StorageError("the data directory was removed or renamed") from None
        if not self._has_file():
            logger.warning("%s was removed; taking it again", self._path)
            self._disk.close(self._fd)
            self._fd = -1
            try:
                self._take_file()
            except DataDirLocked as refusal:
                holder = refusal.detail["pid"]
                raise StorageError(f"its lock was removed, and process {holder} uses the data directory now") from None

    def _has_file(self) -> bool:
        try:
            return self._disk.identity(self._path) == self._disk.identity(self._fd)
        except FileNotFoundError:
            return False

    def _lock_directory(self) -> None:
        try:
            locked = self._disk.try_lock(self._directory_fd)
        except OSError as error:
            if error.errno not in _CANNOT_LOCK_A_DIRECTORY:
                raise
            logger.warning("%s cannot be locked itself (%s): do not remove %s", self._directory, error, self._path)
            return
        if not locked:
            raise self._refusal()

    def _take_file(self) -> None:
        self._fd = self._disk.open(self._path, os.O_RDWR | os.O_CREAT)
        if not self._disk.try_lock(self._fd):
            raise self._refusal()
        self._disk.truncate(self._fd, 0)
        write_all(self._disk, self._fd, [f"{os.getpid()}\n".encode()], 0)

    def _refusal(self) -> DataDirLocked:
        holder = ""
        if self._disk.exists(self._path):
            fd = self._disk.open(self._path, os.O_RDONLY)
            holder = self._disk.pread(fd, 32, 0).decode("ascii", "replace").strip()
            self._disk.close(fd)
        holder = holder or "unknown"
        return DataDirLocked(
            f"{self._directory} is in use by process {holder}: "
            "stop it, use another directory, or talk to it with topics.Client",
            directory=self._directory,
            pid=holder,
        )
