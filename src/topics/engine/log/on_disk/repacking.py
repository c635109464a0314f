"""What a checkpoint copies although it is on disk: blocks that are mostly dead, and the live rest of such packs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from topics.engine.log.block import Block
from topics.engine.log.topic import Topic
from topics.storage.pack import Extent

Found = list[tuple[Topic, Block, Extent]]


class Copies:
    """How many bytes of old blocks one checkpoint may copy, to shrink them or to empty their packs; None: all.

    On a full disk, that is what fits. Copying frees packs, so the next checkpoint may copy more.
    """

    def __init__(self, left_bytes: int | None) -> None:
        self._left_bytes = left_bytes
        self.begun = False
        self.refused: set[Topic] = set()

    def allow(self, topic: Topic, size_bytes: int) -> bool:
        if self._left_bytes is None:
            return True
        if size_bytes > self._left_bytes:
            self.refused.add(topic)
            return False
        self._left_bytes -= size_bytes
        self.begun = True
        return True


def is_thin(block: Block) -> bool:
    return 4 * block.live < block.count


def is_being_copied(topic: Topic) -> bool:
    """A pending mark refers to records of this topic: they stay where they are until it is written."""
    return topic.routing is not None and topic.routing.pins_blocks()


def find_thin(topics: Iterable[Topic], found: Found) -> Iterator[None]:
    """Blocks that lost most of their records while they were only on disk, grouped by pack.

    Packs that take little copying to empty come first.
    """
    for topic in topics:
        for block in list(topic.lasting_blocks()):
            if block.body is None and block.extent is not None and is_thin(block):
                found.append((topic, block, block.extent))
        yield
    alive: Counter[int] = Counter()
    for _, block, extent in found:
        alive[extent.pack] += block.live_bytes
    found.sort(key=lambda entry: alive[entry[2].pack])


def find_in(packs: set[int], topics: Iterable[Topic], found: Found) -> Iterator[None]:
    """Blocks that are in one of these packs."""
    for topic in topics:
        for block in topic.blocks:
            extent = block.extent
            if extent is not None and extent.pack in packs:
                found.append((topic, block, extent))
        yield
