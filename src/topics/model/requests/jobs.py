"""Requests about many jobs of a queue at once: which ones, and what happens to them."""

from __future__ import annotations

from typing import Annotated, Final, Literal, get_args

import msgspec
from msgspec import Meta

from topics.model.errors import BatchTooLarge, InvalidRequest
from topics.model.requests.config import U64
from topics.model.requests.records import check_u64

JobState = Literal["ready", "leased", "delayed", "dead"]
JobAction = Literal["retry", "release", "extend", "bury", "redrive", "delete"]

STATES: Final = get_args(JobState)
# The states whose jobs an action applies to; the first is meant if a request names none.
STATES_OF: Final[dict[str, tuple[JobState, ...]]] = {
    "retry": ("delayed",),
    "release": ("leased",),
    "extend": ("leased",),
    "bury": ("ready", "delayed", "leased"),
    "redrive": ("dead",),
    "delete": ("ready", "delayed", "leased", "dead"),
}
# Actions that do too much to guess whose jobs are meant.
NEEDS_STATE = frozenset(("bury", "delete"))
LIMIT_DEFAULT, LIMIT_MAX = 1_000, 10_000
# Of one job: as much as a message of SQS; and of one ack.
RESULT_BYTES_MAX, ACK_RESULTS_BYTES_MAX = 256 * 1024, 1024 * 1024
PROGRESS_BYTES_MAX = 4 * 1024


class JobsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What to do with the jobs of `seqs`, with those whose tag matches, or with all of a state.

    retry: delayed jobs are ready now; release: leased ones are; extend: leases last `lease_ms` from now;
    bury: they become dead letters; redrive: dead letters come back, `rate_per_s` of them a second; delete: they go.
    """

    action: JobAction
    state: JobState | None = None
    seqs: Annotated[list[U64], Meta(extra_json_schema={"minItems": 1, "maxItems": LIMIT_MAX})] | None = None
    match: str | list[str] | None = None
    all: bool | None = False
    limit: U64 = 0
    lease_ms: U64 = 0
    rate_per_s: U64 = 0
    error: str | None = None
    dry_run: bool | None = False


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The jobs that are not wanted any more, whatever their state."""

    seqs: Annotated[list[U64], Meta(extra_json_schema={"minItems": 1, "maxItems": LIMIT_MAX})]


def check_jobs(request: JobsRequest) -> JobState:
    """The state whose jobs are meant, if the request makes sense."""
    named = (request.seqs is not None) + (request.match is not None) + bool(request.all)
    if named != 1:
        raise InvalidRequest("exactly one of seqs, match and all must say which jobs are meant", field="seqs")
    if request.seqs is not None:
        check_seqs(request.seqs)
    check_u64(request.limit, "limit")
    check_u64(request.rate_per_s, "rate_per_s")
    if request.action == "extend" and not check_u64(request.lease_ms, "lease_ms"):
        raise InvalidRequest("extend needs lease_ms, the time from now on in ms", field="lease_ms")
    allowed = STATES_OF[request.action]
    if request.state is None:
        if request.action in NEEDS_STATE:
            raise InvalidRequest(f"{request.action} needs a state: {' or '.join(allowed)}", field="state")
        return allowed[0]
    if request.state not in allowed:
        message = f"{request.action} applies to jobs that are {' or '.join(allowed)}, not {request.state}"
        raise InvalidRequest(message, field="state")
    return request.state


def check_seqs(seqs: list[int]) -> None:
    if not seqs:
        raise InvalidRequest("seqs must hold at least one seq", field="seqs")
    if len(seqs) > LIMIT_MAX:
        message = f"seqs holds {len(seqs)} seqs; at most {LIMIT_MAX} fit one call"
        raise BatchTooLarge(message, field="seqs", max=LIMIT_MAX)
    check_u64(max(seqs), "seqs")
