"""What a feature hangs on a topic: one part each, which learns what happens to the topic's records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic
    from topics.model.requests.batch import Batch


class TopicPart:
    """Changed only by folds, like its topic. What a feature has no use for does nothing."""

    __slots__ = ()

    def appended(self, topic: Topic, batch: Batch) -> None:
        """A batch became part of the topic."""

    def grown(self, topic: Topic, records: int) -> None:
        """Whole blocks became part of the topic, with so many records."""

    def dying(self, block: Block, start: int, stop: int) -> None:
        """The live records start … stop − 1 of a block are about to die."""

    def removed(self, block: Block) -> None:
        """The block is out of the topic."""

    def kept_blocks(self) -> Sequence[Block]:
        """Blocks that are out of the topic, and which a snapshot must have all the same."""
        return ()

    def captured(self) -> None:
        """The running checkpoint has the topic and this part."""

    def pins_blocks(self) -> bool:
        """Whether a change on its way names records of this topic by where they are."""
        return False
