"""Files of a data directory, and backups: what is read from a changed one is what was written, or a refusal."""

from __future__ import annotations

import atexit
import contextlib
import io
import shutil
import tempfile
from functools import cache
from pathlib import Path

from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from tests.engine.test_extent import COLUMNS, all_facts, body_of, facts
from tests.faults import QuickDisk
from tests.storage.logs import fill, log_files, new_log, replay, sync_by_hand
from topics.engine.log.on_disk.extent import decode_body, encode_body, salvage
from topics.model.errors import DamagedData, DataDirIncompatible
from topics.storage.archive import (
    END_BYTES,
    MANIFEST,
    MANIFEST_FORMAT,
    ArchiveReader,
    DamagedBackup,
    FileEntry,
    Manifest,
    encode_manifest,
    header,
    padding,
)
from topics.storage.directory import META, DataDirectory, Meta, UnknownPast, encode_meta
from topics.storage.pack import Extent, Packs
from topics.storage.snapshot import Snapshots
from topics.storage.wal.sync_mark import SyncMark, noted_position

BODIES = [b"body %d " % number * (number % 7 + 1) for number in range(14)]
CHUNKS = [b"chunk %d" % number * (number + 1) for number in range(5)]
POSITION = 123_456
TIME_MS = 1_700_000_000_000


@cache
def _disk() -> QuickDisk:
    return QuickDisk()


@cache
def _place(name: str) -> Path:
    """A directory in memory where there is one: thousands of files are written to it."""
    memory = Path("/dev/shm")
    path = Path(tempfile.mkdtemp(prefix=f"topics-fuzz-{name}-", dir=memory if memory.is_dir() else None))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path


def _emptied(path: Path) -> Path:
    path.mkdir(exist_ok=True)
    for file in path.iterdir():
        file.unlink()
    return path


# --- the log ---


@cache
def _log() -> tuple[bytes, list[tuple[int, bytes]]]:
    """A log file without the zeros at its end, and its frames."""
    path = _emptied(_place("log") / "whole")
    wal = new_log(_disk(), path)
    fill(wal, BODIES, 3)
    sync_by_hand(wal)
    content = log_files(path)[0].read_bytes().rstrip(b"\0") + bytes(64)
    return content, list(replay(_disk(), path))


def log_seeds() -> list[bytes]:
    return [_log()[0]]


def read_log(data: bytes) -> None:
    """Without a repair the frames are the first ones, or it is refused; with one they are some of them, in order."""
    frames = _log()[1]
    for same_boot in (True, False):
        path = _emptied(_place("log") / "read")
        (path / f"{1:020d}.log").write_bytes(data)
        with contextlib.suppress(DamagedData):
            found = list(replay(_disk(), path, same_boot=same_boot))
            assert found == frames[: len(found)], found
    (path / f"{1:020d}.log").write_bytes(data)
    found = list(replay(_disk(), path, same_boot=True, repair=True))
    places = [frames.index(frame) for frame in found]
    assert places == sorted(set(places)), found


def mark_seeds() -> list[bytes]:
    path = _emptied(_place("mark"))
    mark = SyncMark(_disk(), str(path))
    for position in (POSITION, POSITION + 1):
        mark.note(position)
    mark.close()
    return [(path / "synced").read_bytes()]


def read_mark(data: bytes) -> None:
    path = _emptied(_place("mark"))
    (path / "synced").write_bytes(data)
    assert noted_position(_disk(), str(path)) in (0, POSITION, POSITION + 1)


# --- packs and snapshots ---


def _packs(path: Path) -> Packs:
    return Packs(_disk(), str(path), None)


@cache
def _pack() -> tuple[bytes, list[Extent], list[bytes]]:
    path = _emptied(_place("pack"))
    packs = _packs(path)
    writer = packs.writer()
    contents = [b"".join(encode_body(body_of(*columns), 1, None)) for columns in COLUMNS[:3]]
    extents = [writer.add([content]) for content in contents]
    writer.finish()
    packs.close()
    return (path / f"{extents[0].pack:020d}.pack").read_bytes(), extents, contents


def pack_seeds() -> list[bytes]:
    return [_pack()[0]]


