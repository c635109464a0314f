"""A consistent copy of a store in use: a snapshot, the packs it refers to, and the log behind it up to one position.

    owner thread: Backup(…) ──▶ is_synced? ──▶ plan ─────────────────────────▶ release
    any one thread at a time:                        read, read, … until b""

From the beginning to `release` the snapshot is pinned: neither it, nor its packs, nor the log behind it goes away. What
is copied never changes any more: packs and snapshots by nature, the log because it is durable up to `position`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator
from typing import NamedTuple

from xxhash import xxh3_64

from topics.model.errors import DamagedData
from topics.storage.archive import (
    END_BYTES,
    MANIFEST,
    MANIFEST_FORMAT,
    META,
    FileEntry,
    Manifest,
    archive_bytes,
    encode_manifest,
    header,
    padding,
)
from topics.storage.directory import DataDirectory, Meta, encode_meta
from topics.storage.disk import Disk
from topics.storage.pack import Packs
from topics.storage.snapshot import Snapshots
from topics.storage.wal import Wal

PIECE_BYTES = 256 << 10
_UNKNOWN = "0" * 16


class _Part(NamedTuple):
    """A file to copy: what it is called in the archive, how much of it counts, and how it is opened."""

    name: str
    length: int
    open: Callable[[], int]


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
        self._entries: list[FileEntry] = []
        self._pieces = self._archive()
        self.released = False
        self.position = wal.written_to
        # What the whole archive will have; known after `plan`.
        self.archive_bytes = 0

    @property
    def is_synced(self) -> bool:
        return self._wal.synced_to >= self.position

    def plan(self) -> None:
        """Decide which files are copied. The log must be synced."""
        assert self.is_synced
        pin, root = self._pin, self._directory.path
        start = 0
        if pin.path is not None:
            start = pin.position
            self._parts.append(self._part(os.path.relpath(pin.path, root), pin.size_bytes, pin.path))
        for number in sorted(pin.packs):
            name = os.path.relpath(self._packs.hot_path(number), root)
            self._parts.append(_Part(name, self._packs.size_of(number), lambda number=number: self._packs.open(number)))
        for path, length in self._wal.files_between(start, self.position):
            self._parts.append(self._part(os.path.relpath(path, root), length, path))
        self._entries = [FileEntry(META, len(self._meta()), _UNKNOWN)]
        self._entries += [FileEntry(part.name, part.length, _UNKNOWN) for part in self._parts]
        self.archive_bytes = archive_bytes(self._manifest())

    def _part(self, name: str, length: int, path: str) -> _Part:
        return _Part(name, length, lambda: self._disk.open(path, os.O_RDONLY))

    def read(self) -> bytes:
        """The next piece of the archive, b"" when it is complete. Blocks."""
        return next(self._pieces, b"")

    def release(self) -> None:
        """Let go of what is pinned. Whoever reads has stopped."""
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
        self._entries = files
        yield self._whole(MANIFEST, encode_manifest(self._manifest())) + bytes(END_BYTES)

    def _content(self, part: _Part) -> Iterator[bytes]:
        fd = part.open()
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
        """As after a clean stop at this position, on a machine that nobody knows; and that it is a copy."""
        return encode_meta(Meta("", True, self.position, self._now_ms))

    def _manifest(self) -> Manifest:
        pin = self._pin
        return Manifest(
            format=MANIFEST_FORMAT,
            made_by=self._made_by,
            server_time_ms=self._now_ms,
            position=self.position,
            snapshot=None if pin.path is None else pin.number,
            files=self._entries,
        )
