"""One topic's state: its blocks, head, counts, and what its readers and writers need."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import TYPE_CHECKING

from topics.engine.log.block import Block
from topics.engine.log.idempotency import KeyTable, Written
from topics.engine.log.retention import Hole, Loss
from topics.model.requests.config import TopicConfig

if TYPE_CHECKING:
    from topics.engine.log.part import TopicPart
    from topics.engine.log.waiters import Waiter

# An epoch is a time in ms, ten random bits, and whether the name was used before.
EPOCH_TIME_SHIFT = 11
SEQ_CHUNK = 65_536
# The prefix of the hidden topics that hold records that are staged, or prepared for a commit.
STAGING = "!txn-"
_last_seq = attrgetter("last_seq")


class Topic:
    """Changed only by `apply`, except for fields marked as decided before that."""

    __slots__ = (
        "blocks",
        "bytes",
        "captured",
        "ceiling",
        "chunk",
        "clock_ms",
        "config",
        "content",
        "count",
        "counted",
        "epoch",
        "evict_floor",
        "groups",
        "head_seq",
        "holes",
        "id",
        "into",
        "keys",
        "last_read_ts",
        "last_write_ts",
        "lasting_to",
        "logged_floor",
        "losses",
        "name",
        "noted_from",
        "noted_to",
        "pending_bytes",
        "pending_count",
        "pending_seqs",
        "queue",
        "reserved_ms",
        "routing",
        "segment",
        "segment_bytes",
        "segment_events",
        "segment_ts",
        "tail",
        "volatile_to",
        "waiters",
    )

    def __init__(self, topic_id: int, name: str, epoch: int, config: TopicConfig, ceiling: int) -> None:
        self.id = topic_id
        self.name = name
        self.epoch = epoch
        self.config = config
        self.counted = not name.startswith(STAGING)  # a staged record is not counted
        # records
        self.blocks: list[Block] = []
        self.tail: Block | None = None
        self.head_seq = 0
        self.count = 0
        self.bytes = 0
        self.evict_floor = 1
        # The floor as recorded in the log or a snapshot.
        self.logged_floor = 1
        # While the topic is `ephemeral`: records up to here were written before that, and are durable.
        self.lasting_to = 0
        self.noted_from = self.noted_to = 0  # the seqs of an `ephemeral` topic that the log knows of
        self.losses: list[Loss] = []
        # Losses in the middle: older records can still be read.
        self.holes: list[Hole] = []
        self.keys: KeyTable | None = None
        # One part for each feature that uses this topic; only the feature's package looks into it.
        self.queue: TopicPart | None = None
        self.routing: TopicPart | None = None
        self.groups: TopicPart | None = None
        # The state built from the records of one of the server's own topics.
        self.content: TopicPart | None = None
        # the segment that new records belong to
        self.segment = 0
        self.segment_events = 0
        self.segment_bytes = 0
        self.segment_ts = 0
        # decided, not yet applied: owned by InFlight
        self.pending_seqs = 0
        self.pending_count = 0
        self.pending_bytes = 0
        self.into: Topic | None = None  # the topic that a commit moved this hidden topic's blocks to
        # seqs up to here may be assigned before their records are durable
        self.ceiling = ceiling
        self.chunk = SEQ_CHUNK
        self.reserved_ms = float("-inf")
        # time: never decreases within a topic
        self.clock_ms = 0
        self.last_write_ts: int | None = None
        self.last_read_ts: int | None = None
        # Up to this seq, log and snapshot may lack the records: they were appended to an `ephemeral` topic.
        self.volatile_to = 0
        # readers
        self.waiters: dict[Waiter, None] | None = None
        self.captured = 0  # number of the checkpoint that has captured this topic

    def __hash__(self) -> int:
        """By its id, so that sets of topics have the same order in every run: a checkpoint packs them in that order."""
        return self.id

    @property
    def recreated(self) -> bool:
        """Whether a topic of this name was deleted before. For topics created by version 0.1 it may be wrongly true."""
        return bool(self.epoch & 1)

    @property
    def created_ms(self) -> int:
        """When it was created: the upper bits of its epoch."""
        return self.epoch >> EPOCH_TIME_SHIFT

    @property
    def assigned_seq(self) -> int:
        """The highest seq that is assigned, published or not."""
        return self.head_seq + self.pending_seqs

    @property
    def earliest_seq(self) -> int:
        return self.blocks[0].earliest_seq() if self.blocks else self.head_seq + 1

    def now(self, clock_ms: int) -> int:
        """The time of the next event in this topic: the clock's, unless the clock stepped back."""
        if clock_ms > self.clock_ms:
            self.clock_ms = clock_ms
        return self.clock_ms

    def dying(self, block: Block, start: int, stop: int) -> None:
        """The live records start … stop − 1 of a block are about to die, for any reason."""
        if self.queue is not None:
            self.queue.dying(block, start, stop)

    def note_key(self, key: bytes, written: Written) -> None:
        if self.keys is None:
            self.keys = KeyTable()
        self.keys.add(key, written, self.config.idempotency_window_ms)

    def block_after(self, seq: int) -> int:
        """Index of the first block that may hold a seq greater than `seq`."""
        blocks = self.blocks
        if blocks and blocks[0].last_seq > seq:
            return 0
        return bisect_left(blocks, seq + 1, key=_last_seq)

    def live_within(self, from_seq: int, to_seq: int) -> int:
        """How many records there are from … to, both included; visits every block in between.

        Up to the head, it visits the blocks before them instead, if those are fewer.
        """
        first_block = self.block_after(from_seq - 1)
        if to_seq >= self.head_seq and 2 * first_block < len(self.blocks):
            block = self.blocks[first_block]
            before = sum([passed.live for passed in self.blocks[:first_block]])
            return self.count - before - block.alive_before(block.number_after(from_seq - 1))
        live = 0
        for index in range(first_block, len(self.blocks)):
            block = self.blocks[index]
            if block.first_seq > to_seq:
                break
            if from_seq <= block.first_seq and block.last_seq <= to_seq:
                live += block.live
            else:
                first, stop = block.number_after(from_seq - 1), block.number_after(to_seq)
                live += sum(end - begin for begin, end in block.alive_runs(first, stop))
        return live

    def last_live_within(self, from_seq: int, to_seq: int) -> int | None:
        """The last record from … to, both included."""
        for index in range(min(self.block_after(to_seq - 1), len(self.blocks) - 1), -1, -1):
            block = self.blocks[index]
            if block.last_seq < from_seq:
                break
            first, stop = block.number_after(from_seq - 1), block.number_after(to_seq)
            last = max((end for _, end in block.alive_runs(first, stop)), default=0)
            if last:
                return block.seq_at(last - 1)
        return None

    def lasts(self, seq: int) -> bool:
        """Whether the record of this seq survives the process."""
        return self.config.durability != "ephemeral" or seq <= self.lasting_to

    def lasting_blocks(self) -> list[Block]:
        if self.config.durability != "ephemeral":
            return self.blocks
        return [block for block in self.blocks if block.first_seq <= self.lasting_to]

    def remove_block(self, index: int) -> Block:
        block = self.blocks.pop(index)
        if block is self.tail:
            self.tail = None
        if self.routing is not None:
            self.routing.removed(block)
        return block

    def take_blocks_of(self, other: Topic) -> None:
        """The blocks of a hidden topic become part of this one, after its existing records."""
        self.close_tail()
        other.close_tail()
        base = self.segment + bool(self.segment_events)
        for block in other.blocks:
            block.segment += base
            block.image = None
        self.blocks += other.blocks
        self.segment = base + other.segment
        self.segment_events, self.segment_bytes = other.segment_events, other.segment_bytes
        self.segment_ts = other.segment_ts
        self.head_seq = other.head_seq
        self.count += other.count
        self.bytes += other.bytes
        self.last_write_ts = other.last_write_ts
        self.clock_ms = max(self.clock_ms, other.clock_ms)
        other.blocks = []
        other.count = other.bytes = 0
        other.into = self

    def close_tail(self) -> None:
        """The growing block gets no more records."""
        if self.tail is not None:
            self.tail.freeze()
            self.tail = None
