"""The verbs on topics and records: decided synchronously, made durable and visible in a separate step."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

from topics.engine.core.appended import Appended
from topics.engine.core.commit_log import CommitLog
from topics.engine.core.configuration import Configuration
from topics.engine.core.job_admission import Admitted, JobAdmission
from topics.engine.core.listing import PAGE_SIZE_DEFAULT, Page, TopicState, describe, effective_priority, page_of
from topics.engine.core.ops import Created, Deleted, Dropped, Reserved
from topics.engine.core.pending import Busy, Deletions, PendingChange, settled
from topics.engine.core.state import State
from topics.engine.core.waiting.runner import Steps, attempt, before_verb
from topics.engine.log import deletion, retention
from topics.engine.log.block import indexing_tags
from topics.engine.log.deletion import Run
from topics.engine.log.idempotency import digest
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.log.reading import Diff, View, read
from topics.engine.log.topic import SEQ_CHUNK, Topic
from topics.engine.log.waiters import Waiters
from topics.model.clock import Clock
from topics.model.errors import (
    InvalidRequest,
    Throttled,
    TopicNotEmpty,
    TopicNotFound,
)
from topics.model.names import check_topic_name
from topics.model.requests.batch import DEFERRED_BYTES_MIN, Draft, check_batch, drafting, render
from topics.model.requests.config import GATED, ConfigRequest, Durability, TopicConfig, resolve
from topics.model.requests.records import (
    DIFF_BYTES_DEFAULT,
    DIFF_LIMIT_DEFAULT,
    UNSET,
    AppendRequest,
    DeleteRequest,
    DiffRequest,
    TagMatch,
    check_u64,
    parse_match,
)
from topics.model.settings import Settings

DIFF_BYTES_MAX = 8 * 1024 * 1024
SEQ_CHUNK_MAX, SEQ_CHUNK_LASTS_MS = 1 << 24, 1_000
# How long a delete searches for records before others have a turn.
DELETE_STEP_MS = 2.0
NOBODY: frozenset[str] = frozenset()


class TopicRoom(NamedTuple):
    """Reserved seqs of a topic for records from another topic."""

    topic_id: int
    topic: Topic | None
    first_seq: int
    floor: int
    config: TopicConfig


class Engine:
    """Owned by one thread. A verb that changes state returns a PendingChange; `commit_log.flush()` ends the tick."""

    def __init__(
        self,
        state: State,
        commit_log: CommitLog,
        waiters: Waiters,
        clock: Clock,
        settings: Settings,
        admission: JobAdmission,
    ) -> None:
        self.state = state
        self.commit_log = commit_log
        self.waiters = waiters
        self.settings = settings
        self._clock = clock
        self.steady = commit_log.steady
        self.in_flight = commit_log.in_flight
        self.admission = admission
        self.configuration = Configuration(self, clock)
        # The newest epoch, without its lowest bit.
        self._drawn_last = 0

    # --- topics ---

    def configure(self, name: str, request: ConfigRequest) -> PendingChange:
        """Create the topic, or replace its configuration. `result` is the resolved configuration."""
        return self.configuration.put(name, request)

    def create(self, name: str, config: TopicConfig) -> PendingChange:
        """Create a topic that does not exist, if the limit allows one more."""
        self.refuse_more_topics()
        self.commit_log.check_writable()
        return self._create(name, config, SEQ_CHUNK, gated=True)

    def new_topic(self, name: str, config: TopicConfig, ceiling: int) -> Created:
        now = self._clock.now_ms()
        # Of two topics of one millisecond, the random bits alone could be the same.
        self._drawn_last = max(self._drawn_last + 1, now << 10 | random.getrandbits(10))
        epoch = self._drawn_last << 1 | (name in self.state.dropped)
        return Created(self.state.new_id(), epoch, now, ceiling, name, config)

    def _create(self, name: str, config: TopicConfig, ceiling: int, *, gated: bool) -> PendingChange:
        op = self.new_topic(name, config, ceiling)
        change = self.commit_log.submit(op, op.encode(), gated=gated)
        change.created = True
        change.result = config
        return change

    def create_hidden(self, name: str, config: TopicConfig) -> PendingChange:
        """A topic of the server's own. Callers that need it before it exists get the same PendingChange."""
        running = self.in_flight.with_what(("topic", name))
        return running or self._create(name, config, SEQ_CHUNK, gated=True)

    def check_class(self, config: TopicConfig) -> TopicConfig:
        """The same configuration; raises InvalidRequest if this server cannot keep what its class promises."""
        if config.durability == "replicated" and self.settings.bucket is None:
            raise InvalidRequest(
                "durability replicated needs a bucket, and this server has none: set TOPICS_BUCKET on the server, or "
                "use fsync",
                field="durability",
                setting="bucket",
            )
        return config

    def refuse_more_topics(self, count: int = 1) -> None:
        limit = self.settings.max_topics
        if limit and len(self.state.by_name) + self.in_flight.topics + count > limit:
            raise Throttled(f"there are {limit} topics already, which is the limit", limit="max_topics", max=limit)

    def drop(self, name: str, *, if_empty: bool = False, dry_run: bool = False) -> PendingChange:
        """Remove the topic and everything in it. `result` tells whether there was one. A dry run changes nothing."""
        topic = self.find_to_write(name)
        if topic is None:
            return settled(0, False)
        if if_empty:
            self.expire(topic)
            if topic.count or topic.pending_count:
                raise TopicNotEmpty(f'topic "{name}" holds {topic.count} records', topic=name, count=topic.count)
        if dry_run:
            return settled(topic.id, True)
        self.commit_log.check_writable()
        op = Dropped(topic.id)
        change = self.commit_log.submit(op, op.encode(), gated=True, urgent=True)
        change.result = True
        change.then(lambda done: self.waiters.moved(topic) if done.error is None else None)
        return self.in_flight.hold(change, ("topic", name))

    def look(self, name: str, *, touch: bool = True) -> TopicState:
        topic = self._existing(name)
        self.expire(topic)
        if topic.config.dead_letter in self.state.by_name:
            self.expire(self.state.by_name[topic.config.dead_letter])
        described = self.describe(topic)
        if touch:
            topic.last_read_ts = self._clock.now_ms()
        return described

    def describe(self, topic: Topic) -> TopicState:
        """What a look at a topic tells, without waiting for a disk."""
        self.expire(topic, exact=False)
        return describe(topic, self.state, self._clock.now_ms(), self.steady.now_ms())

    def effective_priority(self, topic: Topic) -> int:
        return effective_priority(topic, self._clock.now_ms())

    # --- records ---

    def append(
        self,
        name: str,
        request: AppendRequest,
        admit: Callable[[Topic | None], None] | None = None,
        *,
        draft: Draft | None = None,
    ) -> PendingChange:
        """Add a batch, all of it or nothing; seqs are contiguous and in the order of the records.

        `admit` may refuse, once it is known that this is a write and is valid; `draft` is that of a large batch.
        """
        bare = check_batch(request, self.settings) if draft is None else draft.bare
        topic = self.state.by_name.get(name)
        if topic is None or self.in_flight.busy:
            topic = self.find_to_write(name)
        if topic is None:
            return self._append_new(name, request, admit, draft, bare=bare)
        key = b""
        config = topic.config
        if request.idempotency_key is not None and config.idempotency_window_ms:
            key = digest(request.idempotency_key)
            earlier = self._earlier(topic, key)
            if earlier is not None:
                return earlier
        if admit is not None:
            admit(topic)
        self.commit_log.check_writable()
        admitted = None if bare else self.admit_jobs(topic, request, draft)
        unique = None
        if admitted is not None:
            unique = admitted.unique
            draft = admitted.draft
            if not admitted.request.records:
                now = topic.now(self._clock.now_ms())
                return self.in_flight.hold(self.admission.repeated(topic, admitted, key, now), ("key", topic.id, key))
            request = admitted.request
        count = len(request.records)
        last_seq = topic.assigned_seq
        if last_seq + count > topic.ceiling - topic.chunk // 2 and config.durability not in GATED:
            self._reserve(topic, count)
        now = topic.now(self._clock.now_ms())
        batch = render(
            request, last_seq + 1, now, bare=bare, joined_bytes_max=DEFERRED_BYTES_MIN, unique=unique, draft=draft
        )
        size = batch.size
        if self.settings.max_total_bytes:
            self.expire(topic)
            self.refuse_over_quota(size, retention.freed_by_caps(topic, count, size))
        if config.discard == "reject":
            self.refuse_if_full(topic, count, size)
        seqs = None if admitted is None else admitted.seqs(batch.first_seq)
        op = Appended(topic.id, topic.evict_floor, key, batch, seqs if key else None)
        change = self.commit_log.submit_append(op, config.durability)
        change.first_seq = batch.first_seq
        change.count = count
        change.result = seqs
        if batch.jobs is not None:
            self.admission.note(topic.id, batch, change)
        return self.in_flight.hold(change, ("key", topic.id, key)) if key else change

    def drafting(self, request: AppendRequest, *, metas_checked: bool = False) -> Steps[Draft]:
        """Prepare an append of many records, with other work in between: what does not depend on the topic.

        `metas_checked`: when the request was decoded.
        """
        bare = check_batch(request, self.settings, metas_checked=metas_checked)
        yield None
        draft = yield from drafting(request, bare=bare)
        yield from indexing_tags(draft)
        yield None
        return draft

    def admit_jobs(self, topic: Topic, request: AppendRequest, draft: Draft | None = None) -> Admitted | None:
        to_queue = topic.config.type == "queue"
        if to_queue:
            self.expire(topic)
        return self.admission.admit(topic, request, draft, to_queue=to_queue)

    def _append_new(
        self,
        name: str,
        request: AppendRequest,
        admit: Callable[[Topic | None], None] | None,
        draft: Draft | None,
        *,
        bare: bool,
    ) -> PendingChange:
        """The first batch of a topic creates the topic."""
        if request.create is False:
            raise TopicNotFound(name)
        config = self.check_class(resolve(request.config or ConfigRequest(), name))
        if admit is not None:
            admit(None)
        admitted = None if bare else self.admission.admit(None, request, draft, to_queue=config.type == "queue")
        unique = None
        if admitted is not None:
            request, unique, draft = admitted.request, admitted.unique, admitted.draft
        self.refuse_more_topics()
        self.commit_log.check_writable()
        now = self._clock.now_ms()
        batch = render(request, 1, now, bare=bare, joined_bytes_max=DEFERRED_BYTES_MIN, unique=unique, draft=draft)
        size = batch.size
        if self.settings.max_total_bytes:
            self.refuse_over_quota(size, max(0, size - config.cap_bytes) if config.cap_bytes else 0)
        if config.discard == "reject":
            retention.refuse_above(config, batch.count, size, name)
        created = self._create(name, config, batch.count + SEQ_CHUNK, gated=config.durability in GATED)
        windowed = request.idempotency_key is not None and config.idempotency_window_ms
        key = digest(request.idempotency_key) if windowed and request.idempotency_key is not None else b""
        seqs = None if admitted is None else admitted.seqs(1)
        op = Appended(created.topic_id, 1, key, batch, seqs if key else None)
        change = self.commit_log.submit_append(op, config.durability)
        change.first_seq = 1
        change.count = batch.count
        change.created = True
        change.result = seqs
        return self.in_flight.hold(change, ("topic", name))

    def room_for(self, name: str, count: int, size: int, durability: Durability | None = None) -> TopicRoom:
        """Reserve seqs for records that come from another topic; the topic is created if it is absent."""
        topic = self.find_to_write(name)
        if topic is None:
            created = self.create_for_write(name, count, durability)
            return TopicRoom(created.topic_id, None, 1, 1, created.result)
        self.keep_seqs(topic, count)
        if topic.config.discard == "reject":
            self.refuse_if_full(topic, count, size)
        return TopicRoom(topic.id, topic, topic.assigned_seq + 1, topic.evict_floor, topic.config)

    def hold_room(self, change: PendingChange, name: str, room: TopicRoom) -> PendingChange:
        """Nobody else assigns seqs of a topic that is made for this change: it may be published after the topic."""
        return change if room.topic is not None else self.in_flight.hold(change, ("topic", name))

    def create_for_write(self, name: str, count: int = 0, durability: Durability | None = None) -> PendingChange:
        self.refuse_more_topics()
        config = resolve(ConfigRequest(durability=durability), name)
        return self._create(name, config, count + SEQ_CHUNK, gated=config.durability in GATED)

    def keep_seqs(self, topic: Topic, count: int) -> None:
        """Make sure that `count` more seqs may be assigned; Busy until they may."""
        if topic.assigned_seq + count > topic.ceiling - topic.chunk // 2 and topic.config.durability not in GATED:
            self._reserve(topic, count)

    def _earlier(self, topic: Topic, key: bytes) -> PendingChange | None:
        """The write that this key belongs to: pending, or done within the window."""
        running = self.in_flight.with_what(("key", topic.id, key))
        if running is not None:
            return running.for_retries()
        if topic.keys is None:
            return None
        written = topic.keys.find(key, topic.now(self._clock.now_ms()), topic.config.idempotency_window_ms)
        if written is None:
            return None
        change = PendingChange(None, topic.id, gated=False)
        change.first_seq, change.count, change.result = written.first_seq, written.records, written.seqs
        change.head_seq = topic.head_seq
        change.deduped = True
        change.finish()
        return change

    def _reserve(self, topic: Topic, count: int) -> None:
        """Reserve more seqs before they run out; without them the caller has to wait."""
        asked = self.in_flight.with_what(("seqs", topic.id))
        if asked is None:
            now_ms = self._clock.monotonic_ms()
            if now_ms - topic.reserved_ms < SEQ_CHUNK_LASTS_MS:
                topic.chunk = min(SEQ_CHUNK_MAX, 2 * topic.chunk)
            topic.chunk = max(topic.chunk, 4 * count)
            topic.reserved_ms = now_ms
            op = Reserved(topic.id, topic.assigned_seq + count + topic.chunk)
            asked = self.in_flight.hold(self.commit_log.submit(op, op.encode(), gated=True), ("seqs", topic.id))
        if topic.assigned_seq + count > topic.ceiling:
            raise Busy(asked)

    def refuse_if_full(self, topic: Topic, count: int, size: int) -> None:
        self.expire(topic)
        config = topic.config
        retention.refuse_above(
            config,
            topic.count + topic.pending_count + count,
            topic.bytes + topic.pending_bytes + size,
            topic.name,
        )

    def refuse_over_quota(self, size: int, freed: int) -> None:
        quota = self.settings.max_total_bytes
        if self.state.bytes + self.in_flight.bytes + size - freed > quota:
            raise Throttled(
                f"all topics hold {self.state.bytes} bytes and may hold {quota}; delete some or raise the quota",
                limit="max_total_bytes",
                max=quota,
            )

    def diff(self, name: str, request: DiffRequest) -> Diff:
        """Records after a cursor. May raise ColdMiss."""
        topic = self.state.by_name.get(name) or self._existing(name)
        if topic.config.ttl_ms:
            self.expire(topic)
        view = View(
            request.nodes(self.settings.max_node_bytes)
            if request.node is not None and topic.config.dedupe_node
            else NOBODY,
            tags=bool(request.include_tags),
            meta=request.include_meta is not False,
        )
        limit = min(request.limit or DIFF_LIMIT_DEFAULT, self.settings.max_limit)
        bytes_max = min(request.max_batch_bytes or DIFF_BYTES_DEFAULT, DIFF_BYTES_MAX)
        from_seq = check_u64(request.from_seq, "from_seq")
        if request.from_ts is not UNSET:
            from_seq = max(from_seq, self.seq_before(topic, request.from_ts))
        diff = read(topic, from_seq, view, limit, bytes_max, self.state.cold.load)
        topic.last_read_ts = self._clock.now_ms()
        self.state.read_total += diff.count
        return diff

    def seq_before(self, topic: Topic, ts: int) -> int:
        """The cursor before the first record at or after `ts`. May raise ColdMiss."""
        for block in topic.blocks:
            if block.last_ts >= ts:
                self.state.cold.load(block)
                assert block.body is not None
                number = max(block.body.first_at_or_after(ts), block.start)
                return block.seq_at(number) - 1 if number < block.count else block.last_seq
        return topic.head_seq

    def delete(
        self, name: str, request: DeleteRequest, on_change: Callable[[], None] | None = None
    ) -> Steps[PendingChange]:
        """Remove the existing records by seq, by tag, or both. `result` is the number that died.

        Many scattered records are removed in several changes; `on_change` is called after each but the last.
        """
        while True:
            try:
                return (yield from self._delete(name, request, on_change))
            except Busy as busy:
                change = busy.change
            yield from before_verb(change)

    def _delete(self, name: str, request: DeleteRequest, on_change: Callable[[], None] | None) -> Steps[PendingChange]:
        if request.before_seq is UNSET and request.match is None:
            raise InvalidRequest(
                "before_seq or match (or both) must be given, to select what to delete", field="before_seq"
            )
        match = parse_match(request.match) if request.match is not None else None
        topic = self._existing(name)
        head = topic.head_seq
        before_seq = head + 1
        if request.before_seq is not UNSET:
            before_seq = min(before_seq, check_u64(request.before_seq, "before_seq"))
        if not request.dry_run:
            self.commit_log.check_writable()
        yield from attempt(lambda: self.expire(topic))
        if request.dry_run:
            return (yield from self._count_deleted(topic, match, before_seq))
        if match is None:
            found = deletion.find_before(topic, before_seq, self.state.cold.load)
        else:
            found = deletion.find_tagged(topic, match, before_seq, self.state.cold.load)
        changes = Deletions(of_queue=topic.queue is not None)
        now_ms = self._clock.monotonic_ms
        until_ms = now_ms() + DELETE_STEP_MS
        for runs in found:
            if isinstance(runs, ColdMiss):
                yield runs
            else:
                changes.collect(runs)
                piece = changes.piece()
                if piece:
                    yield from self._delete_runs(topic, piece, changes)
                    if on_change is not None:
                        on_change()
                    yield changes.waits_for()
                elif now_ms() < until_ms:
                    continue
                else:
                    yield None
            until_ms = now_ms() + DELETE_STEP_MS
        yield from self._delete_runs(topic, changes.rest(), changes)
        return changes.last or settled(topic.id, (0, 0))

    def _count_deleted(self, topic: Topic, match: TagMatch | None, before_seq: int) -> Steps[PendingChange]:
        """How many records a delete would take, and their bytes, as the result of a change that changes nothing."""
        records = 0
        for found in deletion.count(topic, match, before_seq, self.state.cold.load):
            if isinstance(found, ColdMiss):
                yield found
            else:
                records += found
                yield None
        return settled(topic.id, (records, 0))

    def _delete_runs(self, topic: Topic, runs: list[Run], changes: Deletions) -> Steps[None]:
        """Once something is deleted, a later piece waits by itself: its topic may be about to be dropped."""
        while self.state.by_id.get(topic.id) is topic:
            busy = self.in_flight.with_what(("topic", topic.name))
            if busy is None:
                break
            if changes.last is None:
                raise Busy(busy)
            yield busy
        else:
            raise TopicNotFound(topic.name)
        changes.check()
        if runs:
            op = Deleted(topic.id, topic.now(self._clock.now_ms()), runs)
            changes.add(self.commit_log.submit_delete(op, topic.config.durability))

    # --- finding topics ---

    def find(self, name: str) -> Topic | None:
        """The topic, if it exists; Busy while that is being decided."""
        topic = self.state.by_name.get(name)
        if topic is None:
            check_topic_name(name)
        if self.in_flight.busy:
            self.in_flight.check(("topic", name))
        return topic

    def find_to_write(self, name: str) -> Topic | None:
        """Like `find`; also Busy while a commit prepares records for the topic."""
        topic = self.find(name)
        if topic is not None:
            self.in_flight.check(("writers", topic.id))
        return topic

    def _existing(self, name: str) -> Topic:
        topic = self.state.by_name.get(name)
        if topic is None:
            check_topic_name(name)
            raise TopicNotFound(name)
        return topic

    def expire(self, topic: Topic, *, exact: bool = True) -> None:
        if topic.config.ttl_ms:
            load = self.state.cold.load if exact else None
            self.state.expire(topic, self._clock.now_ms(), load)

    def list(
        self,
        prefix: str = "",
        cursor: str | None = None,
        page_size: int = PAGE_SIZE_DEFAULT,
        *,
        prefixes: tuple[str, ...] = ("",),
        touch: bool = False,
    ) -> Page:
        """Topics by name, those that start with `prefix` and with one of `prefixes`."""
        state = self.state
        topics, next_cursor = page_of(
            state.names, prefix, cursor, page_size, state.by_name.__getitem__, lambda it: it.name.startswith(prefixes)
        )
        page: list[TopicState] = []
        for topic in topics:
            page.append(self.describe(topic))
            if touch:
                topic.last_read_ts = self._clock.now_ms()
        return Page(page, next_cursor)
