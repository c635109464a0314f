"""A standby's way along the log in the bucket, by a thread of its own, up to the moment when it takes over.

    thread: reads the next slot ─▶ pieces, in order ─▶ owner: `take`, folds them
            reads who is primary ─▶ lease over, or told to: closes the term ─▶ `joined` ─▶ owner: goes on as primary

The object that names the primary also tells where its log ends. So while nothing is written one read of it, just after
each renewal, tells that the primary lives and that nothing is new; while pieces come, the next slot is read soon.
The owner of the thread decides nothing about terms: a slot that another server has filled is read like any other.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from threading import Condition, Thread
from typing import NamedTuple

from topics.model.errors import TopicsError
from topics.storage.bucket.bucket import BucketError, ObjectBucket, Unreachable
from topics.storage.bucket.lease import Primary, Seen, Watched, announce, read_primary
from topics.storage.bucket.restoring import NotInBucket
from topics.storage.bucket.shipping import RENEWALS, RETRY_S_MAX, RETRY_S_MIN
from topics.storage.bucket.slots import LOG, LogPiece, TermClosing, slot_key
from topics.storage.bucket.starting.joining import Joined
from topics.storage.bucket.starting.standby_start import StartingPoint
from topics.storage.bucket.terms import Place, TakenOver, read_slot, run, take_term

logger = logging.getLogger("topics.bucket")

# Bytes of pieces that are read and not folded yet.
AHEAD_BYTES_MAX = 64 << 20
# The pause before a free slot is read again: it doubles, and above the last one only the primary's renewals tell.
SLOT_PAUSE_S_MIN, SLOT_PAUSE_S_MAX = 0.02, 0.4
# The next renewal is looked for a little early, and then again after this share of the time between two.
EARLY, AGAIN_SHARE = 0.98, 0.15
LOOK_S_MAX = 3.4
# A slot that must exist is looked for this many times before it counts as removed.
MISSING_MAX = 20
STOP_S = 12.0


class FellBehind(NotInBucket):
    """The bucket no longer has what comes next: there is a gap, or it was removed. A newer snapshot leads on."""


class Advertised(NamedTuple):
    """How this server appears as primary."""

    url: str
    lease_ms: int


class TakeOver(NamedTuple):
    """A term of one's own. `lost_since_ms`: the primary before may have acknowledged writes since; 0: it has not."""

    joined: Joined
    lost_since_ms: int


