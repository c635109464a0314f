"""The data directory: where the files are, which process may use them, and how the last run ended.

<dir>                           locked by the running process, like
<dir>/lock
<dir>/meta.json                 format, boot id of the last open, whether it ended cleanly and where its log ended
<dir>/meta.copy.json            a second copy, so that one flipped bit damages only one of the two
<dir>/shard-00/wal/             log files
<dir>/shard-00/packs/           sealed blocks; of those that are only in the bucket, an empty file
<dir>/shard-00/snapshots/       state at a log position
<cold>/shard-00/packs/          packs that were moved to the cold directory, if there is one
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, NamedTuple, cast

from xxhash import xxh3_64_hexdigest

from topics.model.errors import DataDirIncompatible, StorageError
from topics.storage.disk import FULL, Disk, overwrite_file, read_file, replace_file
from topics.storage.lock import DirectoryLock

logger = logging.getLogger("topics.storage")

# Raised when an older version could misread what is written; 1 is that of version 0.1. Every earlier one is still read.
FORMAT = 6
# Where `topics restore` writes before it moves the data into place.
RESTORING = "restoring"
META = "meta.json"
META_COPY = "meta.copy.json"


class Meta(NamedTuple):
    """What one run records for the next one."""

    boot_id: str
    clean_stop: bool
    log_end: int
    # When this directory was copied from one in use (ms since 1970), 0 if it is the original.
    copied_ms: int = 0


# Version 0.1 wrote these fields of meta.json, and no others.
_UNCHECKED_FIELDS: Final = frozenset({"format", *Meta._fields})


class _Copy(NamedTuple):
    """One of the two files; `writes` counts how often they were written. Version 0.1 did not count."""

    meta: Meta
    written: int


class UnknownPast(DataDirIncompatible):
    """There is data, but no record of how the last run ended."""


class DataDirectory:
    """Opened before any file in it is read, closed last."""

    def __init__(self, disk: Disk, path: str, cold: str | None = None, *, shard: int = 0) -> None:
        self._disk = disk
        self.path = os.path.abspath(path)
        self._lock = DirectoryLock(disk, self.path)
        # A checkpoint looks at the files of `Meta` in another thread than the one that writes them.
        self._recording = Lock()
        # Whether the boot that is recorded is that of this run: a copy is opened with none.
        self._is_marked = False
        self._meta_path = os.path.join(self.path, META)
        self._copy_path = os.path.join(self.path, META_COPY)
        self._shard_path = os.path.join(self.path, f"shard-{shard:02d}")
        self.wal_path = os.path.join(self._shard_path, "wal")
        self.packs_path = os.path.join(self._shard_path, "packs")
        self.snapshots_path = os.path.join(self._shard_path, "snapshots")
        self._cold_root = os.path.abspath(cold) if cold else ""
        self._cold_shard_path = os.path.join(self._cold_root, f"shard-{shard:02d}") if cold else None
        self.cold_path = os.path.join(self._cold_shard_path, "packs") if self._cold_shard_path else None
        self.previous = Meta("", True, 0)
        # The content of the two files, as far as this process has read or written them.
        self._current = _Copy(self.previous, 0)
        self.damaged_meta: list[str] = []
        # Without any data: `begin` or `fill` must follow `open`.
        self.vacant = False

    @property
    def restoring_path(self) -> str:
        """Where the data of a restore is written before it is moved into place."""
        return os.path.join(self.path, RESTORING)

    @property
    def same_boot(self) -> bool:
        """Whether the machine has kept running since the last open, so that no written byte can have been lost."""
        return self.previous.boot_id != "" and self.previous.boot_id == self._disk.boot_id()

    @property
    def runs_noted(self) -> int:
        """How often the beginning or end of a run was recorded: it grows with every run that may write."""
        return self._current.written

    @property
    def file_paths(self) -> dict[str, str]:
        """Where the files of each kind are."""
        paths = {"log": self.wal_path, "packs": self.packs_path, "snapshots": self.snapshots_path}
        return paths if self.cold_path is None else {**paths, "cold packs": self.cold_path}

    def name_of(self, path: str) -> str:
        """The path of a file relative to this directory."""
        return path.removeprefix(self.path + os.sep)

    def open(self, repair: bool = False, *, may_be_filled: bool = False) -> None:
        """Create the directory if necessary, take its lock, and read how the last run ended.

        With `may_be_filled` nothing is written yet if there is no data (`vacant`).
        """
        self._disk.makedirs(self.path)
        self._lock.acquire()
        try:
            if may_be_filled and self._has_no_data():
                self.vacant = True
                return
            self.previous = self._or_the_worst(self._read_or_begin, repair)
            self._log_damage()
            self._make_layout()
        except BaseException:
            self._lock.release()
            raise

    def open_to_read(self, repair: bool = False) -> None:
        """Take the lock and read how the last run ended. Creates and writes nothing, not even in `close`."""
        if not repair and not self._disk.exists(self._meta_path):
            raise DataDirIncompatible(f"{self.path} is not a data directory: it has no {META}", directory=self.path)
        self._lock.acquire_to_read()
        try:
            self.previous = self._or_the_worst(self.read_meta, repair)
        except BaseException:
            self._lock.release()
            raise

    def _or_the_worst(self, read: Callable[[], Meta], repair: bool) -> Meta:
        """A repair goes on without meta.json if necessary, and then assumes the worst: a power failure."""
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
                f"{self.path} holds an unfinished restore; run `topics restore` again", directory=self.path
            )
        if self._disk.exists(self._shard_path):
            raise UnknownPast(
                f"{self.path} holds data but no meta.json; `topics repair` continues without it", directory=self.path
            )
        self.begin()
        return self.previous

    def _has_no_data(self) -> bool:
        if self._disk.exists(self._meta_path) or self._disk.exists(self._copy_path):
            return False
        return not self._disk.exists(self._shard_path) or self._disk.exists(self.restoring_path)

    def begin(self) -> None:
        """Make it a data directory that is empty."""
        self.replace_meta(Meta(self._disk.boot_id(), True, 0))
        self._disk.fsync_dir(os.path.dirname(self.path))
        if self.vacant:
            self._make_layout()

    def clear_unfinished(self) -> None:
        """Remove what a restore that was killed has left, in an order in which it is never taken for data."""
        if self._disk.exists(self._shard_path):
            self._disk.remove_tree(self._shard_path)
        if self._disk.exists(self.restoring_path):
            self._disk.remove_tree(self.restoring_path)
        self._disk.makedirs(self.restoring_path)

    def empty(self) -> None:
        """Remove all data. It is vacant then, and counts as that from the first file on that goes."""
        self._disk.makedirs(self.restoring_path)
        for path in (self._meta_path, self._copy_path):
            if self._disk.exists(path):
                self._disk.unlink(path)
        for folder in (self._shard_path, self._cold_shard_path):
            if folder is not None and self._disk.exists(folder):
                self._disk.remove_tree(folder)
        self._be_vacant()

    def set_aside(self, name: str, *more: str) -> str:
        """Move all data, and `more` files, into a directory below this one, which is vacant then; where that is.

        First the records: what is left after a crash in between is set aside by the next attempt.
        """
        aside = os.path.join(self.path, name)
        moves = [(self._shard_path, aside), (self._cold_shard_path, os.path.join(self._cold_root, name))]
        moves += [(os.path.join(self.path, file), aside) for file in (META, META_COPY, *more)]
        for path, target in moves:
            if path is not None and self._disk.exists(path):
                self._disk.makedirs(target)
                self._disk.rename(path, os.path.join(target, os.path.basename(path)))
                self._disk.fsync_dir(target)
        self._disk.fsync_dir(self.path)
        self._be_vacant()
        return aside

    def _be_vacant(self) -> None:
        self._disk.makedirs(self.restoring_path)
        self.vacant, self.previous = True, Meta("", True, 0)

    def fill(self, meta: Meta) -> None:
        """Move restored files into place; they count as data only once `meta` is written."""
        for name in self._disk.listdir(self.restoring_path):
            self._disk.rename(os.path.join(self.restoring_path, name), os.path.join(self.path, name))
        self._disk.fsync_dir(self.path)
        self._make_layout()
        self.replace_meta(meta)
        self._disk.fsync_dir(os.path.dirname(self.path))
        self.previous = meta
        self._disk.remove_dir(self.restoring_path)

    def close(self) -> None:
        self._lock.release()

    def mark_open(self) -> None:
        """Record the current boot. Only after recovery: the cut that the old boot decided is durable by then."""
        with self._recording:
            self.replace_meta(Meta(self._disk.boot_id(), False, 0))
            self._is_marked = True

    def mark_clean(self, log_end: int) -> None:
        """The last step of a clean stop: the log is complete and durable up to `log_end`."""
        with self._recording:
            self.replace_meta(Meta(self._disk.boot_id(), True, log_end))

    def _make_layout(self) -> None:
        for path in (self.wal_path, self.packs_path, self.snapshots_path, self.cold_path):
            if path is not None and not self._disk.exists(path):
                self._disk.makedirs(path)
                self._disk.fsync_dir(os.path.dirname(path))
                self._disk.fsync_dir(os.path.dirname(os.path.dirname(path)))

    def read_meta(self) -> Meta:
        """How the last run ended, according to the newer valid file; `damaged_meta` lists the damaged ones."""
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
            raise UnknownPast(f"{damage}; `topics repair` continues without it", directory=self.path)
        newest = max(copies, key=lambda copy: copy.written)
        if copies[0].written == 0:
            # Version 0.1 used the directory last: it writes meta.json without a checksum and does not know the copy.
            newest = copies[0]._replace(written=newest.written)
        self._current = newest
        return newest.meta

    def verify_owned(self) -> None:
        """Raise StorageError if another process may be using the directory as well. Blocks."""
        self._lock.verify()
        with self._recording:
            self._verify_meta()

    def _verify_meta(self) -> None:
        meta = self._current.meta
        if self._is_marked and self._disk.boot_id() != meta.boot_id:
            raise StorageError(
                "the boot id has changed: this process was copied or moved while it used the data directory"
            )
        try:
            found = self.read_meta()
        except UnknownPast:
            found = meta
        if found != meta:
            raise StorageError(
                f"another process has opened the data directory: {META} differs from what this process wrote"
            )
        if self.damaged_meta:
            self._log_damage()
            self.replace_meta(meta)

    def _log_damage(self) -> None:
        for line in self.damaged_meta:
            logger.error("%s; writing it again", line)

    def replace_meta(self, meta: Meta) -> None:
        copy = _Copy(meta, self._current.written + 1)
        content = encode_meta(*copy)
        both = self._disk.exists(self._meta_path) and self._disk.exists(self._copy_path)
        for path in (self._meta_path, self._copy_path):
            try:
                replace_file(self._disk, path, content)
            except OSError as error:
                if error.errno not in FULL or not both:
                    raise
                # A server must start on a disk that is full to its last page: deleting needs one. If this is torn, its
                # checksum says so, and the other file counts.
                overwrite_file(self._disk, path, content)
        self._current = copy


def forget_copying(disk: Disk, path: str) -> None:
    """The directory at `path` replaces the one it was copied from, which has assigned no seq since."""
    directory = DataDirectory(disk, path)
    directory.replace_meta(directory.read_meta()._replace(copied_ms=0))


def encode_meta(meta: Meta, written: int = 1) -> bytes:
    """The content of meta.json: its fields, and a checksum of them."""
    fields = {"format": FORMAT, **meta._asdict(), "written": written}
    return _text({**fields, "xxh3": xxh3_64_hexdigest(_text(fields))})


def _text(fields: dict[str, Any]) -> bytes:
    return (json.dumps(fields, indent=1) + "\n").encode()


def _decode_meta(data: bytes, directory: str) -> _Copy:
    """The content of one of the files. Raises ValueError unless every byte is as it was written."""
    try:
        fields = cast("dict[str, Any]", json.loads(data))
        checked = "xxh3" in fields
        if checked and _text(fields) != data:
            raise ValueError("it is malformed")
        if checked and fields.pop("xxh3") != xxh3_64_hexdigest(_text(fields)):
            raise ValueError("it fails its checksum")
        if fields["format"] not in range(1, FORMAT + 1):
            raise DataDirIncompatible(
                f"{directory} has format {fields['format']}, this program reads up to {FORMAT}; "
                "a newer version wrote it: install that version, or restore an older backup",
                directory=directory,
            )
        if not checked and not (fields["format"] == 1 and fields.keys() <= _UNCHECKED_FIELDS):
            raise ValueError("it has no checksum")
        copied_ms = int(fields.get("copied_ms", 0))
        meta = Meta(str(fields["boot_id"]), bool(fields["clean_stop"]), int(fields["log_end"]), copied_ms)
        return _Copy(meta, int(fields["written"]) if checked else 0)
    except KeyError as error:
        raise ValueError(f"it has no field {error}") from error
    except (TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error
