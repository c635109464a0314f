"""One commit on its way: records are prepared a few at a time, then one op moves every head at once.

    hold     writers of each topic wait, in the order of names; what is on its way there is published first
    check    room in each topic and in the quota: refused whole, or not at all
    prepare  many records: hidden topics numbered as the topic will be, filled a slice at a time from the stages
             few records: rendered into the op itself
    commit   one op, synced; its fold adds blocks and records to all topics
    release  writers go on

Readers see nothing of it before the op is synced. If anything fails before that, what was prepared is dropped, the
stages stay, and the client may commit again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, NamedTuple

from topics.engine.core.appended import Appended
from topics.engine.core.ops import Created
from topics.engine.core.pending import Busy, PendingChange
from topics.engine.log import retention
from topics.engine.log.body import Body
from topics.engine.log.cold import ColdMiss
from topics.engine.log.copying import with_heads
from topics.engine.transactions.ledger import HIDDEN_CONFIG, Landed, Stage, hidden_name
from topics.engine.transactions.ops import Move, TxnCommitted
from topics.model.clock import Clock
from topics.model.errors import DamagedData, TopicExistsIncompatible, TopicNotFound, TopicsError
from topics.model.requests.batch import NO_HEAD
from topics.storage.worker import Job, Worker

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.log.topic import Topic

SLICE_MS = 1.0
# About half a millisecond of work.
SLICE_RECORDS_MAX = 1_000
INLINE_RECORDS_MAX = 1_000
INLINE_BYTES_MAX = 128 * 1024
INLINE_TOTAL_BYTES_MAX = 1024 * 1024
# Preparing waits for the disk long before other writers would have to.
UNSYNCED_BYTES_MAX = 16 * 1024 * 1024


class Committed(NamedTuple):
    """The answer to a commit. `landed` is None for a version whose outcome is not kept any more."""

    version: int
    deduped: bool
    landed: list[Landed] | None


class Poll:
    """Look again when something has happened."""


# None: go on at once. A Staged or a miss: when that is done. Poll: whenever.
Step = PendingChange | ColdMiss | Poll | None
Steps = Generator[Step, None, None]


class Target:
    """What one topic gets."""

    __slots__ = ("first_seq", "hidden_id", "name", "records", "shelves", "size", "topic", "ts")

    def __init__(self, name: str, stages: list[Stage]) -> None:
        self.name = name
        self.shelves = [stage.shelves[name] for stage in stages if name in stage.shelves]
        self.records = sum(shelf.count for shelf in self.shelves)
        self.topic: Topic | None = None
        self.hidden_id = 0
        # known once the topic is held
        self.first_seq = 0
        self.ts = 0
        self.size = 0

    def number(self, now_ms: int) -> None:
        """Nobody else writes to the topic now: what the records will be, to the byte."""
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
    """`steps` runs it; `outcome` tells its client."""

    def __init__(
        self,
        engine: Engine,
        app_id: int,
        app: str,
        version: int,
        stages: list[Stage],
        names: list[str],
        outcome: PendingChange,
        clock: Clock,
        leftovers: list[int],
        *,
        create: bool,
        named: bytes,
    ) -> None:
        self._engine = engine
        self._commit_log = engine.commit_log
        self._app_id = app_id
        self._app = app
        self._version = version
        self._targets = [Target(name, stages) for name in names]
        self._outcome = outcome
        self._clock = clock
        self._create = create
        self._named = named
        # Where the hidden topics go that nobody needs any more.
        self._leftovers = leftovers
        self._hold = PendingChange(None, app_id, gated=False)
        self._failed: TopicsError | None = None

    def steps(self) -> Steps:
        engine = self._engine
        for target in self._targets:
            yield from self._take_hold(target)
        for target in self._targets:
            while target.held.pending_seqs or engine.in_flight.with_what(("topic", target.name)) is not None:
                yield Poll()
        for target in self._targets:
            target.number(self._clock.now_ms())
        self._check_room()
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
        yield from self._writable()
        op = TxnCommitted(self._app_id, self._app, self._version, self._clock.now_ms(), moves, self._named)
        self._commit_log.submit(op, op.encode(), gated=True).then(self._done)

    # --- hold and check ---

    def _take_hold(self, target: Target) -> Steps:
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
                yield busy.change
                continue
            yield created
            if created.error is not None:
                raise created.error
        if topic.config.durability == "ephemeral":
            raise TopicExistsIncompatible(
                f'topic "{target.name}" is ephemeral: what never reaches the log cannot be part of a transaction',
                topic=target.name,
                field="durability",
            )
        target.topic = topic
        engine.in_flight.hold(self._hold, ("writers", topic.id))

    def _check_room(self) -> None:
        total = freed = 0
        for target in self._targets:
            topic = target.held
            if topic.config.discard == "reject":
                self._engine.refuse_if_full(topic, target.records, target.size)
            total += target.size
            freed += retention.freed_by_caps(topic, target.records, target.size)
        if self._engine.settings.max_total_bytes:
            self._engine.refuse_over_quota(total, freed)

    # --- prepare ---

    def _inline(self, target: Target) -> Generator[Step, None, Appended]:
        blocks = [block for shelf in target.shelves for block in shelf.blocks]
        while True:
            try:
                for block in blocks:
                    self._engine.state.cold.load(block)
                break
            except ColdMiss as miss:
                yield miss
        seq, body = target.first_seq, Body()
        for block in blocks:
            body.extend(with_heads(block, 0, block.count, seq, target.ts))
            seq += block.count
        batch = body.as_batch(target.first_seq, target.ts)
        return Appended(target.held.id, target.held.evict_floor, b"", batch)

    def _prepare(self, target: Target) -> Steps:
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
                    yield None
        assert seq == target.first_seq + target.records

    def _writable(self) -> Steps:
        """Go on only while the disk keeps up, and everything prepared so far is written."""
        while self._commit_log.is_behind(UNSYNCED_BYTES_MAX):
            yield Poll()
        if self._failed is not None:
            raise self._failed

    def _watch(self, change: PendingChange) -> None:
        change.then(self._note)

    def _note(self, change: PendingChange) -> None:
        if change.error is not None:
            self._failed = change.error

    # --- the end ---

    def _done(self, change: PendingChange) -> None:
        if change.error is not None:
            self.give_up(change.error)
            return
        self._release()
        landed = [
            Landed(target.name, target.first_seq, target.first_seq + target.records - 1, target.records)
            for target in self._targets
        ]
        self._outcome.result = Committed(self._version, deduped=False, landed=landed)
        self._outcome.fsync_ms, self._outcome.wal_append_ms = change.fsync_ms, change.wal_append_ms
        self._outcome.finish()

    def give_up(self, error: TopicsError) -> None:
        """Nothing was added anywhere; the stages stay as they are."""
        self._leftovers += [target.hidden_id for target in self._targets if target.hidden_id]
        self._release()
        self._outcome.finish(error)

    def _release(self) -> None:
        self._hold.finish()


class Commits:
    """Those on their way; the owner calls `step` while there are any."""

    def __init__(self, engine: Engine, worker: Worker, clock: Clock) -> None:
        self._commit_log = engine.commit_log
        self._cold = engine.state.cold
        self._worker = worker
        self._clock = clock
        # those that can go on now, and those that look again when something has happened
        self._ready: dict[Steps, Commit] = {}
        self._polling: dict[Steps, Commit] = {}

    def start(self, commit: Commit) -> None:
        self._ready[commit.steps()] = commit

    @property
    def pending(self) -> bool:
        """Whether there is something to do, or to look at again."""
        return bool(self._ready or self._polling)

    def step(self, slice_ms: float = SLICE_MS) -> bool:
        """Prepare for about so long; whether to come again at once."""
        self._ready.update(self._polling)
        self._polling.clear()
        until_ms = self._clock.monotonic_ms() + slice_ms
        while self._ready:
            steps = next(iter(self._ready))
            self._advance(steps, self._ready.pop(steps))
            if self._clock.monotonic_ms() >= until_ms:
                break
        self._commit_log.flush()
        return bool(self._ready)

    def _advance(self, steps: Steps, commit: Commit) -> None:
        def go_on(_: object = None) -> None:
            self._ready[steps] = commit

        try:
            step = next(steps)
        except StopIteration:
            return
        except TopicsError as error:
            commit.give_up(error)
            return
        except Exception:
            commit.give_up(TopicsError("a bug in the server, see its log"))
            raise
        match step:
            case None:
                go_on()
            case Poll():
                self._polling[steps] = commit
            case PendingChange():
                step.then(go_on)
            case ColdMiss():
                self._fetch(step, commit, go_on)

    def _fetch(self, miss: ColdMiss, commit: Commit, go_on: Callable[[], None]) -> None:
        cold = self._cold

        def arrived(job: Job[bytes | DamagedData | OSError]) -> None:
            try:
                cold.take(miss, job.result())
            except TopicsError as error:
                commit.give_up(error)
            else:
                go_on()

        try:
            self._worker.submit(lambda: cold.read(miss), arrived)
        except TopicsError as error:
            commit.give_up(error)


def _digits(first_seq: int, count: int) -> int:
    """How many digits the seqs from `first_seq` on have together."""
    digits, last_seq, width = 0, first_seq + count - 1, len(str(first_seq))
    while first_seq <= last_seq:
        end = min(last_seq, 10**width - 1)
        digits += width * (end - first_seq + 1)
        first_seq, width = end + 1, width + 1
    return digits
