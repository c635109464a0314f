"""One process per data directory: a lock the kernel gives back when its holder dies, however it dies."""

from __future__ import annotations

import os

from topics.model.errors import DataDirLocked
from topics.storage.disk import Disk, write_all


class DirectoryLock:
    """The file `<dir>/lock`; it holds the process id of its holder, for the message to the one refused."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._fd = -1

    def acquire(self) -> None:
        fd = self._disk.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            if not self._disk.try_lock(fd):
                holder = self._disk.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
                directory = os.path.dirname(self._path)
                raise DataDirLocked(f"{directory} is in use by process {holder}", directory=directory, pid=holder)
            self._disk.truncate(fd, 0)
            write_all(self._disk, fd, [f"{os.getpid()}\n".encode()], 0)
        except BaseException:
            self._disk.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
