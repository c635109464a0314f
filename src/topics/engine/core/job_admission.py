"""The rest of a write when records that exist already are left out: a feature decides which ones."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from topics.model.errors import InvalidRequest
from topics.model.requests.records import AppendRequest

if TYPE_CHECKING:
    from topics.engine.core.pending import PendingChange
    from topics.engine.log.topic import Topic
    from topics.model.requests.batch import Batch, Draft


@dataclass(frozen=True, slots=True)
class Admitted:
    """The rest of a write with unique keys: the records, the column of their keys, and their draft if there is one.

    `places` has for each requested record its seq, or its number among the remaining ones; None if all of them
    remain.
    """

    request: AppendRequest
    unique: bytes
    places: list[tuple[int | None, int]] | None = None
    draft: Draft | None = None

    def seqs(self, first_seq: int) -> list[int] | None:
        """The seqs of all requested records, unless they are those from `first_seq` on."""
        if self.places is None:
            return None
        return [seq if seq is not None else first_seq + number for seq, number in self.places]


class JobAdmission(Protocol):
    def admit(
        self, topic: Topic | None, request: AppendRequest, draft: Draft | None = None, *, to_queue: bool
    ) -> Admitted | None:
        """Leave out the records that exist already; None if no record has a key to identify them."""
        ...

    def note(self, topic_id: int, batch: Batch, change: PendingChange) -> None:
        """A batch with job columns is pending."""
        ...

    def repeated(self, topic: Topic, admitted: Admitted, key: bytes, now_ms: int) -> PendingChange:
        """The reply to a write whose records all exist already."""
        ...


def check_job_fields(request: AppendRequest, draft: Draft | None, *, to_queue: bool) -> bool:
    """Whether a record has a unique key. Refused if the field is for queues and the topic is not one."""
    if draft is not None and draft.for_logs:
        return False
    records = request.records
    if to_queue:
        return any(record.unique_key is not None for record in records)
    for index, record in enumerate(records):
        if record.delay_ms or record.unique_key is not None or record.job_priority or record.group is not None:
            field = next(
                field for field in ("delay_ms", "job_priority", "unique_key", "group") if getattr(record, field)
            )
            raise InvalidRequest(
                f"records[{index}].{field} is for queues; this topic is a log", field=f"records[{index}].{field}"
            )
    return False
