"""Jobs of a queue by their state, a page at a time: found in pieces of one block or a few leases, never all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from topics.engine.core.waiting.runner import Steps, attempt
from topics.engine.queues import transfers
from topics.engine.queues.due import NO_STREAM, JobPlace, JobStanding
from topics.engine.queues.lease_log import is_live
from topics.engine.queues.part import queue_of
from topics.model.errors import DamagedData
from topics.model.requests.jobs import JobState
from topics.model.requests.records import TagMatch

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic
    from topics.engine.queues.queue import Queue
    from topics.engine.queues.verbs import Queues

# Jobs looked at for one call, and in one step of it.
SCAN_MAX = 50_000
STEP_MAX = 500
PAGE_BYTES_MAX = 1024 * 1024

_encode = msgspec.json.Encoder().encode


class JobPosition(NamedTuple):
    """Where a list continues: jobs with a deadline or a delay by that, all others by seq alone."""

    due_ms: int
    seq: int


START = JobPosition(0, 0)


class Chosen(NamedTuple):
    """Jobs of a state, and where to look on; None: there are no more."""

    found: list[JobPosition]
    after: JobPosition | None


class JobPage(NamedTuple):
    jobs: list[bytes]
    after: JobPosition | None


class JobPages:
    def __init__(self, engine: Engine, queues: Queues) -> None:
        self._engine = engine
        self._queues = queues

    # --- pages ---

    def page(
        self, name: str, state: JobState, match: TagMatch | None, after: JobPosition, page_size: int
    ) -> Steps[JobPage]:
        """Jobs as they are answered, at most `page_size` and about a MiB of them."""
        chosen = yield from self.choose(name, state, match, after, page_size)
        jobs: list[bytes] = []
        size = 0
        for at in chosen.found:
            job = yield from attempt(partial(self._render, name, state, at.seq))
            if job is not None:
                jobs.append(job)
                size += len(job)
            if size >= PAGE_BYTES_MAX and at != chosen.found[-1]:
                return JobPage(jobs, at)
        return JobPage(jobs, chosen.after)

    def choose(
        self, name: str, state: JobState, match: TagMatch | None, after: JobPosition, wanted: int
    ) -> Steps[Chosen]:
        """Up to `wanted` jobs of a state whose tag matches; with other work between the steps of the search."""
        found: list[JobPosition] = []
        scanned = 0
        while True:
            step = partial(self._step, name, state, match, after, wanted - len(found))
            piece, scanned_here = yield from attempt(step)
            found += piece.found
            scanned += scanned_here
            if piece.after is None or len(found) >= wanted or scanned >= SCAN_MAX:
                return Chosen(found, piece.after)
            after = piece.after
            yield None

    def _step(
        self, name: str, state: JobState, match: TagMatch | None, after: JobPosition, wanted: int
    ) -> tuple[Chosen, int]:
        """May raise Busy and ColdMiss; then nothing has happened."""
        topic, queue, _ = self._queues.find(name)
        if state == "dead":
            letters = self.letters_of(topic)
            return (Chosen([], None), 0) if letters is None else self._letters(letters, name, match, after, wanted)
        if state == "ready":
            return self._ready(topic, queue, match, after, wanted)
        place = JobPlace.LEASED if state == "leased" else JobPlace.RESTING
        return self._due(topic, queue.due_from(topic, place, *after), match, wanted)

    def letters_of(self, topic: Topic) -> Topic | None:
        """Where the dead letters of a queue are."""
        name = topic.config.dead_letter
        return None if name is None else self._engine.state.by_name.get(name)

    def _ready(
        self, topic: Topic, queue: Queue, match: TagMatch | None, after: JobPosition, wanted: int
    ) -> tuple[Chosen, int]:
        def is_ready(block: Block, number: int) -> bool:
            job = queue.jobs.get(block.seq_at(number))
            return job is None or (job.group is not None and job.group.place is JobPlace.READY)

        return self._block(topic, match, after.seq, wanted, is_ready)

    def _letters(
        self, letters: Topic, home: str, match: TagMatch | None, after: JobPosition, wanted: int
    ) -> tuple[Chosen, int]:
        def is_ours(block: Block, number: int) -> bool:
            return transfers.home_of(transfers.record_of(block, number)) == home

        return self._block(letters, match, after.seq, wanted, is_ours, bodies=True)

    def _block(
        self,
        topic: Topic,
        match: TagMatch | None,
        after_seq: int,
        wanted: int,
        accepts: Callable[[Block, int], bool],
        *,
        bodies: bool = False,
    ) -> tuple[Chosen, int]:
        """What one block has: its live records after a seq, as far as they match and are accepted."""
        index = topic.block_after(after_seq)
        blocks = topic.blocks
        while index < len(blocks) and (not blocks[index].live or (match and not blocks[index].may_hold(match))):
            index += 1
        if index >= len(blocks):
            return Chosen([], None), 0
        block = blocks[index]
        rest = JobPosition(0, block.last_seq) if index + 1 < len(blocks) else None
        numbers: set[int] | None = None
        if match is not None or bodies:
            try:
                self._engine.state.cold.load(block)
            except DamagedData:
                return Chosen([], rest), block.live
            assert block.body is not None
            numbers = None if match is None else set(block.body.find(match))
        found: list[JobPosition] = []
        scanned = 0
        for number in _live_numbers(block, after_seq):
            if len(found) >= wanted or scanned >= STEP_MAX:
                return Chosen(found, JobPosition(0, block.seq_at(number) - 1)), scanned
            scanned += 1
            if (numbers is None or number in numbers) and accepts(block, number):
                found.append(JobPosition(0, block.seq_at(number)))
        return Chosen(found, rest), max(scanned, 1)

    def _due(
        self, topic: Topic, jobs: Iterator[tuple[int, int, JobStanding | None]], match: TagMatch | None, wanted: int
    ) -> tuple[Chosen, int]:
        found: list[JobPosition] = []
        last, scanned = START, 0
        for due_ms, seq, job in jobs:
            if len(found) >= wanted or scanned >= STEP_MAX:
                return Chosen(found, last), scanned
            scanned += 1
            last = JobPosition(due_ms, seq)
            if job is None:
                return Chosen(found, last), scanned
            if match is None or self._tag_matches(topic, seq, match):
                found.append(last)
        return Chosen(found, None), max(scanned, 1)

    def _tag_matches(self, topic: Topic, seq: int, match: TagMatch) -> bool:
        block = topic.blocks[topic.block_after(seq - 1)]
        if not block.may_hold(match):
            return False
        self._engine.state.cold.load(block)
        assert block.body is not None
        tag = block.body.tag_at(block.number_after(seq - 1))
        return tag is not None and match(tag)

    # --- one job ---

    def is_in(self, topic: Topic, queue: Queue, state: JobState, seq: int) -> bool:
        """Whether a live record is a job of this state now."""
        if not is_live(topic, seq):
            return False
        if state == "dead":
            return True
        job = queue.jobs.get(seq)
        if job is None:
            return state == "ready"
        if job.group is None:
            return False
        places = {"ready": JobPlace.READY, "leased": JobPlace.LEASED, "delayed": JobPlace.RESTING}
        return job.group.place is places[state]

    def _render(self, name: str, state: JobState, seq: int) -> bytes | None:
        """The record's own bytes with the job's standing put in; None if it is not in this state any more."""
        topic, queue, _ = self._queues.find(name)
        home = self.letters_of(topic) if state == "dead" else topic
        if home is None or not self.is_in(home, queue, state, seq):
            return None
        block = home.blocks[home.block_after(seq - 1)]
        self._engine.state.cold.load(block)
        body = block.body
        assert body is not None
        number = block.number_after(seq - 1)
        record, tag = bytes(body.record(number)), body.tag_at(number)
        if state == "dead":
            standing: dict[str, object] = {"state": state, **transfers.stamps_of(transfers.record_of(block, number))}
        else:
            standing = {"state": state, **self._standing(seq, queue.jobs.get(seq), state)}
        ts_at = record.index(b",")
        data_at = record.index(b',"data":', ts_at)
        return b'{"$seq":%d%b%b,%b%b' % (
            seq,
            record[ts_at:data_at],
            b"" if tag is None else b',"$tag":' + _encode(tag.decode()),
            _encode(standing)[1:-1],
            record[data_at:],
        )

    def _standing(self, seq: int, job: JobStanding | None, state: JobState) -> dict[str, object]:
        if job is None:
            return {"deliveries": 0}
        wall_ms = self._engine.steady.wall_ms
        shown: dict[str, object] = {"deliveries": job.deliveries}
        if job.priority:
            shown["job_priority"] = job.priority
        if job.error:
            shown["error"] = job.error
        if state == "leased":
            shown |= {"worker": job.node, "lease_id": f"lease_{job.lease_of(seq):x}", "deadline": wall_ms(job.deadline)}
            shown["pushed"] = job.stream != NO_STREAM
            if job.claimed_ms:
                shown["claimed_ts"] = wall_ms(job.claimed_ms)
        elif state == "delayed":
            shown["due"] = wall_ms(due_ms_of(job))
        return shown


def oldest_ready_ts(topic: Topic) -> int | None:
    """About when the job that waits longest to be claimed was appended; what is on disk is not read for it."""
    queue = queue_of(topic)
    if queue is None or not queue.ready:
        return None
    seq = queue.next_released_seq()
    if seq is None or (queue.fresh and seq > queue.cursor):
        # A job with a priority may be claimed before an older one without.
        seq = queue.cursor + 1
    if queue.parked:
        seq = min(seq, queue.parked_from)
    index = topic.block_after(seq - 1)
    while index < len(topic.blocks):
        block = topic.blocks[index]
        for first, _ in block.alive_runs(block.number_after(seq - 1), block.count):
            return block.first_ts if block.body is None else block.body.ts_at(first)
        index += 1
    return None


def _live_numbers(block: Block, after_seq: int) -> Iterator[int]:
    for first, stop in block.alive_runs(block.number_after(after_seq), block.count):
        yield from range(first, stop)


def due_ms_of(job: JobStanding) -> int:
    """When it leaves its place by time alone."""
    assert job.group is not None
    return job.group.due_ms
