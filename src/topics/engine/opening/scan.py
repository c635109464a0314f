"""Reading a data directory, a backup or a bucket without its server: the state of a recovery, in parts, read anywhere.

    Scan.open(path) ─▶ snapshot, log, the same fold ─▶ topics ─▶ plan ─▶ Part, Part, …     pickled, read elsewhere
    read_part(part) ─▶ pread, checksum ─▶ Chunk (records of one block), Tombstone, …       no fold, no other topic

Nothing is locked or changed. A server may use the files and write, checkpoint and remove some meanwhile: records never
change, so a part whose files were removed is planned again from the current files. The log of a bucket goes on:
`refresh` folds what has come since.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from typing import NamedTuple

from topics.engine.core.checkpoints.image import block_image, decode_blocks
from topics.engine.log.block import Block
from topics.engine.log.body import Body
from topics.engine.log.on_disk.cold import DamagedBlock, decoded, unreadable
from topics.engine.log.on_disk.extent import encode_body
from topics.engine.log.retention import Tombstone, tombstone
from topics.engine.log.topic import Topic
from topics.engine.opening.bucket_view import BucketView
from topics.engine.opening.inspection import Inspection
from topics.engine.opening.served import as_served
from topics.model.clock import Clock, SystemClock
from topics.model.errors import DamagedData, DataDirIncompatible, StorageError, TopicNotFound
from topics.model.requests.config import TopicConfig
from topics.storage.bucket.bucket import BucketError
from topics.storage.bucket.in_place.object_packs import ObjectPacks
from topics.storage.bucket.in_place.patient import PatientReads
from topics.storage.bucket.restoring import NotInBucket
from topics.storage.bucket.starting.connecting import connect, is_bucket
from topics.storage.directory import META, DataDirectory
from topics.storage.disk import Disk
from topics.storage.openfiles import OpenFiles
from topics.storage.pack import PACK_SUFFIX, Extent
from topics.storage.remote.remote_pack import pack_of_stub
from topics.storage.viewing import ArchiveDisk, ViewDisk

TRIES_MAX = 8
FILE_URL = "file://"
PAUSE_S = 0.02
OPEN_MAX = 16
# A block whose body is in no pack yet; packs count from 1.
_IN_NO_PACK = 0


class ScannedTopic(NamedTuple):
    """A topic as recovery would find it; records up to `sealed_seq` are in packs, the others only in the log."""

    name: str
    epoch: int
    config: TopicConfig
    head_seq: int
    earliest_seq: int
    sealed_seq: int
    records: int
    size_bytes: int


class Part(NamedTuple):
    """Records after `from_seq` up to `to_seq`: gaps among them, and images of the blocks that hold them.

    Bodies that are in no pack yet are in `bodies`, in the order of their blocks. `objects` has the packs of a bucket:
    their numbers and keys.
    """

    path: str
    cold_dir: str | None
    topic: str
    epoch: int
    from_seq: int
    to_seq: int
    gaps: tuple[Tombstone, ...]
    blocks: bytes
    bodies: tuple[bytes, ...]
    records: int
    size_bytes: int
    objects: tuple[tuple[int, str], ...] = ()


class Chunk(NamedTuple):
    """Records start … stop − 1 of a block that has its body. They include dead ones: see `Block.alive_runs`."""

    block: Block
    start: int
    stop: int

    def lines(self) -> bytes:
        """The live records, one line of JSON each."""
        body = self.block.body
        assert body is not None
        return b"".join([body.lines(*run) for run in self.block.alive_runs(self.start, self.stop)])


class Vanished(Exception):
    """A file that a part needs no longer exists."""


class Scan:
    """The state of a directory, a backup or a bucket at one moment. Created by `open`, closed by its user."""

    def __init__(self, path: str, cold_dir: str | None, clock: Clock) -> None:
        self._path = path if is_bucket(path) else os.path.abspath(path.removeprefix(FILE_URL))
        self._cold_dir = cold_dir
        self._clock = clock
        # Topics with caps and expiry applied, by name.
        self._served: dict[str, Topic] = {}
        self._found = _bucket_view(path) if is_bucket(path) else _inspection(self._path, cold_dir)

    @classmethod
    def open(cls, path: str, *, cold_dir: str | None = None, clock: Clock | None = None) -> Scan:
        """Read the current files. If a server moves files meanwhile, it starts over; damage is raised."""
        said = ""
        for _ in range(TRIES_MAX):
            try:
                return cls(path, cold_dir, clock or SystemClock())
            except (FileNotFoundError, DamagedData) as error:
                # Files that move look different each time; damage stays the same.
                if str(error) == said:
                    raise
                said = str(error)
            time.sleep(PAUSE_S)
        raise StorageError(f"{path} changes faster than it can be read; try again", path=path)

    def close(self) -> None:
        self._found.close()

    def refresh(self) -> None:
        """Read on in the log of a bucket; what else there is stays as it was opened."""
        found = self._found
        if not isinstance(found, BucketView):
            return
        if not found.advance():
            newer = Scan.open(self._path, clock=self._clock)
            self._found = newer._found
            found.close()
        self._served.clear()

    # --- topics ---

    def names(self) -> list[str]:
        return list(self._found.state.names)

    def topic(self, name: str) -> ScannedTopic:
        topic = self._find(name)
        sealed_seq = 0
        for block in topic.blocks:
            if block.extent is None:
                break
            sealed_seq = block.last_seq
        return ScannedTopic(
            topic.name,
            topic.epoch,
            topic.config,
            topic.head_seq,
            topic.earliest_seq,
            sealed_seq if sealed_seq or topic.blocks else topic.head_seq,
            topic.count,
            topic.bytes,
        )

    def _find(self, name: str) -> Topic:
        """The topic, with caps and expiry applied as a server would."""
        state = self._found.state
        if name not in state.by_name:
            raise TopicNotFound(name)
        if name not in self._served:
            self._served[name] = as_served(state.by_name[name], self._clock.now_ms(), state.cold.load_unless_remote)
        return self._served[name]

    # --- plans ---

    def plan(self, name: str, from_seq: int = 0, to_seq: int | None = None, parts: int = 1) -> list[Part]:
        """At most `parts` parts of about the same size; together all records after `from_seq` up to `to_seq`."""
        topic = self._find(name)
        to_seq = topic.head_seq if to_seq is None else min(to_seq, topic.head_seq)
        gaps = _gaps(topic, from_seq, to_seq)
        if from_seq > topic.head_seq:
            from_seq = topic.earliest_seq - 1
        index = topic.block_after(from_seq)
        blocks = [block for block in topic.blocks[index:] if block.first_seq <= to_seq]
        size_bytes_max = -(-sum(block.live_bytes for block in blocks) // max(1, parts))
        planned: list[Part] = []
        group: list[Block] = []
        size_bytes = 0
        for number, block in enumerate(blocks, 1):
            group.append(block)
            size_bytes += block.live_bytes
            if number == len(blocks) or size_bytes >= size_bytes_max:
                end_seq = to_seq if number == len(blocks) else block.last_seq
                planned.append(self._part(topic, from_seq, end_seq, _taken(gaps, end_seq), group))
                from_seq, group, size_bytes = end_seq, [], 0
        if gaps:
            planned.append(self._part(topic, from_seq, to_seq, _taken(gaps, to_seq), []))
        return planned

    def _part(self, topic: Topic, from_seq: int, to_seq: int, gaps: tuple[Tombstone, ...], blocks: list[Block]) -> Part:
        images: list[bytes] = []
        bodies: list[bytes] = []
        packs: set[int] = set()
        for block in blocks:
            if block.extent is not None:
                images.append(block_image(block, {}))
                packs.add(block.extent.pack)
                continue
            assert block.body is not None, "a block is in memory, on disk, or both"
            encoded = b"".join(encode_body(block.body, block.first_seq, block.seqs))
            images.append(block_image(block, {block: Extent(_IN_NO_PACK, 0, len(encoded))}))
            bodies.append(encoded)
        return Part(
            path=self._path,
            cold_dir=self._cold_dir,
            topic=topic.name,
            epoch=topic.epoch,
            from_seq=from_seq,
            to_seq=to_seq,
            gaps=gaps,
            blocks=b"".join(images),
            bodies=tuple(bodies),
            records=sum(block.live for block in blocks),
            size_bytes=sum(block.live_bytes for block in blocks),
            objects=self._objects(packs),
        )

    def _objects(self, packs: set[int]) -> tuple[tuple[int, str], ...]:
        if not isinstance(self._found, BucketView):
            return ()
        return tuple((number, key) for number, key in self._found.keys().items() if number in packs)


def _bucket(path: str) -> PatientReads:
    return PatientReads(connect(path, os.environ, named="path"))


def _bucket_view(path: str) -> BucketView:
    try:
        return BucketView(_bucket(path))
    except NotInBucket:
        raise DataDirIncompatible(f"{path} is not the bucket of a server: it holds no log", path=path) from None
    except BucketError as error:
        hint = "check that it exists, the endpoint, and the rights of the credentials"
        raise StorageError(f"cannot read {path}: {error.message}; {hint}", path=path) from error


def _inspection(path: str, cold_dir: str | None) -> Inspection:
    disk = _disk_of(path)
    directory = DataDirectory(disk, path, cold_dir)
    if not disk.exists(os.path.join(path, META)):
        raise DataDirIncompatible(f"{path} is neither a data directory nor a backup: it has no {META}", path=path)
    directory.previous = directory.read_meta()
    return Inspection(disk, directory)


def _disk_of(path: str) -> Disk:
    return ArchiveDisk(path) if os.path.isfile(path) else ViewDisk()


def _gaps(topic: Topic, from_seq: int, to_seq: int) -> list[Tombstone]:
    """The losses within a range, as readers would get them, cut to the range."""
    found: list[Tombstone] = []
    recreated = tombstone(topic, from_seq) if from_seq > topic.head_seq else None
    if recreated is not None:
        # A reader of another topic of this name reads from the beginning.
        found.append(recreated)
        from_seq = topic.earliest_seq - 1
    for cursor in (from_seq, *(hole.from_seq - 1 for hole in topic.holes if hole.from_seq - 1 > from_seq)):
        gap = tombstone(topic, cursor)
        if gap is not None and cursor < to_seq:
            found.append(gap._replace(gap_to=min(gap.gap_to, to_seq)))
    return found


def _taken(gaps: list[Tombstone], end_seq: int) -> tuple[Tombstone, ...]:
    """Remove and return the gaps that begin up to `end_seq`: a gap is reported once, where it begins."""
    count = sum(gap.gap_from <= end_seq or gap.reason == "recreated" for gap in gaps)
    taken, gaps[:] = tuple(gaps[:count]), gaps[count:]
    return taken


# --- reading a part ---


def read_part(part: Part) -> Iterator[Chunk | Tombstone]:
    """The content of the part, in order; damage raises DamagedData that names the seqs. Needs no Scan."""
    for _ in range(TRIES_MAX):
        reading = _Reading(part)
        try:
            yield from reading.pieces()
        except Vanished as vanished:
            part = _planned_again(part, reading.seq, vanished)
        else:
            return
        finally:
            reading.close()
    raise StorageError(f"{part.path} changes faster than it can be read; try again", path=part.path)


def _planned_again(part: Part, seq: int, vanished: Vanished) -> Part:
    """The rest of the part after `seq`, from the current files."""
    scan = Scan.open(part.path, cold_dir=part.cold_dir)
    try:
        if part.topic not in scan.names() or scan.topic(part.topic).epoch != part.epoch:
            raise StorageError(f'topic "{part.topic}" was deleted while it was read', topic=part.topic)
        rest = scan.plan(part.topic, seq, part.to_seq)
        same_packs = rest and set(rest[0].objects) <= set(part.objects)
        if same_packs and rest[0].blocks and part.blocks.endswith(rest[0].blocks):
            raise DamagedData(
                f"{part.path}: seqs {seq + 1} to {part.to_seq} of topic {part.topic} cannot be read: {vanished}",
                from_seq=seq + 1,
                to_seq=part.to_seq,
            )
        return rest[0] if rest else part._replace(from_seq=seq, gaps=(), blocks=b"", bodies=())
    finally:
        scan.close()


class _Reading:
    """One attempt at a part; `seq` is its position."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._packs = _ObjectPacks(part) if part.objects else _FilePacks(part)
        self.seq = part.from_seq

    def close(self) -> None:
        self._packs.close()

    def pieces(self) -> Iterator[Chunk | Tombstone]:
        gaps = list(self._part.gaps)
        bodies = iter(self._part.bodies)
        for block in decode_blocks(self._part.blocks):
            while gaps and (gaps[0].gap_from < block.first_seq or gaps[0].reason == "recreated"):
                yield gaps.pop(0)
            start = max(block.number_after(self.seq), block.start)
            stop = block.number_after(self._part.to_seq)
            data = next(bodies) if block.extent is not None and block.extent.pack == _IN_NO_PACK else None
            if start < stop and block.live:
                try:
                    block.body = self._body_of(block, data)
                except DamagedBlock as damage:
                    salvaged = damage.salvaged
                    if salvaged is not None and salvaged.first_hit(start) > start:
                        block.body = salvaged.body
                        yield Chunk(block, start, min(stop, salvaged.first_hit(start)))
                    if salvaged is None or salvaged.first_hit(start) < stop:
                        raise
                else:
                    yield Chunk(block, start, stop)
            self.seq = max(self.seq, min(block.last_seq, self._part.to_seq))
        yield from gaps

    def _body_of(self, block: Block, data: bytes | None) -> Body:
        extent = block.extent
        assert extent is not None
        try:
            return decoded(block, extent, self._packs.read(extent) if data is None else data)
        except OSError as error:
            raise unreadable(block, extent, error) from None


