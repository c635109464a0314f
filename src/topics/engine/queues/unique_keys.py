"""Unique keys: a job whose key is pending is not added twice; the answer names the one that is there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from topics.engine.core.job_admission import Admitted, check_job_fields
from topics.engine.core.ops import KeyNoted
from topics.engine.core.pending import PendingChange, settled
from topics.engine.queues.part import queue_of
from topics.model.requests.batch import NO_KEY, Batch, unique_digest
from topics.model.requests.records import AppendRequest, RecordRequest

if TYPE_CHECKING:
    from topics.engine.core.commit_log import CommitLog
    from topics.engine.log.topic import Topic


class Uniqueness:
    def __init__(self, commit_log: CommitLog) -> None:
        self._commit_log = commit_log
        self._in_flight = commit_log.in_flight

    def admit(self, topic: Topic | None, request: AppendRequest, *, to_queue: bool) -> Admitted | None:
        """Leave out the records whose key is pending; None if there is nothing to leave out.

        Only a queue takes a delay or a unique key.
        """
        return self._admit_keyed(topic, request) if check_job_fields(request, to_queue=to_queue) else None

    def _admit_keyed(self, topic: Topic | None, request: AppendRequest) -> Admitted | None:
        kept: list[RecordRequest] = []
        places: list[tuple[int | None, int]] = []
        own: dict[bytes, int] = {}
        for record in request.records:
            key = None if record.unique_key is None else unique_digest(record.unique_key)
            pending = self._pending(topic, key) if topic is not None and key is not None else None
            if pending is not None:
                places.append((pending, 0))
            elif key is not None and key in own:
                places.append((None, own[key]))
            else:
                if key is not None:
                    own[key] = len(kept)
                places.append((None, len(kept)))
                kept.append(record)
        if len(kept) == len(request.records):
            return None
        return Admitted(msgspec.structs.replace(request, records=kept), places)

    def _pending(self, topic: Topic, key: bytes) -> int | None:
        self._in_flight.check(("unique key", topic.id, key))
        queue = queue_of(topic)
        return None if queue is None else queue.unique.get(key)

    def note(self, topic_id: int, batch: Batch, change: PendingChange) -> None:
        """A batch with job columns is on its way."""
        assert batch.jobs is not None
        column = batch.jobs.unique
        keys = (column[at : at + len(NO_KEY)] for at in range(0, len(column), len(NO_KEY)))
        self._in_flight.hold(change, *(("unique key", topic_id, key) for key in keys if key != NO_KEY))

    def repeated(self, topic: Topic, admitted: Admitted, key: bytes, now_ms: int) -> PendingChange:
        """The answer to a write all of whose jobs are pending already.

        With an idempotency key it is kept for those who ask again when the jobs are gone.
        """
        seqs = admitted.seqs(0)
        if key:
            op = KeyNoted(topic.id, now_ms, key, seqs)
            durability = topic.config.durability
            journaled = durability != "ephemeral"
            change = self._commit_log.submit(op, op.encode(), gated=durability == "fsync", journaled=journaled)
        else:
            change = settled(topic.id)
        change.result = seqs
        change.first_seq, change.count = min(seqs), len(seqs)
        change.head_seq = topic.head_seq
        change.deduped = True
        return change
