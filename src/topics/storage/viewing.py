"""Reading a directory that another process owns, or a backup, without changing anything.

ViewDisk       the files as they are, while their owner may write, move and unlink them
ArchiveDisk    the files of a backup, at their offsets in its tar
LogView        the log up to its end at this moment; its owner may be writing the next frame
"""

from __future__ import annotations

import errno
import os
import tarfile
from typing import NamedTuple

from topics.storage.archive import BLOCK_BYTES, MANIFEST, DamagedBackup, decode_manifest, padding
from topics.storage.disk import Disk
from topics.storage.steps import Steps
from topics.storage.wal.log_scan import read_window, whole_frame_bytes
from topics.storage.wal.replay import LogGap, Replay, Stop


class ViewDisk(Disk):
    """Files cannot be opened for writing; tidying up while opening is left to the owner."""

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            raise _read_only(path)
        return super().open(path, flags, mode)

    def makedirs(self, path: str) -> None:
        raise _read_only(path)

    def listdir(self, path: str) -> list[str]:
        """A missing folder counts as empty: a start would create it."""
        try:
            return super().listdir(path)
        except FileNotFoundError:
            return []

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_dir(self, path: str) -> None:
        pass

    def rename(self, source: str, target: str) -> None:
        pass

    def unlink(self, path: str) -> None:
        pass


def _read_only(what: str) -> OSError:
    return OSError(errno.EROFS, "a view cannot be changed", what)


class _Entry(NamedTuple):
    offset: int
    length: int


class ArchiveDisk(ViewDisk):
    """The tar of a backup as if it were a directory. A descriptor is one of the tar, with its own bounds."""

    def __init__(self, path: str) -> None:
        self._path = os.path.abspath(path)
        self._bounds: dict[int, _Entry] = {}
        self._entries = self._read_entries()

    def _read_entries(self) -> dict[str, _Entry]:
        """Find the files and check them against the manifest at the end. Contents have checksums of their own."""
        entries: dict[str, _Entry] = {}
        fd = super().open(self._path, os.O_RDONLY)
        try:
            at = 0
            while MANIFEST not in entries:
                block = super().pread(fd, BLOCK_BYTES, at)
                try:
                    info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
                except (tarfile.TarError, ValueError) as error:
                    raise DamagedBackup(f"{self._path} is truncated or not a backup, at byte {at}: {error}") from error
                entries[info.name] = _Entry(at + BLOCK_BYTES, info.size)
                at += BLOCK_BYTES + info.size + len(padding(info.size))
            last = entries.pop(MANIFEST)
            manifest = decode_manifest(super().pread(fd, last.length, last.offset))
        finally:
            super().close(fd)
        if {entry.name: entry.bytes for entry in manifest.files} != {name: at.length for name, at in entries.items()}:
            raise DamagedBackup(f"the files in {self._path} differ from its manifest")
        return entries

    def _name(self, path: str) -> str:
        return os.path.relpath(path, self._path)

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        entry = self._entries.get(self._name(path))
        if entry is None:
            raise FileNotFoundError(errno.ENOENT, "the backup has no such file", path)
        fd = super().open(self._path, flags, mode)
        self._bounds[fd] = entry
        return fd

    def close(self, fd: int) -> None:
        del self._bounds[fd]
        super().close(fd)

    def size(self, fd: int) -> int:
        return self._bounds[fd].length

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        entry = self._bounds[fd]
        return super().pread(fd, max(0, min(length, entry.length - offset)), entry.offset + offset)

    def pread_nowait(self, fd: int, length: int, offset: int) -> bytes | None:
        entry = self._bounds[fd]
        return super().pread_nowait(fd, length, entry.offset + offset) if offset + length <= entry.length else None

    def exists(self, path: str) -> bool:
        return self._name(path) in self._entries

    def listdir(self, path: str) -> list[str]:
        folder = self._name(path) + os.sep
        return sorted(name.removeprefix(folder) for name in self._entries if name.startswith(folder))

    def boot_id(self) -> str:
        """A backup has no boot id: a restart of the machine can have lost nothing in it."""
        return ""


class LogView(Replay):
    """The frames of a log that another process may be writing: a prefix of it, as it was at some moment of the reading.

    A frame is damaged only if it still does not verify after a good frame was seen after it. If it verifies by then, it
    was being written when it was first read: the log ended there at that moment, and so does this view.
    """

    def _damage_at(self, stop: Stop) -> Steps[LogGap | None]:
        damage = yield from super()._damage_at(stop)
        return None if damage is not None and self._verifies(stop) else damage

    def _verifies(self, stop: Stop) -> bool:
        file = self._files[stop.file_index]
        fd = self._disk.open(file.path, os.O_RDONLY)
        try:
            frame_bytes = whole_frame_bytes(self._disk.pread(fd, 64, stop.offset), stop.position, file.header.salt)
            if frame_bytes is None:
                return False
            data = self._disk.pread(fd, frame_bytes, stop.offset)
        finally:
            self._disk.close(fd)
        return bool(read_window(data, stop.position, file.header.salt)[1])

    def _note_torn(self, stop: Stop) -> None:
        pass

    def _finish(self, first_index: int | None, stop: Stop | None) -> Steps[None]:
        """A view neither cuts nor syncs."""
        del first_index, stop
        yield
