"""The part of a feature in a topic: one part each, which is notified of what happens to the topic's records."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic
    from topics.model.requests.batch import Batch


@mypyc_attr(allow_interpreted_subclasses=True)
class TopicPart:
    """Changed only by folds, like its topic. The default of each method does nothing."""

    __slots__ = ()

    def appended(self, topic: Topic, batch: Batch) -> None:
        """A batch was added to the topic."""

    def grown(self, topic: Topic, records: int) -> None:
        """Whole blocks with `records` records were added to the topic."""

    def dying(self, block: Block, start: int, stop: int) -> None:
        """The live records start … stop − 1 of a block are about to die."""

    def removed(self, block: Block) -> None:
        """The block has left the topic."""

    def kept_blocks(self) -> Sequence[Block]:
        """Blocks that have left the topic but must still be in a snapshot."""
        return ()

    def captured(self) -> None:
        """The running checkpoint has captured the topic and this part."""

    def pins_blocks(self) -> bool:
        """Whether a pending change refers to records of this topic by their position."""
        return False
