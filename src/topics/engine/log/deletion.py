"""Deleting by seq and by tag: which records die, decided once, block by block."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Generator, Sequence
from typing import NamedTuple

from topics.engine.log.block import Block
from topics.engine.log.body import Body
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.log.topic import Topic
from topics.model.requests.records import TagMatch

Load = Callable[[Block], None]


class Run(NamedTuple):
    """Records `from_seq … from_seq + seqs − 1` died and freed `size` bytes."""

    from_seq: int
    seqs: int
    size: int


# A body that must be read from disk first, or some runs of one block, perhaps none. After each item the topic may have
# changed: a rewritten block numbers its records differently. Only seqs are remembered.
Finding = Generator[ColdMiss | list[Run], None, None]
# How many records of a block are looked up at once.
RECORDS_PER_STEP = 250


def find_before(topic: Topic, before_seq: int, load: Load) -> Finding:
    """Runs of all live records below `before_seq`."""
    for block in _blocks_below(topic, before_seq):
        stop = block.number_after(before_seq - 1)
        if stop == block.count:
            yield [Run(block.first_seq, block.last_seq - block.first_seq + 1, block.live_bytes)]
        elif stop > block.start:
            body = yield from _body_of(block, load)
            if body is not None:
                stop = block.number_after(before_seq - 1)
                size = sum(body.size(first, end) for first, end in block.alive_runs(0, stop))
                yield [Run(block.first_seq, before_seq - block.first_seq, size)]


def find_tagged(topic: Topic, match: TagMatch, before_seq: int, load: Load) -> Finding:
    """Runs of the live records below `before_seq` whose tag matches."""
    for block in _blocks_below(topic, before_seq):
        body = (yield from _body_of(block, load)) if block.may_hold(match) else None
        if body is not None:
            seqs = _tagged_seqs(block, body, match, before_seq)
            yield _runs_among(block, body, seqs[:RECORDS_PER_STEP])
            for at in range(RECORDS_PER_STEP, len(seqs), RECORDS_PER_STEP):
                body = yield from _body_of(block, load)
                if body is None:
                    break
                yield _runs_among(block, body, seqs[at : at + RECORDS_PER_STEP])
        else:
            yield []


def _tagged_seqs(block: Block, body: Body, match: TagMatch, before_seq: int) -> Sequence[int]:
    """The live records below `before_seq` that match."""
    numbers = body.find(match)
    numbers = numbers[bisect_left(numbers, block.start) : bisect_left(numbers, block.number_after(before_seq - 1))]
    dead = block.dead
    if dead is not None:
        numbers = [number for number in numbers if not dead[number]]
    return array("Q", map(block.seq_at, numbers))


def _runs_among(block: Block, body: Body, seqs: Sequence[int]) -> list[Run]:
    """Runs of those of these records that are still alive; all of them were in this block once."""
    if not seqs or not block.live:
        return []
    if block.seqs is None:
        first_seq = block.first_seq
        numbers = [seq - first_seq for seq in seqs]
    else:
        places = ((seq, block.number_after(seq - 1)) for seq in seqs)
        numbers = [number for seq, number in places if number < block.count and block.seq_at(number) == seq]
    start, dead = block.start, block.dead
    return _runs(block, body, [number for number in numbers if number >= start and (dead is None or not dead[number])])


def count(topic: Topic, match: TagMatch | None, before_seq: int, load: Load) -> Generator[ColdMiss | int, None, None]:
    """How many live records below `before_seq` have a matching tag, block by block."""
    for block in _blocks_below(topic, before_seq):
        stop = block.number_after(before_seq - 1)
        if match is None:
            yield sum(end - first for first, end in block.alive_runs(block.start, stop))
        elif block.may_hold(match):
            body = yield from _body_of(block, load)
            dead = block.dead
            if body is not None:
                found = (number for number in body.find(match) if block.start <= number < stop)
                yield sum(dead is None or not dead[number] for number in found)


def find_seqs(topic: Topic, seqs: list[int], load: Load) -> list[Run]:
    """Runs of these live records, given in ascending order. May raise ColdMiss."""
    runs: list[Run] = []
    at, count = 0, len(seqs)
    while at < count:
        block = topic.blocks[topic.block_after(seqs[at] - 1)]
        load(block)
        assert block.body is not None
        stop = count if seqs[-1] <= block.last_seq else bisect_right(seqs, block.last_seq)
        here = seqs[at:stop]
        at = stop
        if block.seqs is None and here[-1] - here[0] + 1 == len(here):
            number = here[0] - block.first_seq
            runs.append(Run(here[0], len(here), block.body.size(number, number + len(here))))
        else:
            first_seq = block.first_seq
            numbers = (
                [seq - first_seq for seq in here]
                if block.seqs is None
                else [block.number_after(seq - 1) for seq in here]
            )
            runs += _runs(block, block.body, numbers)
    return runs


def _blocks_below(topic: Topic, before_seq: int) -> list[Block]:
    """A copy, because the topic keeps changing while a body is fetched from disk."""
    return [block for block in topic.blocks if block.first_seq < before_seq]


def _body_of(block: Block, load: Load) -> Generator[ColdMiss, None, Body | None]:
    """The body; None if everything in the block died during the wait."""
    while block.body is None and block.live:
        try:
            load(block)
            break
        except ColdMiss as error:
            miss = error
        yield miss
    return block.body


def _runs(block: Block, body: Body, numbers: Sequence[int]) -> list[Run]:
    """Neighbouring records become one run; a run stays within its block, which knows its size in bytes."""
    runs: list[Run] = []
    at, count, ends = 0, len(numbers), body.ends
    while at < count:
        first = numbers[at]
        stop = first + 1
        at += 1
        while at < count and numbers[at] == stop:
            stop += 1
            at += 1
        from_seq = block.seq_at(first)
        if stop == first + 1:
            runs.append(Run(from_seq, 1, ends[first] - (ends[first - 1] if first else 0)))
            continue
        runs.append(Run(from_seq, block.seq_at(stop - 1) - from_seq + 1, body.size(first, stop)))
    return runs
