"""The files of a snapshot in a bucket as if they were in a directory: packs by range, the snapshot itself at once."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from itertools import count

from topics.storage.bucket.bucket import ReadableBucket
from topics.storage.bucket.chain import StoredFile
from topics.storage.pack import PACK_SUFFIX
from topics.storage.viewing import ViewDisk

# A request for more may take longer than one may take.
REQUEST_BYTES = 8 << 20


class SnapshotDisk(ViewDisk):
    """Paths are those of a manifest, like shard-00/packs/…; a descriptor is a number of its own."""

    def __init__(self, bucket: ReadableBucket, files: Iterable[StoredFile]) -> None:
        super().__init__()
        self._bucket = bucket
        self._files = {file.name: file for file in files}
        self._open: dict[int, StoredFile] = {}
        self._numbers = count(1)
        # Whole files, until `forget`: a snapshot is read several times, from its beginning to its end.
        self._whole: dict[str, bytes] = {}

    def forget(self) -> None:
        """The snapshot is restored: nobody reads it again."""
        self._whole = {}

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        del flags, mode
        file = self._files.get(path)
        if file is None:
            raise _no_such_file(path)
        if not path.endswith(PACK_SUFFIX) and file.key not in self._whole:
            starts = range(0, file.bytes, REQUEST_BYTES)
            self._whole[file.key] = b"".join([self._range(file, at, REQUEST_BYTES) for at in starts])
        fd = next(self._numbers)
        self._open[fd] = file
        return fd

    def close(self, fd: int) -> None:
        del self._open[fd]

    def size(self, fd: int) -> int:
        return self._open[fd].bytes

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        file = self._open[fd]
        whole = self._whole.get(file.key)
        return self._range(file, offset, length) if whole is None else whole[offset : offset + length]

    def pread_nowait(self, fd: int, length: int, offset: int) -> bytes | None:
        del fd, length, offset
        return None

    def exists(self, path: str) -> bool:
        return path in self._files

    def listdir(self, path: str) -> list[str]:
        return sorted(os.path.basename(name) for name in self._files if os.path.dirname(name) == path)

    def _range(self, file: StoredFile, start: int, length: int) -> bytes:
        data = self._bucket.read_range(file.key, start, max(0, min(length, file.bytes - start)))
        if data is None:
            raise _no_such_file(file.key)
        return data


def _no_such_file(path: str) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, "the bucket has no such file", path)
