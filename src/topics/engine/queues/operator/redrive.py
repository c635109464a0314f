"""Redrive: dead letters chosen by tag and moved back in one step for each queue, spread over time if requested."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from topics.engine.core.pending import Busy, PendingChange, settled
from topics.engine.core.waiting.runner import Steps, attempt, published
from topics.engine.log.block import Block
from topics.engine.log.deletion import find_seqs
from topics.engine.queues import transfers as moving
from topics.engine.queues.due import JobPlace
from topics.engine.queues.part import queue_of
from topics.model.errors import DamagedData, TopicNotFound, TopicsError
from topics.model.requests.config import DELAY_MS_MAX
from topics.model.requests.records import RecordRequest, RedriveRequest, TagMatch, check_u64, parse_match

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.log.topic import Topic
    from topics.engine.queues.due import JobStanding
    from topics.engine.queues.verbs import Queues

LIMIT_DEFAULT, LIMIT_MAX = 1_000, 10_000
# Dead letters that move back in one step, so that no step takes long.
PIECE_MAX = 250
SCAN_RECORDS_MAX = 50_000
# Dead letters that are checked for each one that may move.
SCANNED_PER_MOVED = 5
# Blocks that are searched in one step, also if nothing in them matches.
BLOCKS_PER_STEP = 4
# In place of the number of a record: the block has no more.
PASSED = -1


class DeadLetter(NamedTuple):
    seq: int
    home: str
    record: RecordRequest


class Driven(NamedTuple):
    """How many moved (or would move) back, to which queues; how many could not; whether there may be more.

    For a piece: the last dead letter that was checked if there are more, how many were checked, and whether the whole
    request is done.
    """

    moved: int
    homes: dict[str, int]
    skipped: int
    more: bool
    last_seq: int = 0
    scanned: int = 0
    done: bool = True

    def then(self, later: Driven) -> Driven:
        """Two pieces of one redrive as one."""
        homes = dict(self.homes)
        for home, moved in later.homes.items():
            homes[home] = homes.get(home, 0) + moved
        moved, skipped, scanned = self.moved + later.moved, self.skipped + later.skipped, self.scanned + later.scanned
        return later._replace(moved=moved, homes=homes, skipped=skipped, scanned=scanned)


NOTHING = Driven(0, {}, 0, more=True, done=False)


class Redriver:
    def __init__(self, engine: Engine, queues: Queues) -> None:
        self._engine = engine
        self._queues = queues
        self._in_flight = engine.in_flight

    def redrive(
        self,
        name: str,
        request: RedriveRequest,
        may_touch: Callable[[str], bool],
        before: Driven = NOTHING,
        piece_max: int = LIMIT_MAX,
        only: frozenset[int] | None = None,
        to: str | None = None,
    ) -> PendingChange:
        """Move dead letters back to the queues they came from, or `to` another. `result` is a Driven.

        May raise ColdMiss.

        At most `piece_max` move at once, `only` those with these seqs if some are given: unless the result is `done`,
        call again with it as `before`.
        """
        match = None if request.match is None else parse_match(request.match)
        limit = min(LIMIT_MAX, check_u64(request.limit, "limit") or LIMIT_DEFAULT)
        rate = check_u64(request.rate_per_s, "rate_per_s")
        topic = self._engine.find(name)
        if topic is None:
            raise TopicNotFound(name)
        # One at a time for each topic: until a move is published, its records still look present.
        self._in_flight.check(("redrive", topic.id))
        queue = queue_of(topic)
        if queue is not None:
            self._queues.bring_up(topic, queue)
        piece = min(limit - before.moved, piece_max)
        scan_max = min(SCAN_RECORDS_MAX - before.scanned, SCANNED_PER_MOVED * piece_max)
        by_home, found = self._choose(topic, match, piece, scan_max, may_touch, before.last_seq, only, to)
        if before.moved + found.moved == limit or before.scanned + found.scanned == SCAN_RECORDS_MAX:
            found = found._replace(done=True)
        if request.dry_run or not by_home:
            return settled(topic.id, before.then(found))
        self._engine.commit_log.check_writable()
        return self._send(topic, by_home, before, found, rate)

    def redrive_all(
        self,
        name: str,
        request: RedriveRequest,
        may_touch: Callable[[str], bool],
        on_change: Callable[[], None] | None = None,
        only: frozenset[int] | None = None,
        to: str | None = None,
    ) -> Steps[Driven]:
        """Piece by piece, with other work in between; `on_change` is called when some are moved and more will be."""
        driven = NOTHING
        while True:
            next_piece = partial(self.redrive, name, request, may_touch, driven, PIECE_MAX, only, to)
            try:
                change = yield from attempt(next_piece)
                yield from published(change)
            except TopicsError:
                if not driven.moved:
                    raise
                # Some are moved already: return these; the next call will meet the same error.
                return driven
            driven = change.result
            if driven.done:
                return driven
            if on_change is not None and driven.moved:
                on_change()
            yield None

    def _choose(
        self,
        topic: Topic,
        match: TagMatch | None,
        limit: int,
        scan_max: int,
        may_touch: Callable[[str], bool],
        after_seq: int,
        only: frozenset[int] | None,
        to: str | None,
    ) -> tuple[dict[str, list[DeadLetter]], Driven]:
        """Dead letters by destination, and the totals."""
        by_home: dict[str, list[DeadLetter]] = {}
        found = skipped = scanned = passed = last_seq = 0
        more = False
        for block, number in self._candidates(topic, match, after_seq, only):
            if number == PASSED:
                last_seq = block.last_seq
                passed += 1
                if passed == BLOCKS_PER_STEP:
                    more = block is not topic.blocks[-1]
                    break
                continue
            if found == limit or scanned == scan_max:
                more = True
                break
            scanned += 1
            last_seq = block.last_seq if number is None else block.seq_at(number)
            if number is None:
                skipped += block.live
                continue
            record = moving.record_of(block, number)
            home = to or moving.home_of(record)
            queue = self._engine.state.by_name.get(home) if home is not None else None
            if home is None or queue is None or queue_of(queue) is None or queue is topic or not may_touch(home):
                skipped += 1
                continue
            moving.unstamp(record)
            by_home.setdefault(home, []).append(DeadLetter(last_seq, home, record))
            found += 1
        homes = {home: len(letters) for home, letters in by_home.items()}
        return by_home, Driven(found, homes, skipped, more, last_seq, scanned, done=not more)

    def _candidates(
        self, topic: Topic, match: TagMatch | None, after_seq: int, only: frozenset[int] | None
    ) -> Iterator[tuple[Block, int | None]]:
        """Live records after a seq that are not leased, and whose tag matches.

        None: the whole block is damaged. PASSED: the search has come to the end of a block.
        """
        queue = queue_of(topic)
        jobs = queue.jobs if queue is not None else {}
        seqs = sorted(only or ())
        for block in topic.blocks[topic.block_after(after_seq) :]:
            if match is not None and not block.may_hold(match):
                continue
            if only is not None:
                at = bisect_left(seqs, block.first_seq)
                if at == len(seqs) or seqs[at] > block.last_seq:
                    continue
            try:
                self._engine.state.cold.load(block)
            except DamagedData:
                yield block, None
                continue
            assert block.body is not None
            wanted = None if match is None else set(block.body.find(match))
            for first, stop in block.alive_runs(block.number_after(after_seq), block.count):
                for number in range(first, stop):
                    seq = block.seq_at(number)
                    if only is not None and seq not in only:
                        continue
                    if (wanted is None or number in wanted) and _is_free(jobs.get(seq)):
                        yield block, number
            yield block, PASSED

    def _send(
        self, topic: Topic, by_home: dict[str, list[DeadLetter]], before: Driven, found: Driven, rate: int
    ) -> PendingChange:
        sent = PendingChange(None, topic.id, gated=False)
        pending: list[PendingChange] = []
        homes: dict[str, int] = {}
        refusal: TopicsError | Busy | None = None
        skipped = found.skipped
        for home, letters in by_home.items():
            try:
                pending.append(self._move(topic, home, letters, rate, before.homes.get(home, 0)))
                homes[home] = len(letters)
            except (TopicsError, Busy) as error:
                refusal = error
                skipped += len(letters)
        if not pending and refusal is not None:
            raise refusal
        sent.result = before.then(found._replace(moved=sum(homes.values()), homes=homes, skipped=skipped))
        self._in_flight.hold(sent, ("redrive", topic.id))
        left = len(pending)

        def done(one: PendingChange) -> None:
            nonlocal left
            left -= 1
            sent.fsync_ms = max(sent.fsync_ms, one.fsync_ms)
            sent.error = sent.error or one.error
            if not left:
                sent.finish(sent.error)

        for one in pending:
            one.then(done)
        # They change the same topic, so the last one is done last.
        pending[-1].decides(sent)
        return sent

    def _move(self, topic: Topic, home: str, letters: list[DeadLetter], rate: int, moved: int) -> PendingChange:
        if rate:
            for number, letter in enumerate(letters, moved):
                letter.record.delay_ms = min(DELAY_MS_MAX, number * 1000 // rate)
        seqs = [letter.seq for letter in letters]
        runs = find_seqs(topic, seqs, self._engine.state.cold.load)
        change = self._queues.move(topic, runs, [letter.record for letter in letters], home, dead=False)
        queue = queue_of(topic)
        if queue is not None:
            jobs = [queue.job_for(seq) for seq in seqs]
            queue.take_out(jobs)
            change.then(lambda done: self._queues.give_back(topic, jobs) if done.error is not None else None)
        return change


def _is_free(job: JobStanding | None) -> bool:
    return job is None or (job.group is not None and job.group.place is not JobPlace.LEASED)
