"""The files of snapshots on their way to the bucket: each once, under a name that has its checksum at the end."""

from __future__ import annotations

import os
from collections.abc import Callable

from topics.storage.bucket.bucket import ObjectBucket
from topics.storage.bucket.chain import StoredFile
from topics.storage.bucket.keeping import stored_files
from topics.storage.bucket.restoring import END_BYTES
from topics.storage.bucket.slots import FILES
from topics.storage.directory import DataDirectory
from topics.storage.disk import Disk
from topics.storage.pack import PACK_FOOTER_BYTES, Packs
from topics.storage.snapshot import FOOTER_BYTES


class Uploading:
    """Used by the shipping thread. An upload may take minutes: `meanwhile` runs it, and keeps the lease and the log."""

    def __init__(
        self,
        bucket: ObjectBucket,
        disk: Disk,
        directory: DataDirectory,
        packs: Packs,
        *,
        renew: Callable[[], None],
        meanwhile: Callable[[Callable[[], None]], None],
    ) -> None:
        self._bucket, self._disk, self._directory, self._packs = bucket, disk, directory, packs
        self._renew, self._meanwhile = renew, meanwhile
        # unknown until the first snapshot of this run
        self._uploaded: set[str] | None = None

    def snapshot(self, path: str) -> StoredFile:
        return self._upload(self._directory.name_of(path), path, FOOTER_BYTES)

    def pack(self, number: int) -> StoredFile:
        """Store a pack, unless the bucket has it; it may leave this disk meanwhile, because the bucket has it."""
        name = self._directory.name_of(self._packs.hot_path(number))
        remote = self._packs.remote(number)
        if remote is None:
            try:
                return self._upload(name, self._packs.path_of(number), PACK_FOOTER_BYTES)
            except FileNotFoundError:
                remote = self._packs.remote(number)
                if remote is None:
                    raise
        return StoredFile(name, remote.key, remote.size_bytes)

    def _upload(self, name: str, path: str, footer_bytes: int) -> StoredFile:
        """Store a file that never changes."""
        fd = self._disk.open(path, os.O_RDONLY)
        try:
            size = self._disk.size(fd)
            footer = self._disk.pread(fd, footer_bytes, size - footer_bytes)
        finally:
            self._disk.close(fd)
        key = f"{FILES}{os.path.basename(name)}-{footer[-END_BYTES:].hex()}"
        if self._uploaded is None:
            self._uploaded = stored_files(self._bucket, self._renew)
        if key not in self._uploaded:
            self._meanwhile(lambda: self._bucket.upload(key, path))
            self._uploaded.add(key)
        return StoredFile(name, key, size)
