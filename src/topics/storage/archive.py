"""The bytes of a backup: a tar of a data directory that ends with a manifest, and the check that it is complete.

    | header 512 | file, padded to 512 | header | file | … | header | manifest.json, padded | 1024 zeros |

Every byte is accounted for. A header must be exactly what its name, length and time make; padding is zeros; each file
has its checksum (xxh3, 64 bits) in the manifest, and the manifest has its own. A cut or changed archive never passes.
"""

from __future__ import annotations

import re
import tarfile
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import msgspec
from xxhash import xxh3_64, xxh3_64_hexdigest

from topics.model.errors import TopicsError

BLOCK_BYTES = 512
END_BYTES = 2 * BLOCK_BYTES
MANIFEST = "manifest.json"
MANIFEST_FORMAT = 1
MANIFEST_BYTES_MAX = 256 << 20
MODE = 0o600
_NAMES = re.compile(r"meta\.json|manifest\.json|shard-\d\d/(wal/\d{20}\.log|packs/\d{20}\.pack|snapshots/\d{20}\.snap)")


class DamagedBackup(TopicsError):
    """The archive is truncated, changed, or not a backup."""

    code = "damaged_backup"


class FileEntry(msgspec.Struct, frozen=True):
    """A file as listed in the manifest."""

    name: str
    bytes: int
    xxh3: str


class Manifest(msgspec.Struct, frozen=True):
    """What is in a backup; `position` is where its log ends, `server_time_ms` when that was."""

    format: int
    made_by: str
    server_time_ms: int
    position: int
    snapshot: int | None
    files: list[FileEntry]

    @property
    def bytes(self) -> int:
        return sum(entry.bytes for entry in self.files)


class _Sealed(msgspec.Struct):
    """The content of `manifest.json`: the manifest and its checksum."""

    manifest: msgspec.Raw
    xxh3: str


