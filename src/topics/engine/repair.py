"""The way out of damage: what cannot be read is given up, and every reader is told by a tombstone."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from topics.engine.block import Block
from topics.engine.body import Body
from topics.engine.retention import note_hole
from topics.engine.state import State
from topics.engine.topic import Topic
from topics.model.errors import DamagedData
from topics.storage.pack import Extent, Packs


def damaged_blocks(
    state: State, packs: Packs, on_read: Callable[[int], None] = lambda _: None
) -> list[tuple[Topic, Block, str]]:
    """Every block whose bytes on disk are missing or fail their checksum, with what is wrong.

    `on_read` is told of the bytes of each block that was looked at; `packed_bytes` is what they add up to.
    """
    found: list[tuple[Topic, Block, str]] = []
    for topic, block, extent in _packed(state):
        try:
            Body.decode(packs.read(extent), block.first_seq)
        except (DamagedData, OSError) as error:
            found.append((topic, block, str(error)))
        on_read(extent.length)
    return found


def packed_bytes(state: State) -> int:
    return sum(extent.length for _, _, extent in _packed(state))


def _packed(state: State) -> Iterator[tuple[Topic, Block, Extent]]:
    for topic in state.by_id.values():
        for block in topic.blocks:
            if block.extent is not None and block.packed == block.count:
                yield topic, block, block.extent


def drop_damaged(state: State, packs: Packs) -> list[str]:
    """Turn damaged blocks into holes; what was given up, a line each."""
    given_up: list[str] = []
    for topic, block, reason in damaged_blocks(state, packs):
        topic.dying(block, 0, block.count)
        state.count -= block.live
        state.bytes -= block.live_bytes
        topic.count -= block.live
        topic.bytes -= block.live_bytes
        state.release(topic.remove_block(topic.blocks.index(block)))
        state.dirty.add(topic)
        note_hole(topic, block.first_seq, block.last_seq, block.live)
        given_up.append(f"topic {topic.name}: seqs {block.first_seq} to {block.last_seq}: {reason}")
    return given_up
