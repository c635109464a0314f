"""The description of topics: the state of one, and pages of many after an opaque cursor."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from topics.engine.core.state import State
from topics.engine.log.topic import Topic
from topics.model.cursors import AfterName, page_cursor, place_of
from topics.model.requests.config import TopicConfig

PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX = 100, 1000
AUTO_PRIORITY_MAX = 500
AUTO_PRIORITY_HALVES_AFTER_MS = 60_000


@dataclass(frozen=True, slots=True)
class QueueState:
    """Jobs of a queue by state."""

    ready: int
    in_flight: int
    dead_lettered: int
    delayed: int
    paused: bool
    # jobs that are in the dead-letter topic now, and why the last one that should be there is not
    dead: int
    dead_letter_error: str | None
    # claims and work streams that wait for jobs now, and when jobs were last asked for since the start
    claimers: int
    last_claim_ts: int | None
    # ready jobs that limits of their tags hold back, as far as claims have met them; the limit that holds back all
    held_back: int
    limited_by: str | None


@dataclass(frozen=True, slots=True)
class TopicState:
    """The state of one topic."""

    topic: str
    type: str
    epoch: int
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int
    last_write_ts: int | None
    last_read_ts: int | None
    queue: QueueState | None = None

    @property
    def next_seq(self) -> int:
        return self.head_seq + 1


class Page(NamedTuple):
    topics: list[TopicState]
    next_cursor: str | None


def describe(topic: Topic, state: State, now_ms: int, steady_ms: int) -> TopicState:
    described = (feature.describe(topic, steady_ms) for feature in state.features)
    return TopicState(
        topic=topic.name,
        type=topic.config.type,
        epoch=topic.epoch,
        head_seq=topic.head_seq,
        earliest_seq=topic.earliest_seq,
        count=topic.count,
        bytes=topic.bytes,
        config=topic.config,
        effective_priority=effective_priority(topic, now_ms),
        last_write_ts=topic.last_write_ts,
        last_read_ts=topic.last_read_ts,
        queue=next((lines for lines in described if lines is not None), None),
    )


def effective_priority(topic: Topic, now_ms: int) -> int:
    """The configured priority, or one that halves with every minute since the last read."""
    config = topic.config
    if config.priority is not None:
        return config.priority
    if not config.auto_priority or topic.last_read_ts is None:
        return 0
    idle_ms = max(0, now_ms - topic.last_read_ts)
    return int(AUTO_PRIORITY_MAX * 0.5 ** (idle_ms / AUTO_PRIORITY_HALVES_AFTER_MS))


T = TypeVar("T")


def page_of(
    names: Sequence[str],
    prefix: str,
    cursor: str | None,
    page_size: int,
    find: Callable[[str], T],
    wanted: Callable[[T], bool],
    scanned_max: int | None = None,
) -> tuple[list[T], str | None]:
    """The requested number of names after the cursor in a sorted list, and the cursor of the next page.

    Fewer, with a cursor, if the search ends after `scanned_max` names.
    """
    page_size = max(1, min(PAGE_SIZE_MAX, page_size))
    start = place_of(cursor, AfterName).after if cursor is not None else ""
    index = max(bisect_right(names, start), bisect_left(names, prefix))
    page: list[T] = []
    last = ""
    stop = len(names) if scanned_max is None else index + scanned_max
    while index < len(names) and names[index].startswith(prefix):
        if index >= stop:
            return page, page_cursor(AfterName(names[index - 1]))
        found = find(names[index])
        if wanted(found):
            if len(page) == page_size:
                return page, page_cursor(AfterName(last))
            page.append(found)
            last = names[index]
        index += 1
    return page, None
