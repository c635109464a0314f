"""Access to the file system: every byte that storage reads or writes passes through a `Disk`.

Tests replace it, so that every fault can be injected at every call.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Sequence
from typing import Protocol

Buffer = bytes | bytearray | memoryview

IOV_MAX = 1024
COPY_CHUNK_BYTES = 1 << 20
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"

# Errors of a disk or a quota that is full.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
# Errors of a kernel or file system that does not support a call, as opposed to a call that failed.
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL})


class Deferred(Protocol):
    """Something large whose bytes are made by the thread that writes them; its length is known before."""

    def __len__(self) -> int: ...
    def buffers(self) -> list[bytes]: ...


class Disk:
    """The real disk: thin calls of the operating system, all of which release the GIL."""

    def __init__(self) -> None:
        self._held_directories: dict[str, int] = {}

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def close(self, fd: int) -> None:
        os.close(fd)

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        """Write at most `IOV_MAX` buffers. Like write(2), it may write fewer bytes than asked for."""
        if len(buffers) == 1:
            return os.pwrite(fd, buffers[0], offset)
        return os.pwritev(fd, buffers, offset)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        """Read `length` bytes, or up to the end of the file."""
        data = os.pread(fd, length, offset)
        if len(data) == length or not data:
            return data
        pieces = [data]
        got = len(data)
        while got < length:
            data = os.pread(fd, length - got, offset + got)
            if not data:
                break
            pieces.append(data)
            got += len(data)
        return b"".join(pieces)

    def pread_nowait(self, fd: int, length: int, offset: int) -> bytes | None:
        """Read from the page cache only; None if the read would block or the kernel cannot tell."""
        buffer = bytearray(length)
        try:
            got = os.preadv(fd, [buffer], offset, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno in _UNSUPPORTED:
                return None
            raise
        return bytes(buffer) if got == length else None

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def hold_dir(self, path: str) -> None:
        """Keep a directory open, so that syncing it does not need a new descriptor."""
        self.release_dir(path)
        self._held_directories[path] = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def release_dir(self, path: str) -> None:
        fd = self._held_directories.pop(path, None)
        if fd is not None:
            os.close(fd)

    def fsync_dir(self, path: str) -> None:
        """Make the entries of a directory durable: files that were created, renamed or unlinked in it."""
        held = self._held_directories.get(path)
        if held is not None:
            os.fsync(held)
            return
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length)

    def allocate(self, fd: int, length: int) -> None:
        """Reserve the first `length` bytes. A file system that cannot reserve is not an error; a full one is."""
        try:
            os.posix_fallocate(fd, 0, length)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def makedirs(self, path: str) -> None:
        os.makedirs(path, mode=0o700, exist_ok=True)

    def remove_dir(self, path: str) -> None:
        """Remove a directory that is empty."""
        os.rmdir(path)

    def remove_tree(self, path: str) -> None:
        """Remove a directory with everything in it."""
        shutil.rmtree(path)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def try_lock(self, fd: int) -> bool:
        """Take the exclusive lock of an open file. Returns whether it was free."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def open_dir(self, path: str) -> int:
        """A descriptor of a directory, for locking; `close_dir` closes it."""
        return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close_dir(self, fd: int) -> None:
        os.close(fd)

    def identity(self, file: str | int) -> tuple[int, int]:
        """The identity of a file; equal for two paths or descriptors of the same file."""
        found = os.stat(file)
        return found.st_dev, found.st_ino

    def copy_file(self, source: str, target: str) -> None:
        """Copy a file and sync the copy; the caller syncs its directory entry."""
        source_fd = self.open(source, os.O_RDONLY)
        try:
            target_fd = self.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                offset = 0
                while chunk := self.pread(source_fd, COPY_CHUNK_BYTES, offset):
                    offset += write_all(self, target_fd, [chunk], offset)
                self.fdatasync(target_fd)
            finally:
                self.close(target_fd)
        finally:
            self.close(source_fd)

    def boot_id(self) -> str:
        """Changes with every start of the machine, so whenever unsynced bytes can have been lost; "" if unknown."""
        try:
            fd = os.open(BOOT_ID_PATH, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return ""
        try:
            return os.read(fd, 64).decode("ascii", "replace").strip()
        finally:
            os.close(fd)


def write_all(disk: Disk, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
    """Write all buffers, continuing after short writes; returns the number of bytes written."""
    wanted = sum(map(len, buffers))
    written = disk.pwritev(fd, buffers if len(buffers) <= IOV_MAX else buffers[:IOV_MAX], offset)
    if written == wanted:
        return wanted
    pending = [memoryview(buffer).cast("B") for buffer in buffers if len(buffer)]
    total = _advance(pending, written)
    while pending:
        written = disk.pwritev(fd, pending[:IOV_MAX], offset + total)
        if written == 0:
            # A write of zero bytes without an error would be repeated for ever.
            raise OSError(errno.EIO, "a write made no progress")
        total += _advance(pending, written)
    assert total == wanted
    return total


def _advance(pending: list[memoryview], written: int) -> int:
    """Remove `written` bytes from the front of `pending`."""
    left = written
    done = 0
    while left and left >= len(pending[done]):
        left -= len(pending[done])
        done += 1
    del pending[:done]
    if left:
        pending[0] = pending[0][left:]
    return written


def read_file(disk: Disk, path: str) -> bytes:
    """The content of a small file."""
    fd = disk.open(path, os.O_RDONLY)
    try:
        return disk.pread(fd, disk.size(fd), 0)
    finally:
        disk.close(fd)


def replace_file(disk: Disk, path: str, content: bytes) -> None:
    """Replace the content of a file. After a crash it has either the old content or the new one."""
    aside = path + ".tmp"
    fd = disk.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(disk, fd, [content], 0)
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
    disk.rename(aside, path)
    disk.fsync_dir(os.path.dirname(path))


def overwrite_file(disk: Disk, path: str, content: bytes) -> None:
    """Replace the content of a small file in place, which takes no room. A crash may leave it neither old nor new."""
    fd = disk.open(path, os.O_WRONLY)
    try:
        write_all(disk, fd, [content], 0)
        disk.truncate(fd, len(content))
        disk.fdatasync(fd)
    finally:
        disk.close(fd)
