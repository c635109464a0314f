"""A bounded set of files that stay open for reading, shared by threads.

A file that is evicted or forgotten while it is being read is closed by its last reader.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from threading import Lock

from topics.storage.disk import Disk


class _Open:
    __slots__ = ("fd", "is_gone", "users")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.users = 0
        self.is_gone = False


class OpenFiles:
    """File descriptors by path, the least recently used closed first."""

    def __init__(self, disk: Disk, open_max: int) -> None:
        self._disk = disk
        self._open_max = open_max
        self._lock = Lock()
        self._by_path: OrderedDict[str, _Open] = OrderedDict()
        self._by_fd: dict[int, _Open] = {}

    def borrow(self, path: str, *, may_open: bool) -> int | None:
        """A descriptor that stays open until it is released; None if the file is not open and may not be opened."""
        with self._lock:
            entry = self._by_path.get(path)
            if entry is not None:
                self._by_path.move_to_end(path)
                entry.users += 1
                return entry.fd
        if not may_open:
            return None
        fd = self._disk.open(path, os.O_RDONLY)
        with self._lock:
            entry = self._by_path.get(path)
            surplus = fd if entry is not None else -1
            if entry is None:
                entry = self._by_path[path] = self._by_fd[fd] = _Open(fd)
            entry.users += 1
            closing = self._shrink()
        for unused in (*closing, surplus):
            if unused >= 0:
                self._disk.close(unused)
        return entry.fd

    def give_back(self, fd: int) -> None:
        with self._lock:
            entry = self._by_fd[fd]
            entry.users -= 1
            is_last = entry.is_gone and entry.users == 0
            if is_last:
                del self._by_fd[fd]
        if is_last:
            self._disk.close(fd)

    def forget(self, path: str) -> None:
        """The file is removed or moved: close it as soon as it is no longer read."""
        with self._lock:
            closing = self._drop(path)
        for fd in closing:
            self._disk.close(fd)

    def close(self) -> None:
        for path in list(self._by_path):
            self.forget(path)

    def _shrink(self) -> list[int]:
        closing: list[int] = []
        while len(self._by_path) > self._open_max:
            closing += self._drop(next(iter(self._by_path)))
        return closing

    def _drop(self, path: str) -> list[int]:
        """Remove a path; returns the descriptor that the caller must close now."""
        entry = self._by_path.pop(path, None)
        if entry is None:
            return []
        if entry.users:
            entry.is_gone = True
            return []
        del self._by_fd[entry.fd]
        return [entry.fd]
