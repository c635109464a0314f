"""The limits of a queue: how many of its jobs may be handed out now, which limit holds back the others, until when.

Those of the whole queue are two numbers, decided here; those of tags are in `tag_limits.py`. All of it is derived from
the configuration and from the jobs in flight, except for buckets: after a restart they are full.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import UNSET, UnsetType

from topics.engine.queues.due import NEVER_MS
from topics.engine.queues.limits.rate import Rate
from topics.engine.queues.limits.tag_limits import Search, TagLimits
from topics.engine.queues.queue import DOOMED_PER_TAKE_MAX
from topics.model.requests.config import has_limits

if TYPE_CHECKING:
    from topics.engine.log.topic import Topic
    from topics.engine.queues.due import DueGroup, Job
    from topics.engine.queues.queue import Load, Queue, Taken
    from topics.model.requests.config import TopicConfig


class Limits:
    __slots__ = ("_full_ms", "_in_flight_max", "_queue", "_rate", "limited_by", "next_ms", "tags")

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._in_flight_max: int | None = None
        self._rate: Rate | None = None
        # when the bucket is full
        self._full_ms = 0.0
        self.tags = TagLimits(queue)
        # After a claim: the limit that held jobs back, and when a rate allows another.
        self.limited_by = ""
        self.next_ms = NEVER_MS

    def configure(self, config: TopicConfig, now_ms: int) -> None:
        self._in_flight_max = _or_none(config.max_in_flight)
        self._rate = _rate(config.rate_per_s, config.burst)
        if self._rate is not None:
            self._full_ms = self._rate.bounded(self._full_ms, now_ms)
        tag_rate = _rate(config.rate_per_s_per_tag, config.burst_per_tag)
        self.tags.configure(_or_none(config.max_in_flight_per_tag), tag_rate, now_ms)
        self.next_ms = NEVER_MS

    @property
    def are_off(self) -> bool:
        return self._in_flight_max is None and self._rate is None and not self.tags.in_use

    def room(self, wanted: int, now_ms: int) -> int:
        """How many of these jobs the limits of the whole queue allow."""
        self.limited_by = ""
        if self._in_flight_max is not None:
            left = max(0, self._in_flight_max - self._queue.in_flight)
            if left < wanted:
                wanted, self.limited_by = left, "max_in_flight"
        if self._rate is not None:
            left = self._rate.room(self._full_ms, now_ms)
            if left < wanted:
                wanted, self.limited_by = left, "rate_per_s"
        return wanted

    def take(
        self,
        topic: Topic,
        wanted: int,
        bytes_max: int,
        deliveries_max: int,
        load: Load,
        now_ms: int,
        taken: list[Taken],
        doomed: list[Job],
    ) -> None:
        """Under the limits of tags, too. May raise ColdMiss or a read error at any point."""
        search = Search(topic, wanted, bytes_max, load, now_ms, taken, doomed)
        search.deliveries_max, search.doomed_max = deliveries_max, DOOMED_PER_TAKE_MAX
        self.tags.take(search)

    def spend(self, jobs: int, room: int, now_ms: int) -> None:
        """So many are handed out, of as many as there was room for."""
        if self._rate is not None:
            if jobs:
                self._full_ms = self._rate.after(self._full_ms, now_ms, jobs)
            if self.limited_by == "rate_per_s":
                self.next_ms = min(self.next_ms, self._rate.due_ms(self._full_ms))
        if jobs < room:
            self.limited_by = self.tags.limited_by() if self.tags.met_all else ""
        self.next_ms = min(self.next_ms, self.tags.next_ms)

    def now_limited_by(self, now_ms: int) -> str:
        """The limit that holds back ready jobs, as far as that is known without a claim."""
        queue = self._queue
        if not queue.ready:
            return ""
        if self._in_flight_max is not None and queue.in_flight >= self._in_flight_max:
            return "max_in_flight"
        if self._rate is not None and not self._rate.room(self._full_ms, now_ms):
            return "rate_per_s"
        return self.tags.limited_by() if self.tags.waiting == queue.ready else ""

    # --- notified by the queue ---

    def let_go(self, seq: int) -> None:
        """The job is ready again, or gone."""
        self.tags.let_go(seq)

    def returned(self, group: DueGroup) -> None:
        """The jobs of a group are ready again."""
        self.tags.returned(group)

    def advance(self, now_ms: int) -> None:
        """A rate allows another job: the next claim finds it."""
        if now_ms >= self.next_ms:
            self.next_ms = NEVER_MS


def limit(queue: Queue, config: TopicConfig, now_ms: int) -> None:
    """Let the queue observe this configuration, from the next claim on."""
    queue.limits_of = config
    if queue.limits is None:
        limits = Limits(queue)
        limits.configure(config, now_ms)
        if not limits.are_off:
            queue.limits = limits
        return
    queue.limits.configure(config, now_ms)
    queue.drop_limits_if_off()


def _or_none(jobs: int | UnsetType) -> int | None:
    return None if jobs is UNSET else jobs


def _rate(per_s: float | UnsetType, burst: int | UnsetType) -> Rate | None:
    return None if per_s is UNSET else Rate(per_s, _or_none(burst))


def room_by_expiry_ms(topic: Topic, now_ms: int, wall_ms: int) -> int:
    """When the oldest job of a queue with limits expires, by the clock of leases."""
    config = topic.config
    if not config.ttl_ms or not topic.blocks or not has_limits(config):
        return NEVER_MS
    block = topic.blocks[0]
    oldest_ts = block.last_ts if block.body is None else block.body.ts_at(block.start)
    return now_ms + max(1, oldest_ts + config.ttl_ms + 1 - wall_ms)
