"""Deleting by seq and by tag: which records die, decided once, block by block."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Generator, Iterable
from typing import NamedTuple

from topics.engine.log.block import Block
from topics.engine.log.body import Body
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.log.topic import Topic
from topics.model.requests.records import TagMatch

Load = Callable[[Block], None]


class Run(NamedTuple):
    """Records `from_seq … from_seq + seqs − 1` died and gave back `size` bytes."""

    from_seq: int
    seqs: int
    size: int


# What must be read from disk first, or the runs of one block.
Finding = Generator[ColdMiss | list[Run], None, None]


def find_before(topic: Topic, before_seq: int, load: Load) -> Finding:
    """Runs of all live records below `before_seq`."""
    for block in _blocks_below(topic, before_seq):
        stop = block.number_after(before_seq - 1)
        if stop == block.count:
            yield [Run(block.first_seq, block.last_seq - block.first_seq + 1, block.live_bytes)]
        elif stop > block.start:
            body = yield from _body_of(block, load)
            if body is not None:
                size = sum(body.size(first, end) for first, end in block.alive_runs(0, stop))
                yield [Run(block.first_seq, before_seq - block.first_seq, size)]


def find_tagged(topic: Topic, match: TagMatch, before_seq: int, load: Load) -> Finding:
    """Runs of the live records below `before_seq` whose tag matches."""
    for block in _blocks_below(topic, before_seq):
        if not block.may_hold(match):
            continue
        body = yield from _body_of(block, load)
        if body is not None:
            stop = block.number_after(before_seq - 1)
            dead = block.dead
            found = [
                number
                for number in body.find(match)
                if block.start <= number < stop and (dead is None or not dead[number])
            ]
            yield _runs(block, body, found)


def find_seqs(topic: Topic, seqs: list[int], load: Load) -> list[Run]:
    """Runs of these live records, given in ascending order. May raise ColdMiss."""
    runs: list[Run] = []
    at = 0
    while at < len(seqs):
        block = topic.blocks[topic.block_after(seqs[at] - 1)]
        load(block)
        assert block.body is not None
        stop = bisect_right(seqs, block.last_seq)
        here = seqs[at:stop]
        at = stop
        if block.seqs is None and here[-1] - here[0] + 1 == len(here):
            number = here[0] - block.first_seq
            runs.append(Run(here[0], len(here), block.body.size(number, number + len(here))))
        else:
            runs += _runs(block, block.body, [block.number_after(seq - 1) for seq in here])
    return runs


def _blocks_below(topic: Topic, before_seq: int) -> list[Block]:
    """A copy: while a body is fetched from disk, the topic goes on changing."""
    return [block for block in topic.blocks if block.first_seq < before_seq]


def _body_of(block: Block, load: Load) -> Generator[ColdMiss, None, Body | None]:
    """The body; None if everything in the block died while it was waited for."""
    while block.body is None and block.live:
        try:
            load(block)
        except ColdMiss as miss:
            yield miss
    return block.body


def _runs(block: Block, body: Body, numbers: Iterable[int]) -> list[Run]:
    """Neighbouring records become one run; a run never leaves its block, so its size is the block's to give back."""
    stretches: list[list[int]] = []
    for number in numbers:
        if stretches and stretches[-1][1] == number:
            stretches[-1][1] = number + 1
        else:
            stretches.append([number, number + 1])
    return [
        Run(block.seq_at(first), block.seq_at(stop - 1) - block.seq_at(first) + 1, body.size(first, stop))
        for first, stop in stretches
    ]
