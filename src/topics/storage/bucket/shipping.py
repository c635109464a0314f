"""The log, packs and snapshots on their way to the bucket, by a thread of their own.

    owner: poll ─▶ spans of the synced log ─▶ thread: read, create the next slot ─▶ shipped_to ─▶ owner: trims the log
                ─▶ the newest snapshot, pinned ─▶ thread: its files, then its manifest ─▶ owner: unpins it

Only synced bytes are shipped, so the bucket never has what the directory may lose. They are read from the log files,
which therefore wait on disk while the bucket is away: up to `backlog_bytes_max`, then the copy gets a gap and goes on
from the next snapshot. The thread makes calls that release the interpreter lock, and hardly anything else.

When a piece is due, and what it has, is decided by `piece_queue`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from threading import TIMEOUT_MAX, Condition, Event, Thread
from typing import Literal, NamedTuple

from topics.model.errors import TopicsError
from topics.storage.bucket.bucket import ObjectBucket, Unreachable
from topics.storage.bucket.chain import MANIFEST_FORMAT, SnapshotManifest, StoredFile, encode_manifest
from topics.storage.bucket.cutting import PIECE_BYTES_TIMES_MAX, read_frames
from topics.storage.bucket.keeping import Keeping
from topics.storage.bucket.lease import OwnLease, announce
from topics.storage.bucket.piece_queue import PieceQueue
from topics.storage.bucket.slots import LogPiece
from topics.storage.bucket.starting.joining import Joined
from topics.storage.bucket.terms import Place, TakenOver, run, write_piece
from topics.storage.bucket.uploading import Uploading
from topics.storage.directory import DataDirectory
from topics.storage.disk import Disk
from topics.storage.pack import Packs
from topics.storage.snapshot import Pin, Snapshots
from topics.storage.wal.syncer import Syncer
from topics.storage.wal.wal import LogSpan, Wal

logger = logging.getLogger("topics.bucket")

RETRY_S_MIN, RETRY_S_MAX = 0.1, 1.0
# How long a stop waits for the bucket, and then for a request that is under way.
STOP_S, LAST_REQUEST_S = 10.0, 2.0
# A lease is renewed this many times before it would end.
RENEWALS = 3


class ShippingPace(NamedTuple):
    """How often, how much and how far behind."""

    piece_ms: int
    piece_bytes: int
    backlog_bytes_max: int
    keep_ms: int


State = Literal["ok", "away", "gap", "fenced"]


class Status(NamedTuple):
    """The state of the copy; `lag_ms` is the age of the oldest synced byte that is not in the bucket."""

    state: State
    term: int
    lag_ms: int
    lag_bytes: int


class ShippingSource(NamedTuple):
    """Where the log, packs and snapshots are."""

    disk: Disk
    directory: DataDirectory
    wal: Wal
    syncer: Syncer
    snapshots: Snapshots
    packs: Packs


class Shipping:
    """The owner thread calls `poll`, `status`, `start` and `stop`; what else is here belongs to the shipping thread."""

    def __init__(
        self,
        bucket: ObjectBucket,
        joined: Joined,
        source: ShippingSource,
        *,
        pace: ShippingPace,
        notify: Callable[[], None],
        now_ms: Callable[[], int],
        made_by: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bucket, self._joined = bucket, joined
        self._disk, directory, wal, self._syncer, snapshots, packs = source
        self._wal, self._snapshots, self._now_ms, self._clock = wal, snapshots, now_ms, clock
        self._pace, self._notify, self._made_by = pace, notify, made_by
        self._keeping = Keeping(bucket, pace.keep_ms, self._go_on, packs.remote_keys)
        self._uploading = Uploading(bucket, self._disk, directory, packs, renew=self._renew, meanwhile=self._meanwhile)
        self.term = joined.term

        # the owner's; `begun`: which seqs this server skips, because one before it may have used them, is in the log
        self.begun = False
        self._offered_to = joined.position
        # When a sync was wanted last, and since when there are bytes that are not synced.
        self._sync_wanted_s = 0.0
        self._unsynced_since_s: float | None = None
        self._pin: Pin | None = None
        # An older snapshot is in the bucket, or the log leads there without it.
        self._pinned_position = snapshots.newest_position
        # shared, under the condition
        self._changed = Condition()
        self._queue = PieceQueue(pace.piece_ms / 1000, pace.piece_bytes)
        # Something that is due before this time wakes the thread.
        self._wakes_before_s = -math.inf
        self._snapshot: Pin | None = None
        self._stopping, self._stop_at_s = False, 0.0
        # set by the thread, read by the owner
        self._lease = OwnLease(joined.seen.primary.lease_ms / 1000, clock)
        self.shipped_to = joined.position
        self._manifest_position = -1
        self.stored: Sequence[StoredFile] = ()  # by the newest manifest of this run
        self.whole = joined.whole and wal.oldest_position <= joined.position
        self.away_since_s: float | None = None
        self.fenced: TakenOver | None = None
        self.pieces_total = self.bytes_total = self.failures_total = self.gaps_total = 0
        # the thread's
        self._slot = self._manifest_ms = 0
        # the one that is on its way, and the newest renewal before its first attempt
        self._piece: tuple[LogPiece, bytes] | None = None
        self._after_renewal_s = self._lease.renewed_s
        # where the slots end, and when the last piece was cut
        self._end_position, self._end_ms = joined.position, joined.time_ms
        self._places: deque[tuple[int, Place]] = deque(maxlen=100_000)  # the newest slots, for snapshots
        self._seen, self._renew_at_s = joined.seen, clock()  # at once: reading the log may have taken most of the lease
        self._renewing_s: float | None = None
        self._thread = Thread(target=self._run, name="topics-bucket", daemon=True)
        wal.keep_from = self._offered_to if self.whole else None
        if not self.whole:
            self._pinned_position = -1
            self._note_gap("the log in the bucket does not lead to the one of this directory")

    # --- owner thread ---

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ship the rest, if the bucket takes it within a bounded time, give up the lease, and end the thread."""
        if not self._thread.is_alive():
            return
        self.poll()
        with self._changed:
            self._stopping, self._stop_at_s = True, self._clock() + STOP_S
            self._changed.notify()
        # An upload can take much longer. The process ends without it: nothing refers to a part of a file.
        self._thread.join(STOP_S + LAST_REQUEST_S)
        left = self._wal.synced_to - self.shipped_to
        if left and self.fenced is None:
            logger.warning(
                "stopped with %d bytes of the log that are not in the bucket; the next start sends them", left
            )

    def poll(self) -> None:
        """Hand over what is new; called again and again."""
        wal = self._wal
        if self.whole:
            wal.keep_from = self.shipped_to
            if wal.synced_to > self._offered_to:
                self._offer(wal.spans(self._offered_to, wal.synced_to))
            behind = wal.full or wal.written_to - self.shipped_to > self._pace.backlog_bytes_max
            if behind and self.away_since_s is not None:
                self._give_up()
        self._want_sync()
        self._give_up_snapshot()
        self._poll_snapshot()

    def want(self, position: int) -> None:
        """A change that ends at `position` waits until it is in the bucket; its sync is under way."""
        with self._changed:
            self._queue.want(position)
            self._wake()

    def may_answer(self) -> bool:
        """Whether this server may acknowledge writes: not before its lease began, or again after it slept past it."""
        if self._lease.slept():
            logger.warning("this server did not run past the end of its lease: the bucket is asked who is primary")
            with self._changed:
                self._renew_at_s = 0.0
                self._changed.notify()
        return not self._lease.in_doubt

    @property
    def is_complete(self) -> bool:
        """Whether the bucket has the whole log."""
        return self.whole and self.shipped_to == self._wal.synced_to == self._wal.written_to

    @property
    def away_ms(self) -> int:
        """For how long the bucket has not answered; 0: it answers."""
        since_s = self.away_since_s
        return 0 if since_s is None else int(1000 * (self._clock() - since_s))

    @property
    def status(self) -> Status:
        state: State = "ok" if self.away_since_s is None else "away"
        if self.fenced is not None:
            state = "fenced"
        elif not self.whole:
            state = "gap"
        with self._changed:
            since_s = self._queue.since_s
        lag_ms = 0 if since_s is None else int(1000 * (self._clock() - since_s))
        return Status(state, self.term, lag_ms, max(0, self._wal.written_to - self.shipped_to))

    def _want_sync(self) -> None:
        """Bytes that nobody waits for are synced, and so shipped, in time: when they have waited for an interval."""
        wal, now_s = self._wal, self._clock()
        if wal.written_to == wal.synced_to:
            self._unsynced_since_s = None
            return
        if self._unsynced_since_s is None:
            self._unsynced_since_s = now_s
        if 1000 * (now_s - max(self._unsynced_since_s, self._sync_wanted_s)) >= self._pace.piece_ms:
            self._sync_wanted_s = now_s
            self._syncer.want_sync(wal.written_to)

    def _offer(self, spans: list[LogSpan]) -> None:
        """The oldest byte waits since it was seen before its sync, so that the interval is waited for once."""
        since_s = self._clock() if self._unsynced_since_s is None else self._unsynced_since_s
        self._unsynced_since_s = None
        with self._changed:
            for span in spans:
                self._queue.offer(span, since_s)
                self._offered_to = span.to_position
            self._wake()

    def _wake(self) -> None:
        """If something is due sooner than the thread expects; under the condition."""
        if self._due_s() < self._wakes_before_s:
            self._changed.notify()

    def _give_up(self) -> None:
        """The log cannot wait any longer: the copy gets a gap, as soon as there is a snapshot that leads over it.

        With an older one the copy would go back over what is there, and acknowledged. Until the next checkpoint the
        log after the newest snapshot is needed anyway: a gap would free nothing.
        """
        with self._changed:
            if self._snapshots.newest_position < self.shipped_to:
                return
            self._queue.clear()
            self.whole = False
            if self._snapshot is not None and self._snapshot.position < self.shipped_to:
                self._snapshot = None
        self._wal.keep_from = None
        self._note_gap(f"the bucket is away, and {self._wal.written_to - self.shipped_to} bytes of the log wait for it")

    def _note_gap(self, why: str) -> None:
        self.gaps_total += 1
        logger.error("%s: the bucket gets a snapshot next, and cannot be restored to a moment before that", why)

    def _give_up_snapshot(self) -> None:
        """A pinned snapshot keeps its packs and the log after it: waiting for the bucket, it must not fill the disk.

        `full` alone is no reason: it stays until the next file of the log is made, and a gap needs a snapshot to end.
        """
        pin, wal = self._pin, self._wal
        if pin is None:
            return
        keeps_much = wal.written_to - pin.position > self._pace.backlog_bytes_max
        if [wal.full, self.away_since_s is not None, keeps_much].count(True) < 2:
            return
        with self._changed:
            if self._snapshot is not pin:
                # It is in the bucket.
                return
            self._snapshot = None
        self._pin, self._pinned_position = None, -1
        self._snapshots.unpin(pin)
        logger.warning("a snapshot waits for the bucket no longer, to make room; the bucket gets a newer one")

    def _poll_snapshot(self) -> None:
        """Hand over the newest snapshot, pinned; unpin the one that is done. After a gap the log goes on from it."""
        pin = self._pin
        if pin is not None:
            with self._changed:
                if self._snapshot is not None:
                    return
            self._pin = None
            self._snapshots.unpin(pin)
            if not self.whole and self._manifest_position == pin.position:
                self.whole = True
                self._offered_to = self._wal.keep_from = pin.position
        newest = self._snapshots.newest_position
        if not self.whole and newest < self.shipped_to:
            # The copy would go back over what is there, and acknowledged.
            return
        if newest == self._pinned_position and (self.whole or self.away_since_s is not None):
            return
        if not newest or self.away_since_s is not None or self.fenced is not None:
            return
        self._pin = self._snapshots.pin()
        self._pinned_position = self._pin.position
        with self._changed:
            self._snapshot = self._pin
            self._changed.notify()

    # --- shipping thread ---

    @property
    def _lease_s(self) -> float:
        return self._joined.seen.primary.lease_ms / 1000

    def _run(self) -> None:
        retry_s = RETRY_S_MIN
        while True:
            try:
                if not self._wait_for_work():
                    break
                self._renew()
                self._ship_piece()
                self._ship_snapshot()
            except TakenOver as error:
                self._lose(error)
                return
            except Exception as error:  # noqa: BLE001  whatever it is, the log waits, and it is tried again
                self._go_away(error)
                if self._is_over():
                    return
                with self._changed:
                    # Writes go on meanwhile, and are no reason to ask more often.
                    self._sleep(-math.inf, retry_s)
                retry_s = min(RETRY_S_MAX, 2 * retry_s)
            else:
                retry_s = RETRY_S_MIN
        self._release()

    def _wait_for_work(self) -> bool:
        """Sleep until a piece is due, a snapshot can be shipped, or the lease is to be renewed; False: it is over."""
        with self._changed:
            while self._piece is None and not self._snapshot_is_due():
                if self._stopping and not self._queue:
                    return False
                now_s = self._clock()
                if self._due_s() <= now_s:
                    return not self._is_over()
                self._sleep(self._due_s(), self._due_s() - now_s)
        return True

    def _due_s(self) -> float:
        """When the next piece or the lease is due; under the condition."""
        piece_s = -math.inf if self._stopping and self._queue else self._queue.due_s()
        return min(self._renew_at_s, piece_s)

    def _sleep(self, wakes_before_s: float, s_max: float) -> None:
        """For so long, or until something is due before that time, or the server stops; under the condition."""
        self._wakes_before_s = wakes_before_s
        self._changed.wait(s_max)
        self._wakes_before_s = -math.inf

    def _is_over(self) -> bool:
        return self._stopping and self._clock() >= self._stop_at_s

    def _snapshot_is_due(self) -> bool:
        pin = self._snapshot
        return pin is not None and not self._stopping and (not self.whole or pin.position <= self.shipped_to)

    def _ship_piece(self) -> None:
        if self._piece is None:
            self._piece = self._cut()
        if self._piece is None:
            return
        piece, frames = self._piece
        run(self._bucket, write_piece(piece, frames))
        self._lease.proven(self._after_renewal_s)
        self._piece = None
        self._slot += 1
        self._end_position, self._end_ms = piece.to_position, piece.time_ms
        self._places.append((piece.from_position, Place(piece.term, piece.slot)))
        self.pieces_total += 1
        self.bytes_total += len(frames)
        with self._changed:
            self._queue.done()
            if self.whole:
                self.shipped_to = piece.to_position
        self._come_back()
        self._notify()

    def _cut(self) -> tuple[LogPiece, bytes] | None:
        """The next piece, if it is due: synced frames of one log file."""
        with self._changed:
            now_s = self._clock()
            span = self._queue.take(now_s) if self._stopping or self._queue.due_s() <= now_s else None
        if span is None:
            return None
        try:
            frames = read_frames(self._disk, span, self._pace.piece_bytes * PIECE_BYTES_TIMES_MAX)
        except BaseException:
            with self._changed:
                if self.whole:
                    self._queue.put_back()
                else:
                    self._queue.done()
            raise
        end = span.from_position + len(frames)
        with self._changed:
            if not self.whole:
                # It was given up meanwhile, so the file may have been overwritten while it was read.
                self._queue.done()
                return None
            if end < span.to_position:
                self._queue.leave(end)
        return self._new_piece(span.from_position, end, span.salt), frames

    def _new_piece(self, from_position: int, to_position: int, salt: int, time_ms: int | None = None) -> LogPiece:
        """The next one; what made the one before has been carried out."""
        self._after_renewal_s = self._lease.renewed_s
        cut_ms = self._now_ms() if time_ms is None else time_ms
        return LogPiece(self.term, self._slot, self._joined.token, cut_ms, from_position, to_position, salt)

    def _ship_snapshot(self) -> None:
        with self._changed:
            pin = self._snapshot if self._snapshot_is_due() else None
            # Decided once: a gap that begins from here on is not the one that this snapshot ends.
            ends_gap = not self.whole
        if pin is None or pin.path is None:
            return
        place = self._place_of(pin.position)
        self._manifest_position = -1
        try:
            files = [self._uploading.snapshot(pin.path)]
            for number in sorted(pin.packs):
                if self._stopping:
                    # The rest of the log comes first: a server that is restored needs it.
                    return
                files.append(self._uploading.pack(number))
        except FileNotFoundError as error:
            # It was given up to make room; there is a newer one.
            logger.warning("a snapshot was removed before it was in the bucket: %s", error)
            self._done_with(pin)
            return
        if ends_gap:
            place = Place(self.term, self._slot)
            # The gap: from here on the log leads on from this snapshot.
            self._piece = self._new_piece(pin.position, pin.position, 0), b""
            self._ship_piece()
        # Its key has position, term and time: a second attempt, which may name another slot, needs another time.
        self._manifest_ms = max(self._now_ms(), self._manifest_ms + 1)
        holder, made_ms = self._joined.holder, self._manifest_ms
        manifest = SnapshotManifest(
            MANIFEST_FORMAT, self.term, place.slot, holder, pin.position, made_ms, self._made_by, files
        )
        self._bucket.create(manifest.key, encode_manifest(manifest))
        if ends_gap:
            # Another server that took over meanwhile may not have seen the manifest: one more slot of this term proves
            # that the next primary does, and only then may a change that waits for the bucket be acknowledged.
            self._piece = self._new_piece(pin.position, pin.position, 0), b""
            self._ship_piece()
            # Only now does the bucket lead to this position, and no further: the log is sent again from here on.
            self.shipped_to = self._manifest_position = pin.position
        self.stored = files
        self._come_back()
        self._keeping.clean(manifest)
        self._done_with(pin)

    def _place_of(self, position: int) -> Place:
        """The slot whose piece has this position, or begins there."""
        if not self._places:
            return Place(self.term, self._slot)
        for from_position, place in reversed(self._places):
            if from_position <= position:
                return place
        return Place(self.term, 0)

    def _done_with(self, pin: Pin) -> None:
        with self._changed:
            # The owner may have given it up, and pinned another one since.
            if self._snapshot is pin:
                self._snapshot = None
        self._notify()

    def _meanwhile(self, upload: Callable[[], None]) -> None:
        """Run an upload, which may take minutes, while the lease is renewed and the log is shipped."""
        failures: list[Exception] = []
        done = Event()

        def run_upload() -> None:
            try:
                upload()
            except Exception as error:  # noqa: BLE001  raised again by the shipping thread
                failures.append(error)
            with self._changed:
                done.set()
                self._changed.notify()

        # A daemon: the process does not wait for an upload that hangs.
        Thread(target=run_upload, name="topics-bucket-upload", daemon=True).start()
        # After a failure the upload ends first: there is never more than one.
        while not self._wait_for_upload(done, resting=bool(failures)):
            if self._is_over():
                raise Unreachable("the server stops")
            self._ship_log(failures)
        if failures:
            raise failures[0]
        self._renew()

    def _wait_for_upload(self, done: Event, *, resting: bool) -> bool:
        """Until it has ended; False: until a piece or the lease is due, unless that rests, or the stop is over."""
        with self._changed:
            while not done.is_set():
                due_s = self._stop_at_s if self._stopping else math.inf
                if not resting:
                    due_s = min(due_s, self._due_s())
                now_s = self._clock()
                if due_s <= now_s:
                    return False
                self._sleep(-math.inf if resting else due_s, min(due_s - now_s, TIMEOUT_MAX))
        return True

    def _go_on(self) -> None:
        """Between the requests of something that takes long: the lease, and a piece that is due."""
        self._renew()
        self._ship_piece()

    def _ship_log(self, failures: list[Exception]) -> None:
        try:
            self._go_on()
        except TakenOver:
            raise
        except Exception as error:  # noqa: BLE001  raised again when the upload has ended
            failures.append(error)

    # --- the lease ---

    def _renew(self) -> None:
        if self._clock() < self._renew_at_s:
            return
        if self._renewing_s is None:
            self._renewing_s = self._clock()
        # From before the first attempt: others may have seen the object since then.
        sent_s = self._renewing_s
        mine = self._seen.primary.later(self._slot)
        self._seen = run(self._bucket, announce(mine, self._seen))
        self._renewing_s = None
        self._lease.renewed(sent_s)
        self._come_back()
        if not self._lease.holds:
            self._prove()
        self._renew_at_s = sent_s + self._lease_s / RENEWALS

    def _prove(self) -> None:
        """Fill a slot with nothing: the renewal came when the lease had ended, and counts if the term is not closed.

        Its time is that of the piece before it: what was acknowledged since then may not be in the bucket.
        """
        if self._piece is not None:
            # Its first attempt may have arrived before the renewal, and would prove nothing.
            self._ship_piece()
        self._piece = self._new_piece(self._end_position, self._end_position, 0, self._end_ms), b""
        self._ship_piece()

    def _release(self) -> None:
        end_position = self.shipped_to if self.is_complete and self.begun else -1
        try:
            run(self._bucket, announce(self._seen.primary.last(end_position), self._seen))
        except TopicsError as error:
            logger.warning("the lease of term %d was not given up: %s", self.term, error.message)

    # --- news ---

    def _go_away(self, error: Exception) -> None:
        self.failures_total += 1
        if self.away_since_s is None:
            self.away_since_s = self._clock()
            logger.warning("the bucket does not answer; the log waits on disk: %s", getattr(error, "message", error))
            self._notify()

    def _come_back(self) -> None:
        if self.away_since_s is not None:
            logger.info("the bucket answers again, after %.1f s", self._clock() - self.away_since_s)
            self.away_since_s = None
            self._notify()

    def _lose(self, error: TakenOver) -> None:
        logger.critical("%s", error.message)
        self.fenced = error
        self._notify()
