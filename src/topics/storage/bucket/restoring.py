"""A data directory from the bucket: the files of a snapshot, and the log after it, up to its end or a moment before."""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from itertools import accumulate
from typing import NamedTuple

from topics.model.errors import DamagedData, TopicsError
from topics.storage.bucket.bucket import RestorableBucket
from topics.storage.bucket.chain import SnapshotMoment, StoredFile, read_manifest, snapshots_in, walk
from topics.storage.bucket.slots import LogPiece, decode_slot, slot_key
from topics.storage.bucket.terms import Place
from topics.storage.disk import Disk, write_all
from topics.storage.remote.remote_pack import RemotePack, pack_of_object
from topics.storage.wal.frame import FILE_HEADER_BYTES, FileHeader, encode_file_header
from topics.storage.wal.log_file import log_name

WAL = "shard-00/wal"
# The key of a file ends with this many bytes of it, in hex: its checksum.
END_BYTES = 8
# What a manifest may name: it comes from the bucket, and is joined to the path of a directory.
_NAMES = re.compile(r"shard-\d\d/(packs/\d{20}\.pack|snapshots/\d{20}\.snap)")


class NotInBucket(TopicsError):
    """The bucket does not have what is asked for."""

    code = "not_in_bucket"


class Restored(NamedTuple):
    """What was restored: the log up to `position`. Its last piece was cut at `time_ms`; 0: nothing came after it."""

    position: int
    time_ms: int
    files: int
    whole: bool
    # the slot after it, and who has its term
    place: Place
    owner: str


def choose(moments: list[SnapshotMoment], at_ms: int) -> SnapshotMoment | None:
    """The newest snapshot that is not after a moment, if the bucket goes back that far; None: begin without one."""
    before = [moment for moment in moments if moment.time_ms <= at_ms]
    return before[-1] if before else None


def restore_into(
    bucket: RestorableBucket,
    disk: Disk,
    target: str,
    *,
    until: Place | None = None,
    at_ms: int | None = None,
    local_bytes_max: int = 0,
    whole_only: bool = False,
    listed_only: bool = False,
) -> Restored:
    """Fill an empty directory; blocks. Raises NotInBucket if there is nothing, or nothing from that time.

    Packs beyond `local_bytes_max`, unless that is 0, stay in the bucket: the newest ones are fetched. With `whole_only`
    no file is fetched if the log after them has a gap. With `listed_only` the log may go on, as for `walk`.
    """
    moments = snapshots_in(bucket)
    chosen = moments[-1] if moments else None
    if at_ms is not None:
        chosen = choose(moments, at_ms)
    manifest = read_manifest(bucket, chosen.key) if chosen is not None else None
    log = _LogFiles(disk, os.path.join(target, WAL))
    disk.makedirs(log.path)
    end = walk(bucket, manifest, until=until, at_ms=at_ms, take=log.add, listed_only=listed_only)
    log.close()
    if whole_only and not end.whole:
        return Restored(end.position, end.time_ms, log.count, end.whole, end.place, end.owner)
    if not end.time_ms:
        raise _nothing(bucket, moments, at_ms)
    files = manifest.files if manifest is not None else []
    staying = packs_to_leave(files, local_bytes_max)
    for file in files:
        if _NAMES.fullmatch(file.name) is None:
            raise DamagedData(
                f"a snapshot cannot have a file named {file.name!r}", file=manifest.key if manifest else ""
            )
        path = os.path.join(target, file.name)
        disk.makedirs(os.path.dirname(path))
        if (remote := staying.get(file.key)) is not None:
            _leave(bucket, disk, os.path.dirname(path), remote)
        elif not bucket.download(file.key, path):
            raise NotInBucket(f"the bucket has lost {file.key}, which {chosen and chosen.key} needs", key=file.key)
        else:
            _check_file(disk, path, file)
        disk.fsync_dir(os.path.dirname(path))
    count = log.count + len(files) - len(staying)
    return Restored(end.position, end.time_ms, count, end.whole, end.place, end.owner)


