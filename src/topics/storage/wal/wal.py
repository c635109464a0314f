"""The log: frames are buffered, written once per tick in one call, and carry checksums for reading.

    append ──▶ buffer ──flush──▶ written_to (write(2) returned) ──syncer──▶ synced_to (fdatasync returned)

`synced_to ≤ written_to ≤ buffered_to`. The owner thread calls everything here. While a sync stalls, and for large
writes, the commit thread writes (see `handover`); it alone advances `synced_to`.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple, cast

from topics.model.errors import StorageError, Throttled
from topics.model.requests.batch import DEFERRED_BYTES_MIN
from topics.storage.disk import Buffer, Deferred, Disk, write_all
from topics.storage.stats import WalStats
from topics.storage.wal.frame import FILE_HEADER_BYTES, FRAME_BODY_BYTES_MAX, FRAME_HEADER_BYTES, DeferredFrame, encode
from topics.storage.wal.handover import QUEUE_BYTES_MAX, Handover, LogChunk, Piece
from topics.storage.wal.log_file import FILE_BYTES, LogFile, LogFiles, LogTail

logger = logging.getLogger("topics.storage")

UNSYNCED_BYTES_MAX = 64 << 20
HANDOVER_AFTER_S = 0.25
# Writing more than this at once would hold the owner thread too long; deferred frames are larger.
HANDOVER_BYTES = DEFERRED_BYTES_MIN
# Up to this many pieces are written as they are; more are joined, which is cheaper than many small vectors.
PIECES_MAX = 16


class LogSpan(NamedTuple):
    """A part of one file of the log."""

    path: str
    from_position: int
    to_position: int
    base_position: int
    salt: int

    def offset_of(self, position: int) -> int:
        return FILE_HEADER_BYTES + position - self.base_position


def random_u64() -> int:
    return int.from_bytes(os.urandom(8), "little")


class Wal:
    """One log of one shard. Opens its first file at the first frame."""

    def __init__(
        self,
        disk: Disk,
        path: str,
        tail: LogTail,
        *,
        shard: int = 0,
        file_bytes: int = FILE_BYTES,
        random_u64: Callable[[], int] = random_u64,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.disk = disk
        self._clock = clock
        self._files = LogFiles(disk, path, tail, shard, file_bytes, random_u64)
        self.path = path
        self.stats = WalStats()

        # positions
        self.buffered_to = tail.position
        self.written_to = tail.position
        self.synced_to = tail.position
        # The log from here on is needed elsewhere; None: nowhere else.
        self.keep_from: int | None = None
        self._flushed_to = tail.position  # what has left the buffer: written, or handed to the thread

        # the file being filled
        self._file: LogFile | None = None
        self._salt = 0
        self._in_reserve = False
        self._capacity_position = tail.position
        self._pieces: list[Piece] = []
        self._defers = False  # whether the bytes of one of them are to be made by the commit thread

        # shared with the commit thread
        self.broken = False
        self.handover = Handover()
        self.unsynced_files: list[LogFile] = []
        self._spare_wanted_at: int | None = None  # where the file begins that needs a spare
        self.sync_started_s = 0.0  # 0.0 while no sync is running
        self.ring: Callable[[], None] = _nobody_to_wake

    # --- writing ---

    def append(self, body: bytes | Deferred, urgent: bool = False) -> int:
        """Buffer one frame; returns the position of its end. Uses the disk only when the file is full."""
        position = self.buffered_to
        end_position = position + FRAME_HEADER_BYTES + len(body)
        if end_position > self._capacity_position or self.broken or self.handover.active:
            self._make_room(end_position - position, urgent)
        if isinstance(body, bytes):
            self._pieces += encode(body, position, self.synced_to, self._salt)
        else:
            self._pieces += (b"", DeferredFrame(body, position, self.synced_to, self._salt))
            self._defers = True
        self.buffered_to = end_position
        return end_position

    def flush(self) -> int:
        """Write all buffered frames in one call; returns `written_to`.

        After an OSError everything above `written_to` is gone, buffered and handed over alike, and positions continue
        from there.
        """
        if self.broken or self.handover.failure is not None:
            self._raise_failure()
        pieces = self._pieces
        if not pieces:
            return self.written_to
        stalled = self.sync_started_s and self._clock() - self.sync_started_s > HANDOVER_AFTER_S
        defers, chunk = self._defers, self._chunk()
        slow = bool(stalled) or defers or chunk.end_position - chunk.position > HANDOVER_BYTES
        if slow or self.handover.active:
            begins = not self.handover.active
            if self.handover.put(chunk, begin=slow):
                self.stats.handovers_total += begins
                self.ring()
                return self.written_to
        try:
            self.write(chunk)
        except OSError:
            self.cut(chunk.file)
            self._go_back(chunk.file)
            raise
        return self.written_to

    def drop(self) -> None:
        """Forget the frames that are buffered and not flushed."""
        self._pieces, self._defers = [], False
        self.buffered_to = self._flushed_to

    def write(self, chunk: LogChunk) -> None:
        """Write a chunk at its position. Called by the thread that writes now: the owner or the commit thread."""
        file = chunk.file
        offset = file.offset_of(chunk.position)
        if file.header_pending:
            assert offset == FILE_HEADER_BYTES
            offset = 0
        try:
            buffers = _buffers(chunk.pieces)
            if not offset:
                buffers.insert(0, file.header())
            written = write_all(self.disk, file.fd, buffers, offset)
        except OSError as error:
            self.stats.write_errors_total += 1
            logger.error("write to %s at offset %d failed: %s", file.path, offset, error)
            raise
        if file.header_pending:
            file.header_pending = False
            # Listed before its bytes count as written: a sync up to `written_to` must find every file.
            self.unsynced_files.append(file)
        self.written_to = chunk.end_position
        self.stats.frames_total += chunk.frames
        self.stats.batches_total += 1
        self.stats.bytes_written_total += written

    def _chunk(self) -> LogChunk:
        """Take the buffer as a chunk to be written."""
        file = self._file
        assert file is not None
        pieces: Sequence[Piece] = self._pieces
        frames = len(pieces) // 2
        if len(pieces) > PIECES_MAX:
            pieces = _joined(pieces) if self._defers else [b"".join(cast("Sequence[Buffer]", pieces))]
        chunk = LogChunk(file, pieces, self._flushed_to, self.buffered_to, frames)
        self._pieces, self._defers = [], False
        self._flushed_to = self.buffered_to
        return chunk

    # --- files ---

    def _make_room(self, frame_bytes: int, urgent: bool) -> None:
        """Make sure that a frame can be added at `buffered_to`: rotate if the file is full."""
        assert frame_bytes <= FRAME_HEADER_BYTES + FRAME_BODY_BYTES_MAX
        if self.broken or self.handover.failure is not None:
            self._raise_failure()
        if self.handover.active and self.buffered_to - self.written_to > QUEUE_BYTES_MAX:
            raise Throttled("the disk does not keep up with the log", retry_after_ms=1000)
        if self._in_reserve and not urgent:
            self._files.replenish(self.buffered_to)
            self._in_reserve = False
        file = self._file
        if file is not None and self.buffered_to + frame_bytes <= file.capacity_position:
            if not self._in_reserve:
                self._capacity_position = file.capacity_position
            return
        self.flush()
        file = self._file
        if file is not None and file.base_position == self.buffered_to:
            self._release_file()
            self._files.give_back(file)
        new = self._files.take(self.buffered_to, frame_bytes, urgent)
        if self._file is not None:
            self._files.seal(self._file, self.buffered_to)
            self.stats.rotations_total += 1
        self._enter_file(new)

    def _enter_file(self, file: LogFile) -> None:
        self._file = file
        self._salt = file.salt
        self._spare_wanted_at = file.capacity_position
        # In the reserve, each frame must be urgent: it takes the slow path through `_make_room`.
        self._in_reserve = self._files.spares == 0
        self._capacity_position = file.base_position if self._in_reserve else file.capacity_position

    def _release_file(self) -> None:
        self._file = None
        self._in_reserve = False
        self._capacity_position = self.written_to

    def trim(self, position: int) -> None:
        """Release the log below `position`: files entirely below it are recycled or unlinked."""
        kept = position if self.keep_from is None else min(position, self.keep_from)
        self._files.trim(min(kept, self.synced_to))
        self.ring()

    def unlink_one_trimmed(self) -> bool:
        """Unlink a trimmed file, if there is one; the commit thread does it, because it can take long."""
        return self._files.unlink_doomed()

    def prepare_spare(self) -> bool:
        """Prepare a file for the next rotation; the commit thread does it, once per rotation."""
        base_position = self._spare_wanted_at
        if base_position is None:
            return False
        self._spare_wanted_at = None
        self._files.prepare(base_position)
        return True

    def close(self) -> None:
        """After the syncer has stopped: cut the last file to its frames and close every file."""
        self.drop()
        file = self._file
        if file is not None:
            self._release_file()
            if file.header_pending:
                self._files.give_back(file)
            elif not self.broken:
                self.disk.truncate(file.fd, file.offset_of(self.written_to))
                self.disk.fdatasync(file.fd)
                self._files.seal(file, self.written_to)
        for open_file in self.unsynced_files:
            self.disk.close(open_file.fd)
            open_file.fd = -1
        self.unsynced_files = []
        while self._files.unlink_doomed():
            pass

    # --- when a write failed ---

    def cut(self, file: LogFile) -> None:
        """Remove the bytes of a failed write from its file, durably: their op has failed for good."""
        offset = 0 if file.header_pending else file.offset_of(self.written_to)
        try:
            # With its own descriptor: the kernel reports a failed write-back once to each descriptor, and the commit
            # thread must see it for the bytes below the cut.
            fd = self.disk.open(file.path, os.O_RDWR)
            try:
                self.disk.truncate(fd, offset)
                self.disk.fdatasync(fd)
            finally:
                self.disk.close(fd)
        except OSError as error:
            self.broken = True
            logger.error(
                "cannot cut %s back to offset %d: %s; the log accepts no more writes", file.path, offset, error
            )

    def _go_back(self, failed: LogFile) -> None:
        """Continue from `written_to` in a new file.

        A new file has a new salt. Frames written over a failed write in the same file would have the same salt at the
        same positions, and a power failure that keeps some old and some new pages could mix the two.
        """
        self._forget_unwritten()
        # Files after the failed one were opened during a hand-over; nothing has reached them.
        while self._file is not None and self._file is not failed:
            self._files.give_back(self._file)
            self._file = self._files.unseal()
        self._release_file()
        if failed.header_pending:
            self._files.give_back(failed, recyclable=False)
        else:
            self._files.seal(failed, self.written_to)

    def _forget_unwritten(self) -> None:
        self._pieces, self._defers = [], False
        self.buffered_to = self._flushed_to = self.written_to

    def _raise_failure(self) -> None:
        """Handle a write that failed in the commit thread; raises if the log can no longer be used."""
        failure = self.handover.failure
        if failure is not None and not self.broken:
            self._go_back(failure.file)
            self.handover.settle()
            raise failure.error
        self._forget_unwritten()
        self.handover.settle()
        raise StorageError("the log accepts no writes until a restart")

    # --- what there is ---

    @property
    def full(self) -> bool:
        """Whether the disk was full when a file of the log was last wanted."""
        return self._files.full

    @property
    def overloaded(self) -> bool:
        return self.buffered_to - self.synced_to > UNSYNCED_BYTES_MAX

    @property
    def oldest_position(self) -> int:
        starts = self.file_starts()
        return starts[0] if starts else self.written_to

    def files_between(self, start: int, end: int) -> list[tuple[str, int]]:
        """The files with frames between two positions, oldest first, and how many bytes of each end at or before `end`.

        `end` is the end of a frame and synced, so these bytes do not change.
        """
        assert end <= self.synced_to
        files = [*self._files.sealed, *([self._file] if self._file is not None else [])]
        found: list[tuple[str, int]] = []
        for file in files:
            file_end = end if file.end_position is None else min(file.end_position, end)
            if file.base_position < end and file_end > start:
                found.append((file.path, file.offset_of(file_end)))
        return found

    def spans(self, start: int, end: int) -> list[LogSpan]:
        """The parts of files between two positions, oldest first; `end` is synced, so these bytes do not change."""
        assert end <= self.synced_to
        found: list[LogSpan] = []
        for file in [*self._files.sealed, *([self._file] if self._file is not None else [])]:
            file_end = end if file.end_position is None else min(file.end_position, end)
            file_start = max(start, file.base_position)
            if file_start < file_end:
                found.append(LogSpan(file.path, file_start, file_end, file.base_position, file.salt))
        return found

    def file_starts(self) -> list[int]:
        """The positions at which the files of the log start, oldest first."""
        starts = [file.base_position for file in self._files.sealed]
        return [*starts, self._file.base_position] if self._file is not None else starts


def _nobody_to_wake() -> None:
    """Stands in for the syncer until there is one."""


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Join each run of buffers; deferred frames stay between them."""
    joined: list[Piece] = []
    for deferred, run in groupby(pieces, key=lambda piece: isinstance(piece, DeferredFrame)):
        some = list(run)
        joined += some if deferred else [b"".join(cast("list[Buffer]", some))]
    return joined


def _buffers(pieces: Sequence[Piece]) -> list[Buffer]:
    """The buffers to write, now that deferred frames must have their bytes."""
    buffers: list[Buffer] = []
    for piece in pieces:
        if not isinstance(piece, DeferredFrame):
            buffers.append(piece)
            continue
        try:
            buffers += piece.buffers()
        except MemoryError as error:
            # Like a write that failed: the op has not happened.
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM)) from error
    return buffers
