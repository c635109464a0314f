"""A topic as its server would serve it at some moment: without what its caps and its TTL drop."""

from __future__ import annotations

from topics.engine.core.checkpoints.image import block_image, decode_blocks
from topics.engine.log.block import Block
from topics.engine.log.retention import Load, enforce_caps, expire
from topics.engine.log.topic import Topic
from topics.storage.pack import Extent

_NOWHERE = Extent(0, 0, 0)


def as_served(topic: Topic, now_ms: int, load: Load) -> Topic:
    """Another topic if something is dropped. The first one stays as the log has it, because the log may go on."""
    config = topic.config
    over = topic.count - config.cap_records if config.cap_records else 0
    over_bytes = topic.bytes - config.cap_bytes if config.cap_bytes else 0
    horizon = now_ms - config.ttl_ms if config.ttl_ms else 0
    if not topic.blocks or (over <= 0 and over_bytes <= 0 and topic.blocks[0].first_ts >= horizon):
        return topic
    served = Topic(topic.id, topic.name, topic.epoch, config, topic.ceiling)
    served.head_seq, served.count, served.bytes = topic.head_seq, topic.count, topic.bytes
    served.evict_floor, served.losses, served.holes = topic.evict_floor, list(topic.losses), list(topic.holes)
    served.blocks = list(topic.blocks)
    for number, block in enumerate(topic.blocks):
        # One more than has to go: a cut by bytes may go on where it only knows the average size.
        served.blocks[number] = _copy_of(block)
        if over <= 0 and over_bytes <= 0 and block.first_ts >= horizon:
            break
        over -= block.live
        over_bytes -= block.live_bytes
    enforce_caps(served, _keep, load)
    if config.ttl_ms:
        expire(served, now_ms, _keep, load)
    return served


def _copy_of(block: Block) -> Block:
    """Another block with the same body."""
    (copy,) = decode_blocks(block_image(block, {block: block.extent or _NOWHERE}))
    copy.extent, copy.body = block.extent, block.body
    return copy


def _keep(block: Block) -> None:
    """A block that leaves the topic stays on disk."""
