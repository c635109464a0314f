"""Routers of one topic: the one into it, those out of it, which of its records are copies, and their hops."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from topics.engine.log.part import TopicPart

if TYPE_CHECKING:
    from topics.engine.log.block import Block
    from topics.engine.log.copying import Origin
    from topics.engine.log.topic import Topic
    from topics.engine.routers.router import Evidence, Hops, Router
    from topics.model.requests.batch import Batch


# A mark comes soon after the op that took its records away: a standby keeps this many blocks for such marks.
LEFT_BLOCKS_MAX = 64


class RoutingPart(TopicPart):
    __slots__ = ("_moved", "evidence", "hops", "inbound", "left_blocks", "outbound", "replaying")

    def __init__(self, moved: dict[Topic, None], *, replaying: bool) -> None:
        # Collects sources that have new records.
        self._moved = moved
        self.inbound: Router | None = None
        self.outbound: list[Router] = []
        self.evidence: dict[Origin, Evidence] = {}
        self.hops: Hops | None = None
        # Blocks that the topic has dropped while a router may still have to copy from them; None: no router will.
        self.left_blocks: list[Block] | None = None
        # Copies are cut from its blocks when their marks are read: a standby goes on with that after a checkpoint.
        self.replaying = replaying

    def appended(self, topic: Topic, batch: Batch) -> None:
        if self.outbound:
            self._moved[topic] = None

    def grown(self, topic: Topic, records: int) -> None:
        if self.outbound:
            self._moved[topic] = None

    def removed(self, block: Block) -> None:
        if self.left_blocks is not None:
            self.left_blocks.append(block)

    def kept_blocks(self) -> Sequence[Block]:
        return self.left_blocks or ()

    def captured(self) -> None:
        if self.replaying and self.left_blocks is not None:
            del self.left_blocks[:-LEFT_BLOCKS_MAX]
        else:
            self.left_blocks = None

    def pins_blocks(self) -> bool:
        return any(router.inflight is not None for router in self.outbound)


def routing_of(topic: Topic) -> RoutingPart | None:
    part = topic.routing
    return part if isinstance(part, RoutingPart) else None


def inbound_of(topic: Topic) -> Router | None:
    """The router into this topic."""
    part = topic.routing
    return part.inbound if isinstance(part, RoutingPart) else None


def routers_of(topic: Topic) -> list[Router]:
    """The routers that go with the topic when it is dropped."""
    inbound = inbound_of(topic)
    return [*outbound_of(topic), *([inbound] if inbound is not None else [])]


def outbound_of(topic: Topic) -> list[Router]:
    """The routers out of this topic."""
    part = topic.routing
    return part.outbound if isinstance(part, RoutingPart) else []
