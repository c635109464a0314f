"""The archive of a backup: whole it is read back, with any byte cut, changed, or added it is refused."""

import io
import tarfile
from collections.abc import Iterator

import pytest
from xxhash import xxh3_64_hexdigest

from topics.storage.archive import (
    END_BYTES,
    MANIFEST,
    MANIFEST_BYTES_MAX,
    MANIFEST_FORMAT,
    ArchiveLength,
    ArchiveReader,
    DamagedBackup,
    FileEntry,
    Manifest,
    encode_manifest,
    header,
    padding,
)

TIME_MS = 1_700_000_000_123
FILES = {
    "meta.json": b'{"format": 1}\n',
    "shard-00/snapshots/00000000000000000001.snap": bytes(range(256)) * 2,
    "shard-00/packs/00000000000000000001.pack": b"",
    "shard-00/wal/00000000000000000001.log": b"frames" * 100,
}


class Kept:
    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.name = ""

    def begin(self, name: str, length: int) -> None:
        self.name = name
        self.files[name] = b""

    def write(self, data: bytes | memoryview) -> None:
        self.files[self.name] += data

    def end(self) -> None:
        self.name = ""


def entry(name: str, content: bytes, time_s: int = TIME_MS // 1000) -> bytes:
    return header(name, len(content), time_s) + content + padding(len(content))


def manifest_of(files: dict[str, bytes], form: int = MANIFEST_FORMAT) -> Manifest:
    entries = [FileEntry(name, len(content), xxh3_64_hexdigest(content)) for name, content in files.items()]
    return Manifest(form, "topics test", TIME_MS, 42, 1, entries)


def archive(files: dict[str, bytes] = FILES, form: int = MANIFEST_FORMAT) -> bytes:
    entries = [entry(name, content) for name, content in files.items()]
    return b"".join(entries) + entry(MANIFEST, encode_manifest(manifest_of(files, form))) + bytes(END_BYTES)


def check(data: bytes, piece_bytes: int = 1 << 20, sink: Kept | None = None) -> Manifest:
    reader = ArchiveReader(sink)
    for start in range(0, len(data), piece_bytes):
        reader.feed(data[start : start + piece_bytes])
    return reader.finish()


@pytest.mark.parametrize("piece_bytes", [1, 7, 512, 1000, 1 << 20])
def test_a_whole_archive_is_read_back_in_pieces_of_any_size(piece_bytes: int) -> None:
    kept = Kept()
    manifest = check(archive(), piece_bytes, kept)
    assert manifest == manifest_of(FILES)
    assert kept.files == FILES


@pytest.mark.parametrize("count", [1, 2, 4])
def test_its_length_is_known_from_names_and_lengths(count: int) -> None:
    files = dict(list(FILES.items())[:count])
    length = ArchiveLength()
    for listed in manifest_of(files).files:
        length.add(listed)
    assert length.total(manifest_of({})) == len(archive(files))


def test_any_tar_program_can_unpack_it() -> None:
    with tarfile.open(fileobj=io.BytesIO(archive())) as tar:
        assert tar.getnames() == [*FILES, MANIFEST]


def test_a_flipped_bit_anywhere_is_refused() -> None:
    whole = archive()
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        with pytest.raises(DamagedBackup):
            check(bytes(changed))


def test_a_cut_anywhere_is_refused() -> None:
    reader = ArchiveReader()
    for byte in archive():
        with pytest.raises(DamagedBackup, match="truncated"):
            reader.finish()
        reader.feed(bytes([byte]))
    reader.finish()


def wrong_archives() -> Iterator[tuple[str, bytes]]:
    whole = archive()
    yield "more after the end", whole + b"\0"
    yield "text", b"this is not a backup " * 100
    yield "zeros", bytes(10_000)
    yield "a file outside", archive({**FILES, "../evil": b"x"})
    yield "an absolute name", archive({**FILES, "/etc/evil": b"x"})
    yield "another file", archive({**FILES, "shard-00/lock": b"x"})
    yield "a newer format", archive(form=2)
    first = entry(*next(iter(FILES.items())))
    yield "a file twice", first + whole
    yield "a manifest that is too long", header(MANIFEST, MANIFEST_BYTES_MAX + 1, TIME_MS // 1000)
    yield "a file missing", whole[len(first) :]
    yield "a file of another time", entry("meta.json", FILES["meta.json"], 1) + whole[len(first) :]
    info = tarfile.TarInfo("shard-00/packs/00000000000000000001.pack")
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    yield "a link", info.tobuf() + whole


@pytest.mark.parametrize(("what", "data"), [pytest.param(what, data, id=what) for what, data in wrong_archives()])
def test_what_is_no_backup_is_refused(what: str, data: bytes) -> None:
    with pytest.raises(DamagedBackup):
        check(data)
