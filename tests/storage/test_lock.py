"""The lock of a directory: one process at a time, also on file systems that cannot lock a directory itself."""

import errno
import fcntl
import logging
import os
import stat
from pathlib import Path

import pytest

from topics.model.errors import DataDirLocked
from topics.storage.disk import Disk
from topics.storage.lock import LOCK, DirectoryLock


class NetworkDisk(Disk):
    """Refuses to lock what is open only for reading, as a directory always is."""

    def __init__(self, error: int) -> None:
        super().__init__()
        self._error = error

    def try_lock(self, fd: int) -> bool:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(self._error, os.strerror(self._error))
        return super().try_lock(fd)


def lock_of(path: Path, disk: Disk | None = None) -> DirectoryLock:
    return DirectoryLock(disk or Disk(), str(path))


def test_a_reader_keeps_others_out_and_writes_nothing(tmp_path: Path) -> None:
    reader = lock_of(tmp_path)
    reader.acquire_to_read()
    assert list(tmp_path.iterdir()) == []
    for other in (lock_of(tmp_path).acquire, lock_of(tmp_path).acquire_to_read):
        with pytest.raises(DataDirLocked) as refusal:
            other()
        assert refusal.value.detail["pid"] == "unknown"
    reader.release()
    reader.release()
    owner = lock_of(tmp_path)
    owner.acquire()
    with pytest.raises(DataDirLocked, match=f"in use by process {os.getpid()}:"):
        lock_of(tmp_path).acquire_to_read()
    owner.release()
    before = (tmp_path / LOCK).read_bytes(), (tmp_path / LOCK).stat().st_mtime_ns
    reader.acquire_to_read()
    assert ((tmp_path / LOCK).read_bytes(), (tmp_path / LOCK).stat().st_mtime_ns) == before
    reader.release()


def test_a_reader_respects_a_holder_of_the_lock_file_alone(tmp_path: Path) -> None:
    (tmp_path / LOCK).write_text("4711\n")
    with open(tmp_path / LOCK, "r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DataDirLocked, match="in use by process 4711:"):
            lock_of(tmp_path).acquire_to_read()
    # A refusal leaves nothing locked.
    owner = lock_of(tmp_path)
    owner.acquire()
    owner.release()


@pytest.mark.parametrize("error", [errno.EBADF, errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_a_directory_cannot_be_locked_its_file_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    owner = lock_of(tmp_path, NetworkDisk(error))
    with caplog.at_level(logging.WARNING, "topics.storage"):
        owner.acquire()
    assert f"do not remove {tmp_path / LOCK}" in caplog.text
    for other in (lock_of(tmp_path, NetworkDisk(error)).acquire, lock_of(tmp_path, NetworkDisk(error)).acquire_to_read):
        with pytest.raises(DataDirLocked, match=f"in use by process {os.getpid()}:"):
            other()
    owner.verify()
    owner.release()


def test_an_error_that_says_nothing_about_locks_is_not_overlooked(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="Input/output error"):
        lock_of(tmp_path, NetworkDisk(errno.EIO)).acquire()
    owner = lock_of(tmp_path)
    owner.acquire()
    owner.release()
