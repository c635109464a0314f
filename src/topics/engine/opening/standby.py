"""A standby's part of the store: the log in the bucket is written to the own log and folded, until it takes over.

    thread: pieces ─▶ work, a few ms at a time: some frames ─▶ own log (same bytes, same positions) ─▶ State.apply
                                                                                                  └─▶ waiters, followers
    thread: the term is its own ─▶ work: the rest is folded ─▶ seqs are skipped, as after a restore ─▶ primary

A frame at a position of the bucket's log has the same position in the own one. So packs, snapshots and the log of this
directory are those of a primary, checkpoints run as always, and taking over opens nothing again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.engine.core.appended import Appended
from topics.engine.core.op_table import Op
from topics.engine.log.block import indexing_tags
from topics.engine.log.topic import SEQ_CHUNK
from topics.engine.opening.loss_estimates import nothing
from topics.engine.opening.single_appends import ops_of
from topics.engine.opening.skipping import LOGGED
from topics.model.errors import DamagedData, NotPrimary, StorageError, TopicsError
from topics.storage.bucket.following import Following, TakeOver
from topics.storage.bucket.slots import LogPiece
from topics.storage.steps import Steps, in_thread
from topics.storage.wal.log_scan import WINDOW_BYTES, read_window, whole_frame_bytes

if TYPE_CHECKING:
    from topics.engine.core.state import State
    from topics.engine.log.topic import Topic
    from topics.engine.opening.store import Store

log = logging.getLogger("topics.engine")

# A slice of folding, and how much of the log is folded before the clock is looked at.
SLICE_S = 0.002
FOLDED_BYTES = 32 << 10

Frames = list[tuple[int, bytes]]


class Standby:
    """Owned by the store, while it is one."""

    def __init__(self, store: Store, following: Following) -> None:
        self._store = store
        self.following = following
        self._state, self._wal, self._clock_s = store.state, store.wal, following.clock_s
        self._piece: LogPiece | None = None
        self._data = b""
        self._at = 0
        # Written to the own log, and not folded yet.
        self._unfolded: Frames = []
        self._folding: Steps[None] | None = None
        self._taking_over: Steps[None] | None = None
        # Everything that the bucket had at this time is folded. Nothing is read before it is started.
        known_s = following.known_s()
        assert known_s is not None
        self._known_s: float = known_s
        # Called when it is primary, or when what was told is over.
        self._when_decided: list[Callable[[], None]] = []

    # --- what it reports ---

    @property
    def age_ms(self) -> int:
        """How old the state is at most, as far as the bucket has it."""
        return max(0, int((self._clock_s() - self._known_s) * 1000))

    @property
    def primary_url(self) -> str | None:
        """None: it is not known, or has given up its lease."""
        primary = self.following.primary
        return primary.url if primary is not None and not primary.released else None

    def refusal(self) -> NotPrimary:
        url = self.primary_url
        where = f"the primary is {url}" if url else "no primary is known for now"
        return NotPrimary(f"this server is a standby and changes nothing; {where}", primary=url, role="standby")

    # --- folding ---

    @property
    def pending(self) -> bool:
        following = self.following
        return following.lost is None and bool(self._unfolded or self._data or self._taking_over or following.has_more)

    def work(self) -> bool:
        """A slice; whether there is more to do at once."""
        if self.following.lost is not None:
            return False
        try:
            return self._work(self._clock_s() + SLICE_S)
        except Exception as error:  # whatever it is, the state may be half of something: it is read anew
            known = isinstance(error, TopicsError | OSError)
            log.error("this standby begins again: %s", error, exc_info=not known)
            self.following.lost = error if isinstance(error, TopicsError) else TopicsError(str(error))
            return False

    def _work(self, until_s: float) -> bool:
        if self._taking_over is not None:
            self._step(self._taking_over, until_s)
            return True
        while self._fold_some():
            if self._clock_s() >= until_s:
                return True
        following = self.following
        if self._unfolded or self._data:
            # The commit thread has to write first, and tells when it has.
            return False
        # In this order: what is read before the term is taken is among the pieces by then.
        taken, known_s = following.taken, following.known_s()
        if known_s is None:
            return True
        self._known_s = max(self._known_s, known_s)
        if taken is not None:
            self._taking_over = self._become_primary(taken)
            return True
        if not following.promoting:
            self._decided()
        return False

    def _step(self, steps: Steps[None], until_s: float) -> None:
        try:
            while self._clock_s() < until_s:
                next(steps)
        except StopIteration:
            self._decided()

    def _fold_some(self) -> bool:
        """Some frames; False if there are none, or the disk has to catch up first."""
        if self._unfolded:
            return self._fold()
        if not self._data and not self._take():
            return False
        if self._wal.overloaded:
            return False
        frames = self._next_frames()
        for position, body in frames:
            if self._wal.append(body, urgent=True) != position:
                raise DamagedData(f"the own log is at position {self._wal.buffered_to}, the bucket's at {position}")
        self._unfolded = frames
        self._store.commit_log.unfolded = True
        self._wal.flush()
        return self._fold()

    def _take(self) -> bool:
        taken = self.following.take()
        if taken is None:
            return False
        self._piece, frames = taken
        self._data, self._at = bytes(frames), 0
        return True

    def _next_frames(self) -> Frames:
        piece, data, at = self._piece, self._data, self._at
        assert piece is not None
        position = piece.from_position + at
        frames, reached = read_window(data[at : at + FOLDED_BYTES], position, piece.salt)
        if not reached:
            wanted = whole_frame_bytes(data[at : at + WINDOW_BYTES], position, piece.salt) or 0
            frames, reached = read_window(data[at : at + wanted], position, piece.salt)
        if not reached:
            raise DamagedData(f"a piece of the log in the bucket is damaged at position {position}")
        self._at += reached
        if self._at == len(data):
            self._data = b""
        return frames

    def _fold(self) -> bool:
        frames = self._unfolded
        if self._wal.written_to < frames[-1][0]:
            if self._wal.buffered_to < frames[-1][0] or self._wal.broken:
                raise StorageError("a write to the own log failed")
            # The commit thread writes: a checkpoint must not find the state ahead of the log.
            return False
        if self._folding is None:
            self._folding = self._applied(frames)
        try:
            next(self._folding)
        except StopIteration:
            self._unfolded, self._folding = [], None
            self._store.commit_log.unfolded = False
            self._store.syncer.want_sync(frames[-1][0])
        return True

    def _applied(self, frames: Frames) -> Steps[None]:
        for position, op in ops_of(self._state, frames, 0, join=True):
            if isinstance(op, Appended) and op.batch.tags is not None:
                yield from indexing_tags(op.batch)
            self._apply(op, position)

    def _apply(self, op: Op, position: int) -> None:
        """As recovery does; then caps hold, and waiters of its topics look again."""
        state, kind = self._state, self._state.ops.of(op)
        ids = {op.topic_id, *kind.other_topics(state, op), *(added.topic_id for added in kind.adds(op))}
        before: list[Topic] = [topic for topic_id in ids if (topic := state.by_id.get(topic_id)) is not None]
        state.apply(op, position)
        for topic in before:
            if topic.config.cap_records or topic.config.cap_bytes:
                state.enforce_caps(topic, state.cold.load)
            self._store.waiters.moved(topic)

    # --- taking over ---

    def _become_primary(self, taken: TakeOver) -> Steps[None]:
        """The log in the bucket is folded up to its end, and the term is this server's."""
        store, holder = self._store, taken.joined.holder
        # The position of a checkpoint that runs is before the term: the bucket does not need its snapshot.
        yield from store.finish_checkpoint()
        store.commit_log.steady.go_on(self._state.noted)
        yield from store.replayed()
        shipping = store.ship(taken.joined)
        if taken.lost_since_ms:
            seqs_min = yield from store.skipping.since(taken.lost_since_ms, in_bucket=True)
            store.transactions.recovered(whole=False, fences_ahead=max(SEQ_CHUNK, seqs_min))
        else:
            yield from store.skipping.skip(LOGGED, nothing)
            store.transactions.recovered(whole=True)
        yield from store.skipping.written()
        yield from store.wait_shipped()
        # Nothing is acknowledged before this: a start after a crash finds a standby's directory, and empties it.
        yield from in_thread(lambda: store.bucket_side.own_directory(holder))
        shipping.begun = True
        store.standby = store.commit_log.closed = None
        store.scheduler.look_again()
        log.warning("this server is primary, with term %d", taken.joined.term)
        store.on_primary()

    def when_decided(self, callback: Callable[[], None]) -> None:
        """Call back when this server is primary, or another one is."""
        self._when_decided.append(callback)

    def _decided(self) -> None:
        callbacks, self._when_decided = self._when_decided, []
        for callback in callbacks:
            callback()


def capped(state: State) -> Steps[None]:
    """Caps hold for what was read from the log, also where only another server writes to it."""
    for topic in list(state.by_id.values()):
        state.enforce_caps(topic, state.cold.load_unless_remote)
        yield
