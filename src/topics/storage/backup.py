"""A consistent copy of a store in use: a snapshot, the packs it refers to, and the log after it up to one position.

    owner thread: Backup(…) ──▶ is_synced? ──▶ plan, a few files at a time ──────────────────────────▶ release
    any one thread at a time:                                                read, read, … until b"" ─┘

The snapshot is pinned until `release`: neither it nor its packs nor the log after it can be removed. The copied bytes
no longer change: packs and snapshots never do, and the log is durable up to `position`.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from typing import NamedTuple

from xxhash import xxh3_64

from topics.model.errors import DamagedData, InvalidRequest
from topics.storage.archive import (
    END_BYTES,
    MANIFEST,
    MANIFEST_FORMAT,
    ArchiveLength,
    FileEntry,
    Manifest,
    encode_manifest,
    header,
    padding,
)
from topics.storage.directory import META, DataDirectory, Meta, encode_meta
from topics.storage.disk import Disk, write_all
from topics.storage.pack import Extent, Packs
from topics.storage.snapshot import Snapshots
from topics.storage.wal.wal import Wal

PIECE_BYTES = 256 << 10
FILES_PER_STEP = 200
ASIDE_SUFFIX = ".partial"
_UNKNOWN = "0" * 16


class _Part(NamedTuple):
    """A file to copy: its name in the archive, how many of its bytes to copy, and where it is.

    A pack has a number instead of a path, because it may be moved meanwhile.
    """

    name: str
    length: int
    path: str
    pack: int = 0


class Backup:
    """One copy. Made, asked and released by the owner thread; `read` blocks and may run elsewhere."""

    def __init__(
        self,
        disk: Disk,
        directory: DataDirectory,
        snapshots: Snapshots,
        packs: Packs,
        wal: Wal,
        *,
        made_by: str,
        now_ms: int,
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._snapshots = snapshots
        self._packs = packs
        self._wal = wal
        self._made_by = made_by
        self._now_ms = now_ms
        self._pin = snapshots.pin()
        self._parts: list[_Part] = []
        self._pieces = self._archive()
        self.released = False
        self.position = wal.written_to
        # The length of the whole archive; known after `plan`.
        self.archive_bytes = 0

    @property
    def is_synced(self) -> bool:
        return self._wal.synced_to >= self.position

    def plan(self) -> Iterator[None]:
        """Decide which files are copied, in short steps, as a large store has many. The log must be synced."""
        assert self.is_synced
        pin, name_of = self._pin, self._directory.name_of
        length = ArchiveLength()
        length.add(FileEntry(META, len(self._meta()), _UNKNOWN))
        if pin.path is not None:
            self._parts.append(_Part(name_of(pin.path), pin.size_bytes, pin.path))
        # The log comes first, because it grows from here on.
        for path, file_bytes in self._wal.files_between(pin.position, self.position):
            self._parts.append(_Part(name_of(path), file_bytes, path))
        for part in self._parts:
            length.add(FileEntry(part.name, part.length, _UNKNOWN))
        for count, number in enumerate(sorted(pin.packs)):
            if count % FILES_PER_STEP == 0:
                yield
            path = self._packs.hot_path(number)
            part = _Part(name_of(path), self._packs.size_of(number), path, number)
            self._parts.append(part)
            length.add(FileEntry(part.name, part.length, _UNKNOWN))
        self.archive_bytes = length.total(self._manifest([]))

    def read(self) -> bytes:
        """The next piece of the archive; b"" at its end. Blocks."""
        return next(self._pieces, b"")

    def save(self, path: str) -> None:
        """Write the archive to a new file, which gets its name only when it is complete. Blocks."""
        if self._disk.exists(path):
            raise InvalidRequest(f"{path} exists already; a backup does not replace files", field="path")
        aside = path + ASIDE_SUFFIX
        fd = self._disk.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        try:
            offset = 0
            while piece := self.read():
                offset += write_all(self._disk, fd, [piece], offset)
            self._disk.fdatasync(fd)
            self._disk.rename(aside, path)
            self._disk.fsync_dir(os.path.dirname(os.path.abspath(path)))
        except BaseException:
            if self._disk.exists(aside):
                self._disk.unlink(aside)
            raise
        finally:
            self._disk.close(fd)

    def release(self) -> None:
        """Unpin the snapshot. Nothing may read from this backup any more."""
        if not self.released:
            self.released = True
            self._pieces.close()
            self._snapshots.unpin(self._pin)

    # --- the archive ---

    def _archive(self) -> Generator[bytes, None, None]:
        meta = self._meta()
        files = [FileEntry(META, len(meta), xxh3_64(meta).hexdigest())]
        yield self._whole(META, meta)
        for part in self._parts:
            digest = xxh3_64()
            yield header(part.name, part.length, self._time_s)
            for piece in self._content(part):
                digest.update(piece)
                yield piece
            if zeros := padding(part.length):
                yield zeros
            files.append(FileEntry(part.name, part.length, digest.hexdigest()))
        yield self._whole(MANIFEST, encode_manifest(self._manifest(files))) + bytes(END_BYTES)

    def _content(self, part: _Part) -> Iterator[bytes]:
        if part.pack:
            # It may be in the bucket, or move there meanwhile.
            for offset in range(0, part.length, PIECE_BYTES):
                yield self._packs.read(Extent(part.pack, offset, min(PIECE_BYTES, part.length - offset)))
            return
        fd = self._disk.open(part.path, os.O_RDONLY)
        try:
            offset = 0
            while offset < part.length:
                piece = self._disk.pread(fd, min(PIECE_BYTES, part.length - offset), offset)
                if not piece:
                    raise DamagedData(f"{part.name} ends at byte {offset}", file=part.name, offset=offset)
                offset += len(piece)
                yield piece
        finally:
            self._disk.close(fd)

    def _whole(self, name: str, content: bytes) -> bytes:
        return header(name, len(content), self._time_s) + content + padding(len(content))

    @property
    def _time_s(self) -> int:
        return self._now_ms // 1000

    def _meta(self) -> bytes:
        """The meta file of the copy: a clean stop at this position, an unknown machine, and the time of the copy."""
        return encode_meta(Meta("", True, self.position, self._now_ms))

    def _manifest(self, files: list[FileEntry]) -> Manifest:
        pin = self._pin
        return Manifest(
            format=MANIFEST_FORMAT,
            made_by=self._made_by,
            server_time_ms=self._now_ms,
            position=self.position,
            snapshot=None if pin.path is None else pin.number,
            files=files,
        )