class Following:
    """The owner calls `start`, `take`, `promote`, `stop` and reads the rest; everything with a _ is the thread's."""

    def __init__(
        self,
        bucket: ObjectBucket,
        start: StartingPoint,
        mine: Advertised,
        *,
        by_itself: bool,
        notify: Callable[[], None],
        now_ms: Callable[[], int],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bucket, self._mine, self._by_itself = bucket, mine, by_itself
        self._notify, self._now_ms, self.clock_s = notify, now_ms, clock
        self._holder, self._token = start.holder, secrets.token_hex(16)
        # shared, under the condition
        self._changed = Condition()
        self._pieces: deque[tuple[LogPiece, memoryview]] = deque()
        self._ahead_bytes = 0
        self._stopping = False
        self._told = self._forced = self._woken = False
        # set by the thread, read by the owner
        self.primary: Primary | None = None
        self.taken: TakeOver | None = None
        self.lost: TopicsError | None = None
        self.away_since_s: float | None = None
        self.pieces_total = self.failures_total = 0
        # Everything that was in the bucket at this time has been read; and when the primary was last seen to live.
        self._known_s: float = start.known_s
        self._renewed_s: float | None = None
        # the thread's
        self._place, self._owner = start.place, start.owner
        self._position: int = start.position
        self._time_ms, self._whole = start.time_ms, start.whole
        self._seen: Seen | None = None
        self._watched = Watched()
        self._alone_since_s: float | None = None
        self._lease_left_s = mine.lease_ms / 1000
        self._looked_s = self._look_due_s = 0.0
        # Whether it has looked since it read the last slot: only that counts when it closes the term.
        self._looked_after_slot = False
        self._slot_due_s = 0.0
        self._slot_pause_s = SLOT_PAUSE_S_MIN
        self._missing = 0
        # When it began to close the term; 0: it does not.
        self._closing = 0
        self._thread = Thread(target=self._run, name="topics-bucket", daemon=True)

    # --- owner thread ---

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        with self._changed:
            self._stopping = True
            self._changed.notify()
        if self._thread.is_alive():
            self._thread.join(STOP_S)

    def take(self) -> tuple[LogPiece, memoryview] | None:
        """The next piece, if there is one."""
        with self._changed:
            if not self._pieces:
                return None
            piece, frames = self._pieces.popleft()
            self._ahead_bytes -= len(frames)
            self._changed.notify()
            return piece, frames

    def known_s(self) -> float | None:
        """When the bucket had nothing more than what was taken; None: something waits to be taken."""
        with self._changed:
            return None if self._pieces else self._known_s

    @property
    def has_more(self) -> bool:
        return bool(self._pieces)

    @property
    def term(self) -> int:
        return self._place.term

    @property
    def lease_left_s(self) -> float:
        """For how long the lease of the primary may still live; 0.0: it has ended, or was given up."""
        return self._lease_left_s

    def promote(self, *, force: bool) -> None:
        """Take over now; with `force` also beside a primary that lives."""
        with self._changed:
            self._told, self._forced, self._woken = True, force, True
            self._look_due_s = 0.0
            self._changed.notify()

    @property
    def promoting(self) -> bool:
        """Whether it was told to take over, and has not given up."""
        return self._told

    # --- the thread ---

    def _run(self) -> None:
        retry_s = RETRY_S_MIN
        while not self._stopping:
            try:
                if self._go_on():
                    return
                self._come_back()
                retry_s = RETRY_S_MIN
            except BucketError as error:
                self._go_away(error)
                self._wait(retry_s)
                retry_s = min(RETRY_S_MAX, 2 * retry_s)
            except Exception as error:
                known = isinstance(error, TopicsError)
                self.lost = error if isinstance(error, TopicsError) else TopicsError(f"{type(error).__name__}: {error}")
                logger.log(logging.ERROR, "the log in the bucket cannot be followed: %s", error, exc_info=not known)
                self._notify()
                return

    def _go_on(self) -> bool:
        """One round: look for the primary, read a slot, or take over; True when that has succeeded."""
        if self._closing:
            # Whether the term was closed is unknown: the same bytes are written again.
            return self._take_over()
        if self.clock_s() >= self._look_due_s:
            self._look()
        if self.clock_s() >= self._slot_due_s and self._read_next():
            return False
        if self._may_take_over():
            return self._take_over()
        self._wait(min(self._look_due_s, self._slot_due_s) - self.clock_s())
        return False

    def _wait(self, seconds: float) -> None:
        with self._changed:
            if not self._stopping and not self._woken and seconds > 0:
                self._changed.wait(seconds)
            self._woken = False

    # --- pieces ---

    def _read_next(self) -> bool:
        """Hand over the next slot; False if it is free."""
        sent_s = self.clock_s()
        found = run(self._bucket, read_slot(self._place))
        if found is None:
            self._free(sent_s)
            return False
        self._slot_pause_s, self._slot_due_s, self._missing = SLOT_PAUSE_S_MIN, 0.0, 0
        self._looked_after_slot = False
        if not self._lease_left_s:
            self._look_due_s = 0.0
        head, frames = found
        if isinstance(head, TermClosing):
            logger.info("%s is primary in term %d", head.holder, head.term + 1)
            self._place, self._owner = Place(head.term + 1, 0), head.holder
            self._look_due_s, self._alone_since_s = 0.0, None
            return True
        if head.from_position != self._position:
            raise FellBehind(
                f"the log in the bucket goes on at position {head.from_position} instead of {self._position}"
            )
        self._place, self._position, self._time_ms = self._place.next, head.to_position, head.time_ms
        self.pieces_total += 1
        if frames:
            self._hand_over(head, frames)
        return True

    def _hand_over(self, head: LogPiece, frames: memoryview) -> None:
        with self._changed:
            while self._ahead_bytes > AHEAD_BYTES_MAX and not self._stopping:
                self._changed.wait()
            self._pieces.append((head, frames))
            self._ahead_bytes += len(frames)
        self._notify()

    def _free(self, sent_s: float) -> None:
        if self._is_behind():
            # The primary has told that the slot is filled: it was removed, or is not seen yet.
            self._missing += 1
            if self._missing > MISSING_MAX:
                raise FellBehind(f"slot {self._place.slot} of term {self._place.term} is no longer in the bucket")
        else:
            with self._changed:
                self._known_s = sent_s
        self._slot_pause_s *= 2
        rests = self._slot_pause_s > SLOT_PAUSE_S_MAX and not self._is_behind()
        self._slot_due_s = float("inf") if rests else self.clock_s() + min(SLOT_PAUSE_S_MAX, self._slot_pause_s)

    def _is_behind(self) -> bool:
        primary = self.primary
        return primary is not None and (primary.term, primary.slot) > self._place

    # --- the lease ---

    def _look(self) -> None:
        """Who is primary, and whether it lives."""
        now_s = self.clock_s()
        seen = run(self._bucket, read_primary())
        if seen is None and self._seen is not None:
            # It is never removed. Whatever this is, there is no log of which this server knows the end.
            raise Unreachable("the bucket is not the one that it was: who is primary is no longer there")
        answered_s, self._looked_after_slot = self.clock_s(), True
        renewed = seen is not None and (self._seen is None or seen.etag != self._seen.etag)
        lease_ms = seen.primary.lease_ms if seen is not None else self._mine.lease_ms
        if seen is None or seen.primary.term < self._place.term:
            # The one that has the term is about to say so, or to start: it gets as long as a lease.
            self._alone_since_s = self._alone_since_s or answered_s
            self._lease_left_s = max(0.0, self._alone_since_s + lease_ms / 1000 - now_s)
        else:
            self._lease_left_s = self._watched.look(seen, now_s * 1000, answered_s * 1000) / 1000
        interval_s = min(LOOK_S_MAX, lease_ms / 1000 / RENEWALS)
        again_s = EARLY * interval_s if renewed or not self._lease_left_s else AGAIN_SHARE * interval_s
        if renewed:
            assert seen is not None
            if (seen.primary.term, seen.primary.slot) == self._place:
                # It was renewed after the last look, and the log had ended here.
                with self._changed:
                    self._known_s = max(self._known_s, self._looked_s)
            self._renewed_s = now_s
        self._seen, self.primary = seen, seen.primary if seen is not None else None
        self._looked_s, self._look_due_s = now_s, self.clock_s() + again_s
        ends = not self._lease_left_s and (self._by_itself or self._told)
        if ends or self._is_behind() or (seen is not None and seen.primary.slot < 0):
            # What came after the last renewal is read before the term is closed.
            self._slot_due_s, self._slot_pause_s = 0.0, SLOT_PAUSE_S_MIN
        if self._told and not self._forced and self._lease_left_s:
            self._give_up()

    def _give_up(self) -> None:
        """Another server is primary: what was told is over."""
        self._told = self._forced = False
        self._notify()

    def _may_take_over(self) -> bool:
        if self.lost is not None:
            return False
        if self._told and self._forced:
            return True
        ended = not self._lease_left_s and self._looked_after_slot and not self._is_behind()
        return ended and (self._by_itself or self._told)

    def _take_over(self) -> bool:
        """Close the term here. False: another server has filled the slot, so there is more to follow."""
        place = self._place
        before = self.primary
        self._check_end()
        self._closing = self._closing or self._now_ms()
        closed = run(self._bucket, take_term(self._holder, self._token, self._closing, place))
        self._closing = 0
        if not closed:
            self._slot_due_s = 0.0
            if not self._forced:
                # It was the primary, which lives, or another standby, which was first.
                self._watched = Watched()
                self._lease_left_s, self._look_due_s = self._mine.lease_ms / 1000, 0.0
                self._give_up()
            return False
        mine = Primary(place.term + 1, self._holder, self._token, self._mine.url, self._mine.lease_ms)
        logger.warning("taking over with term %d, as %s%s", mine.term, self._holder, _after(self._owner))
        try:
            seen = self._announced(mine)
        except TakenOver as error:
            logger.warning("%s", error.message)
            self._place, self._owner = Place(mine.term, 0), self._holder
            self._watched, self._look_due_s, self._slot_due_s = Watched(), 0.0, 0.0
            self._lease_left_s, self._token = self._mine.lease_ms / 1000, secrets.token_hex(16)
            self._give_up()
            return False
        joined = Joined(mine.term, self._holder, self._token, self._position, self._whole, seen, None, self._time_ms)
        # It stopped with everything in the bucket, so no reader has seen anything else.
        whole = before is not None and (before.term, before.end_position) == (place.term, self._position)
        self.taken = TakeOver(joined, 0 if whole else self._time_ms)
        self._notify()
        return True

    def _check_end(self) -> None:
        """Slots have no holes: one after the end means that the log up to there was removed, or is not seen yet."""
        later = next(self._bucket.listing(LOG, slot_key(*self._place)), None)
        if later is not None and run(self._bucket, read_slot(self._place)) is None:
            raise FellBehind(f"the bucket has {later.key}, and no longer {slot_key(*self._place)}")

    def _announced(self, mine: Primary) -> Seen:
        while True:
            try:
                seen = run(self._bucket, announce(mine, self._seen))
            except BucketError as error:
                self._go_away(error)
                self._wait_on(RETRY_S_MIN)
            else:
                if seen.must_wait and not self._forced:
                    self._wait_on(self._mine.lease_ms / 1000)
                return seen
            if self._stopping:
                raise TakenOver("the server stops")

    def _wait_on(self, seconds: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._stopping, seconds)

    # --- news ---

    def _go_away(self, error: TopicsError) -> None:
        self.failures_total += 1
        # Renewals are not seen: how long there were none counts from the next look on.
        self._watched, self._alone_since_s = Watched(), None
        self._lease_left_s, self._look_due_s = self._mine.lease_ms / 1000, 0.0
        if self.away_since_s is None:
            self.away_since_s = self.clock_s()
            logger.warning("the bucket does not answer: %s", error.message)

    def _come_back(self) -> None:
        if self.away_since_s is not None:
            logger.info("the bucket answers again, after %.1f s", self.clock_s() - self.away_since_s)
            self.away_since_s = None


def _after(owner: str) -> str:
    return f", after {owner}" if owner else ""
