"""Jobs that end: what the queue keeps of them goes into the op that ends them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import UNSET

from topics.engine.queues.part import results_of
from topics.engine.queues.results.ended import EndedJob, EndState
from topics.engine.queues.results.ops import Ended
from topics.model.errors import BatchTooLarge, InvalidRequest, RecordTooLarge
from topics.model.requests.config import GATED
from topics.model.requests.jobs import ACK_RESULTS_BYTES_MAX, PROGRESS_BYTES_MAX, RESULT_BYTES_MAX

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.core.ops import Deleted
    from topics.engine.core.pending import PendingChange
    from topics.engine.log.topic import Topic
    from topics.engine.queues.due import Job
    from topics.model.clock import Clock
    from topics.model.requests.records import AckRequest, ExtendRequest

NO_RESULTS: Final = MappingProxyType[int, bytes]({})


class Endings:
    def __init__(self, engine: Engine, clock: Clock) -> None:
        self._engine = engine
        self._clock = clock

    def submit(
        self,
        topic: Topic,
        op: Deleted,
        jobs: Iterable[Job],
        state: EndState,
        results: Mapping[int, bytes] = NO_RESULTS,
    ) -> PendingChange:
        """Delete the records of jobs, which end like this; in the log, that and what is kept of them are one op."""
        commit_log, durability = self._engine.commit_log, topic.config.durability
        kept = results_of(topic)
        ended = self.ended(topic, jobs, state, results)
        if not ended and (kept is None or not kept.groups.counting):
            return commit_log.submit_delete(op, durability)
        wrapped = Ended(state, ended, op)
        journaled = topic.lasts(op.runs[0].from_seq)
        body = wrapped.encode() if journaled else b""
        return commit_log.submit(wrapped, body, gated=durability in GATED, urgent=True, journaled=journaled)

    def ended(
        self,
        topic: Topic,
        jobs: Iterable[Job],
        state: EndState,
        results: Mapping[int, bytes] = NO_RESULTS,
        reason: str = "",
    ) -> bytes:
        """What the queue keeps of these jobs, back to back; nothing unless it is configured to."""
        if topic.config.keep_results_ms is UNSET:
            return b""
        kept, wall_ms = results_of(topic), self._engine.steady.wall_ms
        now_ms = topic.now(self._clock.now_ms())
        return b"".join(
            [
                EndedJob(
                    job.seq,
                    state,
                    _appended_ts(topic, job.seq),
                    wall_ms(job.claimed_ms) if job.claimed_ms else 0,
                    now_ms,
                    job.deliveries,
                    job.node,
                    reason or job.error,
                    kept.progress.get(job.seq, b"") if kept is not None else b"",
                    results.get(job.seq, b""),
                ).encode()
                for job in jobs
            ]
        )


def _appended_ts(topic: Topic, seq: int) -> int:
    block = topic.blocks[topic.block_after(seq - 1)]
    return block.first_ts if block.body is None else block.body.ts_at(block.number_after(seq - 1))


def results_in(request: AckRequest) -> Mapping[int, bytes]:
    """The results that an ack carries, by seq, exactly as they were sent."""
    results = request.results
    if request.result is not UNSET:
        if results is not None or len(request.seqs) != 1:
            raise InvalidRequest("result is for an ack of one job; use results, one for each of seqs", field="result")
        results = [request.result]
    if results is None:
        return NO_RESULTS
    if len(results) != len(request.seqs):
        raise InvalidRequest("results must hold one result for each of seqs, null for none", field="results")
    given = {seq: bytes(result) for seq, result in zip(request.seqs, results, strict=True)}
    for result in given.values():
        _check_size(result, "result", RESULT_BYTES_MAX)
    size = sum(map(len, given.values()))
    if size > ACK_RESULTS_BYTES_MAX:
        most = ACK_RESULTS_BYTES_MAX
        raise BatchTooLarge(f"results hold {size} bytes; at most {most} fit one call", field="results", max=most)
    return {seq: result for seq, result in given.items() if result != b"null"}


def progress_in(request: ExtendRequest) -> bytes:
    """The progress that an extend carries; empty: none."""
    if request.progress is UNSET:
        return b""
    progress = bytes(request.progress)
    _check_size(progress, "progress", PROGRESS_BYTES_MAX)
    return b"" if progress == b"null" else progress


def _check_size(value: bytes, field: str, bytes_max: int) -> None:
    if len(value) > bytes_max:
        raise RecordTooLarge(
            f"{field} has {len(value)} bytes; at most {bytes_max} are allowed", field=field, max=bytes_max
        )
