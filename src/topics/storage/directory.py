"""The data directory: where everything lies, who may use it, and how the last run ended.

<dir>                           locked by the running process, and so is
<dir>/lock
<dir>/meta.json                 format, boot id of the last open, whether it ended cleanly and where its log ended
<dir>/meta.copy.json            the same once more: one flipped bit costs one of the two
<dir>/shard-00/wal/             log files
<dir>/shard-00/packs/           sealed blocks
<dir>/shard-00/snapshots/       state at a log position
<cold>/shard-00/packs/          packs that were moved out of the way, if there is a cold directory
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from typing import Any, Final, NamedTuple, cast

from xxhash import xxh3_64_hexdigest

from topics.model.errors import DataDirIncompatible, StorageError
from topics.storage.disk import Disk, read_file, replace_file
from topics.storage.lock import DirectoryLock

logger = logging.getLogger("topics.storage")

FORMAT = 1
# Where `topics restore` works in a directory before it moves the data to its place.
RESTORING = "restoring"
META = "meta.json"
META_COPY = "meta.copy.json"


class Meta(NamedTuple):
    """What one run leaves for the next one to know."""

    boot_id: str
    clean_stop: bool
    log_end: int
    # When this directory was copied from one in use (ms since 1970), 0 if it is the original.
    copied_ms: int = 0


# Version 0.1 wrote these fields of meta.json, and no others.
_UNCHECKED_FIELDS: Final = frozenset({"format", *Meta._fields})


class _Copy(NamedTuple):
    """One of the two files, and the how-manieth writing of them it is; 0.1 did not count."""

    meta: Meta
    written: int


class UnknownPast(DataDirIncompatible):
    """There is data, and nothing that says how the last run ended."""


class DataDirectory:
    """Opened before anything in it is read, closed after everything else."""

    def __init__(self, disk: Disk, path: str, cold: str | None = None, *, shard: int = 0) -> None:
        self._disk = disk
        self.path = os.path.abspath(path)
        self._lock = DirectoryLock(disk, self.path)
        self._meta_path = os.path.join(self.path, META)
        self._copy_path = os.path.join(self.path, META_COPY)
        self._shard_path = os.path.join(self.path, f"shard-{shard:02d}")
        self.wal_path = os.path.join(self._shard_path, "wal")
        self.packs_path = os.path.join(self._shard_path, "packs")
        self.snapshots_path = os.path.join(self._shard_path, "snapshots")
        self.cold_path = os.path.join(os.path.abspath(cold), f"shard-{shard:02d}", "packs") if cold else None
        self.previous = Meta("", True, 0)
        # What the two files say now, as far as this process has read or written them.
        self._current = _Copy(self.previous, 0)
        self.damaged_meta: list[str] = []

    @property
    def same_boot(self) -> bool:
        """Whether the machine has run through since the last open, so that no written byte can be lost."""
        return self.previous.boot_id != "" and self.previous.boot_id == self._disk.boot_id()

    def name_of(self, path: str) -> str:
        """What a file of this directory is called from within."""
        return path.removeprefix(self.path + os.sep)

    def open(self, repair: bool = False) -> None:
        """Make the directory if need be, take its lock, and read how the last run ended."""
        self._disk.makedirs(self.path)
        self._lock.acquire()
        try:
            self.previous = self._or_the_worst(self._read_or_begin, repair)
            self._log_damage()
            self._make_layout()
        except BaseException:
            self._lock.release()
            raise

    def open_to_read(self, repair: bool = False) -> None:
        """Take the lock and read how the last run ended; nothing is created or written, not even by `close`."""
        if not repair and not self._disk.exists(self._meta_path):
            raise DataDirIncompatible(f"{self.path} is not a data directory: it has no {META}", directory=self.path)
        self._lock.acquire_to_read()
        try:
            self.previous = self._or_the_worst(self.read_meta, repair)
        except BaseException:
            self._lock.release()
            raise

    def _or_the_worst(self, read: Callable[[], Meta], repair: bool) -> Meta:
        """A repair does without meta.json, if it must, and supposes the worst: a power failure."""
        try:
            return read()
        except UnknownPast:
            if not repair:
                raise
            return Meta("", False, 0)

    def _read_or_begin(self) -> Meta:
        if self._disk.exists(self._meta_path) or self._disk.exists(self._copy_path):
            return self.read_meta()
        if self._disk.exists(os.path.join(self.path, RESTORING)):
            raise DataDirIncompatible(
                f"{self.path} holds the beginning of a restore; run `topics restore` again", directory=self.path
            )
        if self._disk.exists(self._shard_path):
            raise UnknownPast(
                f"{self.path} holds data and no meta.json; `topics repair` goes on without it", directory=self.path
            )
        self.replace_meta(Meta(self._disk.boot_id(), True, 0))
        self._disk.fsync_dir(os.path.dirname(self.path))
        return self.previous

    def close(self) -> None:
        self._lock.release()

    def mark_open(self) -> None:
        """From here on this boot counts. Only after recovery: its cut, judged by the old one, is durable then."""
        self.replace_meta(Meta(self._disk.boot_id(), False, 0))

    def mark_clean(self, log_end: int) -> None:
        """The last act of a clean stop: the log is whole and durable to `log_end`."""
        self.replace_meta(Meta(self._disk.boot_id(), True, log_end))

    def _make_layout(self) -> None:
        for path in (self.wal_path, self.packs_path, self.snapshots_path, self.cold_path):
            if path is not None and not self._disk.exists(path):
                self._disk.makedirs(path)
                self._disk.fsync_dir(os.path.dirname(path))
                self._disk.fsync_dir(os.path.dirname(os.path.dirname(path)))

    def read_meta(self) -> Meta:
        """How the last run ended, as the newer of the two files says that verify; `damaged_meta` names the others."""
        copies: list[_Copy] = []
        self.damaged_meta = []
        for path in (self._meta_path, self._copy_path):
            try:
                copies.append(_decode_meta(read_file(self._disk, path), self.path))
            except FileNotFoundError:
                if path == self._meta_path:
                    self.damaged_meta.append(f"{path} is missing")
            except ValueError as error:
                self.damaged_meta.append(f"{path} is damaged: {error}")
        if not copies:
            damage = "; ".join(self.damaged_meta)
            raise UnknownPast(f"{damage}; `topics repair` goes on without it", directory=self.path)
        newest = max(copies, key=lambda copy: copy.written)
        if copies[0].written == 0:
            # Version 0.1 had the directory last: it writes meta.json without a checksum, and knows of no other file.
            newest = copies[0]._replace(written=newest.written)
        self._current = newest
        return newest.meta

    def verify_owned(self) -> None:
        """Raise StorageError if this process may not be the only one that has the directory. Blocks."""
        self._lock.verify()
        meta = self._current.meta
        if self._disk.boot_id() != meta.boot_id:
            raise StorageError(f"the boot id has changed: this process was copied or moved while it had {self.path}")
        try:
            found = self.read_meta()
        except UnknownPast:
            found = meta
        if found != meta:
            raise StorageError(f"another process has opened {self.path}: {META} is not as this one wrote it")
        if self.damaged_meta:
            self._log_damage()
            self.replace_meta(meta)

    def _log_damage(self) -> None:
        for line in self.damaged_meta:
            logger.error("%s; it is written anew", line)

    def replace_meta(self, meta: Meta) -> None:
        copy = _Copy(meta, self._current.written + 1)
        for path in (self._meta_path, self._copy_path):
            replace_file(self._disk, path, encode_meta(*copy))
        self._current = copy


def forget_copying(disk: Disk, path: str) -> None:
    """The directory at `path` takes the place of the one it was copied from, which handed out no seq since."""
    directory = DataDirectory(disk, path)
    directory.replace_meta(directory.read_meta()._replace(copied_ms=0))


def encode_meta(meta: Meta, written: int = 1) -> bytes:
    """The content of meta.json: its fields, and a checksum of them."""
    fields = {"format": FORMAT, **meta._asdict(), "written": written}
    return _text({**fields, "xxh3": xxh3_64_hexdigest(_text(fields))})


def _text(fields: dict[str, Any]) -> bytes:
    return (json.dumps(fields, indent=1) + "\n").encode()


def _decode_meta(data: bytes, directory: str) -> _Copy:
    """What one of the files says; ValueError unless every byte is as it was written."""
    try:
        fields = cast("dict[str, Any]", json.loads(data))
        checked = "xxh3" in fields
        if checked and _text(fields) != data:
            raise ValueError("it is not written as it should be")
        if checked and fields.pop("xxh3") != xxh3_64_hexdigest(_text(fields)):
            raise ValueError("it fails its checksum")
        if fields["format"] != FORMAT:
            raise DataDirIncompatible(
                f"{directory} has format {fields['format']}, this program reads {FORMAT}", directory=directory
            )
        if not checked and not fields.keys() <= _UNCHECKED_FIELDS:
            raise ValueError("it has no checksum")
        copied_ms = int(fields.get("copied_ms", 0))
        meta = Meta(str(fields["boot_id"]), bool(fields["clean_stop"]), int(fields["log_end"]), copied_ms)
        return _Copy(meta, int(fields["written"]) if checked else 0)
    except KeyError as error:
        raise ValueError(f"it has no field {error}") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error
