"""What a topic loses on purpose: caps, expiry, the floor, and the tombstones that report it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from topics.engine.log.block import Block
from topics.engine.log.on_disk.cold import ColdMiss
from topics.model.errors import DamagedData, TopicFull
from topics.model.requests.config import TopicConfig

if TYPE_CHECKING:
    from topics.engine.log.topic import Topic

LOSSES_MAX = 32
Release = Callable[[Block], None]
Load = Callable[[Block], None]


class Loss(NamedTuple):
    """Records from … to were lost, not deleted: `lost` of them, for this reason."""

    from_seq: int
    to_seq: int
    lost: int
    reason: str


class Hole(NamedTuple):
    """Seqs that can no longer be read although older ones can: `lost` of them were records."""

    from_seq: int
    to_seq: int
    reason: str
    lost: int

    def within(self, from_seq: int, to_seq: int) -> Hole:
        """A part of this hole, with its share of the loss."""
        seqs = to_seq - from_seq + 1
        return Hole(from_seq, to_seq, self.reason, -(-self.lost * seqs // (self.to_seq - self.from_seq + 1)))


class Tombstone(NamedTuple):
    gap_from: int
    gap_to: int
    reason: str
    missed_estimate: int
    earliest_seq: int
    head_seq: int

    def as_dict(self) -> dict[str, Any]:
        return self._asdict()


def enforce_caps(topic: Topic, release: Release, load: Load) -> tuple[int, int]:
    """Drop the oldest records beyond the caps; how many were dropped, and their bytes.

    A cut by bytes ends at a record that the body determines; if the body is not in memory, the average size is used.
    """
    config = topic.config
    before = topic.count, topic.bytes
    if config.cap_records:
        while topic.count > config.cap_records:
            over = topic.count - config.cap_records
            block = topic.blocks[0]
            if block.live > over:
                _load_if_possible(block, load)
            _evict(topic, block.count if block.live <= over else block.nth_alive(over), "cap", release)
    if config.cap_bytes:
        while topic.bytes > config.cap_bytes:
            over = topic.bytes - config.cap_bytes
            block = topic.blocks[0]
            if block.live_bytes > over:
                _load_if_possible(block, load)
            _evict(topic, block.count if block.live_bytes <= over else block.cut_for_bytes(over), "cap", release)
    return before[0] - topic.count, before[1] - topic.bytes


def _load_if_possible(block: Block, load: Load) -> None:
    with suppress(ColdMiss, DamagedData):
        load(block)


def expire(topic: Topic, now_ms: int, release: Release, load: Load | None) -> tuple[int, int]:
    """Drop records older than the TTL; how many were dropped, and their bytes.

    A block that expires only in part needs its body. If that is only on disk it is loaded, or left for later if the
    caller passes no `load`.
    """
    horizon = now_ms - topic.config.ttl_ms
    before = topic.count, topic.bytes
    while topic.blocks and topic.blocks[0].last_ts < horizon:
        _evict(topic, topic.blocks[0].count, "ttl", release)
    if topic.blocks and topic.blocks[0].first_ts < horizon:
        block = topic.blocks[0]
        if block.body is None and load is not None:
            load(block)
        if block.body is not None:
            keep = block.body.first_at_or_after(horizon)
            if keep > block.start:
                _evict(topic, keep, "ttl", release)
    return before[0] - topic.count, before[1] - topic.bytes


def refuse_above(config: TopicConfig, count: int, size: int, name: str) -> None:
    """A `reject` topic accepts a batch only if it fits."""
    for cap, wanted, unit in ((config.cap_records, count, "records"), (config.cap_bytes, size, "bytes")):
        if cap and wanted > cap:
            raise TopicFull(
                f'topic "{name}" may hold {cap} {unit} and would hold {wanted}; delete some or raise cap_{unit}',
                topic=name,
                limit=f"cap_{unit}",
                max=cap,
            )


def freed_by_caps(topic: Topic, count: int, size: int) -> int:
    """Bytes that the caps would drop if `count` records of `size` bytes were appended."""
    config = topic.config
    if config.discard == "reject":
        return 0
    freed = 0
    over = topic.count + topic.pending_count + count - config.cap_records if config.cap_records else 0
    for block in topic.blocks:
        if over <= 0:
            break
        whole = block.live <= over
        freed += block.live_bytes if whole else block.live_bytes * over // block.live
        over -= block.live
    if config.cap_bytes:
        freed = max(freed, topic.bytes + topic.pending_bytes + size - config.cap_bytes)
    return freed


def lost_under(topic: Topic, config: TopicConfig, now_ms: int, load: Load) -> int:
    """Records that the topic would lose with this configuration: beyond the caps, or older than the TTL.

    Each rule drops the oldest, so the one that drops most decides. Whole blocks are counted, and the last one is read
    unless it is damaged.
    """
    lost = max(0, topic.count - config.cap_records) if config.cap_records else 0
    if config.cap_bytes:
        over, gone = topic.bytes - config.cap_bytes, 0
        for block in topic.blocks:
            if over <= 0:
                break
            if block.live_bytes > over:
                with suppress(DamagedData):
                    load(block)
                gone += block.alive_before(block.cut_for_bytes(over))
                break
            gone, over = gone + block.live, over - block.live_bytes
        lost = max(lost, gone)
    if config.ttl_ms:
        horizon, gone = now_ms - config.ttl_ms, 0
        for block in topic.blocks:
            if block.last_ts >= horizon:
                if block.first_ts < horizon:
                    with suppress(DamagedData):
                        load(block)
                if block.first_ts < horizon and block.body is not None:
                    gone += block.alive_before(block.body.first_at_or_after(horizon))
                break
            gone += block.live
        lost = max(lost, gone)
    return lost


def _evict(topic: Topic, stop: int, reason: str, release: Release) -> None:
    """Lose the records before number `stop` of the first block."""
    block = topic.blocks[0]
    first_seq = block.earliest_seq()
    last_seq = block.seq_at(stop - 1) if stop < block.count else block.last_seq
    topic.dying(block, 0, stop)
    died, size = block.kill(0, stop)
    topic.count -= died
    topic.bytes -= size
    note_loss(topic, last_seq, died, reason, first_seq)
    if not block.live:
        release(topic.remove_block(0))


def note_loss(topic: Topic, to_seq: int, lost: int, reason: str, first_seq: int = 0) -> None:
    """Raise the floor above `to_seq` and remember the reason; nothing was lost below `first_seq`."""
    from_seq = max(topic.evict_floor, first_seq)
    if to_seq < from_seq:
        return
    seqs = to_seq - from_seq + 1
    topic.evict_floor = to_seq + 1
    if topic.holes:
        topic.holes = [hole for hole in topic.holes if hole[1] > to_seq]
    losses = topic.losses
    if (
        losses
        and losses[-1].reason == reason
        and losses[-1].to_seq == from_seq - 1
        and _is_like(losses[-1], seqs, lost)
    ):
        last = losses.pop()
        from_seq, lost = last.from_seq, last.lost + lost
    losses.append(Loss(from_seq, to_seq, lost, reason))
    if len(losses) > LOSSES_MAX:
        first, second = losses[0], losses[1]
        losses[:2] = [Loss(first.from_seq, second.to_seq, first.lost + second.lost, "mixed")]


def note_hole(topic: Topic, from_seq: int, to_seq: int, lost: int, reason: str = "lost") -> None:
    """Seqs lost by accident: part of the floor if no older record is left, a hole of their own otherwise."""
    if not topic.blocks or topic.blocks[0].first_seq > to_seq:
        note_loss(topic, to_seq, lost, reason)
        return
    whole = Hole(from_seq, to_seq, reason, lost)
    if topic.holes:
        # An `ephemeral` topic reports losses at its head repeatedly: they make one hole.
        last = topic.holes[-1]
        if last.to_seq == from_seq - 1 and last.reason == reason and _is_like(last, to_seq - from_seq + 1, lost):
            topic.holes[-1] = Hole(last.from_seq, to_seq, reason, last.lost + lost)
            return
    # Existing holes are kept; two that overlap would hide each other's ends.
    holes = list(topic.holes)
    for hole in topic.holes:
        if hole.from_seq > from_seq:
            holes.append(whole.within(from_seq, min(to_seq, hole.from_seq - 1)))
        from_seq = max(from_seq, hole.to_seq + 1)
        if from_seq > to_seq:
            break
    if from_seq <= to_seq:
        holes.append(whole.within(from_seq, to_seq))
    topic.holes = sorted(holes)


def _is_like(before: Loss | Hole, seqs: int, lost: int) -> bool:
    """Whether the next range is as dense: all seqs were records, or hardly any. One figure for both would be wrong."""
    return (before.lost == before.to_seq - before.from_seq + 1) == (lost == seqs)


def tombstone(topic: Topic, from_seq: int) -> Tombstone | None:
    """The loss that must be reported to a reader at this cursor before it continues."""
    earliest, head = topic.earliest_seq, topic.head_seq
    if from_seq > head:
        return Tombstone(1, head, "recreated", head, earliest, head)
    if from_seq + 1 >= topic.evict_floor:
        for hole in topic.holes:
            if hole.from_seq <= from_seq + 1 <= hole.to_seq:
                rest = hole.within(from_seq + 1, hole.to_seq)
                return Tombstone(from_seq + 1, hole.to_seq, hole.reason, rest.lost, earliest, head)
        return None
    missed = 0
    reasons: set[str] = set()
    for loss in topic.losses:
        overlap = loss.to_seq - max(loss.from_seq, from_seq + 1) + 1
        if overlap > 0:
            reasons.add(loss.reason)
            missed += -(-loss.lost * overlap // (loss.to_seq - loss.from_seq + 1))
    reason = reasons.pop() if len(reasons) == 1 else "mixed"
    return Tombstone(from_seq + 1, earliest - 1, reason, missed, earliest, head)
