"""The bounded queue through which the commit thread takes over writing while the disk stalls, and for large writes.

A sync that is out for long makes the next write(2) of the same file wait for it, and writing megabytes takes as long as
copying them: the owner thread must not wait for either. Frames that are large are put together by the thread as well.

    owner: flush ──put──▶ [ chunk | chunk | chunk ] ──take──▶ commit thread: write, sync, notify
              ▲                                                     │
              └────────── active = False, when `take` finds nothing ┘

Writing has one owner at any time: while `active` the thread, otherwise the owner thread. The flag rises only in `put`
and falls only in `take` or `settle`, all under the lock, so no chunk can stay behind in a queue nobody looks at.
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
    """Frames of one flush, all of one file, starting at `position`."""

    file: LogFile
    pieces: Sequence[Piece]
    position: int
    end_position: int
    frames: int


class WriteFailure(NamedTuple):
    """A write of the thread that failed; its file is cut back already."""

    file: LogFile
    error: OSError


class Handover:
    """Who writes, and what waits to be written by the thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._queue: deque[LogChunk] = deque()
        self.active = False
        self.failure: WriteFailure | None = None

    def put(self, chunk: LogChunk, begin: bool) -> bool:
        """Owner: queue a chunk. False if writing is the owner's own (again) and `begin` does not ask to pass it on."""
        with self._lock:
            if not self.active and not begin:
                return False
            self.active = True
            self._queue.append(chunk)
            return True

    def take(self) -> LogChunk | None:
        """Thread: the next chunk; None gives writing back to the owner, or says that the owner must settle first."""
        with self._lock:
            if self.failure is not None:
                return None
            if self._queue:
                return self._queue.popleft()
            self.active = False
            return None

    def fail(self, failure: WriteFailure) -> None:
        """Thread: a write failed. Nothing behind it may be written, as it would leave a hole."""
        with self._lock:
            self._queue.clear()
            self.failure = failure

    def settle(self) -> None:
        """Owner: the failure is dealt with, writing is the owner's again."""
        with self._lock:
            self._queue.clear()
            self.failure = None
            self.active = False
