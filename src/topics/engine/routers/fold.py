"""Routers in the fold: created, changed, removed, and what a mark in the log adds to its destination.

A live mark has its batch. A mark read from the log has none: the copies are cut from the source's blocks again, so
these must still exist. Therefore, while the log is replayed, and between the position of a checkpoint and the capture
of a source, blocks that the source drops are kept (`left_blocks`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw

from topics.engine.core.checkpoints.image import EMPTY, NOTHING, decode_blocks
from topics.engine.core.feature import Feature
from topics.engine.core.op_table import Addition, OpKind
from topics.engine.log.block import BLOCK_BYTES, Block
from topics.engine.log.copying import Origin, Piece, cut
from topics.engine.log.retention import note_hole
from topics.engine.routers.ops import (
    FORWARDED,
    KEPT,
    NO_NODE,
    NO_TAG,
    ROUTER_DROPPED,
    ROUTER_PUT,
    STAMPED,
    VOLATILE,
    Forwarded,
    RouterDropped,
    RouterPut,
    decode_forwarded,
    decode_router_dropped,
    decode_router_put,
)
from topics.engine.routers.part import RoutingPart, inbound_of, outbound_of, routers_of, routing_of
from topics.engine.routers.router import Evidence, EvidenceImage, Router, RouterImage
from topics.model.errors import DamagedData
from topics.model.requests.batch import Batch

if TYPE_CHECKING:
    from topics.engine.core.checkpoints.image import TopicImage
    from topics.engine.core.commit_log import CommitLog
    from topics.engine.core.pending import PendingChange
    from topics.engine.core.state import State
    from topics.engine.log.topic import Topic

# How many more spans there must be before those of records that are gone are looked for again.
EVIDENCE_SPANS_PER_PRUNE = 64
_encode = msgspec.msgpack.Encoder().encode
_router_decoder = msgspec.msgpack.Decoder(RouterImage)
_evidence_decoder = msgspec.msgpack.Decoder(list[EvidenceImage])
# Copies in batches of at least this size are not copied into a growing block: all destinations share their bytes.
SHARED_BYTES = BLOCK_BYTES // 4


class Routes(Feature):
    """All routers by name."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.by_name: dict[str, Router] = {}
        self.names: list[str] = []
        # Sources that have new records for their routers.
        self.moved: dict[Topic, None] = {}
        self.replaying = True
        # The last piece cut during replay: the marks of one source's routers follow each other.
        self._last_cut: tuple[object, Piece] | None = None
        # Routers of a snapshot, until all topics are restored.
        self._images: list[tuple[Topic, RouterImage]] = []

    # --- creating and removing ---

    def put(self, op: RouterPut) -> None:
        dest, source = self._state.by_id[op.topic_id], self._state.by_id.get(op.source_id)
        if source is None:
            return  # only a repaired log can have lost it
        self._state.touch(source)
        router = self.by_name.get(op.name)
        if router is None:
            router = Router(op.name, source, dest, op.config)
            self._add(router)
        else:
            if router.dest is not dest:
                self._state.touch(router.dest)
            self._unlink(router)
            router.source, router.dest = source, dest
            router.config, router.match = op.config, op.config.match()
        if op.cursor != KEPT:
            router.cursor = op.cursor
        self._link(router)
        self._keep_what_leaves(source)
        self.moved[source] = None

    def _add(self, router: Router) -> None:
        self.by_name[router.name] = router
        insort(self.names, router.name)

    def drop(self, op: RouterDropped) -> str | None:
        router = inbound_of(self._state.by_id[op.topic_id])
        return None if router is None else self._remove(router)

    def dropped(self, topic: Topic) -> list[str]:
        """The topic goes, and every router that names it; their names."""
        return sorted(self._remove(router) for router in routers_of(topic))

    def _remove(self, router: Router) -> str:
        self._state.touch(router.dest)
        self._unlink(router)
        del self.by_name[router.name]
        del self.names[bisect_left(self.names, router.name)]
        return router.name

    def part_of(self, topic: Topic) -> RoutingPart:
        """The topic's part, created if it has none."""
        part = routing_of(topic)
        if part is None:
            part = topic.routing = RoutingPart(self.moved, replaying=self.replaying)
        return part

    def _link(self, router: Router) -> None:
        """Register the router with its source and destination."""
        self.part_of(router.dest).inbound = router
        outbound = self.part_of(router.source).outbound
        if router not in outbound:
            outbound.append(router)

    def _unlink(self, router: Router) -> None:
        dest = self.part_of(router.dest)
        if dest.inbound is router:
            dest.inbound = None
        outbound = outbound_of(router.source)
        if router in outbound:
            outbound.remove(router)

    # --- snapshots ---

    def encode(self, topic: Topic, image: TopicImage, images_of: Callable[[Iterable[Block]], bytes]) -> None:
        part = routing_of(topic)
        if part is None:
            return
        if part.inbound is not None:
            image.router = Raw(_encode(part.inbound.image()))
        image.evidence = Raw(
            _encode([EvidenceImage(origin, found.encode()) for origin, found in part.evidence.items()])
        )
        if topic.config.durability != "ephemeral":
            image.left_blocks = images_of(part.kept_blocks())

    def decode(self, topic: Topic, image: TopicImage) -> None:
        if image.router != NOTHING:
            self._images.append((topic, _router_decoder.decode(image.router)))
        if image.evidence != EMPTY:
            found = _evidence_decoder.decode(image.evidence)
            self.part_of(topic).evidence = {Origin(*one.origin): Evidence.decode(one.spans) for one in found}
        if image.left_blocks:
            self.part_of(topic).left_blocks = list(decode_blocks(image.left_blocks))

    def restored(self) -> Iterator[None]:
        images, self._images = self._images, []
        for dest, image in images:
            router = Router(image.name, self._state.by_id[image.source_id], dest, image.config)
            router.cursor, router.forwarded_total = image.cursor, image.forwarded_total
            self._add(router)
            self._link(router)
            self._keep_what_leaves(router.source)
            yield

    def _keep_what_leaves(self, source: Topic) -> None:
        part = self.part_of(source)
        if part.left_blocks is None and (self.replaying or self._state.awaits_capture(source)):
            part.left_blocks = []

    def marked(self) -> None:
        """Marks after the checkpoint's position may need blocks that a source drops before its capture."""
        for router in self.by_name.values():
            if not self.replaying:
                self.part_of(router.source).left_blocks = []

    def capture_failed(self) -> None:
        """No checkpoint needs the dropped blocks any more."""
        for topic in self._state.by_id.values():
            if topic.routing is not None:
                topic.routing.captured()

    def replayed(self) -> None:
        """The log is replayed; routers that have something to forward may start."""
        self.replaying = False
        self._last_cut = None
        for topic in self._state.by_id.values():
            part = routing_of(topic)
            if part is not None:
                part.replaying = False
        self.capture_failed()
        self.moved.clear()
        self.moved.update((router.source, None) for router in self.by_name.values() if router.lag)

    # --- copies ---

    def forwarded(self, op: Forwarded) -> None:
        dest = self._state.by_id[op.topic_id]
        if op.flags & VOLATILE and self.replaying:
            self._advance(dest, op)
            return
        if not op.derived:
            op.batch = self._derive(dest, op)
        first_seq = op.batch.first_seq
        if op.lost:
            if first_seq - op.lost > dest.head_seq + 1:
                self._state.lose_up_to(dest, first_seq - op.lost - 1)
            dest.close_tail()
            note_hole(dest, first_seq - op.lost, first_seq - 1, op.lost, "source_trim")
            dest.head_seq = first_seq - 1
        if op.batch.count:
            # Many destinations may share the bytes of one batch.
            self._state.append(op.appended, SHARED_BYTES)
            if op.flags & STAMPED:
                self._note_evidence(dest, op)
        elif op.lost and outbound_of(dest):
            self.moved[dest] = None
        self._advance(dest, op)

    def _advance(self, dest: Topic, op: Forwarded) -> None:
        router = inbound_of(dest)
        if router is not None and router.source.id == op.source_id:
            router.cursor = max(router.cursor, op.to_seq)
            router.forwarded_total += op.batch.count

    def _note_evidence(self, dest: Topic, op: Forwarded) -> None:
        router = inbound_of(dest)
        if router is None:
            return
        evidence = self.part_of(dest).evidence.setdefault(router.origin, Evidence())
        seq = op.batch.first_seq
        for source_seq, count in op.runs:
            evidence.add(source_seq, seq, count)
            seq += count
        if not len(evidence.counts) % EVIDENCE_SPANS_PER_PRUNE:
            evidence.prune(dest.earliest_seq)

    def _derive(self, dest: Topic, op: Forwarded) -> Batch:
        """Cut the copies from the source's blocks again, as they were cut before."""
        source = self._state.by_id.get(op.source_id)
        router = inbound_of(dest)
        if source is None or router is None:
            raise DamagedData(
                f"topic {dest.name} has copies of a topic that the log does not know; see `topics repair`"
            )
        key = op.source_id, *op.runs
        if self._last_cut is None or self._last_cut[0] != key:
            self._last_cut = key, cut(self._stretches(source, op.runs))
        piece = self._last_cut[1]
        piece = piece.without(nodes=bool(op.flags & NO_NODE), tags=bool(op.flags & NO_TAG))
        if op.flags & STAMPED:
            piece = piece.stamped(router.origin)
        return piece.batch(op.batch.first_seq, op.batch.ts)

    def _stretches(self, source: Topic, runs: list[tuple[int, int]]) -> Iterator[tuple[Block, int, int]]:
        for first, count in runs:
            seq, last = first, first + count - 1
            while seq <= last:
                block = _holding(source, seq)
                if block is None:
                    raise DamagedData(
                        f"seq {seq} of topic {source.name} was copied by a router and can no longer be read; "
                        "`topics repair` reports the copy as a gap",
                        from_seq=seq,
                        to_seq=last,
                    )
                self._state.cold.load_now(block)
                start = block.number_after(seq - 1)
                stop = block.number_after(last)
                if block.seqs is not None:
                    # Sparse: only up to the first missing seq.
                    stop = start + 1
                    while (
                        stop < block.count and block.seq_at(stop) <= last and block.seq_at(stop) - seq == stop - start
                    ):
                        stop += 1
                yield block, start, stop
                seq = block.seq_at(stop - 1) + 1


