"""Sealed blocks on disk: many extents in one numbered file, written once and never changed.

    0                 64                                     directory_offset                     size - 32      size
    +-----------------+----------+----------+-----+----------+----------------------------------------+-------------+
    | header          | extent   | extent   |  …  | extent   | directory: offset, length, checksum    | footer      |
    | 64 bytes        | bytes    | bytes    |     | bytes    | u64 each, one row per extent           | 32 bytes    |
    +-----------------+----------+----------+-----+----------+----------------------------------------+-------------+

    header: magic u32 | version u32 | shard u32 | zero u32 | number u64 | 32 zeros | checksum u64 over what precedes
    footer: directory_offset u64 | extent_count u64 | magic u64 | checksum u64 over the directory and what precedes

A pack is written under a temporary name, synced and renamed, so a file with a pack's name is complete. The bytes of an
extent belongs to the engine and has its own checksum; the directory lets a pack be checked without the engine.

A pack is in the hot directory, in the cold one, or only in the bucket (`remote/`).
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from struct import Struct
from threading import Lock
from typing import NamedTuple

from xxhash import xxh3_64, xxh3_64_intdigest

from topics.model.errors import DamagedData, StorageError
from topics.storage.disk import Buffer, Deferred, Disk, write_all
from topics.storage.openfiles import OpenFiles
from topics.storage.remote.range_reader import RangeReader
from topics.storage.remote.remote_pack import RemotePack, pack_of_stub
from topics.storage.reserve import Room
from topics.storage.steps import Steps, at_once, in_thread

logger = logging.getLogger("topics.storage")

PACK_MAGIC = 0x314B4150  # "PAK1"
PACK_VERSION = 1
PACK_HEADER_BYTES = 64
PACK_FOOTER_BYTES = 32
PACK_SUFFIX = ".pack"
ASIDE_SUFFIX = ".tmp"
WRITE_BYTES = 1 << 20
BUFFERS_MAX = 64  # above this, small buffers are joined: that is quicker than passing each one to the kernel
OPEN_MAX = 128
EXTENTS_PER_STEP = 500
SPARSE_SHARE = 4  # a pack of which less than one part in this many is alive is worth copying

_header = Struct("<IIIIQ32x")
_row = Struct("<QQQ")
_footer = Struct("<QQQ")
_checksum = Struct("<Q")


class Extent(NamedTuple):
    """The position of a sealed block."""

    pack: int
    offset: int
    length: int


class _Pack:
    """What is known of a pack: its size, how many of its bytes are live, and where it is."""

    __slots__ = ("finished", "is_cold", "live_bytes", "remote", "size_bytes")

    def __init__(self, size_bytes: int, is_cold: bool, finished: bool, remote: RemotePack | None = None) -> None:
        self.size_bytes = size_bytes
        self.live_bytes = 0
        self.is_cold = is_cold
        self.finished = finished
        # It is only in the bucket.
        self.remote = remote


class PackWriter:
    """Fills one pack. Buffers that it is given must not change until `finish`.

    One thread adds, and takes what was added as a job; another thread runs these jobs and `finish`, in order.
    """

    def __init__(self, packs: Packs, disk: Disk, path: str, number: int, shard: int, room: Room | None) -> None:
        self._packs = packs
        self._disk = disk
        self._path = path
        # added and not taken yet: writes, and buffers that follow them
        self._writes: list[Callable[[], int]] = []
        self._pending: list[Buffer] = []
        # offsets in the pack: where `_pending` begins, where untaken bytes begin, where added bytes end
        self._pending_at = self._taken_to = self._end = 0
        self._written_bytes = 0
        # held during a write, so that no write goes to a closed descriptor
        self._writing = Lock()
        self._error: OSError | None = None
        self._rows: list[bytes] = []
        self.number = number
        self.bytes_added = 0
        self._fd = (room or Room(disk, path)).open_as(path + ASIDE_SUFFIX)
        self._put([_start_of(shard, number)])

    def add(self, buffers: Sequence[Buffer]) -> Extent:
        """Add the bytes of one extent; returns its position, which is known at once."""
        digest = xxh3_64()
        for buffer in buffers:
            digest.update(buffer)
        offset = self._end
        length = self._put(buffers)
        self._rows.append(_row.pack(offset, length, digest.intdigest()))
        return self._added(offset, length)

    def add_deferred(self, content: Deferred) -> Extent:
        """Reserve the position of a large extent, whose bytes are made when they are written."""
        self._end_pending()
        number, offset, length = len(self._rows), self._end, len(content)
        self._rows.append(b"")
        self._writes.append(lambda: self._write_deferred(number, offset, content))
        self._end += length
        self._pending_at = self._end
        return self._added(offset, length)

    def _added(self, offset: int, length: int) -> Extent:
        self.bytes_added += length
        extent = Extent(self.number, offset, length)
        self._packs.add_live(extent)
        return extent

    @property
    def is_full(self) -> bool:
        """Whether there is enough for a write."""
        return self._end - self._taken_to >= WRITE_BYTES

    @property
    def unwritten_bytes(self) -> int:
        return self._end - self._written_bytes

    def take(self) -> Callable[[], None]:
        """A job that writes what was added since the last job. If it fails, so does `finish`."""
        self._end_pending()
        writes, self._writes = self._writes, []
        self._taken_to = self._end
        return lambda: self._write(writes)

    def finish(self) -> None:
        """Write the rest and the directory, make the pack durable, and rename it. Blocks."""
        self.take()()
        directory = b"".join(self._rows)
        footer = _footer.pack(self._end, len(self._rows), PACK_MAGIC)
        self._put([directory, footer, _checksum.pack(xxh3_64_intdigest(directory + footer))])
        self.take()()
        self._disk.truncate(self._fd, self._end)
        self._disk.fdatasync(self._fd)
        self._disk.close(self._fd)
        self._fd = -1
        self._disk.rename(self._path + ASIDE_SUFFIX, self._path)
        self._disk.fsync_dir(os.path.dirname(self._path))
        self._packs.finished(self.number, self._end)

    def abort(self) -> None:
        """Give up the pack, also after a failure."""
        with self._writing:
            if self._fd >= 0:
                self._disk.close(self._fd)
                self._fd = -1
        for path in (self._path + ASIDE_SUFFIX, self._path):
            if self._disk.exists(path):
                self._disk.unlink(path)
        self._packs.forget(self.number)

    def _put(self, buffers: Sequence[Buffer]) -> int:
        length = sum(map(len, buffers))
        self._pending.extend(buffers)
        self._end += length
        return length

    def _end_pending(self) -> None:
        """Turn pending buffers into a write."""
        if self._pending:
            buffers, offset = self._pending, self._pending_at
            self._writes.append(lambda: self._write_buffers(buffers, offset))
            self._pending, self._pending_at = [], self._end

    def _write(self, writes: list[Callable[[], int]]) -> None:
        with self._writing:
            if self._error is not None:
                raise self._error
            try:
                for write in writes:
                    if self._fd >= 0:
                        self._written_bytes += write()
            except OSError as error:
                self._error = error
                raise

    def _write_buffers(self, buffers: list[Buffer], offset: int) -> int:
        joined = buffers if len(buffers) <= BUFFERS_MAX else [b"".join(buffers)]
        return write_all(self._disk, self._fd, joined, offset)

    def _write_deferred(self, number: int, offset: int, content: Deferred) -> int:
        digest = xxh3_64()
        buffers = content.buffers()
        for buffer in buffers:
            digest.update(buffer)
        length = write_all(self._disk, self._fd, buffers, offset)
        self._rows[number] = _row.pack(offset, length, digest.intdigest())
        return length


class Packs:
    """All packs of a shard, wherever they are. Thread safe; the lock is never held during I/O."""

    def __init__(
        self, disk: Disk, packs_path: str, cold_path: str | None = None, *, shard: int = 0, open_max: int = OPEN_MAX
    ) -> None:
        self._disk = disk
        self._path = packs_path
        self._cold_path = cold_path
        self._shard = shard
        self._lock = Lock()
        self._packs: dict[int, _Pack] = {}
        self._open = OpenFiles(disk, open_max)
        self.dead: set[int] = set()
        # Set by the owner of a bucket, before anything is read: how packs are read that are only there.
        self.ranges: RangeReader | None = None
        self.local_bytes = self.remote_bytes = 0
        self._scan(packs_path, is_cold=False)
        if cold_path is not None:
            self._scan(cold_path, is_cold=True)
        self._next_number = max(self._packs, default=0) + 1

    # --- writing ---

    def writer(self, room: Room | None = None) -> PackWriter:
        """A new pack, in this room if one is given."""
        with self._lock:
            number = self._next_number
            self._next_number += 1
            self._packs[number] = _Pack(0, is_cold=False, finished=False)
        return PackWriter(self, self._disk, self._pack_path(number, is_cold=False), number, self._shard, room)

    def finished(self, number: int, size_bytes: int) -> None:
        """A writer has renamed its pack."""
        with self._lock:
            pack = self._packs[number]
            pack.finished = True
            pack.size_bytes = size_bytes
            self._count(pack, 1)
            self._note_dead(number, pack)

    def forget(self, number: int) -> None:
        """A writer has given up its pack."""
        with self._lock:
            pack = self._packs.pop(number, None)
            if pack is not None:
                self._count(pack, -1)
            self.dead.discard(number)

    def _count(self, pack: _Pack, sign: int) -> None:
        if pack.remote is not None:
            self.remote_bytes += sign * pack.size_bytes
        elif pack.finished:
            self.local_bytes += sign * pack.size_bytes

    # --- reading ---

    def read(self, extent: Extent) -> bytes:
        """The bytes of an extent. Blocks."""
        path = self._path_of(extent.pack)
        try:
            data = self._read_at(path, extent)
        except FileNotFoundError:
            # It may have moved to the cold directory or to the bucket between the two attempts.
            path = self._path_of(extent.pack)
            try:
                data = self._read_at(path, extent)
            except FileNotFoundError as error:
                raise DamagedData(f"{path} is missing", file=path, offset=extent.offset) from error
        if len(data) != extent.length:
            raise DamagedData(
                f"{path} ends before offset {extent.offset + extent.length}", file=path, offset=extent.offset
            )
        return data

    def read_nowait(self, extent: Extent) -> bytes | None:
        """The bytes of an extent if they can be had without waiting: cached, or in the page cache."""
        remote = self.remote(extent.pack)
        if remote is not None:
            return self.ranges.cached(remote, extent.offset, extent.length) if self.ranges is not None else None
        fd = self._open.borrow(self._path_of(extent.pack), may_open=False)
        if fd is None:
            return None
        try:
            return self._disk.pread_nowait(fd, extent.length, extent.offset)
        finally:
            self._open.give_back(fd)

    def _read_at(self, path: str, extent: Extent) -> bytes:
        remote = self.remote(extent.pack)
        if remote is not None:
            if self.ranges is None:
                raise StorageError(
                    f"pack {remote.number} is only in the bucket: read it through its server, or set TOPICS_BUCKET",
                    pack=remote.number,
                )
            return self.ranges.read(remote, extent.offset, extent.length)
        fd = self._open.borrow(path, may_open=True)
        assert fd is not None
        try:
            return self._disk.pread(fd, extent.length, extent.offset)
        finally:
            self._open.give_back(fd)

    def checksums(self, number: int) -> dict[Extent, int]:
        """The rows of a pack's directory, one for each extent; checks the header as well. Blocks."""
        path = self._path_of(number)
        fd = self._open.borrow(path, may_open=True)
        assert fd is not None
        try:
            start = self._disk.pread(fd, PACK_HEADER_BYTES, 0)
            if start != _start_of(self._shard, number):
                raise DamagedData(f"the header of {path} is damaged", file=path, offset=0)
            rows = _directory(self._disk, fd, path)
        finally:
            self._open.give_back(fd)
        return {Extent(number, offset, length): checksum for offset, length, checksum in rows}

    # --- live extents ---

    def adopt(self, extents: Iterable[Extent], keep: Iterable[int] = ()) -> None:
        """Like `adopting`, at once."""
        at_once(self.adopting(extents, keep))

    def adopting(self, extents: Iterable[Extent], keep: Iterable[int] = ()) -> Steps[None]:
        """After recovery: these extents are live. Packs without one are unlinked, unless `keep` names them.

        Yields regularly, as there may be millions of extents.
        """
        with self._lock:
            for pack in self._packs.values():
                pack.live_bytes = 0
            self.dead.clear()
        for count, extent in enumerate(extents, 1):
            self.add_live(extent)
            if count % EXTENTS_PER_STEP == 0:
                yield
        with self._lock:
            for number, pack in self._packs.items():
                self._note_dead(number, pack)
        if self.dead - set(keep):
            yield from in_thread(lambda: self.sweep(set(keep)))

    def add_live(self, extent: Extent) -> None:
        with self._lock:
            pack = self._packs.get(extent.pack)
            if pack is None:
                logger.error("pack %d is missing; reads of it will fail", extent.pack)
                return
            pack.live_bytes += extent.length
            self.dead.discard(extent.pack)

    def release(self, extent: Extent) -> None:
        """An extent is no longer referred to."""
        with self._lock:
            pack = self._packs.get(extent.pack)
            if pack is None:
                return
            pack.live_bytes -= extent.length
            assert pack.live_bytes >= 0
            self._note_dead(extent.pack, pack)

    def _note_dead(self, number: int, pack: _Pack) -> None:
        if pack.live_bytes == 0 and pack.finished:
            self.dead.add(number)

    @property
    def largest_bytes(self) -> int:
        with self._lock:
            return max((pack.size_bytes for pack in self._packs.values()), default=0)

    def sparse(self, share: int = SPARSE_SHARE) -> list[int]:
        """Packs of which something is live, but less than one part in `share`."""
        with self._lock:
            return [
                number
                for number, pack in self._packs.items()
                if pack.finished and 0 < pack.live_bytes * share < pack.size_bytes
            ]

    def sweep(self, keep: set[int]) -> list[int]:
        """Unlink the dead packs that are not in `keep`; returns their numbers. Blocks."""
        with self._lock:
            doomed = sorted(self.dead - keep)
            paths: list[str] = []
            for number in doomed:
                pack, path = self._packs[number], self._path_of(number)
                paths.append(path if pack.remote is None else os.path.join(self._path, pack.remote.stub))
                self._count(pack, -1)
                del self._packs[number]
            self.dead.difference_update(doomed)
        if self.ranges is not None:
            self.ranges.forget(doomed)
        for path in paths:
            self._open.forget(path)
            try:
                self._disk.unlink(path)
            except OSError as error:
                # It is no longer referred to, so the next start unlinks it.
                logger.warning("cannot unlink %s: %s", path, error)
        return doomed

    # --- cold ---

    def move_cold(self, number: int) -> None:
        """Move a finished pack to the cold directory; it stays readable throughout. Blocks."""
        assert self._cold_path is not None
        with self._lock:
            pack = self._packs.get(number)
            if pack is None or pack.is_cold or not pack.finished:
                return
        hot = self._pack_path(number, is_cold=False)
        cold = self._pack_path(number, is_cold=True)
        try:
            self._disk.copy_file(hot, cold + ASIDE_SUFFIX)
            self._disk.rename(cold + ASIDE_SUFFIX, cold)
        except OSError:
            if self._disk.exists(cold + ASIDE_SUFFIX):
                self._disk.unlink(cold + ASIDE_SUFFIX)
            raise
        self._disk.fsync_dir(self._cold_path)
        pack.is_cold = True
        self._open.forget(hot)
        self._disk.unlink(hot)

    def is_cold(self, number: int) -> bool:
        return self._packs[number].is_cold

    # --- only in the bucket ---

    def let_go(self, leaving: Sequence[RemotePack]) -> int:
        """Unlink packs that the bucket has, and note where they are; they stay readable throughout. Blocks."""
        with self._lock:
            known = [remote for remote in leaving if (pack := self._packs.get(remote.number)) and not pack.remote]
        for remote in known:
            self._disk.close(self._disk.open(os.path.join(self._path, remote.stub), os.O_WRONLY | os.O_CREAT))
        self._disk.fsync_dir(self._path)
        for remote in known:
            path = self._path_of(remote.number)
            with self._lock:
                pack = self._packs[remote.number]
                self._count(pack, -1)
                pack.remote = remote
                self._count(pack, 1)
            self._disk.unlink(path)
            self._open.forget(path)
        return len(known)

    def remote(self, number: int) -> RemotePack | None:
        """Where a pack is that is only in the bucket."""
        if not self.remote_bytes:
            return None
        pack = self._packs.get(number)
        return None if pack is None else pack.remote

    def remotes(self) -> list[RemotePack]:
        """The packs that are only in the bucket, oldest first."""
        with self._lock:
            return sorted(pack.remote for pack in self._packs.values() if pack.remote is not None)

    def remote_keys(self) -> list[str]:
        return [remote.key for remote in self.remotes()]

    def local(self) -> list[tuple[int, int]]:
        """Numbers and sizes of the packs that are here, oldest first."""
        with self._lock:
            return sorted(
                (number, pack.size_bytes)
                for number, pack in self._packs.items()
                if pack.finished and pack.remote is None
            )

    # --- paths and totals ---

    def numbers(self) -> list[int]:
        with self._lock:
            return sorted(number for number, pack in self._packs.items() if pack.finished)

    def live_bytes(self, number: int) -> int:
        return self._packs[number].live_bytes

    def size_of(self, number: int) -> int:
        pack = self._packs.get(number)
        if pack is None:
            path = self.hot_path(number)
            raise DamagedData(f"{path} is missing", file=path, offset=0)
        return pack.size_bytes

    def hot_path(self, number: int) -> str:
        """The path of a pack in the hot directory."""
        return self._pack_path(number, is_cold=False)

    def path_of(self, number: int) -> str:
        """Where a pack is now; it may move to the cold directory or to the bucket at any time."""
        return self._path_of(number)

    def close(self) -> None:
        self._open.close()

    def _scan(self, directory: str, is_cold: bool) -> None:
        stubs: list[RemotePack] = []
        for name in self._disk.listdir(directory):
            path = os.path.join(directory, name)
            if name.endswith(ASIDE_SUFFIX):
                self._disk.unlink(path)
                continue
            if (remote := pack_of_stub(name)) is not None:
                stubs.append(remote)
                continue
            stem = name.removesuffix(PACK_SUFFIX)
            if stem == name or not stem.isdecimal():
                continue
            number = int(stem)
            if number in self._packs:
                # A move to the cold directory was interrupted after its copy was complete.
                self._disk.fsync_dir(directory)
                self._disk.unlink(self._pack_path(number, is_cold=False))
                self.forget(number)
            fd = self._disk.open(path, os.O_RDONLY)
            try:
                self._add(number, _Pack(self._disk.size(fd), is_cold, finished=True))
            finally:
                self._disk.close(fd)
        for remote in stubs:
            if remote.number in self._packs:
                # It was about to leave when the process ended.
                self._disk.unlink(os.path.join(directory, remote.stub))
            else:
                self._add(remote.number, _Pack(remote.size_bytes, is_cold, finished=True, remote=remote))

    def _add(self, number: int, pack: _Pack) -> None:
        self._packs[number] = pack
        self._count(pack, 1)

    def _path_of(self, number: int) -> str:
        pack = self._packs.get(number)
        return self._pack_path(number, pack is not None and pack.is_cold)

    def _pack_path(self, number: int, is_cold: bool) -> str:
        directory = self._cold_path if is_cold else self._path
        assert directory is not None
        return os.path.join(directory, f"{number:020d}{PACK_SUFFIX}")


def _start_of(shard: int, number: int) -> bytes:
    """The header of a pack."""
    start = _header.pack(PACK_MAGIC, PACK_VERSION, shard, 0, number)
    return start + _checksum.pack(xxh3_64_intdigest(start))


def _directory(disk: Disk, fd: int, path: str) -> list[tuple[int, int, int]]:
    """The rows of the directory of a pack: offset, length, checksum."""
    size = disk.size(fd)
    footer = disk.pread(fd, PACK_FOOTER_BYTES, max(0, size - PACK_FOOTER_BYTES))
    if len(footer) == PACK_FOOTER_BYTES:
        directory_offset, count, magic = _footer.unpack_from(footer)
        (checksum,) = _checksum.unpack_from(footer, _footer.size)
        if magic == PACK_MAGIC and directory_offset + count * _row.size + PACK_FOOTER_BYTES == size:
            directory = disk.pread(fd, count * _row.size, directory_offset)
            if xxh3_64_intdigest(directory + footer[: _footer.size]) == checksum:
                return list(_row.iter_unpack(directory))
    raise DamagedData(f"the directory of {path} is damaged", file=path, offset=max(0, size - PACK_FOOTER_BYTES))
