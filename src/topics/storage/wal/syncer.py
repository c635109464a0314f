"""Group commit: many appends, one fdatasync, done by a thread while the next group fills.

    owner thread                                   commit thread
    ────────────                                   ─────────────
    wal.flush()        write(2), written_to rises
    want_sync(p) ─────▶ wanted_to = p, ring ─────▶ wakes
    nudge()      ─────▶ ring if 8 MiB un-synced    target = written_to
                        or no 100 ms deadline runs fdatasync every file up to it, oldest first
                                                   close those that are full, synced_to = target
    poll()       ◀───── notify() ◀──────────────── (ops that came meanwhile share the next sync)

    a sync takes more than 250 ms:
    wal.flush()  ─────▶ queue (handover) ────────▶ after the sync: write the chunks, then sync as above;
                                                   when the queue is empty, the owner writes again

The thread makes only calls that release the GIL or are short. After a failed fdatasync the kernel may have dropped the
very pages it could not write and report the next sync as a success, so there is no next one: `failed` holds the error,
the log is broken, and the thread ends. If no file could be opened, no data was touched, and the sync is tried again.
"""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from threading import Lock, Thread
from typing import NamedTuple

from topics.model.errors import StorageError
from topics.storage.disk import Disk
from topics.storage.wal.handover import WriteFailure
from topics.storage.wal.log_file import LogFile
from topics.storage.wal.sync_mark import SyncMark
from topics.storage.wal.wal import Wal

logger = logging.getLogger("topics.storage")

SYNC_INTERVAL_S = 0.1
SYNC_DEBT_BYTES = 8 << 20
# Only opening a file fails like this.
NOTHING_OPENED = frozenset({errno.EMFILE, errno.ENFILE})
RETRY_S = 0.05


class SyncFailed(StorageError):
    """A sync failed: nothing is acknowledged until a restart."""


class Progress(NamedTuple):
    """How far the log is written and synced."""

    written_to: int
    synced_to: int


