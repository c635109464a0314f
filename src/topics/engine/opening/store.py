"""A data directory and the engine in it: opening with recovery, the threads, housekeeping, closing."""

from __future__ import annotations

import gc
import logging
import math
import time
from collections.abc import Callable, Iterator
from typing import Literal

from topics.engine.core.appended import Appended, blob_start
from topics.engine.core.checkpoints import checkpoint
from topics.engine.core.checkpoints.checkpoint import Checkpointer
from topics.engine.core.checkpoints.checkpoint_room import CheckpointRoom
from topics.engine.core.commit_log import CommitLog
from topics.engine.core.engine import Engine
from topics.engine.core.multi_append import MultiAppend
from topics.engine.core.op_table import Op
from topics.engine.core.waiting.cold_reader import ColdReader
from topics.engine.core.waiting.deadlines import Deadlines, PolledTimers, Timers
from topics.engine.core.waiting.runner import Runner
from topics.engine.live.feeds import LiveFeeds
from topics.engine.log.block import indexing_tags
from topics.engine.log.topic import SEQ_CHUNK, Topic
from topics.engine.log.waiters import Waiters
from topics.engine.opening import loss_estimates as estimates
from topics.engine.opening.bucket_side import BucketSide, replicated_topics
from topics.engine.opening.composition import new_state
from topics.engine.opening.history import RemoteHistory, check_settings
from topics.engine.opening.repair import apply_what_fits, drop_damaged, gap_lines
from topics.engine.opening.restore import restore
from topics.engine.opening.single_appends import ops_of
from topics.engine.opening.skipping import LOGGED, Skipping
from topics.engine.opening.standby import Standby, capped
from topics.engine.pipelines.verbs import Pipelines
from topics.engine.queues.feature import QueuesFeature
from topics.engine.queues.results.lookup import JobLookup
from topics.engine.queues.results.notifier import Notifier
from topics.engine.queues.unique_keys import Uniqueness
from topics.engine.queues.verbs import Queues
from topics.engine.queues.waiting_claims import Claims
from topics.engine.routers.forwarding import Forwarder
from topics.engine.routers.verbs import Routers
from topics.engine.schedules.scheduler import Scheduler
from topics.engine.schedules.verbs import Schedules
from topics.engine.transactions.verbs import Transactions
from topics.engine.webhooks.dispatcher import Dispatcher
from topics.engine.webhooks.verbs import Webhooks
from topics.model.clock import Clock, SystemClock
from topics.model.errors import StorageError
from topics.model.requests.config import GATED
from topics.model.settings import Settings
from topics.storage.backup import Backup
from topics.storage.bucket.following import Following
from topics.storage.bucket.shipping import Shipping, ShippingSource
from topics.storage.bucket.starting.joining import Joined
from topics.storage.directory import DataDirectory
from topics.storage.disk import Disk
from topics.storage.pack import Packs
from topics.storage.reserve import Reserve
from topics.storage.snapshot import Snapshots
from topics.storage.steps import PAUSE_S, Steps, at_once, in_thread
from topics.storage.wal.replay import Replay
from topics.storage.wal.sync_mark import SyncMark, noted_position
from topics.storage.wal.syncer import Syncer
from topics.storage.wal.wal import Wal
from topics.storage.worker import Worker

log = logging.getLogger("topics.engine")

# Tasks that are resumed in one turn: this many rounds, this much time; the others follow in the next turn.
READY_ROUNDS_MAX = 8
READY_S_MAX = 0.004
# A slice of background tasks, and the interval of housekeeping: while there is much to do, and otherwise.
BACKGROUND_S = 0.001
HOUSE_BUSY_MS, HOUSE_MS = 2.0, 18.0
# How long recovery works before it yields.
SLICE_MS = 2.0
# Reading the snapshot is the first tenth of a recovery's progress, replaying the log the rest.
SNAPSHOT_SHARE = 0.1


