"""Unique keys: a job whose key is pending is not added twice; the reply names the existing job. And job groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from topics.engine.core.job_admission import Admitted, check_job_fields
from topics.engine.core.ops import KeyNoted
from topics.engine.core.pending import PendingChange, settled
from topics.engine.queues.part import queue_of
from topics.engine.queues.results.group_admission import GroupAdmission
from topics.model.requests.batch import NO_KEY, Batch, Draft, unique_column, unique_keys
from topics.model.requests.config import GATED
from topics.model.requests.records import AppendRequest, RecordRequest

if TYPE_CHECKING:
    from topics.engine.core.commit_log import CommitLog
    from topics.engine.core.state import State
    from topics.engine.log.topic import Topic
    from topics.model.clock import Clock


class Uniqueness:
    def __init__(self, commit_log: CommitLog, state: State, clock: Clock) -> None:
        self._commit_log = commit_log
        self._in_flight = commit_log.in_flight
        self._groups = GroupAdmission(commit_log)
        self._state = state
        self._clock = clock

    def admit(
        self, topic: Topic | None, request: AppendRequest, draft: Draft | None = None, *, to_queue: bool
    ) -> Admitted | None:
        """Leave out the records whose key is pending; None if none has a key.

        Only a queue accepts a delay, a unique key, a priority or a group.
        """
        keyed = check_job_fields(request, draft, to_queue=to_queue)
        if draft is not None and draft.for_logs:
            return None
        admitted = self._admit_keyed(topic, request, draft) if keyed else None
        left = request if admitted is None else admitted.request
        if to_queue and any(record.group is not None for record in left.records):
            now_ms = self._clock.now_ms()
            self._groups.check(topic, left, now_ms if topic is None else topic.now(now_ms))
        return admitted

    def _admit_keyed(self, topic: Topic | None, request: AppendRequest, draft: Draft | None) -> Admitted:
        column = None if draft is None else draft.unique
        if column is None:
            column = unique_column(record.unique_key for record in request.records)
        keys = unique_keys(column)
        queue = queue_of(topic) if topic is not None else None
        pending: Mapping[bytes, int] = queue.unique if queue is not None else {}
        if topic is not None:
            self._in_flight.check_members(("unique keys", topic.id), keys)
        distinct = set(keys)
        distinct.discard(NO_KEY)
        if pending.keys().isdisjoint(distinct) and len(distinct) + keys.count(NO_KEY) == len(keys):
            return Admitted(request, column, draft=draft)
        return _without(request, keys, pending)

    def note(self, topic_id: int, batch: Batch, change: PendingChange) -> None:
        """A batch with job columns is pending."""
        assert batch.jobs is not None
        if batch.jobs.groups is not None and topic_id in self._state.by_id:
            self._groups.note(self._state.by_id[topic_id], batch.jobs.groups, change)
        keys = unique_keys(batch.jobs.unique)
        if NO_KEY in keys:
            keys = [key for key in keys if key != NO_KEY]
        if keys:
            self._in_flight.hold_members(change, ("unique keys", topic_id), keys)

    def repeated(self, topic: Topic, admitted: Admitted, key: bytes, now_ms: int) -> PendingChange:
        """The reply to a write whose jobs are all pending already.

        With an idempotency key it is kept for repeated requests after the jobs are gone.
        """
        seqs = admitted.seqs(0)
        assert seqs is not None
        if key:
            op = KeyNoted(topic.id, now_ms, key, seqs)
            durability = topic.config.durability
            journaled = durability != "ephemeral"
            change = self._commit_log.submit(op, op.encode(), gated=durability in GATED, journaled=journaled)
        else:
            change = settled(topic.id)
        change.result = seqs
        change.first_seq, change.count = min(seqs), len(seqs)
        change.head_seq = topic.head_seq
        change.deduped = True
        return change


def _without(request: AppendRequest, keys: list[bytes], pending: Mapping[bytes, int]) -> Admitted:
    """Leave out the records whose key is pending, or equal to that of an earlier record of the same write."""
    kept: list[RecordRequest] = []
    kept_keys: list[bytes] = []
    places: list[tuple[int | None, int]] = []
    own: dict[bytes, int] = {}
    for record, key in zip(request.records, keys, strict=True):
        seq = pending.get(key)
        number = len(kept) if seq is not None or key == NO_KEY else own.setdefault(key, len(kept))
        if seq is not None:
            places.append((seq, 0))
        else:
            places.append((None, number))
            if number == len(kept):
                kept.append(record)
                kept_keys.append(key)
    return Admitted(msgspec.structs.replace(request, records=kept), b"".join(kept_keys), places)
