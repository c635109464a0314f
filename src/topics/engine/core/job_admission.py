"""What is left of a write when records that are there already are left out: which ones, a feature says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from topics.model.errors import InvalidRequest
from topics.model.requests.records import AppendRequest

if TYPE_CHECKING:
    from topics.engine.core.pending import PendingChange
    from topics.engine.log.topic import Topic
    from topics.model.requests.batch import Batch


@dataclass(frozen=True, slots=True)
class Admitted:
    """What is left of a write with unique keys: the records, and the column of their keys.

    `places` has for each record that was asked for the seq it has, or its number among those that are left; None if
    all of them are left.
    """

    request: AppendRequest
    unique: bytes
    places: list[tuple[int | None, int]] | None = None

    def seqs(self, first_seq: int) -> list[int] | None:
        """The seqs of all records that were asked for, unless they are those from `first_seq` on."""
        if self.places is None:
            return None
        return [seq if seq is not None else first_seq + number for seq, number in self.places]


class JobAdmission(Protocol):
    def admit(self, topic: Topic | None, request: AppendRequest, *, to_queue: bool) -> Admitted | None:
        """Leave out the records that are there already; None if no record has a key to tell them by."""
        ...

    def note(self, topic_id: int, batch: Batch, change: PendingChange) -> None:
        """A batch with job columns is on its way."""
        ...

    def repeated(self, topic: Topic, admitted: Admitted, key: bytes, now_ms: int) -> PendingChange:
        """The answer to a write all of whose records are there already."""
        ...


def check_job_fields(request: AppendRequest, *, to_queue: bool) -> bool:
    """Whether a record has a unique key. Refused if it is for queues and the topic is none."""
    records = request.records
    if to_queue:
        return any(record.unique_key is not None for record in records)
    for index, record in enumerate(records):
        if record.delay_ms or record.unique_key is not None:
            field = "delay_ms" if record.delay_ms else "unique_key"
            raise InvalidRequest(
                f"records[{index}].{field} is for queues; this topic is a log", field=f"records[{index}].{field}"
            )
    return False