def _holding(source: Topic, seq: int) -> Block | None:
    """The block with this seq, dead or alive, in the topic or among the blocks it has dropped."""
    index = source.block_after(seq - 1)
    left = source.routing.kept_blocks() if source.routing is not None else ()
    candidates = [*source.blocks[index : index + 1], *left]
    for block in candidates:
        if block.first_seq <= seq <= block.last_seq:
            number = block.number_after(seq - 1)
            if number < block.count and block.seq_at(number) == seq:
                return block
    return None


# --- rows in the table of ops ---


def _former_dest(state: State, op: RouterPut) -> tuple[int, ...]:
    router = state.feature(Routes).by_name.get(op.name)
    return () if router is None or router.dest.id == op.topic_id else (router.dest.id,)


def _copies(op: Forwarded) -> tuple[Addition]:
    batch = op.batch
    size = batch.size
    return (Addition(op.topic_id, batch.first_seq - op.lost, batch.count + op.lost, batch.count, size, size),)


def _forward_published(commit_log: CommitLog, op: Forwarded, _found: Any, change: PendingChange) -> None:
    commit_log.append_published(op.appended, None, change)


ROUTER_OPS: Final[tuple[OpKind[Any], ...]] = (
    OpKind(
        RouterPut,
        ROUTER_PUT,
        decode=decode_router_put,
        fold=lambda state, op: state.feature(Routes).put(op),
        other_topics=_former_dest,
    ),
    OpKind(
        RouterDropped,
        ROUTER_DROPPED,
        decode=decode_router_dropped,
        fold=lambda state, op: state.feature(Routes).drop(op),
    ),
    OpKind(
        Forwarded,
        FORWARDED,
        decode=decode_forwarded,
        fold=lambda state, op: state.feature(Routes).forwarded(op),
        published=_forward_published,
        adds=_copies,
        carries_floor=True,
        derives=True,
        written_out=Forwarded.encode_with_copies,
    ),
)
