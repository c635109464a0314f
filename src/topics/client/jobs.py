"""Jobs of queues, and the replies about them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from topics.client.errors import JobCancelled, JobFailed, ResultTimeout
from topics.client.values import RecordBase


class Job(RecordBase, dict=True, kw_only=True):
    """A job leased to a node until `deadline` (ms since the epoch)."""

    lease_id: str
    deadline: int
    deliveries: int
    # Unlike a record, a job always has a seq.
    payload: Raw = msgspec.field(name="data")


class Claimed(msgspec.Struct, kw_only=True):
    topic: str
    claimed: list[Job]
    ready: int


class Acked(msgspec.Struct, kw_only=True):
    """`skipped` jobs were no longer held, or were acked before."""

    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int
    # that the queue keeps no results
    warnings: list[str] = []


class Nacked(msgspec.Struct, kw_only=True):
    topic: str
    nacked: int
    skipped: list[int]
    ready: int
    in_flight: int


class Extended(msgspec.Struct, kw_only=True):
    topic: str
    extended: int
    skipped: list[int]
    # by seq, ms since the epoch
    deadlines: dict[int, int]
    # those of `skipped` that were cancelled
    cancelled: list[int] = []


class Cancelled(msgspec.Struct, kw_only=True):
    """`skipped` seqs were no jobs of the queue any more."""

    topic: str
    cancelled: int
    skipped: list[int]
    ready: int
    in_flight: int


class Redriven(msgspec.Struct, kw_only=True):
    """`to`: how many went to which queue; `skipped` ones have no queue to go back to; `more` are left."""

    topic: str
    moved: int
    to: dict[str, int]
    skipped: int
    more: bool
    dry_run: bool
    warnings: list[str] = []


class Paused(msgspec.Struct, kw_only=True):
    topic: str
    paused: bool
    ready: int
    in_flight: int


class Lease(msgspec.Struct, kw_only=True):
    """The holder of a job. `pushed`: by a work stream. `error`: what the previous worker reported on returning it."""

    seq: int = msgspec.field(name="$seq")
    node: str
    lease_id: str
    # None if that was before the server started.
    claimed_ts: int | None = None
    deadline: int
    deliveries: int
    pushed: bool = False
    error: str | None = None


class QueuedJob(msgspec.Struct, kw_only=True, rename={"seq": "$seq", "ts": "$ts", "tag": "$tag", "origin": "from"}):
    """A job of a queue and how it stands: a leased one has a `worker`, a delayed one is `due`.

    The seq of a dead one is its seq in the dead-letter topic, `src_seq` the one it had in its queue.
    `value` is the payload.
    """

    seq: int
    ts: int
    state: str
    data: Raw
    tag: str | None = None
    deliveries: int = 0
    error: str | None = None
    worker: str | None = None
    lease_id: str | None = None
    deadline: int | None = None
    claimed_ts: int | None = None
    due: int | None = None
    origin: str | None = None
    src_seq: int | None = None
    job_priority: int = 0

    @property
    def value(self) -> Any:
        return msgspec.json.decode(self.data)


class JobStatus(
    msgspec.Struct,
    kw_only=True,
    rename={"seq": "$seq", "ts": "$ts", "result_json": "result", "progress_json": "progress"},
):
    """One job: `ready`, `leased`, `delayed`, or for a time after its end `done`, `dead` or `cancelled`.

    Times are in ms since the epoch, None if they do not apply. `progress` and `result` are None if there are none.
    """

    topic: str
    seq: int
    ts: int
    state: str
    deliveries: int
    job_priority: int = 0
    worker: str | None = None
    claimed_ts: int | None = None
    deadline: int | None = None
    due: int | None = None
    ended_ts: int | None = None
    forgotten_ts: int | None = None
    error: str | None = None
    progress_json: Raw | UnsetType = UNSET
    result_json: Raw | UnsetType = UNSET

    @property
    def ended(self) -> bool:
        return self.ended_ts is not None

    @property
    def progress(self) -> Any:
        """What its worker reported last."""
        return None if self.progress_json is UNSET else msgspec.json.decode(self.progress_json)

    @property
    def result(self) -> Any:
        """What its worker returned."""
        return None if self.result_json is UNSET else msgspec.json.decode(self.result_json)

    def check_done(self) -> Any:
        """The result of a job that was done; raises JobFailed or JobCancelled for one that was not."""
        name = f"job {self.seq} of {self.topic}"
        detail = {"topic": self.topic, "seq": self.seq, "deliveries": self.deliveries}
        if self.state == "dead":
            raise JobFailed(f"{name} failed: {self.error or 'no reason was given'}", detail=detail)
        if self.state == "cancelled":
            raise JobCancelled(f"{name} was cancelled", detail=detail)
        if not self.ended:
            raise ResultTimeout(f"{name} is still {self.state}", detail=detail)
        return self.result


class JobGroupStatus(msgspec.Struct, kw_only=True):
    """A job group: how many of its jobs were added and have ended; `complete` once `size` of them have.

    `removed` ones were deleted as records, or expired. `error`: why the record about it could not be written so far.
    """

    topic: str
    group: str
    size: int
    notify: str
    added: int
    done: int
    dead: int
    cancelled: int
    removed: int
    complete: bool
    opened_ts: int
    notified_ts: int | None = None
    notified_seq: int | None = None
    error: str | None = None


class QueuedJobPage(msgspec.Struct, kw_only=True):
    jobs: list[QueuedJob]
    next_cursor: str | None = None


class JobsChanged(msgspec.Struct, kw_only=True):
    """`skipped`: given seqs that were not in that state. `more`: others match, call again."""

    topic: str
    action: str
    state: str
    changed: int
    skipped: int
    more: bool
    dry_run: bool = False
    warnings: list[str] = []


class LeasePage(msgspec.Struct):
    leases: list[Lease]
    in_flight: int = 0
    next_cursor: str | None = None


# One job or many, as claimed or by their seqs.
Jobs = Job | int | Iterable[Job | int]


def held(jobs: Jobs) -> tuple[list[int], list[str] | None]:
    """Seqs, and the leases if all of them are known: with leases, jobs that another worker holds by now are skipped."""
    given: Sequence[Job | int] = [jobs] if isinstance(jobs, Job | int) else list(jobs)
    seqs = [job if isinstance(job, int) else job.seq for job in given]
    leases = [job.lease_id for job in given if isinstance(job, Job)]
    return seqs, leases if len(leases) == len(seqs) and leases else None
