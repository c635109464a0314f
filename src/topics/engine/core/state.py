"""The fold: all topics as a result of the published ops. Live commits and recovery go through the same `apply`."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from topics.engine.core.appended import Appended
from topics.engine.core.feature import Feature
from topics.engine.core.op_table import Op, OpTable
from topics.engine.core.ops import Configured, Created, Deleted, Dropped, Floored, KeyNoted, Reserved, Resumed, Skipped
from topics.engine.log.block import BLOCK_BYTES, Block
from topics.engine.log.body import Body
from topics.engine.log.deletion import Run
from topics.engine.log.dropped_names import DroppedNames
from topics.engine.log.idempotency import Written
from topics.engine.log.on_disk.cold import Cold
from topics.engine.log.retention import enforce_caps, expire, note_hole, note_loss
from topics.engine.log.topic import SEQ_CHUNK, Topic
from topics.model.clock import Moment
from topics.model.requests.batch import Batch
from topics.model.settings import Settings
from topics.storage.pack import Packs

NEVER = 2**64
HIDDEN = "!"
# chunk of a snapshot:  | "\0NEXT_ID" | id u64 |
NEXT_ID_CHUNK = b"\0NEXT_ID"

F = TypeVar("F", bound=Feature)


class TailRoom(NamedTuple):
    """What still fits into the growing block of a topic and its segment: records, bytes, and times below this one."""

    records: int
    bytes: int
    before_ts: int


class State:
    """Reads no clock and no other topic: the same ops give the same state."""

    def __init__(
        self, settings: Settings, packs: Packs, ops: OpTable, features: Sequence[Callable[[State], Feature]] = ()
    ) -> None:
        self.ops = ops
        self._settings = settings
        self._packs = packs
        self.cold = Cold(packs)
        # topics
        self.by_name: dict[str, Topic] = {}
        self.by_id: dict[int, Topic] = {}
        self.names: list[str] = []
        # Topics of the server's own, by name: no request can name one, because they start with HIDDEN.
        self.hidden: dict[str, Topic] = {}
        self.dropped = DroppedNames()
        self.next_id = 1
        # totals over all topics; the last one is the most that the next checkpoint would have to pack
        self.count = self.bytes = self.unpacked_bytes = 0
        # records that came in and went out since the start, whatever the way
        self.appended_total = self.read_total = 0
        # what the next checkpoint must visit
        self.dirty: set[Topic] = set()
        # Topics with a TTL.
        self.expiring: set[Topic] = set()
        # Segments that left a topic's hot window since the last checkpoint.
        self.cooling = 0
        # While a checkpoint runs, a topic is captured before an op after this position changes it.
        self.capture_from = NEVER
        self.checkpoint = 0
        self._position = 0
        self.noted: Moment | None = None  # the time of both clocks when it was last recorded in the log
        self.capture: Callable[[Topic], None] = self.dirty.add
        self.keep_chunk: Callable[[bytes], None] = lambda _chunk: None
        self.features = [make(self) for make in features]
        self._by_kind = {type(feature): feature for feature in self.features}

    def feature(self, kind: type[F]) -> F:
        feature = self._by_kind[kind]
        assert isinstance(feature, kind)
        return feature

    def apply(self, op: Op, position: int) -> Any:
        """Fold one op; the result of the fold (a delete: how many records and bytes were removed)."""
        self._position = position
        kind = self.ops.kinds[type(op)]
        topic = self.by_id.get(op.topic_id)
        if topic is None:
            if kind.needs_topic and op.topic_id < self.next_id:
                # Version 0.1 could write one after the drop of its topic.
                return None
        else:
            self.touch(topic)
        found = kind.fold(self, op)
        if position > self.capture_from:
            made = self.by_id.get(op.topic_id)
            if made is not None and made is not topic:
                # Created after the checkpoint's position: not part of it.
                made.captured = self.checkpoint
        return found

    def fold_ahead(self, op: Op) -> None:
        """Fold an op when it is decided; when it is published later, it is marked as folded.

        A checkpoint need not capture its topic before: such an op gives the same state however often it is folded.
        """
        self.ops.kinds[type(op)].fold(self, op)

    def new_id(self) -> int:
        self.next_id += 1
        return self.next_id - 1

    def encode_next_id(self) -> bytes:
        """For a snapshot: the highest ids may be those of topics that are gone, and an id is not given out twice."""
        return NEXT_ID_CHUNK + self.next_id.to_bytes(8, "little")

    def restore_next_id(self, chunk: bytes) -> None:
        self.next_id = max(self.next_id, int.from_bytes(chunk[len(NEXT_ID_CHUNK) :], "little"))

    def touch(self, topic: Topic) -> None:
        """An op is about to change this topic: `apply` calls it for the op's own, a fold for every other one."""
        if self._position > self.capture_from and topic.captured != self.checkpoint:
            self.capture(topic)
        self.dirty.add(topic)

    @property
    def behind_mark(self) -> bool:
        """Whether the op that is being folded is after the position of the running checkpoint."""
        return self._position > self.capture_from

    def awaits_capture(self, topic: Topic) -> bool:
        """Whether the running checkpoint has its position, and has not captured this topic yet."""
        return self.capture_from != NEVER and topic.captured != self.checkpoint

    # --- records ---

    def append(self, op: Appended, whole_bytes: int = BLOCK_BYTES) -> None:
        """Fold a batch: an op by itself, or part of another."""
        topic = self.by_id[op.topic_id]
        batch = op.batch
        if batch.first_seq != topic.head_seq + 1:
            assert batch.first_seq > topic.head_seq, "a seq is used once"
            self.lose_up_to(topic, batch.first_seq - 1)
        if op.floor > topic.logged_floor:
            self._raise_floor(topic, op.floor)
        size = batch.size
        block = self._block_for(topic, batch, size, whole_bytes)
        self.unpacked_bytes += size
        if block is not None:
            if block.packed and block.packed == block.count and block.body is not None:
                # A growing block is packed again as a whole.
                self.unpacked_bytes += len(block.body.buf)
            block.extend(batch)
        topic.head_seq += batch.count
        topic.count += batch.count
        self.appended_total += batch.count
        topic.bytes += size
        topic.segment_events += batch.count
        topic.segment_bytes += size
        topic.last_write_ts = batch.ts
        if batch.ts > topic.clock_ms:
            topic.clock_ms = batch.ts
        if topic.counted:
            self.count += batch.count
            self.bytes += size
        if op.key:
            topic.note_key(op.key, Written(batch.ts, batch.first_seq, batch.count, op.answer))
        if topic.queue is not None:
            topic.queue.appended(topic, batch)
        if topic.routing is not None:
            topic.routing.appended(topic, batch)
        if topic.content is not None:
            topic.content.appended(topic, batch)

    def note_key(self, op: KeyNoted) -> None:
        self.by_id[op.topic_id].note_key(op.key, Written(op.ts, min(op.seqs), len(op.seqs), op.seqs))

    def splice(self, hidden: Topic, dest: Topic, first_seq: int, floor: int) -> None:
        """The blocks of a hidden topic become part of this one, as they are; the head moves once."""
        if first_seq != dest.head_seq + 1:
            assert first_seq > dest.head_seq, "a seq is used once"
            self.lose_up_to(dest, first_seq - 1)
        if floor > dest.logged_floor:
            self._raise_floor(dest, floor)
        count, size = hidden.count, hidden.bytes
        self.cooling += max(0, hidden.segment - self._settings.hot_retain_segments + 1)
        dest.take_blocks_of(hidden)
        self.count += count
        self.bytes += size
        if dest.queue is not None:
            dest.queue.grown(dest, count)
        if dest.routing is not None:
            dest.routing.grown(dest, count)
        self.remove(hidden)

    def _block_for(self, topic: Topic, batch: Batch, size: int, whole_bytes: int) -> Block | None:
        """The block that the batch goes into, or None if it became a block by itself, with `whole_bytes` or more."""
        settings = self._settings
        if topic.segment_events and (
            topic.segment_events + batch.count > settings.segment_max_events
            or topic.segment_bytes + size > settings.segment_max_bytes
            or batch.ts - topic.segment_ts >= settings.segment_max_age_ms
        ):
            topic.close_tail()
            topic.segment += 1
            self.cooling += topic.segment > settings.hot_retain_segments
            topic.segment_events = topic.segment_bytes = 0
        if not topic.segment_events:
            topic.segment_ts = batch.ts
        block = topic.tail
        if block is not None:
            assert block.body is not None
            if len(block.body.buf) + size <= BLOCK_BYTES and size < whole_bytes:
                return block
            topic.close_tail()
        if size >= whole_bytes:
            topic.blocks.append(Block.whole(batch, topic.segment))
            return None
        block = Block(batch.first_seq, batch.ts, topic.segment)
        block.body = Body()
        topic.blocks.append(block)
        topic.tail = block
        return block

    def room_in_tail(self, topic: Topic) -> TailRoom | None:
        """How much may be appended in one batch with the same effect as in several; None if no block is growing."""
        block, settings = topic.tail, self._settings
        if block is None:
            return None
        assert block.body is not None
        return TailRoom(
            settings.segment_max_events - topic.segment_events,
            min(BLOCK_BYTES - len(block.body.buf), settings.segment_max_bytes - topic.segment_bytes),
            topic.segment_ts + settings.segment_max_age_ms,
        )

    def delete(self, op: Deleted) -> tuple[int, int]:
        topic = self.by_id[op.topic_id]
        count_before, bytes_before = topic.count, topic.bytes
        block: Block | None = None
        for run in op.runs:
            block = self._kill_run(topic, run, block)
        died, size = count_before - topic.count, bytes_before - topic.bytes
        self.count -= died
        self.bytes -= size
        return died, size

    def _kill_run(self, topic: Topic, run: Run, near: Block | None) -> Block | None:
        """A run was in one block when it was decided; after a restart it may be in several.

        Most runs are in one block, and the next run is near it: that block is returned, and looked at first.
        """
        from_seq = run.from_seq
        last_seq = from_seq + run.seqs - 1
        if near is None or from_seq < near.first_seq or last_seq > near.last_seq:
            start = topic.block_after(from_seq - 1)
            if start == len(topic.blocks) or last_seq > topic.blocks[start].last_seq:
                self._kill_across(topic, start, run)
                return None
            near = topic.blocks[start]
        if near.seqs is None and from_seq >= near.first_seq:
            first, end = from_seq - near.first_seq, last_seq + 1 - near.first_seq
        else:
            first, end = near.number_after(from_seq - 1), near.number_after(last_seq)
        if topic.queue is not None:
            topic.queue.dying(near, first, end)
        died, size = near.kill(first, end, run.size)
        topic.count -= died
        topic.bytes -= size
        if near.live:
            return near
        self.release(topic.remove_block(topic.block_after(from_seq - 1)))
        return None

    def _kill_across(self, topic: Topic, start: int, run: Run) -> None:
        """Blocks with a body know how much they free; the rest of the run's size belongs to the others."""
        last_seq = run.from_seq + run.seqs - 1
        stop = start
        while stop < len(topic.blocks) and topic.blocks[stop].first_seq <= last_seq:
            stop += 1
        touched = topic.blocks[start:stop]
        left = run.size
        for block in sorted(touched, key=lambda block: block.body is None) if len(touched) > 1 else touched:
            first, end = block.number_after(run.from_seq - 1), block.number_after(last_seq)
            topic.dying(block, first, end)
            died, size = block.kill(first, end, left)
            left = max(0, left - size)
            topic.count -= died
            topic.bytes -= size
        for index in range(stop - 1, start - 1, -1):
            if not topic.blocks[index].live:
                self.release(topic.remove_block(index))

    def _raise_floor(self, topic: Topic, floor: int) -> None:
        """Everything that the log reports lost by then is lost now, too."""
        topic.logged_floor = max(topic.logged_floor, floor)
        if floor <= topic.evict_floor:
            return
        reason = "ttl" if topic.config.ttl_ms else "cap"
        lost = 0
        while topic.blocks and topic.blocks[0].first_seq < floor:
            block = topic.blocks[0]
            topic.dying(block, 0, block.number_after(floor - 1))
            died, size = block.kill(0, block.number_after(floor - 1))
            lost += died
            topic.count -= died
            topic.bytes -= size
            self.count -= died
            self.bytes -= size
            if block.live:
                break
            self.release(topic.remove_block(0))
        note_loss(topic, floor - 1, lost, reason)

    def lose_up_to(self, topic: Topic, seq: int, lost: int | None = None) -> None:
        """Seqs between the head and `seq` are an accidental hole; `lost` of them were records, or all."""
        topic.close_tail()
        note_hole(topic, topic.head_seq + 1, seq, seq - topic.head_seq if lost is None else lost)
        topic.head_seq = seq

    # --- retention: between ops, by the owner; the next op of the topic records the floor in the log ---

    def enforce_caps(self, topic: Topic, load: Callable[[Block], None]) -> None:
        config = topic.config
        if config.cap_records or config.cap_bytes:
            self._recount(topic, enforce_caps(topic, self.release, load))

    def expire(self, topic: Topic, now_ms: int, load: Callable[[Block], None] | None) -> None:
        if topic.config.ttl_ms:
            if topic.blocks and self.cold.is_remote(topic.blocks[0]):
                # Who reads that block loads it and is back here; others need not wait for the bucket.
                load = None
            self._recount(topic, expire(topic, now_ms, self.release, load))

    def _recount(self, topic: Topic, lost: tuple[int, int]) -> None:
        """Update the totals."""
        if lost[0]:
            self.count -= lost[0]
            self.bytes -= lost[1]
            self.dirty.add(topic)

    def _note_ttl(self, topic: Topic) -> None:
        if topic.config.ttl_ms:
            self.expiring.add(topic)
        else:
            self.expiring.discard(topic)

    def shrink_block(self, block: Block) -> None:
        """Rewrite a mostly dead block as a sparse one; its old position on disk is no longer needed."""
        extent = block.extent
        self.cold.forget(block)
        block.shrink()
        if extent is not None:
            self._packs.release(extent)

    def release(self, block: Block) -> None:
        """The block has left its topic: its bytes on disk may be removed after the next checkpoint."""
        self.cold.forget(block)
        block.gone = True
        if block.extent is not None:
            self._packs.release(block.extent)

    # --- topics ---

    def create(self, op: Created) -> None:
        topic = Topic(op.topic_id, op.name, op.epoch, op.config, op.ceiling)
        topic.clock_ms = op.ts
        for feature in self.features:
            feature.created(topic)
        self._vacate(topic.id)
        self.add(topic)
        self.dirty.add(topic)

    def _vacate(self, topic_id: int) -> None:
        """A hidden topic may still have the id of a new one: it goes without an op, perhaps earlier on another server.

        Snapshots did not have the next id at first, so a start could give out an id again.
        """
        former = self.by_id.get(topic_id)
        if former is not None and former.name.startswith(HIDDEN):
            self.touch(former)
            self.remove(former)

    def adopt(self, topic: Topic) -> None:
        """A topic that an op created: like `add`, and not part of a checkpoint that began before it."""
        self._vacate(topic.id)
        self.add(topic)
        if self.behind_mark:
            topic.captured = self.checkpoint

    def add(self, topic: Topic) -> None:
        self.by_id[topic.id] = topic
        if topic.name.startswith(HIDDEN):
            self.hidden[topic.name] = topic
        else:
            self.by_name[topic.name] = topic
            insort(self.names, topic.name)
        self.next_id = max(self.next_id, topic.id + 1)
        if topic.counted:
            self.count += topic.count
            self.bytes += topic.bytes
        self._note_ttl(topic)

    def configure(self, op: Configured) -> None:
        topic = self.by_id[op.topic_id]
        if op.head_seq > topic.head_seq:
            self.lose_up_to(topic, op.head_seq)
        self._raise_floor(topic, op.floor)
        if topic.config.durability == "ephemeral":
            topic.volatile_to = topic.head_seq
        elif op.config.durability == "ephemeral":
            topic.close_tail()
            topic.lasting_to = topic.head_seq
        topic.config = op.config
        topic.ceiling = max(topic.ceiling, op.ceiling)
        self._note_ttl(topic)

    def drop(self, op: Dropped) -> list[str]:
        """The names of the routers that were removed with the topic."""
        topic = self.by_id.get(op.topic_id)
        if topic is None:
            # A hidden topic that went without an op here, and was still there where the op was decided.
            self.next_id = max(self.next_id, op.topic_id + 1)
            return []
        gone = [name for feature in self.features for name in feature.dropped(topic)]
        self.dropped.add(topic.name)
        self.remove(topic)
        return gone

    def remove(self, topic: Topic) -> None:
        """The topic is removed with its records."""
        del self.by_id[topic.id]
        if topic.name.startswith(HIDDEN):
            del self.hidden[topic.name]
        else:
            del self.by_name[topic.name]
            del self.names[bisect_left(self.names, topic.name)]
        self.dirty.discard(topic)
        self.expiring.discard(topic)
        if topic.counted:
            self.count -= topic.count
            self.bytes -= topic.bytes
        while topic.blocks:
            self.release(topic.remove_block(-1))

    def reserve_seqs(self, op: Reserved) -> None:
        topic = self.by_id.get(op.topic_id)
        if topic is not None:
            topic.ceiling = max(topic.ceiling, op.ceiling)

    def floor(self, op: Floored) -> None:
        self._raise_floor(self.by_id[op.topic_id], op.floor)

    def skip(self, op: Skipped) -> None:
        self._number_on(op.topic_id, op.head_seq, op.ceiling, None)

    def resume(self, op: Resumed) -> None:
        self._number_on(op.topic_id, op.head_seq, op.ceiling, op.lost)

    def _number_on(self, topic_id: int, head_seq: int, ceiling: int, lost: int | None) -> None:
        topic = self.by_id[topic_id]
        if head_seq > topic.head_seq:
            self.lose_up_to(topic, head_seq, lost)
        topic.ceiling = max(topic.ceiling, ceiling)
        topic.chunk = SEQ_CHUNK
