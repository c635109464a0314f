"""Routers as the fold sees them: made, changed, gone, and what a mark in the log means for its destination.

Live, a mark arrives with its batch. Read back from the log it has none: the copies are cut from the source's blocks
again. What the source lost in the meantime must still be there for that, so while the log is replayed, and between the
position of a checkpoint and the capture of a source, the blocks that leave a source stay in its attic.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import TYPE_CHECKING

from topics.engine.core.ops import KEPT, RouterDropped, RouterPut
from topics.engine.log.block import Block
from topics.engine.log.copying import Piece, cut
from topics.engine.log.retention import note_hole
from topics.engine.routers.ops import NO_NODE, NO_TAG, STAMPED, VOLATILE, Forwarded
from topics.engine.routers.router import Evidence, Router, RouterImage
from topics.model.errors import DamagedData
from topics.model.requests.batch import Batch

if TYPE_CHECKING:
    from topics.engine.core.state import State
    from topics.engine.log.topic import Topic

EVIDENCE_SPANS_PRUNED_FROM = 64


class Routes:
    """All routers by name."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.by_name: dict[str, Router] = {}
        self.names: list[str] = []
        # Sources that have something new for their routers.
        self.moved: dict[Topic, None] = {}
        self.replaying = True
        # The piece cut last while replaying: the marks of one source's routers follow each other.
        self._last_cut: tuple[object, Piece] | None = None

    # --- routers come and go ---

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
            router.unlink()
            router.source, router.dest = source, dest
            router.config, router.match = op.config, op.config.match()
        if op.cursor != KEPT:
            router.cursor = op.cursor
        router.link()
        self._keep_what_leaves(source)
        self.moved[source] = None

    def _add(self, router: Router) -> None:
        self.by_name[router.name] = router
        insort(self.names, router.name)

    def drop(self, op: RouterDropped) -> str | None:
        router = self._state.by_id[op.topic_id].inbound
        return None if router is None else self._remove(router)

    def cascade(self, topic: Topic) -> list[str]:
        """The topic goes, and every router that names it; their names."""
        routers = [*(topic.outbound or ()), *([topic.inbound] if topic.inbound is not None else [])]
        return sorted(self._remove(router) for router in routers)

    def _remove(self, router: Router) -> str:
        self._state.touch(router.dest)
        router.unlink()
        del self.by_name[router.name]
        del self.names[bisect_left(self.names, router.name)]
        return router.name

    # --- snapshots ---

    def restore(self, dest: Topic, image: RouterImage) -> None:
        """All topics are there: tie a router of a snapshot to its ends."""
        router = Router(image.name, self._state.by_id[image.source_id], dest, image.config)
        router.cursor, router.forwarded_total = image.cursor, image.forwarded_total
        self._add(router)
        router.link()
        self._keep_what_leaves(router.source)

    def _keep_what_leaves(self, source: Topic) -> None:
        if source.attic is None and (self.replaying or self._state.awaits_capture(source)):
            source.attic = []

    def before_capture(self) -> None:
        """The position of a checkpoint is fixed: marks behind it may need what leaves a source before its capture."""
        for router in self.by_name.values():
            router.source.attic = []

    def after_capture(self) -> None:
        """No checkpoint needs what left any more."""
        for topic in self._state.by_id.values():
            topic.attic = None

    def replayed(self) -> None:
        """The log is folded in; whoever has something to forward may begin."""
        self.replaying = False
        self._last_cut = None
        self.after_capture()
        self.moved = {router.source: None for router in self.by_name.values() if router.lag}

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
            self._state.take_in(op)
            if op.flags & STAMPED:
                self._note_evidence(dest, op)
        elif op.lost and dest.outbound is not None:
            self.moved[dest] = None
        self._advance(dest, op)

    def _advance(self, dest: Topic, op: Forwarded) -> None:
        router = dest.inbound
        if router is not None and router.source.id == op.source_id:
            router.cursor = max(router.cursor, op.to_seq)
            router.forwarded_total += op.batch.count

    def _note_evidence(self, dest: Topic, op: Forwarded) -> None:
        router = dest.inbound
        if router is None:
            return
        if dest.evidence is None:
            dest.evidence = {}
        evidence = dest.evidence.setdefault(router.origin, Evidence())
        seq = op.batch.first_seq
        for source_seq, count in op.runs:
            evidence.add(source_seq, seq, count)
            seq += count
        if len(evidence.counts) >= EVIDENCE_SPANS_PRUNED_FROM and not len(evidence.counts) % 64:
            evidence.prune(dest.earliest_seq)

    def _derive(self, dest: Topic, op: Forwarded) -> Batch:
        """Cut the copies from the source's blocks again, as they were cut before."""
        source = self._state.by_id.get(op.source_id)
        router = dest.inbound
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
                        f"seq {seq} of topic {source.name} was copied by a router and cannot be read any more; "
                        "`topics repair` turns the copy into an explicit gap",
                        from_seq=seq,
                        to_seq=last,
                    )
                self._state.cold.load_now(block)
                start = block.number_after(seq - 1)
                stop = block.number_after(last)
                if block.seqs is not None:
                    # Sparse: only as far as no seq is missing.
                    stop = start + 1
                    while (
                        stop < block.count and block.seq_at(stop) <= last and block.seq_at(stop) - seq == stop - start
                    ):
                        stop += 1
                yield block, start, stop
                seq = block.seq_at(stop - 1) + 1


def _holding(source: Topic, seq: int) -> Block | None:
    """The block with this seq, dead or alive, in the topic or in its attic."""
    index = source.block_after(seq - 1)
    candidates = [*source.blocks[index : index + 1], *(source.attic or ())]
    for block in candidates:
        if block.first_seq <= seq <= block.last_seq:
            number = block.number_after(seq - 1)
            if number < block.count and block.seq_at(number) == seq:
                return block
    return None
