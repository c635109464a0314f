"""The state at a log position, as chunks that the engine encodes, in a file that is complete or absent.

    0          64                                          trailer_offset                    size - 32      size
    +----------+--------+---------+--------+---------+-----+---------------------------------+--------------+
    | header   | length | chunk   | length | chunk   |  …  | packs referred to               | footer       |
    | 64 bytes | u32    | bytes   | u32    | bytes   |     | u64 each                        | 32 bytes     |
    +----------+--------+---------+--------+---------+-----+---------------------------------+--------------+

    header: magic u32 | version u32 | shard u32 | zero u32 | number u64 | position u64 | 24 zeros | checksum u64
    footer: trailer_offset u64 | chunk_count u64 | checksum of packs and these two u64 | checksum of all before u64

It is written under a temporary name, synced and renamed; then the directory is synced. The previous one is kept with
the log and the packs that it needs, so that damage to the newest one costs time but no data.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from struct import Struct
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from topics.model.errors import DamagedData
from topics.storage.disk import Disk, write_all
from topics.storage.reserve import Room
from topics.storage.steps import Steps, at_once

logger = logging.getLogger("topics.storage")

SNAPSHOT_MAGIC = 0x31504E53  # "SNP1"
SNAPSHOT_VERSION = 1
HEADER_BYTES = 64
FOOTER_BYTES = 32
SNAPSHOT_SUFFIX = ".snap"
ASIDE_SUFFIX = ".tmp"
WRITE_BYTES = 1 << 20
READ_BYTES = 1 << 20
KEPT = 2

_header = Struct("<IIIIQQ24x")
_length = Struct("<I")
_trailer = Struct("<QQ")
_checksum = Struct("<Q")


class _Kept(NamedTuple):
    """What is known of a finished snapshot without reading it."""

    number: int
    position: int
    packs: frozenset[int]
    path: str
    trailer_offset: int
    chunk_count: int


class Pin(NamedTuple):
    """The newest snapshot at some moment, kept until it is unpinned; without a path if there was none."""

    number: int
    position: int
    packs: frozenset[int]
    path: str | None
    size_bytes: int


class Snapshot:
    """A verified snapshot; its chunks are read on demand."""

    def __init__(self, disk: Disk, kept: _Kept) -> None:
        self._disk = disk
        self._kept = kept
        self.number = kept.number
        self.position = kept.position
        self.packs = kept.packs

    def chunks(self) -> Iterator[bytes]:
        offset = HEADER_BYTES
        limit = self._kept.trailer_offset
        fd = self._disk.open(self._kept.path, os.O_RDONLY)
        try:
            wanted = READ_BYTES
            while offset < limit:
                data = self._disk.pread(fd, min(wanted, limit - offset), offset)
                at = 0
                while at + 4 <= len(data):
                    (length,) = _length.unpack_from(data, at)
                    if at + 4 + length > len(data):
                        break
                    yield data[at + 4 : at + 4 + length]
                    at += 4 + length
                offset += at
                # A chunk larger than the window is read separately.
                wanted = READ_BYTES if at else max(READ_BYTES, 4 + _length.unpack_from(data)[0])
        finally:
            self._disk.close(fd)


class SnapshotWriter:
    """Writes one snapshot. Used by one thread at a time."""

    def __init__(
        self,
        snapshots: Snapshots,
        disk: Disk,
        path: str,
        number: int,
        position: int,
        shard: int,
        room: Room | None,
    ) -> None:
        self._snapshots = snapshots
        self._disk = disk
        self._path = path
        self._digest = xxh3_64()
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._written_bytes = 0
        self._chunk_count = 0
        self.number = number
        self.position = position
        self._fd = (room or Room(disk, path)).open_as(path + ASIDE_SUFFIX)
        start = _header.pack(SNAPSHOT_MAGIC, SNAPSHOT_VERSION, shard, 0, number, position)
        self._put(start + _checksum.pack(xxh3_64_intdigest(start)))

    @property
    def size_bytes(self) -> int:
        return self._written_bytes + self._pending_bytes

    def add(self, chunk: bytes) -> None:
        self._chunk_count += 1
        self._put(_length.pack(len(chunk)))
        self._put(chunk)

    def finish(self, packs: Iterable[int] = ()) -> None:
        """Make the snapshot durable and release the oldest. Blocks. The log must be durable up to `position`."""
        refers_to = frozenset(packs)
        trailer_offset = self.size_bytes
        trailer = b"".join(_checksum.pack(pack) for pack in sorted(refers_to))
        trailer += _trailer.pack(trailer_offset, self._chunk_count)
        self._put(trailer + _checksum.pack(xxh3_64_intdigest(trailer)))
        self._write()
        write_all(self._disk, self._fd, [_checksum.pack(self._digest.intdigest())], self._written_bytes)
        self._disk.truncate(self._fd, self._written_bytes + _checksum.size)
        self._disk.fdatasync(self._fd)
        self._disk.close(self._fd)
        self._fd = -1
        self._disk.rename(self._path + ASIDE_SUFFIX, self._path)
        self._disk.fsync_dir(os.path.dirname(self._path))
        kept = _Kept(self.number, self.position, refers_to, self._path, trailer_offset, self._chunk_count)
        self._snapshots.finished(kept)

    def abort(self) -> None:
        """Give up the snapshot, also after a failure."""
        if self._fd >= 0:
            self._disk.close(self._fd)
            self._fd = -1
        for path in (self._path + ASIDE_SUFFIX, self._path):
            if self._disk.exists(path):
                self._disk.unlink(path)

    def _put(self, data: bytes) -> None:
        self._pending.append(data)
        self._pending_bytes += len(data)
        if self._pending_bytes >= WRITE_BYTES:
            self._write()

    def _write(self) -> None:
        data = b"".join(self._pending)
        self._digest.update(data)
        self._written_bytes += write_all(self._disk, self._fd, [data], self._written_bytes)
        self._pending = []
        self._pending_bytes = 0


class Snapshots:
    """The snapshots of a shard: the newest and the one before it."""

    def __init__(self, disk: Disk, snapshots_path: str, *, shard: int = 0) -> None:
        self._disk = disk
        self._path = snapshots_path
        self._shard = shard
        # Both are replaced, never changed, so that any thread may read them. Kept snapshots are in order, oldest first.
        self._kept: tuple[_Kept, ...] = ()
        self._pins: tuple[Pin, ...] = ()
        # The older one was given up to make room.
        self._alone = False
        self._found: list[int] = []
        # Snapshots that `loading` found to be damaged.
        self.damaged: list[str] = []
        highest = 0
        for name in disk.listdir(snapshots_path):
            if name.endswith(ASIDE_SUFFIX):
                disk.unlink(os.path.join(snapshots_path, name))
                continue
            stem = name.split(".")[0]
            if stem.isdecimal():
                highest = max(highest, int(stem))
                if name == stem + SNAPSHOT_SUFFIX:
                    self._found.append(int(stem))
        self._next_number = highest + 1

    def writer(self, position: int, room: Room | None = None) -> SnapshotWriter:
        number = self._next_number
        self._next_number += 1
        return SnapshotWriter(self, self._disk, self._snapshot_path(number), number, position, self._shard, room)

    def load_newest(self, repair: bool = False, thorough: bool = False) -> Snapshot | None:
        """Like `loading`, at once."""
        return at_once(self.loading(repair, thorough))

    def loading(self, repair: bool, thorough: bool) -> Steps[Snapshot | None]:
        """The newest snapshot that verifies; None if there is none. Damaged ones are renamed.

        Older ones are read in full only if they are needed, or if `thorough`. Yields after every few megabytes.
        """
        newest: Snapshot | None = None
        kept: list[_Kept] = []
        damaged: list[str] = []
        for number in sorted(self._found, reverse=True):
            path = self._snapshot_path(number)
            entry = _read_ends(self._disk, path, number, self._shard)
            is_needed = newest is None or thorough
            is_whole = entry is not None and (not is_needed or (yield from _is_whole(self._disk, path)))
            if entry is None or not is_whole:
                damaged.append(path)
            elif len(kept) < KEPT:
                kept.append(entry)
                newest = newest or Snapshot(self._disk, entry)
        if damaged and newest is None and not repair:
            raise DamagedData(
                f"{damaged[0]} is damaged, and there is no other snapshot; `topics repair` continues without it",
                file=damaged[0],
                offset=0,
            )
        self.damaged = damaged
        for path in damaged:
            logger.error("snapshot %s is damaged and was renamed", path)
            self._disk.rename(path, path + ".damaged")
        self._kept = tuple(reversed(kept))
        return newest

    @property
    def newest_bytes(self) -> int:
        return _size_of(self._kept[-1]) if self._kept else 0

    @property
    def newest_position(self) -> int:
        return self._kept[-1].position if self._kept else 0

    @property
    def has_older(self) -> bool:
        """Whether more is kept than the newest snapshot needs."""
        return bool(self._kept) and not self._alone

    def keep_only_newest(self) -> bool:
        """Give up the older snapshot with the log and packs it needs, and keep none later; False if already done."""
        if not self.has_older:
            return False
        self._kept, self._alone = self._kept[-1:], True
        self._unlink_forgotten()
        return True

    @property
    def trim_position(self) -> int:
        """The log below this position is not needed, even if the newest snapshot is damaged."""
        kept = self._kept[0].position if len(self._kept) >= (1 if self._alone else KEPT) else 0
        return min([kept, *(pin.position for pin in self._pins)])

    @property
    def kept_packs(self) -> frozenset[int]:
        """The packs that a kept or pinned snapshot refers to."""
        return frozenset[int]().union(*(kept.packs for kept in self._kept), *(pin.packs for pin in self._pins))

    def pin(self) -> Pin:
        """Keep the newest snapshot, its packs and the log after it. For the owner thread, as is `unpin`.

        A snapshot that is finished at this moment drops the oldest one, never the previous newest: that one is safe.
        """
        pin = Pin(0, 0, frozenset(), None, 0)
        if self._kept:
            newest = self._kept[-1]
            pin = Pin(newest.number, newest.position, newest.packs, newest.path, _size_of(newest))
        self._pins = (*self._pins, pin)
        return pin

    def unpin(self, pin: Pin) -> None:
        """Files that only this pin keeps are removed after the next checkpoint."""
        self._pins = tuple(other for other in self._pins if other is not pin)

    def finished(self, entry: _Kept) -> None:
        """A writer has made a snapshot durable: it is now the newest, and the oldest may be removed."""
        self._kept, self._alone = (*self._kept, entry)[-KEPT:], False
        self._unlink_forgotten()

    def _unlink_forgotten(self) -> None:
        keep = {kept.number for kept in self._kept} | {pin.number for pin in self._pins}
        for name in self._disk.listdir(self._path):
            stem = name.removesuffix(SNAPSHOT_SUFFIX)
            if stem != name and stem.isdecimal() and int(stem) not in keep:
                try:
                    self._disk.unlink(os.path.join(self._path, name))
                except OSError as error:
                    logger.warning("cannot unlink the snapshot %s: %s", name, error)

    def _snapshot_path(self, number: int) -> str:
        return os.path.join(self._path, f"{number:020d}{SNAPSHOT_SUFFIX}")


def _size_of(entry: _Kept) -> int:
    return entry.trailer_offset + 8 * len(entry.packs) + FOOTER_BYTES


def _read_ends(disk: Disk, path: str, number: int, shard: int) -> _Kept | None:
    """The content of header and trailer; None if either does not verify."""
    fd = disk.open(path, os.O_RDONLY)
    try:
        size = disk.size(fd)
        if size < HEADER_BYTES + FOOTER_BYTES:
            return None
        start = disk.pread(fd, HEADER_BYTES, 0)
        footer = disk.pread(fd, FOOTER_BYTES, size - FOOTER_BYTES)
        trailer_offset, chunk_count = _trailer.unpack_from(footer)
        packs_bytes = size - FOOTER_BYTES - trailer_offset
        if packs_bytes < 0 or packs_bytes % 8:
            return None
        packs = disk.pread(fd, packs_bytes, trailer_offset)
    finally:
        disk.close(fd)
    magic, version, own_shard, _, own_number, position = _header.unpack_from(start)
    if (magic, version, own_shard, own_number) != (SNAPSHOT_MAGIC, SNAPSHOT_VERSION, shard, number):
        return None
    if xxh3_64_intdigest(start[: _header.size]) != _checksum.unpack_from(start, _header.size)[0]:
        return None
    if xxh3_64_intdigest(packs + footer[: _trailer.size]) != _checksum.unpack_from(footer, _trailer.size)[0]:
        return None
    refers_to = frozenset(pack for (pack,) in _checksum.iter_unpack(packs))
    return _Kept(number, position, refers_to, path, trailer_offset, chunk_count)


def _is_whole(disk: Disk, path: str) -> Steps[bool]:
    """Whether every byte of a snapshot is as it was written."""
    fd = disk.open(path, os.O_RDONLY)
    try:
        left = disk.size(fd) - _checksum.size
        digest = xxh3_64()
        offset = 0
        while left > 0 and (data := disk.pread(fd, min(READ_BYTES, left), offset)):
            digest.update(data)
            offset += len(data)
            left -= len(data)
            yield
        return left == 0 and disk.pread(fd, _checksum.size, offset) == _checksum.pack(digest.intdigest())
    finally:
        disk.close(fd)