class Syncer:
    """Syncs one log. `want_sync`, `nudge`, `poll` and `stop` are for the owner thread."""

    def __init__(
        self,
        wal: Wal,
        notify: Callable[[], None],
        *,
        clock: Callable[[], float] = time.monotonic,
        interval_s: float = SYNC_INTERVAL_S,
        debt_bytes: int = SYNC_DEBT_BYTES,
        mark: SyncMark | None = None,
    ) -> None:
        self._disk: Disk = wal.disk
        self._wal = wal
        self._mark = mark
        self._notify = notify
        self._clock = clock
        self._interval_s = interval_s
        self._debt_bytes = debt_bytes
        self._commit_thread = Thread(target=self._run, name="topics-commit", daemon=True)

        # set by the owner, read by the thread
        self._wanted_to = 0
        self._stopping = False
        # set by the thread, read by the owner
        self._counting = False  # False: the thread sleeps without a deadline and must be woken for new bytes
        self.failed: BaseException | None = None
        # A bell, not a lock: held while nothing has happened; only the owner rings it, by releasing it.
        self._bell = Lock()
        self._bell.acquire()
        wal.ring = self._ring

    # --- owner thread ---

    def start(self) -> None:
        self._disk.hold_dir(self._wal.path)
        self._commit_thread.start()

    def stop(self) -> None:
        """Write what is queued, sync everything, end the thread. `failed` holds the error, if any."""
        if not self._commit_thread.is_alive():
            return
        self._stopping = True
        self._ring()
        self._commit_thread.join()
        if self._mark is not None:
            self._mark.close()

    def want_sync(self, position: int) -> None:
        """An op that ends at `position` waits until it is durable."""
        if position > self._wanted_to:
            self._wanted_to = position
            self._ring()

    def nudge(self) -> None:
        """After a flush: make sure that bytes that no op waits for are synced in time as well."""
        wal = self._wal
        unsynced_bytes = wal.written_to - wal.synced_to
        if unsynced_bytes and (not self._counting or unsynced_bytes >= self._debt_bytes):
            self._ring()

    def poll(self) -> Progress:
        """How far the log is written and durable; always raises once a sync has failed."""
        if self.failed is not None:
            # Clients get to read it: without the path that an OSError names.
            reason = self.failed.strerror if isinstance(self.failed, OSError) else None
            failure = SyncFailed(f"a sync of the log failed: {reason or self.failed}")
            failure.__cause__ = self.failed  # mypyc leaves out `from`
            raise failure
        wal = self._wal
        return Progress(wal.written_to, wal.synced_to)

    @property
    def unsynced_bytes(self) -> int:
        return self._wal.buffered_to - self._wal.synced_to

    @property
    def sync_awaited(self) -> bool:
        """Whether a change waits for a sync."""
        return self._wal.synced_to < self._wanted_to

    def _ring(self) -> None:
        if self._bell.locked():
            self._bell.release()

    # --- commit thread ---

    def _run(self) -> None:
        deadline_s: float | None = None  # when the oldest unsynced byte must be synced; None if there is none
        try:
            while True:
                self._write_handed_over()
                now_s = self._clock()
                if self._is_due(now_s, deadline_s):
                    deadline_s = now_s + self._interval_s
                    self._sync_or_try_again()
                elif self._stopping and self._queue_is_settled():
                    return
                elif not (self._wal.prepare_spare() or self._wal.unlink_one_trimmed() or self._sync_mark()):
                    deadline_s = self._wait(now_s, deadline_s)
        except Exception as error:  # noqa: BLE001  whatever ends this thread, nothing is synced after it
            self._fail(error)
        finally:
            self._disk.release_dir(self._wal.path)

    def _is_due(self, now_s: float, deadline_s: float | None) -> bool:
        wal = self._wal
        debt = wal.written_to - wal.synced_to
        if debt == 0:
            return False
        return (
            wal.synced_to < self._wanted_to
            or debt >= self._debt_bytes
            or self._stopping
            or (deadline_s is not None and now_s >= deadline_s)
        )

    def _wait(self, now_s: float, deadline_s: float | None) -> float | None:
        """Sleep until rung, or until the oldest unsynced byte is due; returns that deadline."""
        wal = self._wal
        if wal.written_to == wal.synced_to:
            self._counting = False
            # Bytes written from here on find the flag cleared and ring; this look sees those written before.
            if wal.written_to == wal.synced_to:
                due_in_s = self._mark.due_in_s(now_s) if self._mark is not None else None
                self._bell.acquire(timeout=-1 if due_in_s is None else due_in_s)
                return None
        self._counting = True
        if deadline_s is None:
            deadline_s = now_s + self._interval_s
        self._bell.acquire(timeout=max(0.0, deadline_s - now_s))
        return deadline_s

    def _sync_or_try_again(self) -> None:
        try:
            self._sync()
        except OSError as error:
            if error.errno not in NOTHING_OPENED or self._stopping:
                raise
            self._wal.sync_started_s = 0.0
            logger.warning("the log in %s is synced later, because no file can be opened: %s", self._wal.path, error)
            self._bell.acquire(timeout=RETRY_S)

    def _sync(self) -> None:
        wal = self._wal
        # Read before the list of files: every byte up to here is in a file of that list.
        target = wal.written_to
        self._counting = True
        wal.sync_started_s = self._clock()
        for file in tuple(wal.unsynced_files):
            self._sync_file(file, target)
        wal.sync_started_s = 0.0
        if self._mark is not None:
            # Before it allows anything to be acknowledged.
            self._mark.note(target)
        wal.synced_to = target
        self._notify()
        self._sync_mark()

    def _sync_mark(self) -> bool:
        return self._mark is not None and self._mark.sync(self._clock())

    def _sync_file(self, file: LogFile, target: int) -> None:
        wal = self._wal
        # Decided before the sync, so that the sync of a file about to be closed covers its last byte.
        is_full = file.end_position is not None and file.end_position <= target
        started_s = self._clock()
        self._disk.fdatasync(file.fd)
        wal.stats.fsync_us.observe(int((self._clock() - started_s) * 1e6))
        wal.stats.fsyncs_total += 1
        if not file.entry_durable:
            self._disk.fsync_dir(wal.path)
            file.entry_durable = True
        if is_full:
            wal.unsynced_files.remove(file)
            self._disk.close(file.fd)
            file.fd = -1

    def _write_handed_over(self) -> None:
        """Write the queued chunks, up to the bytes that ask for a sync of their own."""
        wal = self._wal
        handover = wal.handover
        if not handover.active:
            return
        wrote = False
        while wal.written_to - wal.synced_to < self._debt_bytes:
            chunk = handover.take()
            if chunk is None:
                break
            try:
                wal.write(chunk)
            except OSError as error:
                wal.cut(chunk.file)
                handover.fail(WriteFailure(chunk.file, error))
            wrote = True
        if wrote:
            self._notify()

    def _queue_is_settled(self) -> bool:
        handover = self._wal.handover
        return not handover.active or handover.failure is not None

    def _fail(self, error: BaseException) -> None:
        logger.error("sync of the log in %s failed: %s; nothing is acknowledged until a restart", self._wal.path, error)
        self._wal.broken = True
        self._wal.sync_started_s = 0.0
        self.failed = error
        self._notify()
