"""Claims and their results: jobs dealt out over all claimers, each rendered as in the reply."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from topics.engine.core.pending import PendingChange
from topics.engine.queues.due import NO_STREAM
from topics.engine.queues.queue import Queue, Taken, TakenRun
from topics.model.requests.config import TopicConfig
from topics.model.requests.records import UNSET

JITTER_STEPS = 16
# Bytes for one claimer at once: a reply as large as a request may be, or what a stream is pushed before it is checked
# again; and bytes for all claimers of a queue together.
ANSWER_BYTES_MAX = 64 * 1024 * 1024
PUSHED_BYTES_MAX = 8 * 1024 * 1024
PASS_BYTES_MAX = 256 * 1024 * 1024
# Jobs given to a stream before it is checked whether its reader keeps up.
PUSHED_PER_PASS_MAX = 64

# Where the head of a record ends; the first one in it is its own, see `diff.render_view`.
DATA = b',"data":'
_encode_string = msgspec.json.Encoder().encode


class Claim(NamedTuple):
    """The request of one claimer."""

    node: str
    wanted: int
    lease_ms: int
    stream: int = NO_STREAM


class Grant:
    """The jobs that one claimer got, rendered as in the reply, ascending by seq."""

    __slots__ = ("change", "jobs", "limited_by", "more", "seqs")

    def __init__(self) -> None:
        # Less than was requested, though not for lack of jobs; and the limit that holds them back, if it is one.
        self.more = False
        self.limited_by = ""
        self.seqs: list[int] = []
        self.jobs: list[bytes] = []
        self.change: PendingChange | None = None

    def tell_what_is_left(self, queue: Queue, claim: Claim) -> None:
        self.more = len(self.seqs) < claim.wanted and queue.ready > 0
        if self.more and queue.limits is not None:
            self.limited_by = queue.limits.limited_by


def bytes_for(claims: list[Claim]) -> int:
    """How many bytes of jobs one pass over these claimers may hand out."""
    most = sum([ANSWER_BYTES_MAX if claim.stream == NO_STREAM else PUSHED_BYTES_MAX for claim in claims])
    return min(PASS_BYTES_MAX, most)


def deal(taken: list[Taken], claims: list[Claim]) -> list[list[Taken]]:
    """Round-robin, one by one, skipping claimers that have enough."""
    if len(claims) == 1:
        return [taken]
    shares: list[list[Taken]] = [[] for _ in claims]
    hungry = list(range(len(claims)))
    at = 0
    for job in taken:
        if at >= len(hungry):
            at = 0
        number = hungry[at]
        shares[number].append(job)
        if len(shares[number]) == claims[number].wanted:
            del hungry[at]
        else:
            at += 1
    return shares


def pushed_claim(claim: Claim, held: int, config: TopicConfig) -> Claim | None:
    """The claim of a stream that holds `held` jobs; without a lease time of its own, the queue's applies."""
    free = claim.wanted - held
    if free <= 0:
        return None
    return claim._replace(wanted=min(free, PUSHED_PER_PASS_MAX), lease_ms=claim.lease_ms or config.lease_ms)


def rest_after(config: TopicConfig, deliveries: int, lease: int) -> int:
    """How long a job rests if this delivery fails and no delay is given."""
    backoff = config.retry_backoff
    if backoff is UNSET:
        return 0
    return backoff.rest_ms(deliveries, lease % JITTER_STEPS / JITTER_STEPS)


def render_jobs(share: list[Taken], lease: int, deadline: int) -> list[bytes]:
    """The records' own bytes with their leases inserted, which are numbered from `lease` on."""
    until = b'","deadline":%d' % deadline
    rendered: list[bytes] = []
    for seq, job, record, tag in share:
        ts_at = record.index(b",")
        data_at = record.index(DATA, ts_at)
        deliveries = b',"deliveries":%d' % (1 if job is None else job.deliveries + 1)
        if tag is not None:
            deliveries = _tag(tag) + deliveries
        rendered.append(
            b'{"$seq":%d,"lease_id":"lease_%x%b%b%b%b'
            % (seq, lease, until, record[ts_at:data_at], deliveries, record[data_at:])
        )
        lease += 1
    return rendered


def render_run(run: TakenRun, lease: int, deadline: int) -> list[bytes]:
    """The same for fresh jobs that are neighbours: most of them have all but seq, lease and data in common."""
    body, first, stop = run.body, run.first, run.stop
    buf, ends, tagged = body.buf, body.ends, body.tags is not None
    seq, begin = run.block.first_seq + first, body.start_of(first)
    common, job, tag = DATA, b"", b""
    common_bytes = 0
    rendered: list[bytes] = []
    for number in range(first, stop):
        at = buf.index(b",", begin)
        if not common_bytes or not buf.startswith(common, at):
            common = bytes(buf[at : buf.index(DATA, at) + len(DATA)])
            common_bytes = len(common)
            job = b'{"$seq":%%d,"lease_id":"lease_%%x","deadline":%d%b%%b,"deliveries":1,"data":%%b' % (
                deadline,
                common[: -len(DATA)].replace(b"%", b"%%"),
            )
        begin = ends[number]
        if tagged:
            own_tag = body.tag_at(number)
            tag = b"" if own_tag is None else _tag(own_tag)
        rendered.append(job % (seq, lease, tag, buf[at + common_bytes : begin - 1]))
        seq += 1
        lease += 1
    return rendered


def _tag(tag: bytes) -> bytes:
    return b',"$tag":' + _encode_string(tag.decode())
