"""The bounded queue by which the commit thread takes over writing while the disk stalls, and for large writes.

A long sync blocks the next write(2) to the same file, and writing megabytes takes as long as copying them. The owner
thread must not wait for either. The thread also assembles large frames.

    owner: flush ──put──▶ [ chunk | chunk | chunk ] ──take──▶ commit thread: write, sync, notify
              ▲                                                     │
              └────────── active = False when the queue is empty ───┘

Writing has one owner at any time: the thread while `active`, otherwise the owner thread. The flag is set only in `put`
and cleared only in `take` or `settle`, all under the lock, so no chunk can be left in the queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock
from typing import NamedTuple

from topics.storage.disk import Buffer
from topics.storage.wal.frame import DeferredFrame
from topics.storage.wal.log_file import LogFile

QUEUE_BYTES_MAX = 256 << 20

Piece = Buffer | DeferredFrame


class LogChunk(NamedTuple):
    """Frames of one flush, all for one file, starting at `position`."""

    file: LogFile
    pieces: Sequence[Piece]
    position: int
    end_position: int
    frames: int


class WriteFailure:
    """A failed write of the thread; its file is already cut back."""

    __slots__ = ("error", "file")

    def __init__(self, file: LogFile, error: OSError) -> None:
        self.file = file
        self.error = error


class Handover:
    """Which thread writes, and the chunks that wait to be written by the commit thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._queue: deque[LogChunk] = deque()
        self.active = False
        self.failure: WriteFailure | None = None

    def put(self, chunk: LogChunk, begin: bool) -> bool:
        """Owner: queue a chunk. False if the owner writes itself and `begin` does not ask to hand over."""
        with self._lock:
            if not self.active and not begin:
                return False
            self.active = True
            self._queue.append(chunk)
            return True

    def take(self) -> LogChunk | None:
        """Thread: the next chunk. None: the owner writes again, or must settle a failure first."""
        with self._lock:
            if self.failure is not None:
                return None
            if self._queue:
                return self._queue.popleft()
            self.active = False
            return None

    def fail(self, failure: WriteFailure) -> None:
        """Thread: a write failed. Nothing after it may be written, because that would leave a hole."""
        with self._lock:
            self.failure = failure

    def settle(self) -> None:
        """Owner: the failure is handled, and the owner writes again."""
        with self._lock:
            self._queue.clear()
            self.failure = None
            self.active = False