def packs_to_leave(files: list[StoredFile], local_bytes_max: int) -> dict[str, RemotePack]:
    """The packs, by their keys, that have no room on the disk: the oldest."""
    packs = [pack for file in files if (pack := pack_of_object(file.key, file.bytes)) is not None]
    packs.sort(reverse=True)
    sizes = accumulate(pack.size_bytes for pack in packs)
    return {pack.key: pack for pack, upto_bytes in zip(packs, sizes, strict=True) if 0 < local_bytes_max < upto_bytes}


def _leave(bucket: RestorableBucket, disk: Disk, folder: str, pack: RemotePack) -> None:
    """Note a pack that stays in the bucket, if it is there."""
    end = bucket.read_range(pack.key, pack.size_bytes - END_BYTES, END_BYTES)
    if end is None:
        raise NotInBucket(f"the bucket has lost {pack.key}, which its newest snapshot needs", key=pack.key)
    if end.hex() != pack.checksum:
        raise DamagedData(f"the object {pack.key} of the bucket is damaged", file=pack.key, offset=0)
    disk.close(disk.open(os.path.join(folder, pack.stub), os.O_WRONLY | os.O_CREAT))


def _check_file(disk: Disk, path: str, file: StoredFile) -> None:
    """Whether a file is as long as it was and ends as it did; its content has checksums that every reader checks."""
    fd = disk.open(path, os.O_RDONLY)
    try:
        size = disk.size(fd)
        end = disk.pread(fd, END_BYTES, size - END_BYTES) if size >= END_BYTES else b""
    finally:
        disk.close(fd)
    if size != file.bytes or not file.key.endswith(end.hex()):
        raise DamagedData(f"the object {file.key} of the bucket is damaged", file=file.key, offset=0)


def _nothing(bucket: RestorableBucket, moments: list[SnapshotMoment], at_ms: int | None) -> NotInBucket:
    """Why there is nothing to restore: the bucket is empty, or does not go back that far."""
    oldest_ms = moments[0].time_ms if moments else None
    first = _first_piece(bucket)
    if first is not None and not first.from_position:
        oldest_ms = first.time_ms
    if at_ms is None or oldest_ms is None:
        return NotInBucket("the bucket holds no log below this prefix")
    when = datetime.fromtimestamp(oldest_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return NotInBucket(f"the bucket holds nothing from before that time; its oldest moment is {when}", oldest=when)


def _first_piece(bucket: RestorableBucket) -> LogPiece | None:
    """The first one that is not just the beginning of a lease."""
    place = Place(1, 0)
    while (found := bucket.read(slot_key(*place))) is not None:
        head, _ = decode_slot(slot_key(*place), found.data)
        if not isinstance(head, LogPiece):
            break
        if head.to_position:
            return head
        place = place.next
    return None


class _LogFiles:
    """Pieces as log files: those with one salt are in one file, at the positions that their frames verify with."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self.path = path
        self.count = 0
        self._fd = -1
        self._salt = self._base = 0
        self._end: int = 0

    def add(self, piece: LogPiece, frames: memoryview) -> None:
        if not frames:
            return
        if self._fd < 0 or piece.salt != self._salt or piece.from_position != self._end:
            self.close()
            self.count += 1
            self._salt, self._base = piece.salt, piece.from_position
            self._fd = self._disk.open(os.path.join(self.path, log_name(self.count)), os.O_RDWR | os.O_CREAT)
            header = encode_file_header(FileHeader(0, self.count, self._base, self._salt))
            write_all(self._disk, self._fd, [header], 0)
        write_all(self._disk, self._fd, [frames], FILE_HEADER_BYTES + piece.from_position - self._base)
        self._end = piece.to_position

    def close(self) -> None:
        if self._fd >= 0:
            self._disk.fdatasync(self._fd)
            self._disk.close(self._fd)
            self._disk.fsync_dir(self.path)
            self._fd = -1
