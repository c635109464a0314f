"""Repair: records that cannot be read are given up, one by one where possible, and reported as gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from xxhash import xxh3_64_intdigest

from topics.engine.core.op_table import Op
from topics.engine.core.state import State
from topics.engine.groups.part import groups_of
from topics.engine.log.block import Block
from topics.engine.log.on_disk.extent import Salvaged, decode_body, salvage
from topics.engine.log.retention import note_hole
from topics.engine.log.topic import Topic
from topics.model.errors import DamagedData
from topics.storage.pack import Extent, Packs
from topics.storage.wal.replay import LogGap

NAMES_SHOWN = 10


class Damage(NamedTuple):
    """A block that is missing or fails a checksum, the reason, and what is left of it; perhaps all its records."""

    topic: Topic
    block: Block
    reason: str
    salvaged: Salvaged | None

    def lost_runs(self) -> list[tuple[int, int]]:
        """The live records that are lost, as runs of their numbers."""
        alive = self.block.alive_runs(0, self.block.count)
        return list(alive) if self.salvaged is None else list(_hit_among(alive, self.salvaged))

    def lines(self) -> list[str]:
        """What is lost, a line for each run."""
        runs = [(self.block.seq_at(first), self.block.seq_at(stop - 1)) for first, stop in self.lost_runs()]
        return [f"topic {self.topic.name}: seqs {first} to {last}: {self.reason}" for first, last in runs]


def _hit_among(runs: Iterator[tuple[int, int]], salvaged: Salvaged) -> Iterator[tuple[int, int]]:
    for start, stop in runs:
        first = salvaged.first_hit(start)
        while first < stop:
            good = salvaged.hit.find(0, first, stop)
            end = stop if good < 0 else good
            yield first, end
            first = salvaged.first_hit(end)


# --- finding ---


def damaged_blocks(state: State, packs: Packs, on_read: Callable[[int], None] = lambda _: None) -> list[Damage]:
    """Every block with bytes on disk that are not as they were written; what is only in the bucket is not looked at.

    `on_read` is called with the bytes of each block that was checked; `packed_bytes` is their total.
    """
    found: list[Damage] = []
    directories: dict[int, dict[Extent, int] | str] = {}
    for topic, block, extent in _packed(state):
        if packs.remote(extent.pack) is not None:
            continue
        if extent.pack not in directories:
            directories[extent.pack] = _directory_of(packs, extent.pack)
        damage = _examined(topic, block, extent, packs, directories[extent.pack])
        if damage is not None:
            found.append(damage)
        on_read(extent.length)
    return found


def _directory_of(packs: Packs, number: int) -> dict[Extent, int] | str:
    try:
        return packs.checksums(number)
    except (DamagedData, OSError) as error:
        return str(error)


def _examined(
    topic: Topic, block: Block, extent: Extent, packs: Packs, directory: dict[Extent, int] | str
) -> Damage | None:
    try:
        data = packs.read(extent)
    except (DamagedData, OSError) as error:
        return Damage(topic, block, str(error), None)
    where = f"pack {extent.pack} at offset {extent.offset}"
    try:
        body = decode_body(data, block.first_seq)
    except DamagedData as error:
        return Damage(topic, block, f"{where}: {error.message}", salvage(data, block.first_seq, block.count))
    whole = Salvaged(body, bytearray(block.count))
    if isinstance(directory, str):
        return Damage(topic, block, directory, whole)
    if directory.get(extent) != xxh3_64_intdigest(data):
        return Damage(topic, block, f"{where}: the checksums of single records are damaged as well", whole)
    return None


def packed_bytes(state: State) -> int:
    return sum(extent.length for _, _, extent in _packed(state))


def _packed(state: State) -> Iterator[tuple[Topic, Block, Extent]]:
    for topic in state.by_id.values():
        for block in topic.blocks:
            if block.extent is not None and block.packed == block.count:
                yield topic, block, block.extent


# --- giving up ---


def apply_what_fits(state: State, op: Op, position: int) -> list[str]:
    """Like `apply`, for a log with gaps: an op of a topic that does not exist is skipped. What had to be given up."""
    kind = state.ops.of(op)
    if not kind.needs_topic or op.topic_id in state.by_id:
        try:
            state.apply(op, position)
        except DamagedData as error:
            assert kind.derives, "no other op reads other topics while it is folded"
            for added in kind.adds(op):
                state.lose_up_to(state.by_id[added.topic_id], added.last_seq)
            return [error.message]
    return []


def drop_damaged(state: State, packs: Packs) -> list[str]:
    """Give up damaged records; returns a line for each loss. The next checkpoint packs the remaining records."""
    given_up: list[str] = []
    for damage in damaged_blocks(state, packs):
        given_up += damage.lines()
        _drop(state, damage)
    return given_up


def _drop(state: State, damage: Damage) -> None:
    topic, block, salvaged = damage.topic, damage.block, damage.salvaged
    count_before, bytes_before = block.live, block.live_bytes
    holes: list[tuple[int, int, int]] = []
    for first, stop in damage.lost_runs():
        holes.append((block.seq_at(first), block.seq_at(stop - 1), stop - first))
        topic.dying(block, first, stop)
        block.kill(first, stop)
    if block.live:
        assert salvaged is not None
        block.body = salvaged.body
        state.shrink_block(block)
    else:
        state.release(topic.remove_block(topic.blocks.index(block)))
    died, size = count_before - block.live, bytes_before - block.live_bytes
    topic.count -= died
    topic.bytes -= size
    if topic.counted:
        state.count -= died
        state.bytes -= size
    state.dirty.add(topic)
    for hole in holes:
        note_hole(topic, *hole)


# --- messages ---


def gap_lines(gaps: list[LogGap]) -> list[str]:
    return [f"{gap.file} at offset {gap.offset}: {gap.reason}" for gap in gaps]


def may_come_back(state: State, gaps: list[LogGap]) -> list[str]:
    """What a log with these gaps can no longer show: that something was deleted, acked or changed."""
    if not gaps:
        return []
    lost = sum(gap.to_position - gap.from_position for gap in gaps)
    lines = [f"records that were deleted in the lost part of the log ({lost} bytes)"]
    if queues := [topic.name for topic in state.by_name.values() if topic.config.type == "queue"]:
        lines.append(f"jobs that were acked in it, and are delivered again: {_named('queue', queues)}")
    if groups := [name for name, topic in state.by_name.items() if groups_of(topic)]:
        lines.append(f"records whose offsets a consumer group committed in it: {_named('topic', groups)}")
    lines.append("topics and routers that were deleted in it, and configurations that were changed in it")
    return lines


def _named(noun: str, names: list[str]) -> str:
    more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
    return f"{noun}{'s' if len(names) > 1 else ''} {', '.join(sorted(names)[:NAMES_SHOWN])}{more}"
