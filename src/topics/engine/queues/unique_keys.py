"""Unique keys: a job whose key is pending is not added twice; the answer names the one that is there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from topics.engine.core.ops import KeyNoted
from topics.engine.core.pending import Busy, Staged, settled
from topics.model.errors import InvalidRequest
from topics.model.requests.batch import NO_KEY, Batch, unique_digest
from topics.model.requests.records import AppendWish, RecordWish

if TYPE_CHECKING:
    from topics.engine.core.commit_log import Pipeline
    from topics.engine.log.topic import Topic


@dataclass(frozen=True, slots=True)
class Admitted:
    """What is left of a write, and for each of its records the seq it has, or its number among those that are left."""

    wish: AppendWish
    places: list[tuple[int | None, int]]

    def seqs(self, first_seq: int) -> list[int]:
        return [seq if seq is not None else first_seq + number for seq, number in self.places]


def check_job_fields(wish: AppendWish, *, to_queue: bool) -> bool:
    """Whether a record has a unique key. Refused if it is for queues and the topic is none."""
    keyed = False
    for index, record in enumerate(wish.records):
        field = "delay_ms" if record.delay_ms else "unique_key" if record.unique_key is not None else ""
        if field and not to_queue:
            raise InvalidRequest(
                f"records[{index}].{field} is for queues; this topic is a log", field=f"records[{index}].{field}"
            )
        keyed = keyed or record.unique_key is not None
    return keyed


class Uniqueness:
    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        # Keys whose job is on its way into the log.
        self._arriving: dict[tuple[int, bytes], Staged] = {}

    def admit(self, topic: Topic | None, wish: AppendWish, *, to_queue: bool) -> Admitted | None:
        """Leave out the records whose key is pending; None if there is nothing to leave out.

        Only a queue takes a delay or a unique key.
        """
        return self._admit_keyed(topic, wish) if check_job_fields(wish, to_queue=to_queue) else None

    def _admit_keyed(self, topic: Topic | None, wish: AppendWish) -> Admitted | None:
        kept: list[RecordWish] = []
        places: list[tuple[int | None, int]] = []
        own: dict[bytes, int] = {}
        for record in wish.records:
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
        if len(kept) == len(wish.records):
            return None
        return Admitted(msgspec.structs.replace(wish, records=kept), places)

    def _pending(self, topic: Topic, key: bytes) -> int | None:
        arriving = self._arriving.get((topic.id, key))
        if arriving is not None:
            raise Busy(arriving)
        return None if topic.queue is None else topic.queue.unique.get(key)

    def note(self, topic_id: int, batch: Batch, staged: Staged) -> None:
        """A batch with job columns is on its way."""
        assert batch.jobs is not None
        column = batch.jobs.unique
        for at in range(0, len(column), len(NO_KEY)):
            key = topic_id, column[at : at + len(NO_KEY)]
            if key[1] != NO_KEY:
                self._arriving[key] = staged
                staged.then(lambda _, key=key: self._arriving.pop(key, None))

    def repeated(self, topic: Topic, admitted: Admitted, key: bytes, now_ms: int) -> Staged:
        """The answer to a write all of whose jobs are pending already.

        With an idempotency key it is kept for those who ask again when the jobs are gone.
        """
        seqs = admitted.seqs(0)
        if key:
            op = KeyNoted(topic.id, now_ms, key, seqs)
            durability = topic.config.durability
            journaled = durability != "ephemeral"
            staged = self._pipeline.stage(op, op.encode(), gated=durability == "fsync", journaled=journaled)
        else:
            staged = settled(topic.id)
        staged.result = seqs
        staged.first_seq, staged.count = min(seqs), len(seqs)
        staged.head_seq = topic.head_seq
        staged.deduped = True
        return staged
