"""Forwarding: records that sources have published are copied to their destinations, off the path of appends.

    published ─▶ routes.moved ─▶ step, about a millisecond at a time:
                                   piece of the source, cut once ─┬─▶ mark + batch for destination 1 ─┐
                                                                  ├─▶ mark + batch for destination 2 ─┼─▶ one flush
                                                                  └─▶ …                              ─┘

A router has at most one pending mark. When it is published, cursor and copies have moved together, and the router
continues from there. Whatever stops it (a full destination, a cold block, a pending change) is tried again.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from typing import TYPE_CHECKING

from topics.engine.core.pending import Busy, PendingChange
from topics.engine.core.waiting.runner import Runner, Steps, Wait
from topics.engine.log import retention
from topics.engine.log.block import Block
from topics.engine.log.copying import Piece, cut
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.log.retention import tombstone
from topics.engine.routers.fold import Routes
from topics.engine.routers.ops import FULL, NO_NODE, NO_TAG, STAMPED, VOLATILE, Forwarded
from topics.engine.routers.part import inbound_of, outbound_of, routing_of
from topics.engine.routers.router import HOPS_MAX, Hops, Router
from topics.model.clock import Clock
from topics.model.errors import Throttled, TopicsError
from topics.model.requests.batch import Batch
from topics.model.requests.config import GATED

if TYPE_CHECKING:
    from topics.engine.core.engine import Engine
    from topics.engine.log.topic import Topic

log = logging.getLogger("topics.engine")

SLICE_MS = 1.0
# A slice of `work`, and the pause after a burst of slices: a multiple of the burst's duration.
WORK_MS = 0.2
REST_FACTOR, REST_MS_MAX = 8, 20.0
PIECE_RECORDS_MAX = 1_000
PIECES_KEPT_MAX = 8
SAME_TIME_MS = 10
RETRY_MS_MIN, RETRY_MS_MAX = 10.0, 500.0


# Stands for the block of a piece that has none.
NOTHING = Block(1, 0, 0)


class Taken:
    """A piece with its position in the source, and the batches made from it so far."""

    __slots__ = ("_block", "_dead", "piece", "to_seq", "ts", "variants")

    def __init__(self, block: Block, to_seq: int, piece: Piece | None, ts: int) -> None:
        self._block = block
        self._dead = block.count - block.live
        self.to_seq = to_seq
        # The time of the copies: the same for consecutive destinations, so that they can share a batch.
        self.ts = ts
        # None: there is nothing to copy up to here.
        self.piece = piece
        self.variants: dict[tuple[object, bool, bool], Piece] = {}

    @property
    def holds(self) -> bool:
        """Whether it is still valid: no record of its block has died; records appended after it do not matter."""
        return self._block.count - self._block.live == self._dead

    def variant(self, router: Router) -> Piece | None:
        """The piece for this router: filtered, without the fields that it drops."""
        piece, config = self.piece, router.config
        if piece is None or (router.match is None and config.preserve_node and config.preserve_tag):
            return piece
        key = router.match, config.preserve_node, config.preserve_tag
        made = self.variants.get(key)
        if made is None:
            if router.match is not None:
                match = router.match
                tags = piece.tags or ()
                piece = piece.pick([index for index, tag in enumerate(tags) if tag and match(tag[1:])])
            made = self.variants[key] = piece.without(nodes=not config.preserve_node, tags=not config.preserve_tag)
        return made


class Forwarder:
    """Owned by the thread that owns the engine, which calls `work` in every turn."""

    wanted = True

    def __init__(self, engine: Engine, runner: Runner, clock: Clock) -> None:
        self._engine = engine
        self._state = engine.state
        self._routes = engine.state.feature(Routes)
        self._commit_log = engine.commit_log
        self._runner = runner
        self._clock = clock
        self._ready: dict[Router, None] = {}
        # Routers that try again later, by the time of the next attempt.
        self._resting: dict[Router, float] = {}
        self._pieces: dict[tuple[int, int], Taken] = {}
        # Routers that wait for a change or for the disk.
        self._waiting: set[Router] = set()
        # The current burst of slices, and until when forwarding pauses after the last one.
        self._burst_ms = self._rested_ms = 0.0

    @property
    def pending(self) -> bool:
        """Whether there is something to do now."""
        return bool(self._routes.moved or self._ready)

    @property
    def retry_in_ms(self) -> float | None:
        """When to run again if nothing happens."""
        if not self._resting:
            return None
        return max(0.0, min(self._resting.values()) - self._clock.monotonic_ms())

    def work(self) -> float | None:
        """A short slice, unless forwarding pauses; in how many milliseconds to run again, None: when something moves.

        The pause after a burst keeps appends fast: under load the records of several turns are collected and cost one
        mark per router instead of one per router and turn. A writer that appends only now and then causes no pause.
        """
        began_ms = self._clock.monotonic_ms()
        if began_ms < self._rested_ms:
            return self._rested_ms - began_ms if self.pending else self.retry_in_ms
        if not self.pending and self.retry_in_ms != 0.0:
            return self.retry_in_ms
        more = self.step(WORK_MS)
        ended_ms = self._clock.monotonic_ms()
        self._burst_ms += ended_ms - began_ms
        if more:
            return 0.0
        self._rested_ms = ended_ms + min(REST_MS_MAX, REST_FACTOR * self._burst_ms)
        self._burst_ms = 0.0
        return self.retry_in_ms

    def step(self, slice_ms: float = SLICE_MS) -> bool:
        """Forward for about this long; returns whether to run again at once."""
        now_ms = self._clock.monotonic_ms()
        until_ms = now_ms + slice_ms
        for router in [router for router, retry_ms in self._resting.items() if retry_ms <= now_ms]:
            del self._resting[router]
            self._ready[router] = None
        while self._collect() and self._clock.monotonic_ms() < until_ms:
            ready, self._ready = self._ready, {}
            for router in ready:
                if self._clock.monotonic_ms() < until_ms:
                    self._advance(router)
                else:
                    self._ready[router] = None
            self._commit_log.flush()
        if not self.pending:
            self._pieces.clear()
        return self.pending

    def _collect(self) -> bool:
        """Add routers whose sources moved to those that are ready."""
        while self._routes.moved:
            source, _ = self._routes.moved.popitem()
            for router in outbound_of(source):
                if router not in self._resting and router not in self._waiting:
                    self._ready[router] = None
        return bool(self._ready)

    # --- one router ---

    def _advance(self, router: Router) -> None:
        if self._routes.by_name.get(router.name) is not router or router.inflight is not None:
            return
        source, dest = router.source, router.dest
        try:
            self._engine.in_flight.check(
                ("router", router.name), ("topic", source.name), ("topic", dest.name), ("writers", dest.id)
            )
            self._forward(router)
        except Busy as busy:
            self._wait(router, busy.change)
        except ColdMiss as miss:
            self._wait(router, miss)
        except TopicsError as error:
            self._rest(router, error)

    def _rest(self, router: Router, error: TopicsError) -> None:
        """The cursor stays, and so do the records; try again, less and less often."""
        # Without its frames, which would keep a whole batch alive.
        router.last_error = error.with_traceback(None)
        router.backoff_ms = min(RETRY_MS_MAX, max(RETRY_MS_MIN, 2 * router.backoff_ms))
        self._resting[router] = self._clock.monotonic_ms() + router.backoff_ms

    def _wait(self, router: Router, wait: Wait) -> None:
        self._waiting.add(router)
        self._runner.start(self._resume(router, wait), self)

    def _resume(self, router: Router, wait: Wait) -> Steps[None]:
        try:
            yield wait
        except TopicsError as error:
            self._rest(router, error)
        else:
            self._ready[router] = None
        finally:
            self._waiting.discard(router)

    # --- the owner of tasks ---

    def done(self, result: None) -> None: ...

    def failed(self, error: Exception) -> None:
        log.error("a router has failed", exc_info=error)

    def cancelled(self) -> None: ...

    def _forward(self, router: Router) -> None:
        source, dest = router.source, router.dest
        if source.config.ttl_ms:
            self._state.expire(source, self._clock.now_ms(), self._state.cold.load)
        if router.cursor >= source.head_seq:
            return
        self._commit_log.check_writable()
        cursor, lost = _behind_what_is_lost(source, router.cursor)
        hops, same_to = _hops_at(source, cursor + 1)
        hops += router.config.allow_cycle
        taken = self._take(source, cursor, min(same_to, source.head_seq))
        piece = taken.variant(router)
        if piece is not None and hops > HOPS_MAX:
            piece = None
        to_seq = taken.to_seq
        if piece is not None and router.config.guarantee == "exactly_once":
            piece = _unless_there(router, piece)
        count = 0 if piece is None else len(piece.tails)
        self._engine.keep_seqs(dest, count + lost)
        first_seq, ts = dest.assigned_seq + 1 + lost, dest.now(taken.ts)
        if piece is None or not count:
            batch, runs = Piece((), []).batch(first_seq, ts), list[tuple[int, int]]()
        else:
            piece, batch = self._fitting(dest, piece, first_seq, ts)
            if batch.count < count:
                to_seq = piece.seqs[-1]
            runs = piece.runs()
        flags = _flags(router, batch, router.cursor)
        op = Forwarded(
            dest.id,
            source.id,
            flags,
            dest.evict_floor,
            batch,
            from_seq=router.cursor,
            to_seq=to_seq,
            lost=lost,
            runs=runs,
        )
        self._stage(router, op, hops)

    def _take(self, source: Topic, cursor: int, to_seq: int) -> Taken:
        """The records after the cursor, in one block. Routers at the same cursor take the same, and stay together."""
        key, now_ms = (source.id, cursor), self._clock.now_ms()
        taken = self._pieces.pop(key, None)
        if taken is not None and taken.holds and taken.to_seq <= to_seq:
            if not 0 <= now_ms - taken.ts < SAME_TIME_MS:
                taken.ts = now_ms
            self._pieces[key] = taken
            return taken
        end_seq = min([to_seq, *(hole.from_seq - 1 for hole in source.holes if hole.from_seq > cursor + 1)])
        index = source.block_after(cursor)
        if index == len(source.blocks) or source.blocks[index].first_seq > end_seq:
            return Taken(NOTHING, end_seq, None, now_ms)
        block = source.blocks[index]
        self._state.cold.load(block)
        start = block.number_after(cursor)
        stop = min(block.number_after(end_seq), start + PIECE_RECORDS_MAX)
        reached = block.seq_at(stop - 1) if stop < block.count else min(block.last_seq, end_seq)
        stretches = [(block, first, end) for first, end in block.alive_runs(start, stop)]
        taken = Taken(block, reached, cut(stretches) if stretches else None, now_ms)
        while len(self._pieces) >= PIECES_KEPT_MAX:
            del self._pieces[next(iter(self._pieces))]
        self._pieces[key] = taken
        return taken

    def _fitting(self, dest: Topic, piece: Piece, first_seq: int, ts: int) -> tuple[Piece, Batch]:
        """As much of the piece as destination and quota have room for; raises if there is no room."""
        stamped = self._dressed(dest, piece)
        batch = stamped.batch(first_seq, ts)
        config = dest.config
        if config.discard == "reject" and (config.cap_records or config.cap_bytes):
            self._state.expire(dest, ts, self._state.cold.load)
            fits = batch.count
            if config.cap_records:
                fits = min(fits, config.cap_records - dest.count - dest.pending_count)
            if config.cap_bytes:
                fits = min(fits, bisect_right(batch.ends, config.cap_bytes - dest.bytes - dest.pending_bytes))
            if fits <= 0:
                self._engine.room_for(dest.name, 1, batch.ends[0])
            elif fits < batch.count:
                piece = piece.first(fits)
                batch = self._dressed(dest, piece).batch(first_seq, ts)
        quota, size = self._engine.settings.max_total_bytes, batch.size
        if quota:
            freed = retention.freed_by_caps(dest, batch.count, size)
            if self._state.bytes + self._commit_log.pending_bytes + size - freed > quota:
                raise Throttled(
                    "all topics together have reached their limit of bytes", limit="max_total_bytes", max=quota
                )
        return piece, batch

    def _dressed(self, dest: Topic, piece: Piece) -> Piece:
        router = inbound_of(dest)
        assert router is not None
        return piece.stamped(router.origin) if router.config.guarantee == "exactly_once" else piece

    def _stage(self, router: Router, op: Forwarded, hops: int) -> None:
        dest, batch = router.dest, op.batch
        gated = dest.config.durability in GATED and bool(batch.count or op.lost)
        change = self._commit_log.submit(op, op.encode(), gated=gated)
        change.first_seq, change.count = batch.first_seq, batch.count
        router.inflight = change
        change.then(lambda done: self._landed(router, done, hops))

    def _landed(self, router: Router, change: PendingChange, hops: int) -> None:
        router.inflight = None
        if change.error is not None:
            self._rest(router, change.error)
            return
        router.last_error = None
        router.backoff_ms = 0.0
        dest = router.dest
        if hops and change.count and outbound_of(dest):
            onward = self._routes.part_of(dest)
            if onward.hops is None:
                onward.hops = Hops()
            onward.hops.add(change.first_seq, change.last_seq, hops)
        source = router.source
        part = routing_of(source)
        if part is not None and part.hops is not None:
            part.hops.forget_up_to(min(other.cursor for other in part.outbound or (router,)))
        if router.cursor < source.head_seq:
            self._ready[router] = None


def _hops_at(source: Topic, seq: int) -> tuple[int, int]:
    """Like `Hops.at`."""
    part = routing_of(source)
    return part.hops.at(seq) if part is not None and part.hops is not None else (0, 2**64)


def _behind_what_is_lost(source: Topic, cursor: int) -> tuple[int, int]:
    """Where reading continues, and how many seqs the destination skips to report that records are missing."""
    if cursor + 1 >= source.evict_floor and not source.holes:
        return cursor, 0
    gap = tombstone(source, cursor)
    if gap is None:
        return cursor, 0
    # After a crash, seqs that may have been seen are skipped: how many of them were records is unknown.
    return gap.gap_to, min(1, gap.missed_estimate) if gap.reason == "lost" else gap.missed_estimate


def _unless_there(router: Router, piece: Piece) -> Piece | None:
    """Drop the records whose copies are still at the destination."""
    dest = router.dest
    part = routing_of(dest)
    evidence = part.evidence.get(router.origin) if part is not None else None
    if evidence is None or not piece.seqs or evidence.last_source_seq < piece.seqs[0]:
        return piece
    missing = [index for index, seq in enumerate(piece.seqs) if not _is_there(dest, evidence.dest_seq(seq))]
    return piece.pick(missing) if len(missing) < len(piece.tails) else piece


def _is_there(dest: Topic, seq: int | None) -> bool:
    if seq is None:
        return False
    index = dest.block_after(seq - 1)
    if index == len(dest.blocks) or dest.blocks[index].first_seq > seq:
        return False
    block = dest.blocks[index]
    number = block.number_after(seq - 1)
    return (
        block.start <= number < block.count
        and block.seq_at(number) == seq
        and not (block.dead is not None and block.dead[number])
    )


def _flags(router: Router, batch: Batch, cursor: int) -> int:
    source, config = router.source, router.config
    flags = 0
    if not config.preserve_node:
        flags |= NO_NODE
    if not config.preserve_tag:
        flags |= NO_TAG
    if config.guarantee == "exactly_once":
        flags |= STAMPED
    if router.dest.config.durability == "ephemeral":
        flags |= VOLATILE
    elif batch.count and (source.config.durability == "ephemeral" or cursor < source.volatile_to):
        flags |= FULL
    return flags
