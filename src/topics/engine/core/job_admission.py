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
    """What is left of a write, and for each of its records the seq it has, or its number among those that are left."""

    request: AppendRequest
    places: list[tuple[int | None, int]]

    def seqs(self, first_seq: int) -> list[int]:
        return [seq if seq is not None else first_seq + number for seq, number in self.places]


class JobAdmission(Protocol):
    def admit(self, topic: Topic | None, request: AppendRequest, *, to_queue: bool) -> Admitted | None:
        """Leave out the records that are there already; None if there is nothing to leave out."""
        ...

    def note(self, topic_id: int, batch: Batch, change: PendingChange) -> None:
        """A batch with job columns is on its way."""
        ...

    def repeated(self, topic: Topic, admitted: Admitted, key: bytes, now_ms: int) -> PendingChange:
        """The answer to a write all of whose records are there already."""
        ...


def check_job_fields(request: AppendRequest, *, to_queue: bool) -> bool:
    """Whether a record has a unique key. Refused if it is for queues and the topic is none."""
    keyed = False
    for index, record in enumerate(request.records):
        field = "delay_ms" if record.delay_ms else "unique_key" if record.unique_key is not None else ""
        if field and not to_queue:
            raise InvalidRequest(
                f"records[{index}].{field} is for queues; this topic is a log", field=f"records[{index}].{field}"
            )
        keyed = keyed or record.unique_key is not None
    return keyed
