"""One consume request, from its start to its reply: its partitions, how they share the limit, and its waiting.

look ─▶ something? ─▶ hand_out: claim, reply
  ▲         └─ nothing ─▶ wait: an append, a reset, another consumer's claim that expires, or time is up ─┐
  └───────────────────────────────────────────────────────────────────────────────────────────────────────┘
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from topics.engine.core.pending import PendingChange
from topics.engine.core.waiting.runner import Runner, Steps, attempt, published
from topics.engine.groups.verbs import Consuming, Portion
from topics.engine.log.topic import Topic
from topics.model.errors import TopicNotFound
from topics.model.requests.groups import (
    ConsumeRequest,
    check_group,
    check_id,
    check_short,
    clamp_limit,
    parse_start,
    wait_ms,
    wants_all,
)

BATCH_BYTES_MAX = 8 * 1024 * 1024

PartitionStart = tuple[int, Topic, int]


class ConsumedBatch(NamedTuple):
    """What a consumer gets: records by partition, the next seq of each, and the claims that must be logged."""

    portions: list[tuple[int, Portion]]
    next_offsets: list[tuple[int, int]]
    has_more: bool
    claims: list[PendingChange]


class Reading:
    """Where reading starts is decided when the request arrives, however often it has to look."""

    __slots__ = ("_start", "every", "group_id", "limit", "member", "partitions", "topic_id", "wait_ms")

    def __init__(self, request: ConsumeRequest, user: str = "") -> None:
        self.topic_id = check_id(request.topic_id, "topic_id")
        self.group_id = check_group(request.group_id) if request.group_id is not None else None
        self.member = check_short(request.member, "member") if request.member else user
        self.every = wants_all(request.partition_id, request.all_partitions)
        self._start = parse_start(request.start)
        self.limit = clamp_limit(request.limit)
        self.wait_ms = wait_ms(request.timeout_seconds)
        self.partitions: list[PartitionStart] = []

    def begin(self, consuming: Consuming, partitions: list[tuple[int, Topic]]) -> list[PendingChange]:
        """Decide where reading starts; returns what must be in the log before the first look. May raise Busy."""
        if self.every:
            # None always sorts first.
            turn = consuming.next_turn() % len(partitions)
            partitions = partitions[turn:] + partitions[:turn]
        group_id, start = self.group_id, self._start
        self.partitions = [(number, topic, consuming.start_seq(topic, group_id, start)) for number, topic in partitions]
        if group_id is None:
            return []
        # Records appended from here on belong to the group, even if it reads them only later.
        steps = [consuming.fix_latest(topic, group_id, start) for _, topic in partitions]
        return [step for step in steps if step is not None]

    def take(self, consuming: Consuming, *, may_be_empty: bool) -> ConsumedBatch | None:
        """Look, and claim what is found; None if there is nothing and time to wait. May raise Busy."""
        portions = self.look(consuming)
        if not may_be_empty and not any(portion.count for portion in portions):
            return None
        return self.hand_out(consuming, portions)

    def look(self, consuming: Consuming) -> list[Portion]:
        """The records of each partition, cut so that together they keep to the limit."""
        bytes_max = BATCH_BYTES_MAX // len(self.partitions)
        portions: list[Portion] = []
        for _, topic, start_seq in self.partitions:
            if consuming.topic(topic.name) is not topic:
                raise TopicNotFound(topic.name)
            portions.append(consuming.look(topic, self.group_id, start_seq, self.limit, bytes_max))
        if len(portions) > 1:
            share(portions, self.limit)
        return portions

    def hand_out(self, consuming: Consuming, portions: list[Portion]) -> ConsumedBatch:
        """Claim for a group the records that were just found."""
        numbered = [(number, portion) for (number, _, _), portion in zip(self.partitions, portions, strict=True)]
        total = sum(portion.count for portion in portions)
        consuming.count_read(total)
        claims: list[PendingChange | None] = []
        if self.group_id is not None:
            claims = [consuming.claim(portion, self.group_id, self.member) for portion in portions]
        return ConsumedBatch(
            [(number, portion) for number, portion in numbered if portion.count],
            sorted((number, portion.next_seq - 1) for number, portion in numbered),
            total >= self.limit or any(portion.cut for portion in portions),
            [change for change in claims if change is not None],
        )

    def next_expiry_ms(self, consuming: Consuming) -> int | None:
        """In how many milliseconds another consumer's claim expires, if that is before the time is up."""
        if self.group_id is None:
            return None
        times = [consuming.next_expiry_ms(topic, self.group_id) for _, topic, _ in self.partitions]
        soonest = min((time for time in times if time is not None), default=None)
        return soonest if soonest is not None and soonest <= self.wait_ms else None


def consume(
    consuming: Consuming, runner: Runner, reading: Reading, find: Callable[[], list[tuple[int, Topic]]]
) -> Steps[ConsumedBatch]:
    """The next batch, or an empty one when the time is up. Its claims are submitted, but perhaps not published yet."""
    for change in (yield from attempt(lambda: reading.begin(consuming, find()))):
        yield from published(change)
    batch = yield from attempt(lambda: reading.take(consuming, may_be_empty=not reading.wait_ms))
    if batch is not None:
        return batch
    news = runner.news([topic for _, topic, _ in reading.partitions], reading.wait_ms)
    try:
        while batch is None:
            news.look_again_in(reading.next_expiry_ms(consuming))
            yield news
            batch = yield from attempt(lambda: reading.take(consuming, may_be_empty=news.expired))
        return batch
    finally:
        news.close()


def share(portions: list[Portion], limit: int) -> None:
    """Divide the limit: what a partition does not need goes to those with more records."""
    left = limit
    by_count = sorted(portions, key=_count)
    for number, portion in enumerate(by_count):
        fair = -(-left // (len(by_count) - number))
        portion.keep(min(portion.count, fair))
        left -= portion.count


def _count(portion: Portion) -> int:
    return portion.count