class Store:
    """`for _ in store.opening(): …` recovers in short steps; then `engine` accepts verbs until `close`.

    Other threads call `notify` when the owner should call `settle`; the owner's thread calls `wake` when a task can
    continue. `timers` run deadlines; without them `turn` checks the clock.
    """

    engine: Engine

    def __init__(
        self,
        path: str,
        settings: Settings | None = None,
        *,
        clock: Clock | None = None,
        disk: Disk | None = None,
        notify: Callable[[], None] = lambda: None,
        wake: Callable[[], None] = lambda: None,
        timers: Timers | None = None,
        repair: bool = False,
    ) -> None:
        self.settings = settings or Settings()
        self._clock = clock or SystemClock()
        self._disk = disk or Disk()
        self._notify = notify
        self._wake = wake
        self.waiters = Waiters(wake)
        self.timers = timers or PolledTimers(self._clock, wake)
        self.deadlines = Deadlines(self.timers)
        # The tasks of callers, and those in the background, which yield to them.
        self.runner = Runner(self.waiters, self.deadlines, wake)
        self.background = Runner(self.waiters, self.deadlines, wake, patient=True)
        self.directory = DataDirectory(self._disk, path, self.settings.cold_dir)
        self._repair = repair
        # The bucket, if there is one: what sends the log there, or what follows it there.
        self.bucket_side = BucketSide(self.settings, self._disk, self.directory, self._clock, notify)
        self.shipping: Shipping | None = None
        self.standby: Standby | None = None
        # Called when a standby has become primary.
        self.on_primary: Callable[[], None] = lambda: None
        # What a repair had to give up, as messages.
        self.given_up: list[str] = []
        # The heads at the last recorded sync, if the log continues after it.
        self._synced_heads: dict[int, int] | None = None
        self.progress = 0.0
        self.ready = False
        self._checkpoint: checkpoint.Steps[bool] | None = None
        self._house_due_ms = 0.0
        self._house_busy = False
        # Synced changes are left to be published; tasks were left to the next tick.
        self._unsettled = self._gave_way = False

    # --- opening ---

    def opening(self) -> Iterator[float]:
        """Recover; yields the progress (0.0 … 1.0) every few milliseconds, by the clock."""
        now_ms = self._clock.monotonic_ms
        until_ms = now_ms() + SLICE_MS
        check_settings(self.settings)
        self.directory.open(repair=self._repair, may_be_filled=self._has_bucket)
        # A replay makes objects by the million and no garbage: collecting would cost an eighth of the time.
        collecting = gc.isenabled()
        gc.disable()
        try:
            for _ in self._recover():
                if now_ms() >= until_ms:
                    yield self.progress
                    until_ms = now_ms() + SLICE_MS
        except BaseException:
            if self.shipping is not None:
                self.shipping.stop()
            if hasattr(self, "worker"):
                self.syncer.stop()
                self.worker.stop()
            if hasattr(self, "packs"):
                self.packs.close()
            self.directory.close()
            raise
        finally:
            if collecting:
                gc.enable()
        self.progress = 1.0
        self.ready = True
        yield 1.0

    def _recover(self) -> Steps[None]:
        directory = self.directory
        following = (yield from self.bucket_side.follow()) if self._follows else None
        joined = (yield from self.bucket_side.join()) if self._has_bucket and following is None else None
        previous = directory.previous
        self.packs = Packs(self._disk, directory.packs_path, directory.cold_path)
        self.history = RemoteHistory(self.packs, self.settings, self._notify)
        if not self._repair:
            yield from self.history.checking(self.bucket_side.bucket, self.bucket_side.patience, directory.path)
        self.snapshots = Snapshots(self._disk, directory.snapshots_path)
        self.state = new_state(self.settings, self.packs)
        snapshot = yield from self.snapshots.loading(repair=self._repair, thorough=self._repair)
        carried = yield from restore(self.state, snapshot)
        self.progress = SNAPSHOT_SHARE
        live = (block.extent for topic in self.state.by_id.values() for block in topic.blocks)
        yield from self.packs.adopting(
            (extent for extent in live if extent is not None), keep=self.snapshots.kept_packs
        )
        yield from self.state.feature(QueuesFeature).read_old_letters()
        synced_to = noted_position(self._disk, directory.wal_path)
        replay = Replay(
            self._disk,
            directory.wal_path,
            snapshot.position if snapshot is not None else 0,
            same_boot=directory.same_boot,
            durable_to=max(previous.log_end, synced_to),
            repair=self._repair,
            split=blob_start,
        )
        yield from self._fold(carried, replay, synced_to)
        self.bucket_side.check_classes(self.state, has_bucket=self._has_bucket or self._repair)
        if self._repair:
            self.given_up += gap_lines(replay.repaired)
            self.given_up += drop_damaged(self.state, self.packs)
        yield from self._start(replay, joined)
        if following is not None:
            self._begin_following(following)
        else:
            yield from self._go_on(replay, joined)

    def _go_on(self, replay: Replay, joined: Joined | None) -> Steps[None]:
        """The log is folded, and this server writes the next part of it."""
        directory, skipping = self.directory, self.skipping
        previous = directory.previous
        copied_ms = previous.copied_ms
        not_all_here = bool(replay.repaired or copied_ms)
        seqs_min = 0
        if copied_ms:
            seqs_min = yield from skipping.since(copied_ms, in_bucket=bool(joined and joined.restored))
        elif replay.repaired:
            yield from skipping.skip(frozenset(), estimates.in_gaps(self.state, replay.repaired))
        elif not previous.clean_stop and directory.same_boot:
            yield from skipping.skip(LOGGED, estimates.nothing)
        elif not previous.clean_stop:
            yield from skipping.skip(GATED, estimates.since_sync(self._synced_heads))
        # Parts that a stage of the original got after the copy are missing here, and a commit would not notice.
        whole = not self.given_up and not copied_ms and (previous.clean_stop or directory.same_boot)
        self.transactions.recovered(whole=whole, fences_ahead=max(SEQ_CHUNK, seqs_min) if not_all_here else 0)
        if not_all_here:
            yield from skipping.written()
        if joined is not None:
            yield from self.wait_shipped(log=joined.restored is not None or bool(replicated_topics(self.state)))
        # Only now: a start after a crash before this line must skip again.
        yield from in_thread(directory.mark_open)
        if self.shipping is not None:
            self.shipping.begun = True
        self.scheduler.look_again()

    @property
    def _has_bucket(self) -> bool:
        return self.settings.bucket is not None and not self._repair

    @property
    def _follows(self) -> bool:
        return self._has_bucket and self.settings.standby

    @property
    def role(self) -> Literal["primary", "standby"] | None:
        """None without a bucket, and before it is known."""
        if self.standby is not None:
            return "standby"
        return "primary" if self.shipping is not None else None

    def _begin_following(self, following: Following) -> None:
        self.standby = Standby(self, following)
        self.commit_log.closed = self.standby.refusal
        following.start()

    def _apply_what_fits(self, op: Op, position: int) -> None:
        self.given_up += apply_what_fits(self.state, op, position)

    def _fold(self, carried: list[tuple[int, bytes]], replay: Replay, synced_to: int) -> Steps[None]:
        """First the ops that the snapshot carries, then those of the log."""
        state = self.state
        apply = self._apply_what_fits if self._repair else state.apply
        for position, body in carried:
            apply(state.ops.decode(body), position)
            yield
        for frames in replay.windows():
            for position, op in ops_of(state, frames or [], synced_to, join=not self._repair):
                if position > synced_to and self._synced_heads is None:
                    self._synced_heads = {topic.id: topic.head_seq for topic in state.by_id.values()}
                if isinstance(op, Appended) and op.batch.tags is not None:
                    yield from indexing_tags(op.batch)
                    yield
                apply(op, position)
                yield
            self.progress = SNAPSHOT_SHARE + (1 - SNAPSHOT_SHARE) * replay.progress
            yield

    def _start(self, replay: Replay, joined: Joined | None) -> Steps[None]:
        self.wal = Wal(self._disk, self.directory.wal_path, replay.tail, file_bytes=self.settings.wal_file_bytes)
        mark = SyncMark(self._disk, self.directory.wal_path)
        mark.note(replay.tail.position)
        self.syncer = Syncer(self.wal, self._notify, mark=mark)
        self.worker = Worker(self._notify)
        self.reader = self.runner.reader = self.background.reader = ColdReader(
            self.state.cold, self.worker, self.history.readers
        )
        reserve = Reserve(self._disk, self.directory.packs_path, self.directory.snapshots_path)
        room = CheckpointRoom(self.state, self.wal, self.packs, self.snapshots, reserve)
        self.commit_log = CommitLog(self.state, self.wal, self.syncer, self.waiters, self._clock, room)
        admission = Uniqueness(self.commit_log, self.state, self._clock)
        self.skipping = Skipping(self.state, self.commit_log, self.wal, self._clock, self.settle, self.wait_synced)
        self.engine = Engine(self.state, self.commit_log, self.waiters, self._clock, self.settings, admission)
        self.live = LiveFeeds(self.engine, self._clock, self._wake)
        self.queues = Queues(self.engine, self._clock)
        self.claims = Claims(self.queues, self.runner, self._exists)
        self.job_lookup = JobLookup(self.queues, self.runner)
        kept = self.state.feature(QueuesFeature).kept
        self.notifier = Notifier(self.engine, kept, self.background, self.deadlines, self._clock)
        self.multi_append = MultiAppend(self.engine, self._clock)
        self.routers = Routers(self.engine)
        self.pipelines = Pipelines(self.engine, self._clock)
        self.forwarder = Forwarder(self.engine, self.background, self._clock)
        self.transactions = Transactions(self.engine, self.background, self._clock)
        self.scheduler = Scheduler(self.engine, self.background, self.deadlines, self._clock)
        self.schedules = Schedules(self.engine, self.scheduler, self._clock)
        self.dispatcher = Dispatcher(self.engine, self.background, self._clock)
        self.webhooks = Webhooks(self.engine, self.dispatcher, self._clock)
        self._checkpointer = Checkpointer(
            self.state,
            self.commit_log,
            self.wal,
            self.syncer,
            self.packs,
            self.snapshots,
            self.worker,
            self._clock,
            self.settings,
            self.directory,
            self.history.readers,
        )
        yield from capped(self.state) if self._follows else self.replayed()
        self.commit_log.room.renew()
        self.syncer.start()
        self.worker.start()
        self.history.start(self.worker)
        if joined is not None:
            self.ship(joined)

    def replayed(self) -> Steps[None]:
        """The log is folded: what is decided from here on is decided here."""
        for feature in self.state.features:
            feature.replayed()
        yield from capped(self.state)

    def ship(self, joined: Joined) -> Shipping:
        source = ShippingSource(self._disk, self.directory, self.wal, self.syncer, self.snapshots, self.packs)
        self.shipping = self.commit_log.bucket = self.bucket_side.ship(joined, source)
        if self.settings.bucket_takeover != "off":
            self.commit_log.may_answer = self.shipping.may_answer
        self.shipping.start()
        return self.shipping

    def _exists(self, topic: Topic) -> bool:
        return self.state.by_id.get(topic.id) is topic

    def wait_synced(self) -> Steps[None]:
        position = self.wal.written_to
        self.syncer.want_sync(position)
        while self.wal.synced_to < position and self.syncer.failed is None:
            time.sleep(PAUSE_S)
            yield

    def wait_shipped(self, *, log: bool = True) -> Steps[None]:
        """The lease must have begun, and with `log` the log must be in the bucket, before anything else happens.

        Which seqs are skipped must be there before any is assigned: the next restore must know. And so must be what
        readers of `replicated` topics see. A copy with a gap goes on from a snapshot.
        """
        shipping, may_answer = self.shipping, self.commit_log.may_answer
        assert shipping is not None
        if log:
            self.syncer.want_sync(self.wal.written_to)
            shipping.want(self.wal.written_to)
        while (may_answer is not None and not may_answer()) or (
            log and shipping.shipped_to < self.wal.written_to and (shipping.whole or replicated_topics(self.state))
        ):
            self.settle()
            if shipping.fenced is not None:
                raise shipping.fenced
            if log and not shipping.whole and self.snapshots.newest_position < max(1, shipping.shipped_to):
                self._step_checkpoint()
            time.sleep(PAUSE_S)
            yield

    # --- running ---

    def settle(self, s_max: float = math.inf) -> None:
        """News from the threads: publish what is durable, run what waited for them; what is left has the next turn."""
        clock_s = self.runner.clock_s
        until_s = clock_s() + s_max
        self._unsettled = self.commit_log.settle(lambda: clock_s() >= until_s)
        self.worker.poll()
        if self.shipping is not None:
            self._poll_shipping(self.shipping)
        elif self.standby is not None:
            self.history.poll(None)

    def _poll_shipping(self, shipping: Shipping) -> None:
        shipping.poll()
        self.history.poll(shipping)
        fenced = shipping.fenced
        if fenced is not None and self.commit_log.read_only is None:
            self.bucket_side.shut_out(self.commit_log, fenced)

    def flush(self) -> None:
        """Write and publish submitted changes, resume tasks that can continue, serve live readers: a few ms."""
        self.commit_log.flush()
        self._resume(self.runner.clock_s() + READY_S_MAX)
        if self.standby is None:
            self.notifier.look()
        self.live.run()

    def tick(self) -> None:
        """As `flush`, for a host that comes again when it is woken: what takes long is done in one tick, or the next.

        After a large change was published tasks wait for the next tick, once, and what a long task has submitted is
        written then.
        """
        clock_s = self.runner.clock_s
        until_s = clock_s() + READY_S_MAX
        self.commit_log.flush()
        if self._gave_way:
            until_s = clock_s() + READY_S_MAX
        self._gave_way = self.runner.pending and clock_s() >= until_s
        if self._gave_way:
            self._wake()
        else:
            self._resume(until_s, comes_again=True)
        if self.standby is None:
            self.notifier.look()
        self.live.run()

    def expire_waits(self) -> None:
        """Time is up for every call that waits. Each gets its result now, however long that takes: no turn follows."""
        self.deadlines.expire_all()
        self.commit_log.flush()
        self._resume(math.inf)
        self.live.run()

    def _resume(self, until_s: float, *, comes_again: bool = False) -> None:
        """Some rounds of the tasks that can go on; what they submit is published in the same turn."""
        commit_log, runner = self.commit_log, self.runner
        if not runner.pending:
            return
        rounds = READY_ROUNDS_MAX
        while rounds and runner.run(until_s):
            if comes_again and runner.clock_s() >= until_s:
                rounds = 0
                break
            commit_log.flush()
            rounds -= 1
        if not rounds:
            self._wake()

    @property
    def has_work(self) -> bool:
        """Whether a turn would continue background work."""
        follows = self.forwarder.pending if self.standby is None else self.standby.pending
        return self.background.pending or follows or self._unsettled

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way here: the next work comes from a caller, or when a clock has gone on."""
        return not (
            self.has_work
            or self.runner.pending
            or self.waiters.pending
            or self._checkpoint is not None
            or self._house_busy
            or self._checkpointer.wanted
            or self.commit_log.depth
        )

    def turn(self, *, ticks: bool = False) -> float | None:
        """Everything that is due, for a few milliseconds: the one pump of every host.

        Returns in how many seconds to call it again; None: when something happens, or at the host's own interval. A
        host that has ticks as well leaves the tasks of callers to those: they would get twice their time otherwise.
        """
        self.settle(READY_S_MAX)
        if isinstance(self.timers, PolledTimers):
            self.timers.poll()
        self.background.run(time.perf_counter() + BACKGROUND_S)
        follows_ms = self.forwarder.work() if self.standby is None else 0.0 if self.standby.work() else None
        waits_ms = [follows_ms, self._keep_house()]
        if ticks:
            self.commit_log.flush()
            self.live.run()
        else:
            self.flush()
        if self.background.pending or self.runner.pending or self.waiters.pending or self._unsettled:
            return 0.0
        return min((wait_ms / 1000 for wait_ms in waits_ms if wait_ms is not None), default=None)

    def _keep_house(self) -> float | None:
        """A slice of housekeeping if it is due; in how many milliseconds the next one is, if there is one."""
        now_ms = self._clock.monotonic_ms()
        if now_ms < self._house_due_ms:
            return self._house_due_ms - now_ms if self._checkpoint is not None or self._house_busy else None
        self._house_busy = more = self.step()
        wait_ms = HOUSE_BUSY_MS if more else HOUSE_MS
        self._house_due_ms = self._clock.monotonic_ms() + wait_ms
        return wait_ms if more else None

    def step(self) -> bool:
        """A short slice of housekeeping; returns whether to continue at once."""
        more = self.standby is None and self.transactions.keep_house()
        if self._checkpoint is None and not self._checkpointer.due():
            return more
        return self._step_checkpoint() or more

    def finish_checkpoint(self) -> Steps[None]:
        """Until the one that runs has ended."""
        while self._checkpoint is not None:
            if not self._step_checkpoint():
                time.sleep(PAUSE_S)
            yield

    def _step_checkpoint(self) -> bool:
        """A step of the running checkpoint, or of a new one."""
        if self._checkpoint is None:
            self._checkpoint = self._checkpointer.steps()
        try:
            return next(self._checkpoint)
        except StopIteration:
            self._checkpoint = None
            return False

    def compact(self, done: Callable[[bool], None]) -> None:
        """Free soon what is dead on disk; `done` is called with whether it succeeded."""
        self._checkpointer.compact(done)

    def checkpoint(self) -> bool:
        """Run one whole checkpoint now; returns whether it succeeded."""
        while self._checkpoint is not None:
            self._drive()
        self._checkpoint = self._checkpointer.steps()
        while True:
            done = self._drive()
            if done is not None:
                return done

    def _drive(self) -> bool | None:
        """One step of the running checkpoint, waiting for the threads where necessary; its outcome at the end."""
        assert self._checkpoint is not None
        try:
            if not next(self._checkpoint):
                time.sleep(0.0002)
                self.settle()
        except StopIteration as end:
            self._checkpoint = None
            return bool(end.value)
        return None

    def begin_backup(self, made_by: str) -> Backup:
        """A copy of everything that is acknowledged now; it can be planned and read once its position is synced."""
        self.commit_log.flush()
        if self.commit_log.read_only is not None:
            raise self.commit_log.read_only
        backup = Backup(
            self._disk,
            self.directory,
            self.snapshots,
            self.packs,
            self.wal,
            made_by=made_by,
            now_ms=self._clock.now_ms(),
        )
        self.syncer.want_sync(backup.position)
        return backup

    def close(self) -> None:
        """Finish running work, write a last checkpoint, and close the directory cleanly."""
        if not self.ready:
            return
        self.ready = False
        self.scheduler.stop()
        self.notifier.stop()
        self.commit_log.flush()
        standby = self.standby
        if standby is not None:
            standby.following.stop()
        healthy = self.commit_log.read_only is None and standby is None
        if healthy:
            at_once(self.wait_synced())
            self.settle()
            for feature in self.state.features:
                feature.closing()
            healthy = self.checkpoint()
        self.syncer.stop()
        self.worker.stop()
        self.history.stop()
        try:
            if self.shipping is not None:
                self.shipping.stop()
            if healthy and self.syncer.failed is None:
                self.wal.close()
                self.directory.mark_clean(self.wal.written_to)
            if self.shipping is not None and standby is None and self.shipping.is_complete:
                self.bucket_side.note_complete()
        except (OSError, StorageError) as error:
            log.error("the data directory could not be closed cleanly; the next start replays the log: %s", error)
        finally:
            self.packs.close()
            self.directory.close()
