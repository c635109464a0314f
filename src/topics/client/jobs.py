"""Jobs of queues, and what became of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import msgspec
from msgspec import Raw

_decode = msgspec.json.Decoder().decode
_decode_meta = msgspec.json.Decoder(dict[str, Any] | None).decode
_NOTHING = Raw(b"null")


class Job(msgspec.Struct, dict=True, kw_only=True):
    """A job leased to a node until `deadline` (ms since the epoch). `raw` is its payload as sent, `data` decoded."""

    seq: int = msgspec.field(name="$seq")
    ts: int = msgspec.field(name="$ts")
    lease_id: str
    deadline: int
    deliveries: int
    payload: Raw = msgspec.field(name="data")
    node: str | None = msgspec.field(name="$node", default=None)
    tag: str | None = msgspec.field(name="$tag", default=None)
    headers: Raw = msgspec.field(name="meta", default=_NOTHING)

    @property
    def raw(self) -> bytes:
        return bytes(self.payload)

    @cached_property
    def data(self) -> Any:
        return _decode(self.payload)

    @cached_property
    def meta(self) -> dict[str, Any] | None:
        return _decode_meta(self.headers)

    @property
    def raw_meta(self) -> bytes | None:
        """The headers as they were sent, or None."""
        return None if self.headers == _NOTHING else bytes(self.headers)

    def __repr__(self) -> str:
        return f"Job(seq={self.seq}, ts={self.ts}, node={self.node!r}, tag={self.tag!r}, raw={self.raw!r})"


class Claimed(msgspec.Struct, kw_only=True):
    topic: str
    claimed: list[Job]
    ready: int


class Acked(msgspec.Struct, kw_only=True):
    """`skipped` jobs were not held (any more), or had been acked before."""

    topic: str
    acked: int
    skipped: list[int]
    ready: int
    in_flight: int


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


class Redriven(msgspec.Struct, kw_only=True):
    """`to`: how many went to which queue; `skipped` ones have no queue to go home to; `more` are left."""

    topic: str
    moved: int
    to: dict[str, int]
    skipped: int
    more: bool
    dry_run: bool


class Paused(msgspec.Struct, kw_only=True):
    topic: str
    paused: bool
    ready: int
    in_flight: int


class Lease(msgspec.Struct, kw_only=True):
    """Who holds a job. `pushed`: over a work stream. `error`: what the worker before said when it gave it back."""

    seq: int = msgspec.field(name="$seq")
    node: str
    lease_id: str
    # None if that was before the server started.
    claimed_ts: int | None = None
    deadline: int
    deliveries: int
    pushed: bool = False
    error: str | None = None


class LeasePage(msgspec.Struct):
    leases: list[Lease]
    in_flight: int = 0
    next_cursor: str | None = None


# One job or many, as they were claimed or by their seqs.
Jobs = Job | int | Iterable[Job | int]


def held(jobs: Jobs) -> tuple[list[int], list[str] | None]:
    """Seqs, and the leases if all of them are known: with these, what another worker holds by now is left alone."""
    given: Sequence[Job | int] = [jobs] if isinstance(jobs, Job | int) else list(jobs)
    seqs = [job if isinstance(job, int) else job.seq for job in given]
    leases = [job.lease_id for job in given if isinstance(job, Job)]
    return seqs, leases if len(leases) == len(seqs) and leases else None
