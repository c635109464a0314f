"""Append to several topics: decided for all of them at once, one op in the log, published in one step.

    check ─▶ find every topic ─▶ classes agree ─▶ seen before? ─▶ room in all of them ─▶ MultiAppended ─▶ all heads move

An error of one topic refuses the whole request. An idempotency key belongs to the set of topics: each of them keeps it
with its own seqs, and a write is a repeated one only if all of them still have it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

from topics.engine.core.appended import Appended
from topics.engine.core.job_admission import Admitted, check_job_fields
from topics.engine.core.ops import Created, KeyNoted, MultiAppended
from topics.engine.core.pending import Busy, PendingChange, settled
from topics.engine.core.waiting.runner import Steps
from topics.engine.log import retention
from topics.engine.log.block import indexing_tags
from topics.engine.log.topic import SEQ_CHUNK, Topic
from topics.model.clock import Clock
from topics.model.errors import InvalidRequest, TopicExistsIncompatible, TopicNotFound
from topics.model.requests.batch import DRAFTED_PER_STEP, Batch, drafting, join_unless_large, render
from topics.model.requests.config import GATED, ConfigRequest, resolve
from topics.model.requests.multi_append import (
    MultiAppendRequest,
    TopicBatch,
    check_multi_append,
    checking_multi_append,
    multi_digest,
    within,
)
from topics.model.requests.records import AppendRequest

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine

DEFAULT_CONFIG: Final = resolve(ConfigRequest(), "")

Check = Callable[[], None]
Admit = Callable[[Sequence[Topic | None]], None]


class Landed(NamedTuple):
    """The result for one topic. `seqs` if its records are not those from `first_seq` on: jobs that were pending."""

    topic_id: int
    first_seq: int
    records: int
    seqs: list[int] | None
    created: bool
    head_seq: int = 0

    @property
    def last_seq(self) -> int:
        return self.first_seq + self.records - 1 if self.seqs is None else max(self.seqs)

    def all_seqs(self) -> list[int]:
        return list(range(self.first_seq, self.first_seq + self.records)) if self.seqs is None else self.seqs


class AppendTarget:
    """One of the topics and its part of the op; `topic` is None until it is created."""

    __slots__ = ("admitted", "bare", "batch", "config", "draft", "name", "request", "topic", "topic_id")

    def __init__(self, given: TopicBatch, topic: Topic | None) -> None:
        self.name = given.name
        self.request = given.request
        self.bare = given.bare
        self.draft = given.draft
        self.topic = topic
        if topic is not None:
            self.config = topic.config
        elif given.request.config is None:
            self.config = DEFAULT_CONFIG
        else:
            self.config = resolve(given.request.config, given.name)
        self.topic_id = topic.id if topic is not None else 0
        self.admitted: Admitted | None = None
        # the added batch; None: all of its jobs are pending already
        self.batch: Batch | None = None

    @property
    def to_queue(self) -> bool:
        return self.config.type == "queue"

    @property
    def left(self) -> AppendRequest:
        """The rest of the request without jobs that are pending."""
        return self.request if self.admitted is None else self.admitted.request

    def landed(self) -> Landed:
        created = self.topic is None
        if self.batch is None:
            pending = None if self.admitted is None else self.admitted.seqs(0)
            assert pending is not None, "a batch is left out because its jobs exist"
            return Landed(self.topic_id, min(pending), len(pending), pending, created)
        seqs = None if self.admitted is None else self.admitted.seqs(self.batch.first_seq)
        return Landed(self.topic_id, self.batch.first_seq, self.batch.count, seqs, created)


class MultiAppend:
    """Owned by the thread that owns the engine. `result` of its changes is a dict of Landed by topic."""

    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._state = engine.state
        self._commit_log = engine.commit_log
        self._in_flight = engine.in_flight
        self._clock = clock

    def append(
        self,
        request: MultiAppendRequest,
        check_names: Check | None = None,
        admit: Admit | None = None,
        *,
        drafted: list[TopicBatch] | None = None,
    ) -> PendingChange:
        """Add a batch to each topic, all of them or none.

        `check_names` may refuse once the request is known to be valid, `admit` once it is known to be a write;
        `drafted` are the batches of a large request.
        """
        batches = check_multi_append(request, self._engine.settings) if drafted is None else drafted
        if check_names is not None:
            check_names()
        targets = self._targets(batches)
        key = self._key_of(request, targets)
        if key:
            earlier = self._earlier(key, targets)
            if earlier is not None:
                return earlier
        if admit is not None:
            admit([target.topic for target in targets])
        self._commit_log.check_writable()
        self._engine.refuse_more_topics(sum(target.topic is None for target in targets))
        self._keep_seqs(targets)
        for target in targets:
            self._render(target)
        join_unless_large([target.batch for target in targets if target.batch is not None])
        self._refuse_if_full(targets)
        return self._stage(targets, key)

    def drafting(self, request: MultiAppendRequest, *, metas_checked: bool = False) -> Steps[list[TopicBatch]]:
        """Prepare an append of many records, as `Engine.drafting` does."""
        batches = yield from checking_multi_append(request, self._engine.settings, metas_checked=metas_checked)
        yield None
        unpaused = 0
        for given in batches:
            given.draft = yield from drafting(given.request, bare=given.bare)
            yield from indexing_tags(given.draft)
            unpaused += len(given.request.records)
            if unpaused >= DRAFTED_PER_STEP:
                unpaused = 0
                yield None
        return batches

    # --- deciding ---

    def _targets(self, batches: list[TopicBatch]) -> list[AppendTarget]:
        targets: list[AppendTarget] = []
        missing: str | None = None
        for given in batches:
            topic = self._engine.find_to_write(given.name)
            if topic is None and given.request.create is False:
                missing = missing or given.name
                continue
            target = AppendTarget(given, topic)
            try:
                if topic is None:
                    self._engine.check_class(target.config)
                if not given.bare:
                    check_job_fields(given.request, given.draft, to_queue=target.to_queue)
            except InvalidRequest as error:
                raise within(given.name, error) from None
            targets.append(target)
        if missing is not None:
            raise TopicNotFound(missing)
        _refuse_mixed(targets)
        return targets

    def _key_of(self, request: MultiAppendRequest, targets: list[AppendTarget]) -> bytes:
        """The digest that the key is stored as; empty if there is none, or a topic stores none."""
        if request.idempotency_key is None or not _window_ms(targets):
            return b""
        return multi_digest(request.idempotency_key, request.topics)

    def _earlier(self, key: bytes, targets: list[AppendTarget]) -> PendingChange | None:
        """The write that this key belongs to: pending, or known to all of its topics within the shortest window."""
        running = self._in_flight.with_what(("key", key))
        if running is not None:
            return running.for_retries()
        window_ms = _window_ms(targets)
        found: dict[str, Landed] = {}
        for target in targets:
            topic = target.topic
            if topic is None or topic.keys is None:
                return None
            written = topic.keys.find(key, topic.now(self._clock.now_ms()), window_ms)
            if written is None:
                return None
            found[target.name] = Landed(
                topic.id, written.first_seq, written.records, written.seqs, created=False, head_seq=topic.head_seq
            )
        change = PendingChange(None, targets[0].topic_id, gated=False)
        change.result = found
        change.deduped = True
        change.finish()
        return change

    def _keep_seqs(self, targets: list[AppendTarget]) -> None:
        """Leave out jobs that are pending, and make sure that the rest has seqs; Busy until both are known."""
        busy: Busy | None = None
        for target in targets:
            try:
                self._keep_seqs_of(target)
            except Busy as found:
                # All topics that need seqs reserve them before the first one is waited for.
                busy = found
        if busy is not None:
            raise busy

    def _keep_seqs_of(self, target: AppendTarget) -> None:
        topic, engine = target.topic, self._engine
        if not target.bare:
            if topic is not None:
                target.admitted = engine.admit_jobs(topic, target.request, target.draft)
            else:
                target.admitted = engine.admission.admit(None, target.request, target.draft, to_queue=target.to_queue)
        if topic is not None:
            engine.keep_seqs(topic, len(target.left.records))

    def _render(self, target: AppendTarget) -> None:
        topic, request = target.topic, target.left
        if request.records:
            now_ms = self._clock.now_ms()
            first_seq, ts = (1, now_ms) if topic is None else (topic.assigned_seq + 1, topic.now(now_ms))
            unique, draft = None, target.draft
            if target.admitted is not None:
                unique, draft = target.admitted.unique, target.admitted.draft
            target.batch = render(
                request, first_seq, ts, bare=target.bare, joined_bytes_max=0, unique=unique, draft=draft
            )

    def _refuse_if_full(self, targets: list[AppendTarget]) -> None:
        engine = self._engine
        added = [(target, target.batch.count, target.batch.size) for target in targets if target.batch is not None]
        if engine.settings.max_total_bytes:
            freed = 0
            for target, count, size in added:
                if target.topic is not None:
                    engine.expire(target.topic)
                    freed += retention.freed_by_caps(target.topic, count, size)
                elif target.config.cap_bytes:
                    freed += max(0, size - target.config.cap_bytes)
            engine.refuse_over_quota(sum(size for _, _, size in added), freed)
        for target, count, size in added:
            if target.config.discard == "reject":
                if target.topic is not None:
                    engine.refuse_if_full(target.topic, count, size)
                else:
                    retention.refuse_above(target.config, count, size, target.name)

    # --- submitting ---

    def _stage(self, targets: list[AppendTarget], key: bytes) -> PendingChange:
        durabilities = {target.config.durability for target in targets}
        journaled = "ephemeral" not in durabilities
        parts: list[Created | Appended | KeyNoted] = []
        for target in targets:
            if target.topic is None:
                parts += self._made(target, apart=not journaled)
            parts += self._part(target, key)
        landed = {target.name: target.landed() for target in targets}
        if parts:
            op = MultiAppended(parts)
            change = self._commit_log.submit_multi_append(
                op, gated=not GATED.isdisjoint(durabilities), journaled=journaled
            )
        else:
            change = settled(targets[0].topic_id)
        change.deduped = all(target.batch is None for target in targets)
        change.created = any(target.topic is None for target in targets)
        change.result = landed
        if not change.done:
            self._note(targets, key, change)
        self._note_heads(change)
        return change

    def _made(self, target: AppendTarget, *, apart: bool) -> list[Created]:
        """The op that creates the topic; `apart`: a separate one, since the records never reach the log."""
        op = self._engine.new_topic(target.name, target.config, len(target.request.records) + SEQ_CHUNK)
        target.topic_id = op.topic_id
        if not apart:
            return [op]
        self._commit_log.submit(op, op.encode(), gated=False)
        return []

    def _part(self, target: AppendTarget, key: bytes) -> list[Appended | KeyNoted]:
        landed, batch = target.landed(), target.batch
        if batch is not None:
            floor = target.topic.evict_floor if target.topic is not None else 1
            return [Appended(target.topic_id, floor, key, batch, landed.seqs if key else None)]
        assert target.topic is not None and landed.seqs is not None, "only an existing queue has pending jobs"
        return [KeyNoted(target.topic_id, target.topic.now(self._clock.now_ms()), key, landed.seqs)] if key else []

    def _note(self, targets: list[AppendTarget], key: bytes, change: PendingChange) -> None:
        """The reservations, until this is published."""
        for target in targets:
            if target.topic is None:
                self._in_flight.hold(change, ("topic", target.name))
            if target.batch is not None and target.batch.jobs is not None:
                self._engine.admission.note(target.topic_id, target.batch, change)
        if key:
            self._in_flight.hold(change, ("key", key))

    def _note_heads(self, change: PendingChange) -> None:
        """Replies have the head of each topic once the write is published."""

        def published(done: PendingChange) -> None:
            for name, landed in done.result.items():
                topic = self._state.by_id.get(landed.topic_id)
                if topic is not None:
                    done.result[name] = landed._replace(head_seq=topic.head_seq)

        change.then(published)


def _window_ms(targets: list[AppendTarget]) -> int:
    return min(target.config.idempotency_window_ms for target in targets)


def _refuse_mixed(targets: list[AppendTarget]) -> None:
    ephemeral = [target.name for target in targets if target.config.durability == "ephemeral"]
    if ephemeral and len(ephemeral) < len(targets):
        other = next(target for target in targets if target.config.durability != "ephemeral")
        raise TopicExistsIncompatible(
            f'topic "{ephemeral[0]}" is ephemeral and topic "{other.name}" is {other.config.durability}: what never '
            "reaches the log cannot be written in one step with what does; append to them one by one",
            topic=ephemeral[0],
            field="durability",
        )
