"""One commit: records are prepared a few at a time, then one op moves every head at once.

    gather   the stages' records by topic, and whether the client may write there
    hold     writers of each topic wait, in the order of names; pending changes of the topics are published first
    check    room in each topic and in the quota: the whole commit is refused, or nothing
    prepare  many records: hidden topics with the final seqs, filled from the stages in slices
             few records: rendered into the op itself
    commit   one op, synced; its fold adds blocks and records to all topics
    release  writers continue

Readers see nothing before the op is synced. If anything fails before that, what was prepared is dropped, the stages
stay, and the client may commit again.

Every step but the last goes on in slices. The last one, the fold, is as long as there are topics; the hidden topics of
its stages are removed afterwards, see the ledger.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from topics.engine.core.appended import Appended
from topics.engine.core.ops import Created
from topics.engine.core.pending import Busy, PendingChange
from topics.engine.core.waiting.runner import Runner, Steps, attempt
from topics.engine.log import retention
from topics.engine.log.body import Body
from topics.engine.log.copying import with_heads
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.transactions.ledger import HIDDEN_CONFIG, CommittedRecords, Stage, hidden_name
from topics.engine.transactions.ops import Move, TxnCommitted
from topics.model.clock import Clock
from topics.model.errors import Internal, InvalidRequest, TopicExistsIncompatible, TopicNotFound, TopicsError
from topics.model.requests.batch import NO_HEAD
from topics.model.requests.transactions import TXN_TOPICS_MAX

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.log.topic import Topic

log = logging.getLogger("topics.engine")

# How long a commit waits for a sync before it looks again.
LOOK_AGAIN_MS = 10
# What a commit does before others have their turn; and how many records it may copy without a look at the clock.
SLICE_S = 0.0005
SLICE_RECORDS_MAX = 1_000
INLINE_RECORDS_MAX = 1_000
INLINE_BYTES_MAX = 128 * 1024
INLINE_TOTAL_BYTES_MAX = 1024 * 1024
# Preparing waits for the disk long before other writers would.
UNSYNCED_BYTES_MAX = 16 * 1024 * 1024


class Committed(NamedTuple):
    """The result of a commit. `landed` is None for a version whose outcome is no longer kept."""

    version: int
    deduped: bool
    landed: list[CommittedRecords] | None


class CommitTarget:
    """The records for one topic."""

    __slots__ = ("first_seq", "hidden_id", "name", "records", "shelves", "size", "topic", "ts")

    def __init__(self, name: str) -> None:
        self.name = name
        self.shelves: list[Topic] = []
        self.records = 0
        self.topic: Topic | None = None
        self.hidden_id = 0
        # known once the topic is held
        self.first_seq = 0
        self.ts = 0
        self.size = 0

    def add(self, shelf: Topic) -> None:
        self.shelves.append(shelf)
        self.records += shelf.count

    def number(self, now_ms: int) -> None:
        """No other writer can change the topic now: the records are known to the byte."""
        topic = self.held
        self.first_seq, self.ts = topic.head_seq + 1, topic.now(now_ms)
        heads = self.records * (len('{"$seq":,"$ts":') + len(str(self.ts)) - len(NO_HEAD))
        self.size = sum(shelf.bytes for shelf in self.shelves) + heads + _digits(self.first_seq, self.records)

    def move(self, appended: Appended | None) -> Move:
        topic = self.held
        return Move(self.name, topic.id, self.hidden_id, self.first_seq, self.records, topic.evict_floor, appended)

    @property
    def held(self) -> Topic:
        assert self.topic is not None
        return self.topic


class Commit:
    """A task: `outcome` is finished when the commit is done, or given up."""

    wanted = True

    def __init__(
        self,
        engine: Engine,
        runner: Runner,
        app_id: int,
        app: str,
        version: int,
        stages: list[Stage],
        outcome: PendingChange,
        clock: Clock,
        leftovers: list[int],
        *,
        create: bool,
        named: bytes,
        admit: Callable[[str], None] | None,
    ) -> None:
        self._engine = engine
        self._runner = runner
        self._commit_log = engine.commit_log
        self._app_id = app_id
        self._app = app
        self._version = version
        self._stages = stages
        self._targets: list[CommitTarget] = []
        # May refuse a topic.
        self._admit = admit
        self._outcome = outcome
        self._clock = clock
        self._create = create
        self._named = named
        # Collects hidden topics that are no longer needed.
        self._leftovers = leftovers
        self._hold = PendingChange(None, app_id, gated=False)
        self._failed: TopicsError | None = None
        self._until_s = 0.0

    def start(self) -> None:
        self._runner.start(self._steps(), self)

    def _steps(self) -> Steps[None]:
        # The client's call ends first: a commit is prepared in the background.
        yield None
        engine = self._engine
        yield from self._gather()
        for target in self._targets:
            yield from self._take_hold(target)
            yield from self._pause()
        for target in self._targets:
            while target.held.pending_seqs or engine.in_flight.with_what(("topic", target.name)) is not None:
                self._commit_log.check_bucket(target.held.id)
                yield from self._until_synced()
        for target in self._targets:
            target.number(self._clock.now_ms())
            yield from self._pause()
        yield from self._check_room()
        moves: list[Move] = []
        inline_bytes = 0
        for target in self._targets:
            appended = None
            small = target.records <= INLINE_RECORDS_MAX and target.size <= INLINE_BYTES_MAX
            if small and inline_bytes + target.size <= INLINE_TOTAL_BYTES_MAX:
                inline_bytes += target.size
                appended = yield from self._inline(target)
            else:
                yield from self._prepare(target)
            moves.append(target.move(appended))
            yield from self._pause()
        yield from self._writable()
        op = TxnCommitted(self._app_id, self._app, self._version, self._clock.now_ms(), moves, self._named)
        change = self._commit_log.submit(op, op.encode(), gated=True)
        change.then(self._published)
        change.decides(self._outcome)
        change.decides(self._hold)

    def _pause(self) -> Steps[None]:
        """Let others have their turn if a slice of work is done."""
        clock_s = self._runner.clock_s
        if clock_s() >= self._until_s:
            yield None
            self._until_s = clock_s() + SLICE_S

    # --- gather, hold and check ---

    def _gather(self) -> Steps[None]:
        targets: dict[str, CommitTarget] = {}
        for stage in self._stages:
            for name, shelf in stage.shelves.items():
                target = targets.get(name)
                if target is None:
                    target = targets[name] = CommitTarget(name)
                target.add(shelf)
            yield from self._pause()
        self._stages = []
        if len(targets) > TXN_TOPICS_MAX:
            raise InvalidRequest(
                f"the stages write to {len(targets)} topics; at most {TXN_TOPICS_MAX} fit one transaction",
                field="stages",
            )
        for name in sorted(targets):
            if self._admit is not None:
                self._admit(name)
            self._targets.append(targets[name])

    def _take_hold(self, target: CommitTarget) -> Steps[None]:
        engine = self._engine
        topic = None
        while topic is None:
            try:
                topic = engine.find_to_write(target.name)
                if topic is not None:
                    break
                if not self._create:
                    raise TopicNotFound(target.name)
                created = engine.create_for_write(target.name)
            except Busy as busy:
                # Writers of all its topics wait for this commit: it gives up if it waits for the bucket too long.
                self._commit_log.check_bucket(busy.change.topic_id)
                if self._commit_log.bucket is None:
                    yield busy.change
                else:
                    yield from self._runner.pause(LOOK_AGAIN_MS)
                continue
            yield created
            if created.error is not None:
                raise created.error
        if topic.config.durability == "ephemeral":
            raise TopicExistsIncompatible(
                f'topic "{target.name}" is ephemeral: it is not in the log, so it cannot be part of a transaction',
                topic=target.name,
                field="durability",
            )
        target.topic = topic
        engine.in_flight.hold(self._hold, ("writers", topic.id))

    def _check_room(self) -> Steps[None]:
        total = freed = 0
        for target in self._targets:
            topic = target.held
            if topic.config.discard == "reject":
                self._engine.refuse_if_full(topic, target.records, target.size)
            total += target.size
            freed += retention.freed_by_caps(topic, target.records, target.size)
            yield from self._pause()
        if self._engine.settings.max_total_bytes:
            self._engine.refuse_over_quota(total, freed)

    # --- prepare ---

    def _inline(self, target: CommitTarget) -> Steps[Appended]:
        load = self._engine.state.cold.load
        seq, body = target.first_seq, Body()
        for shelf in target.shelves:
            for block in shelf.blocks:
                yield from attempt(partial(load, block))
                body.extend(with_heads(block, 0, block.count, seq, target.ts))
                seq += block.count
                yield from self._pause()
        batch = body.as_batch(target.first_seq, target.ts)
        return Appended(target.held.id, target.held.evict_floor, b"", batch)

    def _prepare(self, target: CommitTarget) -> Steps[None]:
        target.hidden_id = self._engine.state.new_id()
        name = hidden_name(target.hidden_id)
        created = Created(target.hidden_id, 0, target.ts, 0, name, HIDDEN_CONFIG)
        self._watch(self._commit_log.submit(created, created.encode(), gated=False))
        seq = target.first_seq
        for shelf in target.shelves:
            for block in shelf.blocks:
                start = 0
                while start < block.count:
                    yield from self._writable()
                    try:
                        self._engine.state.cold.load(block)
                    except ColdMiss as miss:
                        yield miss
                        continue
                    stop = min(block.count, start + SLICE_RECORDS_MAX)
                    batch = with_heads(block, start, stop, seq, target.ts)
                    op = Appended(target.hidden_id, 1, b"", batch)
                    self._watch(self._commit_log.submit_append(op, "disk"))
                    seq += stop - start
                    start = stop
                    yield from self._pause()
        assert seq == target.first_seq + target.records

    def _writable(self) -> Steps[None]:
        """Continue only while the disk keeps up and everything prepared so far is written."""
        while self._commit_log.is_behind(UNSYNCED_BYTES_MAX):
            yield from self._until_synced()
        if self._failed is not None:
            raise self._failed

    def _until_synced(self) -> Steps[None]:
        """Continue when what is written by now is synced; or soon, in case that fails or nothing is written yet."""
        news = self._runner.news((), LOOK_AGAIN_MS)
        if self._commit_log.has_unsynced:
            self._commit_log.when_synced(news.set)
        try:
            yield news
        finally:
            news.close()

    def _watch(self, change: PendingChange) -> None:
        change.then(self._note)

    def _note(self, change: PendingChange) -> None:
        if change.error is not None:
            self._failed = change.error

    # --- the end ---

    def _published(self, change: PendingChange) -> None:
        if change.error is not None:
            self.give_up(change.error)
            return
        self._release()
        landed = [
            CommittedRecords(target.name, target.first_seq, target.first_seq + target.records - 1, target.records)
            for target in self._targets
        ]
        self._outcome.result = Committed(self._version, deduped=False, landed=landed)
        self._outcome.fsync_ms, self._outcome.wal_append_ms = change.fsync_ms, change.wal_append_ms
        self._outcome.finish()

    # --- the owner of the task ---

    def done(self, result: None) -> None:
        """The op is submitted: `_published` is called when it is published."""

    def failed(self, error: Exception) -> None:
        if isinstance(error, TopicsError):
            self.give_up(error)
        else:
            log.error("a commit failed", exc_info=error)
            self.give_up(Internal("a bug in the server, see its log"))

    def cancelled(self) -> None:
        """A commit is finished even if its client disconnects."""

    def give_up(self, error: TopicsError) -> None:
        """Nothing was added anywhere; the stages are unchanged."""
        self._leftovers += [target.hidden_id for target in self._targets if target.hidden_id]
        self._release()
        self._outcome.finish(error)

    def _release(self) -> None:
        self._hold.finish()


def _digits(first_seq: int, count: int) -> int:
    """The total number of digits of the seqs from `first_seq` on."""
    digits, last_seq, width = 0, first_seq + count - 1, len(str(first_seq))
    while first_seq <= last_seq:
        end = min(last_seq, 10**width - 1)
        digits += width * (end - first_seq + 1)
        first_seq, width = end + 1, width + 1
    return digits
