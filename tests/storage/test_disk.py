"""The calls of the operating system: short reads and writes are continued, and what a file system lacks is no error."""

import errno
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from topics.storage import disk as module
from topics.storage.disk import IOV_MAX, Buffer, Disk, write_all


@pytest.fixture
def file(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    yield fd
    os.close(fd)


def failing(error: int) -> Any:
    def fail(*_: object) -> int:
        raise OSError(error, os.strerror(error))

    return fail


def test_a_read_continues_until_it_has_all_or_the_file_ends(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    os.pwrite(file, b"0123456789", 0)
    whole = os.pread
    monkeypatch.setattr(os, "pread", lambda fd, length, offset: whole(fd, min(length, 3), offset))
    assert Disk().pread(file, 10, 0) == b"0123456789"
    assert Disk().pread(file, 8, 5) == b"56789"
    assert Disk().pread(file, 8, 10) == b""


def test_a_read_without_waiting_gives_all_or_nothing(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    os.pwrite(file, b"0123456789", 0)
    assert Disk().pread_nowait(file, 4, 8) is None, "past the end"
    for error in (errno.EAGAIN, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
        monkeypatch.setattr(os, "preadv", failing(error))
        assert Disk().pread_nowait(file, 4, 0) is None
    monkeypatch.setattr(os, "preadv", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        Disk().pread_nowait(file, 4, 0)


def test_a_file_system_that_cannot_reserve_is_used_without(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    Disk().allocate(file, 8192)
    assert Disk().size(file) == 8192
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.EOPNOTSUPP))
    Disk().allocate(file, 1 << 20)
    assert Disk().size(file) == 8192
    monkeypatch.setattr(os, "posix_fallocate", failing(errno.ENOSPC))
    with pytest.raises(OSError, match="No space"):
        Disk().allocate(file, 1 << 20)


class ShortDisk(Disk):
    """Writes at most a few bytes at a time, and none at all in the end."""

    def __init__(self, at_most: int, calls_max: int = 1 << 30) -> None:
        super().__init__()
        self._at_most = at_most
        self._calls_left = calls_max

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        assert len(buffers) <= IOV_MAX
        self._calls_left -= 1
        if self._calls_left < 0:
            return 0
        data = b"".join(bytes(memoryview(buffer)) for buffer in buffers)[: self._at_most]
        return super().pwritev(fd, [data], offset)


@pytest.mark.parametrize("at_most", [1, 2, 3, 5, 7, 1000])
def test_a_short_write_is_continued_where_it_ended(file: int, at_most: int) -> None:
    assert write_all(ShortDisk(at_most), file, [b"abc", b"", b"defg", b"hi"], 2) == 9
    assert os.pread(file, 100, 0) == b"\0\0abcdefghi"


def test_more_buffers_than_the_kernel_takes_are_written_in_turn(file: int) -> None:
    buffers = [b"%04d" % number for number in range(2 * IOV_MAX + 5)]
    assert write_all(ShortDisk(1 << 20), file, buffers, 0) == 4 * len(buffers)
    assert os.pread(file, 1 << 20, 0) == b"".join(buffers)


def test_a_write_without_progress_ends(file: int) -> None:
    with pytest.raises(OSError, match="no progress"):
        write_all(ShortDisk(2, calls_max=2), file, [b"abcdef"], 0)


def test_without_a_boot_id_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Disk().boot_id() != ""
    monkeypatch.setattr(module, "BOOT_ID_PATH", str(tmp_path / "absent"))
    assert Disk().boot_id() == ""


def test_a_directory_is_synced_by_a_held_descriptor_or_by_its_own(tmp_path: Path) -> None:
    disk = Disk()
    disk.fsync_dir(str(tmp_path))
    disk.hold_dir(str(tmp_path))
    disk.hold_dir(str(tmp_path))
    disk.fsync_dir(str(tmp_path))
    disk.release_dir(str(tmp_path))
    disk.release_dir(str(tmp_path))
    with pytest.raises(FileNotFoundError):
        disk.fsync_dir(str(tmp_path / "absent"))
