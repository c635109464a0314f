"""Dead letters on their way home: chosen by tag, moved back in one step for each queue, spread over time if asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from topics.engine import moving
from topics.engine.block import Block
from topics.engine.deletion import find_seqs
from topics.engine.due import Place
from topics.engine.staged import Busy, Staged, settled
from topics.model.config import DELAY_MS_MAX
from topics.model.errors import DamagedData, TopicNotFound, TopicsError
from topics.model.wishes import RecordWish, RedriveWish, TagMatch, check_u64, parse_match

if TYPE_CHECKING:
    from topics.engine.due import Job
    from topics.engine.engine import Engine
    from topics.engine.queues import Queues
    from topics.engine.topic import Topic

LIMIT_DEFAULT, LIMIT_MAX = 1_000, 10_000
SCAN_RECORDS_MAX = 50_000


class Letter(NamedTuple):
    seq: int
    home: str
    record: RecordWish


class Driven(NamedTuple):
    """How many went (or would go) home, to which queues; how many could not; whether there may be more."""

    moved: int
    homes: dict[str, int]
    skipped: int
    more: bool


class Redriver:
    def __init__(self, engine: Engine, queues: Queues) -> None:
        self._engine = engine
        self._queues = queues
        # One at a time for each topic: until a move is published its records still look as if they were there.
        self._running: dict[int, Staged] = {}

    def redrive(self, name: str, wish: RedriveWish, may_touch: Callable[[str], bool]) -> Staged:
        """Send dead letters back to the queues they came from. `result` is a Driven. May raise ColdMiss."""
        match = None if wish.match is None else parse_match(wish.match)
        limit = min(LIMIT_MAX, check_u64(wish.limit, "limit") or LIMIT_DEFAULT)
        rate = check_u64(wish.rate_per_s, "rate_per_s")
        topic = self._engine.find(name)
        if topic is None:
            raise TopicNotFound(name)
        if topic.id in self._running:
            raise Busy(self._running[topic.id])
        if topic.queue is not None:
            self._queues.bring_up(topic, topic.queue)
        by_home, skipped, more = self._choose(topic, match, limit, may_touch)
        homes = {home: len(letters) for home, letters in by_home.items()}
        if wish.dry_run or not by_home:
            return settled(topic.id, Driven(sum(homes.values()), homes, skipped, more))
        self._engine.pipeline.check_writable()
        return self._send(topic, by_home, skipped, rate, more=more)

    def _choose(
        self, topic: Topic, match: TagMatch | None, limit: int, may_touch: Callable[[str], bool]
    ) -> tuple[dict[str, list[Letter]], int, bool]:
        by_home: dict[str, list[Letter]] = {}
        found = skipped = scanned = 0
        for block, number in self._candidates(topic, match):
            if found == limit or scanned == SCAN_RECORDS_MAX:
                return by_home, skipped, True
            scanned += 1
            if number is None:
                skipped += block.live
                continue
            record = moving.record_of(block, number)
            home = moving.home_of(record)
            queue = self._engine.state.by_name.get(home) if home is not None else None
            if home is None or queue is None or queue.queue is None or queue is topic or not may_touch(home):
                skipped += 1
                continue
            moving.unstamp(record)
            by_home.setdefault(home, []).append(Letter(block.seq_at(number), home, record))
            found += 1
        return by_home, skipped, False

    def _candidates(self, topic: Topic, match: TagMatch | None) -> Iterator[tuple[Block, int | None]]:
        """Live records that nobody holds, and whose tag matches; None: the whole block is damaged."""
        jobs = topic.queue.jobs if topic.queue is not None else {}
        for block in topic.blocks:
            if match is not None and not block.may_hold(match):
                continue
            try:
                self._engine.state.cold.load(block)
            except DamagedData:
                yield block, None
                continue
            assert block.body is not None
            wanted = None if match is None else set(block.body.find(match))
            for first, stop in block.alive_runs(0, block.count):
                for number in range(first, stop):
                    if (wanted is None or number in wanted) and _is_free(jobs.get(block.seq_at(number))):
                        yield block, number

    def _send(self, topic: Topic, by_home: dict[str, list[Letter]], skipped: int, rate: int, *, more: bool) -> Staged:
        sent = Staged(None, topic.id, gated=False)
        pending: list[Staged] = []
        homes: dict[str, int] = {}
        refusal: TopicsError | Busy | None = None
        for home, letters in by_home.items():
            try:
                pending.append(self._move(topic, home, letters, rate))
                homes[home] = len(letters)
            except (TopicsError, Busy) as error:
                refusal = error
                skipped += len(letters)
        if not pending and refusal is not None:
            raise refusal
        sent.result = Driven(sum(homes.values()), homes, skipped, more)
        self._running[topic.id] = sent
        sent.then(lambda _: self._running.pop(topic.id, None))
        left = len(pending)

        def done(one: Staged) -> None:
            nonlocal left
            left -= 1
            sent.fsync_ms = max(sent.fsync_ms, one.fsync_ms)
            sent.error = sent.error or one.error
            if not left:
                sent.finish(sent.error)

        for one in pending:
            one.then(done)
        return sent

    def _move(self, topic: Topic, home: str, letters: list[Letter], rate: int) -> Staged:
        if rate:
            for number, letter in enumerate(letters):
                letter.record.delay_ms = min(DELAY_MS_MAX, number * 1000 // rate)
        seqs = [letter.seq for letter in letters]
        runs = find_seqs(topic, seqs, self._engine.state.cold.load)
        staged = self._queues.move(topic, runs, [letter.record for letter in letters], home, dead=False)
        if topic.queue is not None:
            jobs = [topic.queue.job_for(seq) for seq in seqs]
            topic.queue.take_out(jobs)
            staged.then(lambda done: self._queues.give_back(topic, jobs) if done.error is not None else None)
        return staged


def _is_free(job: Job | None) -> bool:
    return job is None or (job.group is not None and job.group.place is not Place.LEASED)
