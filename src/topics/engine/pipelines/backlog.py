"""What a pipeline has not read yet: the heads of its topics against the positions that its runner has reported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from topics.engine.log.topic import Topic
    from topics.model.requests.pipelines import Position


class Input(NamedTuple):
    """One topic: up to which seq it is read, how many records are left, and when the first of them was appended."""

    topic: str
    seq: int
    head_seq: int
    lag: int
    oldest_unread_ts: int | None


class Backlog(NamedTuple):
    lag: int
    oldest_unread_ts: int | None
    inputs: list[Input]


def backlog_of(topics: Mapping[str, Topic], positions: Mapping[str, Position]) -> Backlog:
    """As of now, whatever its runner does; topics that do not exist have nothing to read."""
    inputs = [_input(topics[name], position) for name, position in positions.items() if name in topics]
    oldest = min((each.oldest_unread_ts for each in inputs if each.oldest_unread_ts is not None), default=None)
    return Backlog(sum(each.lag for each in inputs), oldest, inputs)


def _input(topic: Topic, position: Position) -> Input:
    read_seq = position.seq if position.epoch in (0, topic.epoch) else 0
    # What retention has dropped cannot be read any more.
    read_seq = max(read_seq, topic.earliest_seq - 1)
    lag = max(0, topic.head_seq - read_seq)
    return Input(topic.name, read_seq, topic.head_seq, lag, _ts_after(topic, read_seq) if lag else None)


def _ts_after(topic: Topic, seq: int) -> int | None:
    """The time of the first record after a seq; in a block that is only on disk, an estimate."""
    index = topic.block_after(seq)
    if index >= len(topic.blocks):
        return None
    block = topic.blocks[index]
    number = min(block.number_after(seq), block.count - 1)
    if block.body is not None:
        return block.body.ts_at(number)
    return block.first_ts + (block.last_ts - block.first_ts) * number // max(1, block.count - 1)
