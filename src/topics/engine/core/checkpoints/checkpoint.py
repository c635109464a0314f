"""Checkpoints: every changed topic packed and described at one position of the log, without a pause.

    1 seal      full blocks that are not on disk yet go into the new pack; topics keep changing
    2 mark      position P = the end of the log; from now on an op after P captures its topic before changing it;
                so does an op from before P that waits for the bucket: the snapshot has it as it is in the log
    3 capture   all other topics, about a millisecond at a time: their tails into the pack, their images aside
    4 finish    pack and snapshot are made durable by the worker thread
    5 install   blocks get their new positions; log files and packs without use are removed; memory is freed

A checkpoint that fails leaves everything as it was: the blocks are in memory and in the log, and it is tried again.
On a full disk it uses the space reserved for it (see `room`), copies no more than fits, and gives up the older
snapshot, so that the space of deleted records is freed at once and not by the next checkpoint.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import TypeVar

from topics.engine.core.checkpoints.checkpoint_room import is_full
from topics.engine.core.checkpoints.image import encode_topic
from topics.engine.core.commit_log import Carried, CommitLog
from topics.engine.core.ops import Timed, encode_carried
from topics.engine.core.state import NEVER, State
from topics.engine.log.block import Block
from topics.engine.log.on_disk.hot_window import HotWindow
from topics.engine.log.on_disk.packing import Packing
from topics.engine.log.on_disk.repacking import Copies, Found, find_in, find_thin, is_being_copied, is_thin
from topics.engine.log.topic import Topic
from topics.model.clock import Clock
from topics.model.errors import BucketAway, DamagedData, StorageError, TopicsError
from topics.model.settings import Settings
from topics.storage.directory import DataDirectory
from topics.storage.pack import Extent, Packs
from topics.storage.reserve import Room
from topics.storage.snapshot import Snapshots
from topics.storage.wal.syncer import Syncer
from topics.storage.wal.wal import Wal
from topics.storage.worker import Worker, Workers

log = logging.getLogger("topics.engine")

SLICE_MS = 1.0
# Under a heavy load there is always more to seal; each time it is less.
SEALINGS_MAX = 4
LITTLE_BYTES = 1024 * 1024
# What one checkpoint reads from the bucket to copy it; the rest waits for later ones.
FETCH_BYTES_MAX = 16 * 1024 * 1024
COOLING_EVERY_MS = 1_000
RETRY_AFTER_MS = 5_000
# A checkpoint that takes long (very many topics) does not start again at once only to free memory.
REST_FACTOR = 20
# On a full disk, changes may be what frees space.
FULL_EVERY_MS = 1_000

T = TypeVar("T")
# True: there is more to do at once. False: nothing to do until a thread reports.
Steps = Generator[bool, None, T]
# When compacting, packs of which less than one part in this many is alive are copied.
COMPACTED_SHARE = 2


class Checkpointer:
    """Runs one checkpoint at a time, as a generator of short steps."""

    def __init__(
        self,
        state: State,
        commit_log: CommitLog,
        wal: Wal,
        syncer: Syncer,
        packs: Packs,
        snapshots: Snapshots,
        worker: Worker,
        clock: Clock,
        settings: Settings,
        directory: DataDirectory,
        remote_readers: Workers,
    ) -> None:
        self._state = state
        self._commit_log = commit_log
        self._wal = wal
        self._syncer = syncer
        self._packs = packs
        self._snapshots = snapshots
        self._worker = worker
        self._remote_readers = remote_readers
        self._clock = clock
        self._settings = settings
        self._directory = directory
        self._window = HotWindow(packs, settings)
        # when to run
        self._last_position = wal.written_to
        self._last_ms = clock.monotonic_ms()
        self._took_ms = 0.0
        self._retry_ms = 0.0
        self._room = commit_log.room
        # those who want a compaction: called with whether it succeeded
        self._asked: list[Callable[[bool], None]] = []
        # per checkpoint
        self._copies = Copies(None)
        self._fetch_left_bytes = 0
        self._compacting = False
        self._packing: Packing | None = None
        self._chunks: list[bytes] = []
        self._has_queues = False
        self._referred: set[int] = set()

    @property
    def wanted(self) -> bool:
        """Whether somebody waits for a compaction."""
        return bool(self._asked)

    def due(self) -> bool:
        now_ms = self._clock.monotonic_ms()
        if self._commit_log.read_only is not None:
            asked, self._asked = self._asked, []
            for done in asked:
                done(False)
            return False
        if now_ms < self._retry_ms:
            return False
        if self._asked:
            return True
        waited_ms = now_ms - self._last_ms
        written = self._wal.written_to - self._last_position
        if written >= self._settings.checkpoint_bytes:
            return True
        if self._is_full() and waited_ms >= FULL_EVERY_MS and (self._state.dirty or self._snapshots.has_older):
            return True
        if self._state.cooling and waited_ms >= max(COOLING_EVERY_MS, REST_FACTOR * self._took_ms):
            return True
        return bool(self._state.dirty or self._state.expiring) and waited_ms >= self._settings.checkpoint_ms

    def compact(self, done: Callable[[bool], None]) -> None:
        """Run a checkpoint soon that copies more than usual, to free what is dead, and keeps no older snapshot."""
        self._asked.append(done)
        self._retry_ms = 0.0

    def steps(self) -> Steps[bool]:
        """One checkpoint; whether it succeeded."""
        asked, self._asked = self._asked, []
        self._compacting = bool(asked)
        self._fetch_left_bytes = FETCH_BYTES_MAX
        if asked:
            self._state.dirty.update(self._state.by_id.values())
        succeeded = False
        try:
            succeeded = yield from self._steps()
        finally:
            for done in asked:
                done(succeeded)
        return succeeded

    def _steps(self) -> Steps[bool]:
        state = self._state
        started_ms = self._clock.monotonic_ms()
        if not (yield from self._is_owned()):
            return False
        yield from self._sliced(self._expire())
        if self._is_full():
            yield from self._give_up_older()
        if not state.dirty and not self._packs.sparse():
            self._last_ms = started_ms
            yield from self._clean_up_compacted()
            return True
        dirty, state.dirty, state.cooling = state.dirty, set[Topic](), 0
        self._chunks, self._referred, self._has_queues = [], set(), False
        snapshot = failure = None
        position = 0
        rooms: list[Room] = []
        try:
            rooms, self._copies = self._room.begin()
            self._packing = Packing(self._packs, self._packs.writer(rooms[0]), self._worker)
            yield from self._thin_out(dirty)
            yield from self._sliced(self._seal(dirty))
            yield from self._rescue()
            yield from self._seal_the_rest(dirty)
            position = yield from self._mark()
            snapshot = self._snapshots.writer(position, rooms[1])
            yield from self._sliced(self._capture_all())
            yield from self._capture_late()
            yield from self._finish(snapshot.add, snapshot.finish)
        except (OSError, TopicsError) as error:
            log.error("the checkpoint failed and will be tried again: %s", error)
            state.dirty |= self._existing(dirty)
            self._retry_ms = self._clock.monotonic_ms() + RETRY_AFTER_MS
            self._abort(snapshot.abort if snapshot is not None else None, rooms)
            for feature in state.features:
                feature.capture_failed()
            failure = error
        finally:
            state.capture_from = NEVER
            self._commit_log.carried()
        if failure is not None:
            if rooms:
                self._room.failed(is_full(failure))
            if is_full(failure):
                yield from self._give_up_older()
            self._room.renew()
            return False
        yield from self._install()
        self._last_position, self._last_ms = position, self._clock.monotonic_ms()
        self._took_ms = self._last_ms - started_ms
        yield from self._clean_up()
        # Before the room is renewed: the largest pack decides its size.
        yield from self._clean_up_compacted()
        if not self._room.renew():
            yield from self._give_up_older()
            self._room.renew()
        if self._copies.begun:
            # Copying freed space, perhaps for the rest.
            state.dirty |= self._existing(self._copies.refused)
        return True

    def _existing(self, topics: set[Topic]) -> set[Topic]:
        return {topic for topic in topics if self._state.by_id.get(topic.id) is topic}

    def _is_owned(self) -> Steps[bool]:
        """Two processes in one directory would overwrite each other's files: better none of them writes."""
        try:
            yield from self._wait_for(self._directory.verify_owned)
        except StorageError as error:
            self._commit_log.refuse_writes(error.message)
            return False
        except OSError as error:
            log.error("the checkpoint failed and will be tried again: %s", error)
            self._retry_ms = self._clock.monotonic_ms() + RETRY_AFTER_MS
            return False
        return True

    def _expire(self) -> Iterator[None]:
        """Topics without readers free their expired records, too."""
        for topic in list(self._state.expiring):
            self._state.expire(topic, self._clock.now_ms(), None)
            yield

    # --- 1: full blocks that are only in memory ---

    def _seal(self, dirty: set[Topic]) -> Iterator[None]:
        for topic in dirty:
            for block in list(topic.lasting_blocks()):
                if block.growing or block.gone:
                    continue
                if (
                    block.body is not None
                    and is_thin(block)
                    and not is_being_copied(topic)
                    and self._copies.allow(topic, block.live_bytes)
                ):
                    self._state.shrink_block(block)
                self._pack(topic, block)
                yield
            yield

    def _thin_out(self, dirty: set[Topic]) -> Steps[None]:
        """Shrink the blocks that lost most of their records while they were only on disk."""
        assert self._packing is not None
        found: Found = []
        yield from self._sliced(find_thin(dirty, found))
        for topic, block, extent in found:
            if not self._may_fetch(extent) or not self._copies.allow(topic, block.live_bytes):
                continue
            try:
                data = yield from self._read(extent)
                if not block.gone:
                    self._state.cold.attach(block, extent, data)
            except DamagedData as error:
                log.error("a block of topic %s cannot be shrunk: %s", topic.name, error)
                continue
            except BucketAway:
                self._fetch_left_bytes = 0
                continue
            if block.body is not None and block.live and not block.gone and not is_being_copied(topic):
                self._state.shrink_block(block)
                self._packing.pack(topic, block)
                yield from self._packing.hand_over()

    def _seal_the_rest(self, dirty: set[Topic]) -> Steps[None]:
        """Blocks that filled up while the others were sealed: capturing a topic with much to pack would be a pause."""
        assert self._packing is not None
        for _ in range(SEALINGS_MAX):
            before = self._packing.bytes_added
            yield from self._sliced(self._seal(dirty | self._state.dirty))
            if self._packing.bytes_added - before < LITTLE_BYTES:
                return

    def _pack(self, topic: Topic, block: Block) -> None:
        assert self._packing is not None
        self._packing.pack(topic, block)

    def _rescue(self) -> Steps[None]:
        """Copy the live records of packs that are mostly dead, so that these can be removed."""
        assert self._packing is not None
        sparse = set(self._packs.sparse(COMPACTED_SHARE) if self._compacting else self._packs.sparse())
        if not sparse:
            return
        found: Found = []
        yield from self._sliced(find_in(sparse, list(self._state.by_id.values()), found))
        for topic, block, extent in found:
            if not self._may_fetch(extent):
                continue
            try:
                data = yield from self._read(extent)
            except DamagedData as error:
                log.error("a block of topic %s cannot be copied and stays where it is: %s", topic.name, error)
                continue
            except BucketAway:
                self._fetch_left_bytes = 0
                continue
            is_there = not block.gone and block.extent == extent and block not in self._packing
            if is_there and self._copies.allow(topic, extent.length):
                self._packing.copy(topic, block, data)
                yield from self._packing.hand_over()

    def _may_fetch(self, extent: Extent) -> bool:
        """Whether a block that is copied may be read: those in the bucket up to a limit."""
        if self._packs.remote(extent.pack) is not None:
            if self._packs.ranges is None:
                # A repair does not use the bucket.
                return False
            # A large one is alone.
            may = extent.length <= self._fetch_left_bytes or self._fetch_left_bytes == FETCH_BYTES_MAX
            self._fetch_left_bytes = max(0, self._fetch_left_bytes - extent.length) if may else 0
            return may
        return True

    def _read(self, extent: Extent) -> Steps[bytes]:
        worker = self._worker if self._packs.remote(extent.pack) is None else self._remote_readers
        return (yield from self._wait_for(partial(self._packs.read, extent), worker))

    # --- 2, 3: one position for all ---

    def _mark(self) -> Steps[int]:
        position = yield from self._written()
        for feature in self._state.features:
            feature.marked()
        self._state.checkpoint += 1
        self._state.capture = self._capture
        self._state.keep_chunk = self._chunks.append
        self._state.capture_from = position
        carried = self._commit_log.carry(position)
        yield from self._synced(position, published=True)
        yield from self._sliced(self._keep_carried(carried))
        return position

    def _keep_carried(self, carried: list[Carried]) -> Iterator[None]:
        """Ops that wait for the bucket, which may be away for hours: the snapshot has them as they are in the log."""
        for position, op, body in carried:
            written_out = self._state.ops.of(op).written_out
            self._chunks.append(encode_carried(position, body if written_out is None else written_out(op)))
            yield

    def _capture_all(self) -> Iterator[None]:
        for topic in list(self._state.by_id.values()):
            if topic in self._state.dirty:
                # Topics that no op makes us capture at once can be packed a block at a time.
                for block in list(topic.lasting_blocks()):
                    if topic.captured == self._state.checkpoint:
                        break
                    if not block.growing and block.packed != block.count:
                        self._pack(topic, block)
                        yield
            if topic.captured != self._state.checkpoint:
                self._capture(topic)
                yield
        for feature in self._state.features:
            for chunk in feature.capture():
                self._chunks.append(chunk)
                yield
        if self._state.noted is not None or self._has_queues:
            # The images hold deadlines; they count from this moment.
            self._chunks.append(Timed(self._commit_log.steady.moment()).encode())
        if self._state.dropped:
            # Records deleted since the mark may be in it: replaying the log counts them again.
            self._chunks.append(self._state.dropped.encode())
        # It may be of a later time, too: then ids are left out.
        self._chunks.append(self._state.encode_next_id())

    def _capture(self, topic: Topic) -> None:
        topic.captured = self._state.checkpoint
        blocks = topic.lasting_blocks()
        routing = topic.routing
        if routing is not None and topic.config.durability != "ephemeral":
            blocks = [*blocks, *routing.kept_blocks()]
        for block in blocks:
            if block.packed != block.count:
                self._pack(topic, block)
        assert self._packing is not None
        places = self._packing.places(blocks)
        self._referred.update(extent.pack for extent in places.values())
        # A block that is copied is described at its new place: the pack that it comes from can be removed.
        staying = [block for block in blocks if block not in places]
        self._referred.update(block.extent.pack for block in staying if block.extent is not None)
        self._chunks.append(encode_topic(topic, places, self._state.features))
        self._has_queues |= topic.config.type == "queue"
        if routing is not None:
            routing.captured()

    def _capture_late(self) -> Steps[None]:
        """Features capture their current state. The log up to here must become as durable as the snapshot."""
        captured = len(self._chunks)
        yield from self._sliced(self._late_chunks())
        if len(self._chunks) == captured:
            return
        # Leases are folded before they are in the log.
        position = yield from self._written()
        yield from self._synced(position)

    def _late_chunks(self) -> Iterator[None]:
        for feature in self._state.features:
            for chunk in feature.capture_late():
                self._chunks.append(chunk)
                yield

    def _written(self) -> Steps[int]:
        """Write the log, and wait until it has every decided op that reads other topics; where the log ends then."""
        self._commit_log.flush()
        while self._commit_log.marks_unwritten():
            yield False
        return self._commit_log.take_written()

    def _synced(self, position: int, *, published: bool = False) -> Steps[None]:
        """Wait until the log is durable up to there; `published`: and until readers see the ops up to there."""
        self._syncer.want_sync(position)
        while self._wal.synced_to < position or (published and self._commit_log.unpublished_at(position)):
            if self._commit_log.read_only is not None:
                raise StorageError("the log cannot be synced")
            yield False

    # --- 4: durable ---

    def _finish(self, add: Callable[[bytes], None], finish: Callable[[list[int]], None]) -> Steps[None]:
        packing, chunks = self._packing, self._chunks
        assert packing is not None
        yield from self._wait_for(packing.finish())

        def write_chunks() -> None:
            for chunk in chunks:
                add(chunk)

        yield from self._wait_for(write_chunks)
        yield from self._wait_for(lambda: finish(sorted(self._referred)))

    def _abort(self, abort_snapshot: Callable[[], None] | None, rooms: list[Room]) -> None:
        packing, self._packing, self._chunks = self._packing, None, []
        try:
            if packing is not None:
                packing.abort()
            if abort_snapshot is not None:
                abort_snapshot()
            for room in rooms:
                room.discard()
        except OSError as error:
            log.warning("files of a failed checkpoint stay until the next start: %s", error)

    # --- 5: install ---

    def _install(self) -> Steps[None]:
        packing, self._packing, self._chunks = self._packing, None, []
        assert packing is not None
        yield from self._sliced(packing.install(self._window))
        self._room.finished(packing.grown_bytes)

    def _clean_up(self) -> Steps[None]:
        self._wal.trim(self._snapshots.trim_position)
        keep = set(self._snapshots.kept_packs)
        yield from self._quietly(lambda: self._packs.sweep(keep))
        yield from self._sliced(self._window.cool())
        for pack in self._window.cold_packs():
            yield from self._quietly(partial(self._packs.move_cold, pack))

    def _clean_up_compacted(self) -> Steps[None]:
        """After a compaction not even the older snapshot keeps files."""
        if self._compacting and self._snapshots.keep_only_newest():
            yield from self._clean_up()

    def _is_full(self) -> bool:
        return self._room.short or self._wal.full

    def _give_up_older(self) -> Steps[None]:
        """The disk is full: files that only the older snapshot needs are removed now."""
        if self._snapshots.keep_only_newest():
            log.warning("the disk is full: the older snapshot is given up, with the log and the packs it needs")
            yield from self._clean_up()

    def _quietly(self, job: Callable[[], object]) -> Steps[None]:
        """Clean-up that may fail without harm: it is tried again after the next checkpoint."""
        try:
            yield from self._wait_for(job)
        except OSError as error:
            log.warning("cleaning up after a checkpoint failed: %s", error)

    # --- running ---

    def _sliced(self, work: Iterator[None]) -> Steps[None]:
        """Run until the slice is used up, then let the owner do something else."""
        until_ms = self._clock.monotonic_ms() + SLICE_MS
        for _ in work:
            if self._packing is not None and self._packing.is_full:
                yield from self._packing.hand_over()
            if self._clock.monotonic_ms() >= until_ms:
                yield True
                until_ms = self._clock.monotonic_ms() + SLICE_MS

    def _wait_for(self, job: Callable[[], T], worker: Worker | Workers | None = None) -> Steps[T]:
        running = (worker or self._worker).submit(job)
        while not running.done:
            yield False
        return running.result()