class _ObjectPacks:
    """The packs of a bucket."""

    def __init__(self, part: Part) -> None:
        extents = [block.extent for block in decode_blocks(part.blocks) if block.live]
        in_packs = [extent for extent in extents if extent is not None and extent.pack != _IN_NO_PACK]
        self._packs = ObjectPacks(_bucket(part.path), dict(part.objects), in_packs)

    def close(self) -> None:
        self._packs.close()

    def read(self, extent: Extent) -> bytes:
        data = self._packs.read(extent)
        if data is None:
            raise Vanished(f"pack {extent.pack} is missing")
        return data


class _FilePacks:
    """The packs of a directory or a backup."""

    def __init__(self, part: Part) -> None:
        self._part = part
        self._disk = _disk_of(part.path)
        self._directory = DataDirectory(self._disk, part.path, part.cold_dir)
        self._open = OpenFiles(self._disk, OPEN_MAX)

    def close(self) -> None:
        self._open.close()

    def read(self, extent: Extent) -> bytes:
        name = f"{extent.pack:020d}{PACK_SUFFIX}"
        for directory in (self._directory.packs_path, self._directory.cold_path):
            if directory is None:
                continue
            try:
                fd = self._open.borrow(os.path.join(directory, name), may_open=True)
            except FileNotFoundError:
                continue
            assert fd is not None
            try:
                return self._disk.pread(fd, extent.length, extent.offset)
            finally:
                self._open.give_back(fd)
        if any(
            (remote := pack_of_stub(name)) is not None and remote.number == extent.pack
            for name in self._disk.listdir(self._directory.packs_path)
        ):
            raise StorageError(
                f"pack {extent.pack} of {self._part.path} is only in the bucket of its server: read topic "
                f'"{self._part.topic}" through the server, or from the address of the bucket instead of the directory',
                topic=self._part.topic,
                pack=extent.pack,
            )
        raise Vanished(
            f"pack {extent.pack} is missing" + ("" if self._directory.cold_path else ", or in a cold directory")
        )
