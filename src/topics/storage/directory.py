"""The data directory: where everything lies, who may use it, and how the last run ended.

<dir>/lock                      held by the running process
<dir>/meta.json                 format, boot id of the last open, whether it ended cleanly and where its log ended
<dir>/shard-00/wal/             log files
<dir>/shard-00/packs/           sealed blocks
<dir>/shard-00/snapshots/       state at a log position
<cold>/shard-00/packs/          packs that were moved out of the way, if there is a cold directory
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any, NamedTuple, cast

from topics.model.errors import DataDirIncompatible
from topics.storage.disk import Disk, read_file, replace_file
from topics.storage.lock import DirectoryLock

logger = logging.getLogger("topics.storage")

FORMAT = 1
# Where `topics restore` works in a directory before it moves the data to its place.
RESTORING = "restoring"


class Meta(NamedTuple):
    """What one run leaves for the next one to know."""

    boot_id: str
    clean_stop: bool
    log_end: int
    # When this directory was copied from one in use (ms since 1970), 0 if it is the original.
    copied_ms: int = 0


class UnknownPast(DataDirIncompatible):
    """There is data, and nothing that says how the last run ended."""


class DataDirectory:
    """Opened before anything in it is read, closed after everything else."""

    def __init__(self, disk: Disk, path: str, cold: str | None = None, *, shard: int = 0) -> None:
        self._disk = disk
        self.path = os.path.abspath(path)
        self._lock = DirectoryLock(disk, os.path.join(self.path, "lock"))
        self._meta_path = os.path.join(self.path, "meta.json")
        self._shard_path = os.path.join(self.path, f"shard-{shard:02d}")
        self.wal_path = os.path.join(self._shard_path, "wal")
        self.packs_path = os.path.join(self._shard_path, "packs")
        self.snapshots_path = os.path.join(self._shard_path, "snapshots")
        self.cold_path = os.path.join(os.path.abspath(cold), f"shard-{shard:02d}", "packs") if cold else None
        self.previous = Meta("", True, 0)

    @property
    def same_boot(self) -> bool:
        """Whether the machine has run through since the last open, so that no written byte can be lost."""
        return self.previous.boot_id != "" and self.previous.boot_id == self._disk.boot_id()

    def name_of(self, path: str) -> str:
        """What a file of this directory is called from within."""
        return path.removeprefix(self.path + os.sep)

    def open(self, repair: bool = False) -> None:
        """Make the directory if need be, take its lock, and read how the last run ended.

        A repair does without that, if it must, and supposes the worst: a power failure.
        """
        self._disk.makedirs(self.path)
        self._lock.acquire()
        try:
            try:
                self.previous = self._read_or_begin()
            except UnknownPast:
                if not repair:
                    raise
                self.previous = Meta("", False, 0)
            self._make_layout()
        except BaseException:
            self._lock.release()
            raise

    def _read_or_begin(self) -> Meta:
        if self._disk.exists(self._meta_path):
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
        """How the last run ended."""
        try:
            fields = cast("dict[str, Any]", json.loads(read_file(self._disk, self._meta_path)))
            if fields["format"] != FORMAT:
                raise DataDirIncompatible(
                    f"{self.path} has format {fields['format']}, this program reads {FORMAT}", directory=self.path
                )
            copied_ms = int(fields.get("copied_ms", 0))
            return Meta(str(fields["boot_id"]), bool(fields["clean_stop"]), int(fields["log_end"]), copied_ms)
        except (ValueError, KeyError, TypeError) as error:
            raise UnknownPast(
                f"{self._meta_path} cannot be read: {error}; `topics repair` goes on without it", directory=self.path
            ) from error

    def replace_meta(self, meta: Meta) -> None:
        replace_file(self._disk, self._meta_path, encode_meta(meta))


def forget_copying(disk: Disk, path: str) -> None:
    """The directory at `path` takes the place of the one it was copied from, which handed out no seq since."""
    directory = DataDirectory(disk, path)
    directory.replace_meta(directory.read_meta()._replace(copied_ms=0))


def encode_meta(meta: Meta) -> bytes:
    """The content of meta.json."""
    return (json.dumps({"format": FORMAT, **meta._asdict()}, indent=1) + "\n").encode()
