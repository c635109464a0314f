"""`GET /v0/backup`: a consistent copy of the running server as one tar, as fast as the client reads it.

    GET ─▶ pin ─▶ wait until the log is synced ─▶ plan, in steps ─▶ 200 ─▶ read a piece (worker) ─▶ write it ─┐
                                                                            ▲    room for more?  ◀────────────┘
                             client gone or stalled, read error, shutdown: cut, so that no client takes it for complete

At most two pieces wait in memory: one that the kernel has not accepted, one that was read ahead.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.lifecycle import VERSION, Lifecycle
from topics.api.routes import Route
from topics.engine.core.waiting.deadlines import Deadline, Deadlines
from topics.engine.opening.store import Store
from topics.http.request import ReplyStream
from topics.model.errors import Forbidden, Throttled, TopicsError
from topics.storage.backup import Backup
from topics.storage.worker import WorkerJob

log = logging.getLogger("topics.api")

TAR = b"application/x-tar"
LOOK_AGAIN_MS = 2
RETRY_AFTER_MS = 10_000
LENGTH = b"Topics-Backup-Bytes"


class Backups:
    """One at a time: each keeps log files and packs that could be removed otherwise."""

    def __init__(self, store: Store, lifecycle: Lifecycle, deadlines: Deadlines, stall_ms_max: int) -> None:
        self.store = store
        self.lifecycle = lifecycle
        self.deadlines = deadlines
        self.stall_ms_max = stall_ms_max
        self.running: BackupSending | None = None

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/v0/backup",
                handler=self.begin,
                summary="A consistent copy of all data, as a tar archive that `topics restore` verifies and unpacks.",
                scopes=Scope.ADMIN,
                replies={200: bytes},
                media_type=TAR.decode(),
                errors=("throttled", "read_only"),
            )
        ]

    def begin(self, call: Call) -> None:
        if not call.principal.sees_all_names:
            raise Forbidden(
                "a backup holds every topic, but the key is limited to names with its prefixes", field="prefixes"
            )
        if call.request.method == "HEAD":
            call.end()
            call.request.stream(content_type=TAR)
            return
        if self.running is not None:
            raise Throttled(
                "a backup is already running; only one runs at a time",
                limit="backups",
                max=1,
                retry_after_ms=RETRY_AFTER_MS,
            )
        self.running = BackupSending(self, call, self.store.begin_backup(f"topics {VERSION}"))
        self.running.prepare()


class BackupSending:
    """One backup for one client."""

    def __init__(self, backups: Backups, call: Call, backup: Backup) -> None:
        self._backups = backups
        self._backup = backup
        self._steps: Iterator[None] | None = None
        # until the reply begins
        self._call: Call | None = call
        call.on_end = self._end
        call.may_be_abandoned()
        # after that
        self._stream: ReplyStream | None = None
        self._read_ahead: bytes | None = None
        self._reading = False
        self._ended = False
        self._sent_bytes = 0
        # when to check again, or how long the client may take for a piece
        self._deadline: Deadline | None = None

    # --- before the reply ---

    def prepare(self) -> None:
        """Wait for the log, then plan; each turn takes little time."""
        self._deadline = None
        call = self._call
        if call is None:
            return
        try:
            if self._steps is None:
                if read_only := self._backups.store.commit_log.read_only:
                    raise read_only
                if self._backup.is_synced:
                    self._steps = self._backup.plan()
            if self._steps is not None:
                next(self._steps)
            self._deadline = self._backups.deadlines.add(LOOK_AGAIN_MS, self.prepare)
        except StopIteration:
            self._answer(call)
        except TopicsError as error:
            call.fail(error)

    def _answer(self, call: Call) -> None:
        self._call = call.on_end = None
        call.end()
        length = b"%d" % self._backup.archive_bytes
        stream = self._stream = call.request.stream(
            headers=((b"Cache-Control", b"no-store"), (LENGTH, length)), content_type=TAR
        )
        if stream.closed:
            self._end()
            return
        stream.on_close = self._end
        stream.on_resume = self._send
        self._allow_time()
        self._read()

    # --- pieces ---

    def _read(self) -> None:
        try:
            self._backups.store.history.copier.submit(self._backup.read, self._arrived)
        except TopicsError as error:
            log.error("the backup cannot continue: %s", error)
            self._cut()
        else:
            self._reading = True

    def _arrived(self, job: WorkerJob[bytes]) -> None:
        self._reading = False
        if self._ended:
            self._release()
            return
        try:
            self._read_ahead = job.result()
        except (OSError, TopicsError) as error:
            log.error("the backup cannot continue: %s", error)
            self._cut()
            return
        self._send()

    def _send(self) -> None:
        stream, piece = self._stream, self._read_ahead
        if stream is None or piece is None or stream.paused or self._ended:
            return
        self._read_ahead = None
        self._allow_time()
        if piece:
            self._sent_bytes += len(piece)
            stream.write(piece)
            self._read()
        else:
            assert self._sent_bytes == self._backup.archive_bytes
            log.info("a backup of %d bytes is complete, up to log position %d", self._sent_bytes, self._backup.position)
            stream.close()
            self._end()

    def _allow_time(self) -> None:
        if self._deadline is not None:
            self._backups.deadlines.remove(self._deadline)
        self._deadline = self._backups.deadlines.add(self._backups.stall_ms_max, self._time_is_up)

    def _time_is_up(self) -> None:
        """The client has stopped reading, or the server is shutting down; a slow disk is not a reason to give up."""
        self._deadline = None
        if self._reading and not self._backups.lifecycle.draining:
            self._allow_time()
            return
        log.warning("a backup was cut after %d bytes: its client does not read, or the server stops", self._sent_bytes)
        self._cut()

    # --- the end ---

    def _cut(self) -> None:
        stream = self._stream
        self._end()
        if stream is not None:
            stream.abort()

    def _end(self) -> None:
        """Release everything, however it ends. Files that a running read still uses are released when it returns."""
        if self._ended:
            return
        self._ended = True
        self._call = self._read_ahead = None
        if self._deadline is not None:
            self._backups.deadlines.remove(self._deadline)
            self._deadline = None
        if self._stream is not None:
            self._stream.on_close = self._stream.on_resume = None
            self._stream = None
        if not self._reading:
            self._release()

    def _release(self) -> None:
        self._backup.release()
        self._backups.running = None