def read_pack(data: bytes) -> None:
    """An extent is read as it was written, or its checksums, in the pack and in itself, say that it is not."""
    _, extents, contents = _pack()
    path = _emptied(_place("pack"))
    (path / f"{extents[0].pack:020d}.pack").write_bytes(data)
    with contextlib.suppress(DamagedData), contextlib.closing(_packs(path)) as packs:
        sums = packs.checksums(extents[0].pack)
        for extent, content in zip(extents, contents, strict=True):
            with contextlib.suppress(DamagedData):
                found = packs.read(extent)
                if found != content:
                    assert sums.get(extent) != xxh3_64_intdigest(found)
                    _read_changed(found, content)


def _read_changed(data: bytes, whole: bytes) -> None:
    right = all_facts(decode_body(whole, 1))
    with contextlib.suppress(DamagedData):
        assert all_facts(decode_body(data, 1)) == right, "damage is found"
    saved = salvage(data, 1, len(right))
    if saved is not None:
        kept = [number for number in range(len(right)) if not saved.hit[number]]
        assert all(facts(saved.body, number) == right[number] for number in kept), "what is saved is right"


def extent_seeds() -> list[bytes]:
    return [b"".join(encode_body(body_of(*columns), 1, None)) for columns in COLUMNS]


def read_extent(data: bytes) -> None:
    """Bytes of any origin: decoded, saved in part, or refused."""
    with contextlib.suppress(DamagedData):
        decode_body(data, 1)
    salvage(data, 1, 60)


@cache
def _snapshot() -> bytes:
    path = _emptied(_place("snapshot"))
    writer = Snapshots(_disk(), str(path)).writer(POSITION)
    for chunk in CHUNKS:
        writer.add(chunk)
    writer.finish((1, 7))
    return (path / f"{1:020d}.snap").read_bytes()


def snapshot_seeds() -> list[bytes]:
    return [_snapshot()]


def read_snapshot(data: bytes) -> None:
    path = _emptied(_place("snapshot"))
    (path / f"{1:020d}.snap").write_bytes(data)
    with contextlib.suppress(DamagedData):
        snapshots = Snapshots(_disk(), str(path))
        snapshot = snapshots.load_newest(thorough=True)
        if snapshot is not None:
            assert snapshot.position == POSITION
            assert list(snapshot.chunks()) == CHUNKS
            assert snapshots.kept_packs == {1, 7}


# --- a backup, and the file that says what a directory is ---

FILES = {"meta.json": b'{"format": 1}\n', "shard-00/wal/00000000000000000001.log": b"frames" * 20}


@cache
def _backup() -> bytes:
    entries = [FileEntry(name, len(content), xxh3_64_hexdigest(content)) for name, content in FILES.items()]
    manifest = encode_manifest(Manifest(MANIFEST_FORMAT, "1.0", TIME_MS, 1, None, entries))
    parts = [*FILES.items(), (MANIFEST, manifest)]
    written = [header(name, len(content), TIME_MS // 1000) + content + padding(len(content)) for name, content in parts]
    return b"".join(written) + bytes(END_BYTES)


def backup_seeds() -> list[bytes]:
    return [_backup()]


class _Kept:
    """The files of an archive."""

    def __init__(self) -> None:
        self.files: dict[str, io.BytesIO] = {}
        self._name = ""

    def begin(self, name: str, length: int) -> None:
        del length
        self._name = name
        self.files[name] = io.BytesIO()

    def write(self, data: bytes | memoryview) -> None:
        self.files[self._name].write(data)

    def end(self) -> None:
        self._name = ""


def read_backup(data: bytes) -> None:
    for step in (len(data) or 1, 100):
        kept = _Kept()
        reader = ArchiveReader(kept)
        with contextlib.suppress(DamagedBackup):
            for at in range(0, len(data), step):
                reader.feed(data[at : at + step])
            reader.finish()
            assert {name: file.getvalue() for name, file in kept.files.items()} == FILES


META_FIELDS = Meta("boot", False, 4_711, 5)


def meta_seeds() -> list[bytes]:
    return [encode_meta(META_FIELDS, 3), b'{"format":1,"boot_id":"b","clean_stop":true,"log_end":7}', b"[]"]


def read_meta(data: bytes) -> None:
    """With a checksum as it was written; anything else is refused, or of version 0.1, which had none."""
    path = _emptied(_place("meta"))
    (path / META).write_bytes(data)
    directory = DataDirectory(_disk(), str(path))
    with contextlib.suppress(UnknownPast, DataDirIncompatible):
        found = directory.read_meta()
        assert found == META_FIELDS or b"xxh3" not in data, found
