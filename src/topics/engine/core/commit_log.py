"""The commit log: decided ops are written to the log once per tick, then applied and published in log order.

    verb → submit ──┐
    verb → submit ──┤ unwritten ── flush: one write(2) ──┬── class disk, memory, ephemeral: apply, publish
    verb → submit ──┘                                    ├── class fsync: unsynced ── synced: apply, publish
                                                         └── class replicated: unshipped ── shipped: apply, publish

Ops of one topic are published in log order: while one waits for its sync or for the bucket, later ones of that topic
wait with it, whatever their class. If a write fails, its ops are forgotten, and their reservations are released.

A bucket can be away for hours, and what is in the log cannot be taken back. So callers are refused after some time
while their ops go on waiting, and a checkpoint carries waiting ops along (`carry`) instead of waiting for them.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple, Protocol

from topics.engine.core.appended import Appended, DeferredBody
from topics.engine.core.checkpoints.checkpoint_room import CheckpointRoom, refusal, uncertain_refusal
from topics.engine.core.in_flight import InFlight
from topics.engine.core.op_table import Op
from topics.engine.core.ops import Deleted, Dropped, Floored, MultiAppended, Skipped, Timed
from topics.engine.core.pending import PendingChange, not_replicated
from topics.engine.core.state import State
from topics.engine.log.waiters import Waiters
from topics.model.clock import SKEW_MS_MIN, Clock, SteadyClock
from topics.model.errors import NotPrimary, ReadOnly, StorageError, StorageFull, Throttled, TopicNotFound, TopicsError
from topics.model.requests.batch import Batch
from topics.model.requests.config import Durability, TopicConfig, has_limits
from topics.storage.wal.syncer import Syncer
from topics.storage.wal.wal import Wal

log = logging.getLogger("topics.engine")

NOTED_SHARE = 64

TIMED_EVERY_MS = 1_000
# The steady clock and a `$ts` of the same moment may differ by this much without any significance.
SAME_MS_MAX = 5
# How long a caller waits for the bucket, counted in intervals; and how much may wait for it in memory.
BUCKET_WAIT_MS = 10_000
AGE_EVERY_MS, AGED_AT_ONCE = 250, 500
UNSHIPPED_BYTES_MAX, UNSHIPPED_MAX = 64 * 1024 * 1024, 100_000


class BucketCopy(Protocol):
    """The copy of the log in the bucket."""

    @property
    def shipped_to(self) -> int:
        """The log up to here is in the bucket, for good."""
        ...

    def want(self, position: int) -> None:
        """A change that ends at `position` waits until it is there."""
        ...


class Carried(NamedTuple):
    """An op that waits for the bucket while a checkpoint passes it."""

    position: int
    op: Op
    body: bytes | DeferredBody


class CommitLog:
    """Ops between decision and publication."""

    def __init__(
        self, state: State, wal: Wal, syncer: Syncer, waiters: Waiters, clock: Clock, room: CheckpointRoom
    ) -> None:
        self._state = state
        self._kinds = state.ops.kinds
        self.room = room
        self._wal = wal
        self._syncer = syncer
        self._waiters = waiters
        self._clock = clock
        # The time that leases and delays are measured by.
        self.steady = SteadyClock(clock, state.noted)
        self._unwritten: deque[PendingChange] = deque()
        self._unsynced: deque[PendingChange] = deque()
        # How many ops of a topic wait for a sync.
        self._waiting: dict[int, int] = {}
        # The same for the bucket, if there is one.
        self.bucket: BucketCopy | None = None
        self._unshipped: deque[PendingChange] = deque()
        self._unshipped_bytes = 0
        self._behind: dict[int, int] = {}
        # Those whose callers wait longer by one interval, and when that was counted last.
        self._aging: deque[PendingChange] = deque()
        self._aged_ms = 0.0
        # The running checkpoint has carried the waiting ops up to here.
        self._carried_to = -1
        # Callbacks for when the log is durable up to a position, in log order.
        self._sync_watchers: deque[tuple[int, Callable[[], None]]] = deque()
        self.in_flight = InFlight()
        self._broken_by: str | None = None
        # Why no change is accepted for now, if this server is not primary.
        self.closed: Callable[[], TopicsError] | None = None
        # Whether what is decided may be written and answered; absent: always. It may be asked again soon.
        self.may_answer: Callable[[], bool] | None = None
        # The log has ops of another server that are not folded yet.
        self.unfolded = False
        # for metrics
        self.depth_peak = 0
        self.refused_total = 0

    @property
    def depth(self) -> int:
        """Ops decided and not yet published."""
        return len(self._unwritten) + len(self._unsynced) + len(self._unshipped)

    @property
    def pending_bytes(self) -> int:
        """By how much all topics will grow."""
        return self.in_flight.bytes

    @property
    def read_only(self) -> ReadOnly | None:
        """Why nothing can be written any more; a new error for each caller it is raised to."""
        if self._broken_by is None:
            return None
        return ReadOnly(f"writes are refused until a restart: {self._broken_by}")

    def check_writable(self) -> None:
        if self.closed is not None:
            raise self.closed()
        if self._broken_by is not None:
            raise self._refuse_for_good()
        if self._wal.overloaded:
            self.refused_total += 1
            raise Throttled("the disk is too far behind with writes; try again", retry_after_ms=250)

    def is_behind(self, unsynced_bytes_max: int) -> bool:
        """Whether more than `unsynced_bytes_max` wait for their sync; callers that can wait should, then."""
        return self._broken_by is None and self._wal.buffered_to - self._wal.synced_to > unsynced_bytes_max

    # --- submitting ---

    def submit(
        self,
        op: Op,
        body: bytes | DeferredBody,
        *,
        gated: bool,
        urgent: bool = False,
        journaled: bool = True,
    ) -> PendingChange:
        kind = self._kinds[type(op)]
        self._refuse_if_dropped(op.topic_id)
        change = PendingChange(op, op.topic_id, gated=gated)
        change.other_ids = kind.other_topics(self._state, op)
        if gated and self.bucket is not None:
            change.awaits_bucket = self._is_replicated(change, kind.configures(op))
        if journaled:
            self._journal(change, body, None if kind.carries_floor else op.topic_id, kind.dated(op), urgent)
        else:
            change.position = self._wal.buffered_to
        self._unwritten.append(change)
        for topic_id, _, *amounts in kind.adds(op):
            self.in_flight.reserve(change, self._state.by_id.get(topic_id), *amounts)
        names = kind.makes(op)
        if names:
            self.in_flight.make(change, names)
        return change

    def submit_append(self, op: Appended, durability: Durability) -> PendingChange:
        """Like `submit`, without a lookup in the table: the properties of an append are inlined here."""
        batch = op.batch
        dated = batch.jobs is not None
        if dated:
            self.date(batch)
        change = PendingChange(op, op.topic_id, gated=durability == "fsync")
        if durability == "replicated":
            change.gated = change.awaits_bucket = True
        if durability != "ephemeral":
            self._journal(change, op.body(), None, dated, False)
        else:
            self.note_head(op)
            change.position = self._wal.buffered_to
        self._unwritten.append(change)
        count, size = batch.count, batch.size
        self.in_flight.reserve(change, self._state.by_id.get(op.topic_id), count, count, size, size)
        return change

    def _journal(
        self, change: PendingChange, body: bytes | DeferredBody, floor_of: int | None, dated: bool, urgent: bool
    ) -> None:
        """Into the log's buffer, after the ops that the log must have before it."""
        if not urgent:
            self.room.check(self.in_flight.bytes + len(body))
        if self.bucket is not None:
            if self._unshipped and (change.awaits_bucket or _waits(change, self._behind)):
                self._refuse_too_much_unshipped(len(body))
            change.body = body
        try:
            if floor_of is not None:
                self._log_floor(floor_of)
            if dated:
                self._log_time()
            change.position = self._wal.append(body, urgent)
        except OSError as error:
            self._write_failed(error)
            raise refusal(error) from error
        except StorageError as error:
            if not self._wal.broken:
                raise
            raise self._turn_read_only(error) from error

    def _refuse_too_much_unshipped(self, size: int) -> None:
        if self._unshipped_bytes + size > UNSHIPPED_BYTES_MAX or len(self._unshipped) >= UNSHIPPED_MAX:
            self.refused_total += 1
            raise not_replicated(written=False)

    def submit_multi_append(self, op: MultiAppended, *, gated: bool, journaled: bool) -> PendingChange:
        for appended in op.batches:
            self.date(appended.batch)
            if not journaled:
                self.note_head(appended)
        body = op.body() if journaled else b""
        return self.submit(op, body, gated=gated, journaled=journaled)

    def submit_delete(self, op: Deleted, durability: Durability) -> PendingChange:
        """Like `submit_append`: the properties of a delete need no lookup."""
        if self.in_flight.busy:
            self._refuse_if_dropped(op.topic_id)
        change = PendingChange(op, op.topic_id, gated=durability == "fsync")
        if durability == "replicated":
            change.gated = change.awaits_bucket = True
        topic = self._state.by_id[op.topic_id]
        if topic.lasts(op.runs[0].from_seq):
            floor_of = topic.id if topic.evict_floor > topic.logged_floor else None
            self._journal(change, op.encode(), floor_of, False, True)
        else:
            change.position = self._wal.buffered_to
        self._unwritten.append(change)
        return change

    def _is_replicated(self, change: PendingChange, configs: tuple[TopicConfig, ...]) -> bool:
        """Whether one of its topics is `replicated`, or becomes it: the strictest class decides."""
        if any(config.durability == "replicated" for config in configs):
            return True
        topics = [self._state.by_id.get(topic_id) for topic_id in (change.topic_id, *change.other_ids)]
        return any(topic is not None and topic.config.durability == "replicated" for topic in topics)

    def _refuse_if_dropped(self, topic_id: int) -> None:
        """In the log nothing of a topic may follow its drop. Whoever goes on by itself may not have looked for one."""
        topic = self._state.by_id.get(topic_id) if self.in_flight.busy else None
        if topic is not None:
            busy = self.in_flight.with_what(("topic", topic.name))
            if busy is not None and isinstance(busy.op, Dropped):
                raise TopicNotFound(topic.name)

    def _log_floor(self, topic_id: int) -> None:
        """Records that retention has dropped since the last recorded floor must not come back with the next op."""
        topic = self._state.by_id.get(topic_id)
        if topic is not None and topic.evict_floor > topic.logged_floor:
            self._wal.append(Floored(topic.id, topic.evict_floor).encode(), urgent=True)
            topic.logged_floor = topic.evict_floor

    def note_head(self, op: Appended) -> None:
        """When an `ephemeral` topic has grown by a small share, the log records it, to count the loss of a crash.

        With a large batch it always does: the thread that writes the frame joins the batch.
        """
        topic, batch = self._state.by_id.get(op.topic_id), op.batch
        first_seq, last_seq = batch.first_seq, batch.first_seq + batch.count - 1
        if topic is not None:
            if batch.parts is None and last_seq - topic.noted_to <= (topic.noted_to - topic.noted_from) // NOTED_SHARE:
                return
            if not topic.noted_to:
                topic.noted_from = first_seq - 1
            topic.noted_to = last_seq
        try:
            head = Skipped(op.topic_id, last_seq, 0).encode()
            self._wal.append(head if batch.parts is None else DeferredBody((head,), batch))
        except OSError as error:
            self._write_failed(error)
            raise refusal(error) from error
        except (StorageError, StorageFull, Throttled) as error:
            log.debug("the head of an ephemeral topic is not noted: %s", error.message)
            batch.join()

    def date(self, batch: Batch) -> None:
        """The delays of a batch count from now."""
        jobs = batch.jobs
        if jobs is not None:
            now_ms = self.steady.now_ms()
            if abs(now_ms - jobs.from_ms) > SAME_MS_MAX:
                batch.jobs = jobs._replace(from_ms=now_ms)

    def _log_time(self) -> None:
        """Deadlines use the steady clock; a restart continues from its time as recorded near them."""
        now, noted = self.steady.moment(), self._state.noted
        if noted is not None:
            passed_ms = now.steady_ms - noted.steady_ms
            if passed_ms < TIMED_EVERY_MS and abs(now.wall_ms - noted.wall_ms - passed_ms) < SKEW_MS_MIN:
                return
        self._wal.append(Timed(now).encode(), urgent=True)
        self._state.noted = now

    # --- the end of a tick ---

    def flush(self) -> None:
        """Write the submitted ops, publish those that may be published, wake waiters."""
        if self.may_answer is not None and not self.may_answer():
            return
        if self._unwritten or self._wal.buffered_to > self._wal.written_to:
            self.depth_peak = max(self.depth_peak, self.depth)
            self._write()
        self._waiters.wake()

    def _write(self) -> None:
        started_ms = self._clock.monotonic_ms()
        try:
            written_to = self._wal.flush()
        except OSError as error:
            self._write_failed(error)
        except StorageError as error:
            self._turn_read_only(error)
        else:
            # The thread is woken once: the position to sync now is given to it first.
            self._written(written_to, self._clock.monotonic_ms() - started_ms)
            self._syncer.nudge()

    def settle(self, time_is_up: Callable[[], bool] | None = None) -> bool:
        """Called when the commit thread has news: synced ops are published; whether there was no time for all of them.

        After a slow sync many of them may wait, and each may take milliseconds.
        """
        more = False
        if self.may_answer is not None and not self.may_answer():
            return False
        if self._unwritten or self._wal.buffered_to > self._wal.written_to or self._wal.broken:
            self._write()
        try:
            progress = self._syncer.poll()
        except StorageError as error:
            self._turn_read_only(error)
        else:
            more = self._synced(progress.synced_to, time_is_up)
            if self._unshipped:
                # Also if time is up: callers must not wait longer because others have much to publish.
                more = self._shipped(time_is_up) or more
            while self._sync_watchers and self._sync_watchers[0][0] <= progress.synced_to:
                self._sync_watchers.popleft()[1]()
        self._waiters.wake()
        return more

    @property
    def has_unwritten(self) -> bool:
        """Whether something is decided that is not in the log yet, or not taken from there."""
        return bool(self._unwritten)

    @property
    def has_unsynced(self) -> bool:
        """Whether something is written that is not durable yet."""
        return self._wal.synced_to < self._wal.written_to

    def when_synced(self, callback: Callable[[], None]) -> None:
        """Call back once everything published so far is durable; at once if it is."""
        position = self._wal.written_to
        if self._wal.synced_to >= position:
            callback()
        else:
            self._sync_watchers.append((position, callback))

    def marks_unwritten(self) -> bool:
        """Whether the state and the log differ: an op that reads other topics is not in the log yet, or not folded."""
        return self.unfolded or any(self._kinds[type(change.op)].derives for change in self._unwritten)

    def unpublished_at(self, position: int) -> bool:
        """Whether an op at or below this position of the log still waits to be synced and published."""
        return bool(self._unsynced and self._unsynced[0].position <= position) or bool(
            self._unwritten and self._unwritten[0].position <= position
        )

    def take_written(self) -> int:
        """Where the log ends; no op up to there counts as unwritten, also if the commit thread has just written it."""
        written_to = self._wal.written_to
        self._written(written_to, 0.0)
        return written_to

    def _written(self, written_to: int, write_ms: float) -> None:
        unwritten, waiting, behind = self._unwritten, self._waiting, self._behind
        now_ms = 0.0
        sync_to = ship_to = 0
        while unwritten and unwritten[0].position <= written_to:
            change = unwritten.popleft()
            change.wal_append_ms = write_ms
            unshipped = change.awaits_bucket or (bool(behind) and _waits(change, behind))
            if not unshipped and not change.gated and not (waiting and _waits(change, waiting)):
                self._publish(change, change.position)
                continue
            now_ms = now_ms or self._clock.monotonic_ms()
            change.written_ms = now_ms
            held_up = behind if unshipped else waiting
            for topic_id in self._held_up(change):
                held_up[topic_id] = held_up.get(topic_id, 0) + 1
            sync_to = change.position
            if unshipped:
                self._unshipped.append(change)
                self._unshipped_bytes += len(change.body or b"")
                ship_to = change.position
            else:
                self._unsynced.append(change)
        if sync_to:
            self._syncer.want_sync(sync_to)
        if ship_to:
            assert self.bucket is not None
            self.bucket.want(ship_to)

    def _synced(self, synced_to: int, time_is_up: Callable[[], bool] | None) -> bool:
        unsynced, waiting = self._unsynced, self._waiting
        if not unsynced or unsynced[0].position > synced_to:
            return False
        now_ms = self._clock.monotonic_ms()
        while unsynced and unsynced[0].position <= synced_to:
            change = unsynced.popleft()
            self._let_pass(change, waiting)
            if change.gated:
                change.fsync_ms = now_ms - change.written_ms
            self._publish(change, change.position)
            if time_is_up is not None and time_is_up():
                break
        return bool(unsynced) and unsynced[0].position <= synced_to

    def _shipped(self, time_is_up: Callable[[], bool] | None) -> bool:
        """As `_synced`, for those that wait for the bucket; everything that is there is synced."""
        assert self.bucket is not None
        unshipped, shipped_to = self._unshipped, self.bucket.shipped_to
        if self._unsynced:
            # Ops of the same topic may be among those that there was no time for.
            shipped_to = min(shipped_to, self._unsynced[0].position - 1)
        now_ms = self._clock.monotonic_ms()
        while unshipped and unshipped[0].position <= shipped_to:
            change = unshipped.popleft()
            self._let_pass(change, self._behind)
            self._unshipped_bytes -= len(change.body or b"")
            change.fsync_ms = now_ms - change.written_ms
            # One that is carried is not part of what the checkpoint captures: as if it came after it.
            carried = change.position <= self._carried_to
            self._publish(change, self._state.capture_from + 1 if carried else change.position)
            if time_is_up is not None and time_is_up():
                break
        if not self._aging and now_ms - self._aged_ms >= AGE_EVERY_MS:
            self._aged_ms = now_ms
            self._aging.extend(unshipped)
        for _ in range(min(AGED_AT_ONCE, len(self._aging))):
            change = self._aging.popleft()
            if not change.done:
                change.grow_older(BUCKET_WAIT_MS // AGE_EVERY_MS, not_replicated)
        return bool(self._aging) or (bool(unshipped) and unshipped[0].position <= shipped_to)

    def check_bucket(self, topic_id: int) -> None:
        """Raises NotReplicated if the topic waits for a bucket that is away for so long that callers are refused."""
        if topic_id not in self._behind:
            return
        if self._clock.monotonic_ms() - self._unshipped[0].written_ms >= BUCKET_WAIT_MS:
            raise not_replicated(written=False)

    def carry(self, position: int) -> list[Carried]:
        """The ops up to here that wait for the bucket, for a checkpoint that has this position, until `carried`."""
        self._carried_to = position
        return [
            Carried(change.position, change.op, change.body)
            for change in self._unshipped
            if change.position <= position and change.op is not None and change.body is not None
        ]

    def carried(self) -> None:
        """The checkpoint has ended."""
        self._carried_to = -1

    def _let_pass(self, change: PendingChange, held_up: dict[int, int]) -> None:
        for topic_id in self._held_up(change):
            held_up[topic_id] -= 1
            if not held_up[topic_id]:
                del held_up[topic_id]

    def _publish(self, change: PendingChange, position: int) -> None:
        op = change.op
        assert op is not None
        found = self._state.apply(op, position)
        self.in_flight.release(change)
        self._kinds[type(op)].published(self, op, found, change)
        change.finish()

    # --- after publication ---

    def append_published(self, op: Appended, _found: object, change: PendingChange) -> None:
        topic = self._state.by_id[op.topic_id]
        config = topic.config
        if config.cap_records or config.cap_bytes:
            self._state.enforce_caps(topic, self._state.cold.load)
        if topic.logged_floor <= topic.lasting_to:
            self._log_floor(topic.id)
        change.head_seq = topic.head_seq
        if topic.waiters:
            self._waiters.moved(topic)

    def configured(self, topic_id: int) -> None:
        """Lower caps take effect, and claims that wait look at other limits."""
        topic = self._state.by_id.get(topic_id)
        if topic is not None:
            self._state.enforce_caps(topic, self._state.cold.load)
            self._waiters.moved(topic)

    def left(self, topic_id: int) -> None:
        """Records left the topic: a queue with limits may have room for others."""
        topic = self._state.by_id.get(topic_id)
        if topic is not None and topic.waiters and has_limits(topic.config):
            self._waiters.moved(topic)

    def arrived(self, topic_id: int) -> None:
        """A commit added records to the topic: the same as publishing an append to it."""
        topic = self._state.by_id.get(topic_id)
        if topic is not None:
            self._state.enforce_caps(topic, self._state.cold.load)
            self._waiters.moved(topic)

    def landed(self, topic_id: int) -> None:
        """Records came with an op of several topics: the same as publishing an append to their new topic."""
        topic = self._state.by_id.get(topic_id)
        if topic is None:
            return
        self._state.enforce_caps(topic, self._state.cold.load)
        if topic.logged_floor <= topic.lasting_to:
            self._log_floor(topic.id)
        self._waiters.moved(topic)

    # --- failures ---

    def _write_failed(self, error: OSError) -> None:
        """The log was truncated to its last whole write if possible. Later ops are forgotten; no reader saw them."""
        log.error("a log write failed: %s", error)
        kept = self._wal.written_to
        failed = [change for change in self._unwritten if change.position > kept]
        self._unwritten = deque(change for change in self._unwritten if change.position <= kept)
        uncertain = self._wal.broken
        self._forget(failed, lambda: uncertain_refusal(error) if uncertain else refusal(error))
        self._written(kept, 0.0)

    def _turn_read_only(self, error: TopicsError) -> TopicsError:
        """A sync failed: the content of the disk is unknown, so nothing is acknowledged until a restart."""
        return self.refuse_writes(f"a sync to disk failed: {error.message}")

    def refuse_writes(self, reason: str) -> TopicsError:
        """From now on nothing is acknowledged until a restart; pending changes fail."""
        if self._broken_by is None:
            self._broken_by = reason
            log.critical("writes are refused until a restart: %s", reason)
        failed = [*self._unsynced, *self._unshipped, *self._unwritten]
        failed.sort(key=lambda change: change.position)
        self._unsynced.clear()
        self._unshipped.clear()
        self._aging.clear()
        self._unshipped_bytes = 0
        self._unwritten.clear()
        self._waiting.clear()
        self._behind.clear()
        # They may have reached the log, where the next start would find them; or the bucket, and so the next primary.
        there = "after the restart" if self.closed is None else "on that server"
        under_way = f"; this write was under way, and may be there {there}"
        self._forget(failed, lambda: self._refuse_for_good(under_way))
        return self._refuse_for_good()

    def _refuse_for_good(self, more: str = "") -> TopicsError:
        if self.closed is not None:
            why = self.closed()
            return NotPrimary(why.message + more, detail=why.detail, written=True) if more else why
        refusal = self.read_only
        assert refusal is not None
        return ReadOnly(refusal.message + more)

    def _forget(self, failed: list[PendingChange], refusal: Callable[[], TopicsError]) -> None:
        """As if they had never been: their reservations are released, and the log may lack the floors given to it."""
        for change in reversed(failed):
            self.in_flight.release(change)
            for topic_id in (change.topic_id, *change.other_ids):
                topic = self._state.by_id.get(topic_id)
                if topic is not None:
                    topic.logged_floor = 1
        for change in failed:
            change.finish(refusal())

    def _held_up(self, change: PendingChange) -> tuple[int, ...]:
        """The topics whose later ops wait for this one."""
        return (change.topic_id, *change.other_ids) if self._kinds[type(change.op)].ordered else ()


def _waits(change: PendingChange, waiting: dict[int, int]) -> bool:
    """Whether an earlier op of a topic that this one changes waits, for its sync or for the bucket."""
    return change.topic_id in waiting or any(topic_id in waiting for topic_id in change.other_ids)
