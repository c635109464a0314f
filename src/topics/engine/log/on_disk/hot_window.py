"""The hot window: which blocks stay in memory, and which packs may move to the cold directory."""

from __future__ import annotations

from collections.abc import Iterator

from topics.engine.log.block import Block
from topics.engine.log.topic import Topic
from topics.model.settings import Settings
from topics.storage.pack import Packs


class HotWindow:
    """Blocks that are on disk and in memory, in the order in which they were packed."""

    def __init__(self, packs: Packs, settings: Settings) -> None:
        self._packs = packs
        self._settings = settings
        self._resident: dict[Block, Topic] = {}

    def packed(self, topic: Topic, block: Block) -> None:
        if block.body is not None and not block.cold:
            self._resident.pop(block, None)
            self._resident[block] = topic

    def cool(self) -> Iterator[None]:
        """Drop the bodies older than each topic's window, then the oldest ones until the budget holds."""
        resident_bytes = 0
        for block in list(self._resident):
            topic = self._resident[block]
            topic = topic.into or topic
            if block.gone or block.body is None:
                del self._resident[block]
            elif self._may_go(block) and block.segment < topic.segment - self._settings.hot_retain_segments:
                self._let_go(topic, block)
            else:
                resident_bytes += len(block.body.buf)
            yield
        if resident_bytes <= self._settings.hot_retain_bytes:
            return
        for block in list(self._resident):
            if block.body is not None and self._may_go(block):
                resident_bytes -= len(block.body.buf)
                self._let_go(self._resident[block], block)
                if resident_bytes <= self._settings.hot_retain_bytes:
                    return
            yield

    def cold_packs(self) -> list[int]:
        """Packs without any block in memory, if there is a cold directory to move them to."""
        if self._settings.cold_dir is None:
            return []
        hot = {block.extent.pack for block in self._resident if block.extent is not None}
        return [pack for pack in self._packs.numbers() if pack not in hot and not self._packs.is_cold(pack)]

    @staticmethod
    def _may_go(block: Block) -> bool:
        return block.packed == block.count

    def _let_go(self, topic: Topic, block: Block) -> None:
        topic = topic.into or topic
        if block is topic.tail:
            topic.close_tail()
        block.body = None
        del self._resident[block]
