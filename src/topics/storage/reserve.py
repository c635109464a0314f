"""Room for the next checkpoint, allocated in advance, so that records can be deleted when the disk is full.

    packs/spare        becomes the next pack         ┐ renamed to the temporary file, overwritten,
    snapshots/spare    becomes the next snapshot     ┘ and cut to its length: the room is never free in between

A checkpoint takes both when it begins (`taken.tmp`, which a start removes). From then on, room is allocated for the
checkpoint after it.
"""

from __future__ import annotations

import os

from topics.storage.disk import FULL, Disk

SPARE, TAKEN = "spare", "taken.tmp"
SMALLEST_BYTES = 16 << 10


class Room:
    """One allocated file without content."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self.size_bytes = 0
        if disk.exists(self._path):
            fd = disk.open(self._path, os.O_RDONLY)
            try:
                self.size_bytes = disk.size(fd)
            finally:
                disk.close(fd)

    def grow(self, size_bytes: int) -> None:
        """Allocate at least this much; after an OSError the room is as before."""
        if size_bytes <= self.size_bytes:
            return
        fd = self._disk.open(self._path, os.O_RDWR | os.O_CREAT)
        try:
            try:
                self._disk.allocate(fd, size_bytes)
            except OSError:
                self._disk.truncate(fd, self.size_bytes)
                raise
        finally:
            self._disk.close(fd)
        self.size_bytes = size_bytes

    def shrink(self, size_bytes: int) -> None:
        """Release what exceeds this."""
        if size_bytes >= self.size_bytes:
            return
        fd = self._disk.open(self._path, os.O_RDWR)
        try:
            self._disk.truncate(fd, size_bytes)
        finally:
            self._disk.close(fd)
        self.size_bytes = size_bytes

    def detach(self) -> Room:
        """Detach the allocated file as a room of its own; this room is empty afterwards."""
        taken = os.path.join(os.path.dirname(self._path), TAKEN)
        if self.size_bytes:
            self._disk.rename(self._path, taken)
            self.size_bytes = 0
        return Room(self._disk, taken)

    def discard(self) -> None:
        """Release the whole room."""
        if self.size_bytes:
            self._disk.unlink(self._path)
            self.size_bytes = 0

    def open_as(self, path: str) -> int:
        """A descriptor for a new file, in this room if it has any. The caller cuts the file at its end."""
        if not self.size_bytes:
            return self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._disk.rename(self._path, path)
        self.size_bytes = 0
        try:
            return self._disk.open(path, os.O_WRONLY)
        except OSError:
            self._disk.unlink(path)
            raise


class Reserve:
    """The rooms of a store. Grown by the owner thread, or by the worker for it; never by both at once."""

    def __init__(self, disk: Disk, packs_path: str, snapshots_path: str) -> None:
        self.pack = Room(disk, os.path.join(packs_path, SPARE))
        self.snapshot = Room(disk, os.path.join(snapshots_path, SPARE))
        # Why the last allocation got less than it wanted.
        self.error: OSError | None = None

    @property
    def short(self) -> bool:
        """Whether the disk is full."""
        return self.error is not None and self.error.errno in FULL

    def grow(self, pack_bytes: int, snapshot_bytes: int) -> bool:
        """Whether there is this much room now; if not, `error` says why."""
        try:
            self.snapshot.grow(snapshot_bytes)
            self.pack.grow(pack_bytes)
        except OSError as error:
            self.error = error
            return False
        self.error = None
        return True

    def grow_as_far_as_it_goes(self, pack_bytes: int, snapshot_bytes: int) -> None:
        """On a full disk, some room is better than none: little may be live by now."""
        for room, size_bytes in ((self.snapshot, snapshot_bytes), (self.pack, pack_bytes)):
            while size_bytes > max(room.size_bytes, SMALLEST_BYTES):
                try:
                    room.grow(size_bytes)
                except OSError:
                    size_bytes = size_bytes * 3 // 4

    def detach(self) -> tuple[Room, Room]:
        """Room for one pack and one snapshot."""
        pack = self.pack.detach()
        try:
            return pack, self.snapshot.detach()
        except OSError:
            pack.discard()
            raise