def header(name: str, length: int, time_s: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size, info.mtime, info.mode = length, time_s, MODE
    return info.tobuf(tarfile.GNU_FORMAT)


def padding(length: int) -> bytes:
    return bytes(-length % BLOCK_BYTES)


def encode_manifest(manifest: Manifest) -> bytes:
    """Its length depends only on names and lengths, so it is known before the checksums are."""
    content = msgspec.json.encode(manifest)
    return msgspec.json.encode(_Sealed(msgspec.Raw(content), xxh3_64_hexdigest(content)))


def decode_manifest(data: bytes) -> Manifest:
    try:
        sealed = msgspec.json.decode(data, type=_Sealed)
        if xxh3_64_hexdigest(bytes(sealed.manifest)) == sealed.xxh3 and msgspec.json.encode(sealed) == data:
            found: dict[str, Any] = msgspec.json.decode(sealed.manifest)
            if found.get("format") != MANIFEST_FORMAT:
                raise DamagedBackup(
                    f"the backup has format {found.get('format')}, this program reads {MANIFEST_FORMAT}"
                )
            return msgspec.convert(found, Manifest)
    except (msgspec.MsgspecError, ValueError):
        pass
    raise DamagedBackup("the manifest of the backup is damaged")


class ArchiveLength:
    """The length of an archive, computed file by file: a large store has too many files for one step."""

    def __init__(self) -> None:
        self._bytes = END_BYTES
        self._listed_bytes = -1  # there is one comma fewer than there are files

    def add(self, entry: FileEntry) -> None:
        self._bytes += _entry_bytes(entry.bytes)
        self._listed_bytes += len(msgspec.json.encode(entry)) + 1

    def total(self, manifest: Manifest) -> int:
        """The total with the manifest, which is given without its files."""
        assert not manifest.files
        return self._bytes + _entry_bytes(len(encode_manifest(manifest)) + self._listed_bytes)


def _entry_bytes(length: int) -> int:
    return BLOCK_BYTES + length + -length % BLOCK_BYTES


class Sink(Protocol):
    """Receives the files of an archive, one after the other, without the manifest."""

    def begin(self, name: str, length: int) -> None: ...
    def write(self, data: bytes | memoryview) -> None: ...
    def end(self) -> None: ...


class NoSink:
    """A sink that keeps nothing, for checking whether an archive is complete."""

    def begin(self, name: str, length: int) -> None: ...
    def write(self, data: bytes | memoryview) -> None: ...
    def end(self) -> None: ...


class _Current(NamedTuple):
    name: str
    length: int
    time_s: int


class ArchiveReader:
    """Takes an archive in pieces of any size, passes its files to a sink, and refuses it at the first wrong byte."""

    def __init__(self, sink: Sink | None = None) -> None:
        self._sink: Sink = sink or NoSink()
        self._manifest: Manifest | None = None
        # the entry being read
        self._step: Callable[[memoryview], int] = self._read_header
        self._block = bytearray()
        self._entry: _Current | None = None
        self._left = 0
        self._digest = xxh3_64()
        self._manifest_data = bytearray()
        # all entries so far
        self._files: list[FileEntry] = []
        self._names: set[str] = set()
        self._times: set[int] = set()
        self._zeros_left = 0
        self.bytes_read = 0

    def feed(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            taken = self._step(view)
            self.bytes_read += taken
            view = view[taken:]

    def finish(self) -> Manifest:
        """The archive has ended. Returns its manifest if the archive is complete."""
        if self._manifest is None or self._zeros_left:
            raise DamagedBackup(f"the backup is truncated: it ends after {self.bytes_read} bytes")
        return self._manifest

    # --- one step each; returns how many bytes it has used ---

    def _read_header(self, view: memoryview) -> int:
        taken = view[: BLOCK_BYTES - len(self._block)]
        self._block += taken
        if len(self._block) < BLOCK_BYTES:
            return len(taken)
        block, self._block = bytes(self._block), bytearray()
        entry = self._entry = self._parse(block)
        self._left = entry.length
        self._digest = xxh3_64()
        if entry.name == MANIFEST:
            if entry.length > MANIFEST_BYTES_MAX:
                raise self._changed("the manifest is too long")
        else:
            self._sink.begin(entry.name, entry.length)
        self._step = self._read_content
        if not entry.length:
            self._end_content()
        return len(taken)

    def _parse(self, block: bytes) -> _Current:
        if not any(block):
            raise DamagedBackup("the backup has no manifest: it is truncated, or it is not a backup")
        try:
            info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        except (tarfile.TarError, ValueError) as error:
            what = "this is not a backup" if not self._files else f"damaged at byte {self.bytes_read}"
            raise DamagedBackup(f"{what}: {error}") from error
        entry = _Current(info.name, info.size, int(info.mtime))
        if _NAMES.fullmatch(entry.name) is None:
            raise self._changed(f"a backup cannot have a file named {entry.name!r}")
        if entry.length < 0 or header(*entry) != block:
            raise self._changed("a header does not verify")
        if entry.name in self._names:
            raise self._changed(f"{entry.name} appears twice")
        self._names.add(entry.name)
        return entry

    def _read_content(self, view: memoryview) -> int:
        assert self._entry is not None
        taken = view[: self._left]
        if self._entry.name == MANIFEST:
            self._manifest_data += taken
        else:
            self._digest.update(taken)
            self._sink.write(taken)
        self._left -= len(taken)
        if not self._left:
            self._end_content()
        return len(taken)

    def _end_content(self) -> None:
        entry = self._entry
        assert entry is not None
        self._times.add(entry.time_s)
        if entry.name == MANIFEST:
            self._check_manifest()
            self._zeros_left = END_BYTES
        else:
            self._sink.end()
            self._files.append(FileEntry(entry.name, entry.length, self._digest.hexdigest()))
        self._zeros_left += len(padding(entry.length))
        self._step = self._read_zeros if self._zeros_left else self._read_header

    def _read_zeros(self, view: memoryview) -> int:
        if not self._zeros_left:
            raise self._changed("there are bytes after its end")
        taken = view[: self._zeros_left]
        if any(taken):
            raise self._changed("padding that is not zeros")
        self._zeros_left -= len(taken)
        if not self._zeros_left and self._manifest is None:
            self._step = self._read_header
        return len(taken)

    def _check_manifest(self) -> None:
        manifest = decode_manifest(bytes(self._manifest_data))
        if [entry.name for entry in manifest.files] != [entry.name for entry in self._files]:
            raise self._changed("its files differ from its manifest")
        for listed, found in zip(manifest.files, self._files, strict=True):
            if listed != found:
                raise DamagedBackup(f"the backup is damaged: {listed.name} does not have the checksum it was made with")
        if self._times != {manifest.server_time_ms // 1000}:
            raise self._changed("a header does not verify")
        self._manifest = manifest

    def _changed(self, reason: str) -> DamagedBackup:
        return DamagedBackup(f"the backup is damaged at byte {self.bytes_read}: {reason}")
