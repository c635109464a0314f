"""The object that names the primary, and for how long: changed only by compare-and-swap.

The slots decide who may write (`terms`). The lease keeps a second server from starting beside a primary that lives, and
bounds what a primary may acknowledge without the bucket. Clocks are not compared. A primary counts its lease from
before its first attempt at a renewal; others wait until they see the same version for that long, by their own clock:

    primary    renew ●━━━━━━━━━━━ lease ━━━━━━━━━━▶ ends
    another          ○ sees it    ━━━━━━━━━━ lease ━━━━━━━━━━▶ takes over, later than that

A renewal before the lease has ended continues it: no other server can have seen the end. One that comes later, because
the primary slept or the bucket was away, may be replaced at once by a server that had seen the end before, and may even
find the term closed already, which this object does not tell. So it counts only with a slot:

    primary    ━ lease ━▶ ends    renew ●     fill a slot ●━━▶ now the lease counts, from the renewal on
    another                  sees the end ○        ✗ its closing is refused, or comes after the slot: then it has read
                                                     the slot, looks at this object again, and waits for a whole lease
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from topics.model.errors import DamagedData
from topics.storage.bucket.bucket import Changed, Found
from topics.storage.bucket.slots import PRIMARY
from topics.storage.bucket.terms import Read, Steps, Swap, TakenOver

# A server that did not run for this long has slept, and for a good part of its lease.
SLEPT_S_MIN, SLEPT_SHARE = 1.0, 1 / 3


class Primary(msgspec.Struct, frozen=True):
    """Who is primary. `beat` counts the renewals, so that no two versions are alike."""

    term: int
    holder: str
    token: str
    url: str
    lease_ms: int
    beat: int = 0
    # The server has stopped, and there is no lease; -1, or where its log ended, if the bucket has all of it.
    released: bool = False
    end_position: int = -1
    # The first slot of the term that was free at that time, so that one read tells a standby that nothing is new; -1:
    # unknown.
    slot: int = -1

    def later(self, slot: int = -1) -> Primary:
        return msgspec.structs.replace(self, beat=self.beat + 1, slot=slot)

    def last(self, end_position: int) -> Primary:
        return msgspec.structs.replace(self, beat=self.beat + 1, released=True, end_position=end_position)


class Seen(msgspec.Struct, frozen=True):
    """One version of the object."""

    primary: Primary
    etag: str
    must_wait: bool = False


def read_primary() -> Steps[Seen | None]:
    found = yield Read(PRIMARY)
    if found is None:
        return None
    assert isinstance(found, Found)
    try:
        return Seen(msgspec.json.decode(found.data, type=Primary), found.etag)
    except msgspec.MsgspecError:
        raise DamagedData(f"the object {PRIMARY} of the bucket is damaged", file=PRIMARY, offset=0) from None


def announce(mine: Primary, known: Seen | None) -> Steps[Seen]:
    """Replace what is known; raises TakenOver if a later term, or another run in this one, is announced.

    `must_wait` of the result: another version than the known one was replaced, or that is not certain. Its lease may
    live: nothing may be acknowledged before it has ended, counted from now.
    """
    must_wait = False
    while True:
        etag = known.etag if known is not None else None
        try:
            made = yield Swap(PRIMARY, msgspec.json.encode(mine), etag)
            assert isinstance(made, str)
            return Seen(mine, made, must_wait)
        except Changed:
            found = yield from read_primary()
        if found is None:
            raise Changed(f"{PRIMARY} exists and cannot be read yet")
        theirs = found.primary
        if theirs == mine:
            # An earlier attempt of our own, whose answer was lost.
            return msgspec.structs.replace(found, must_wait=True)
        if theirs.term > mine.term or (theirs.term == mine.term and theirs.token != mine.token):
            raise TakenOver(f"{theirs.holder} is primary in term {theirs.term}", term=theirs.term, primary=theirs.url)
        known, must_wait = found, True


class Watched:
    """Whether the lease of another server has ended, by this server's clock alone."""

    def __init__(self) -> None:
        self._seen: Seen | None = None
        self._since_ms = 0.0

    def look(self, seen: Seen | None, sent_ms: float, answered_ms: float) -> float:
        """For how long the lease may still live, in ms; 0.0: it has ended.

        The object was read some time between both. A new version may be as young as the answer; that it is still the
        same is known for the time of sending only.
        """
        if seen is None or seen.primary.released:
            return 0.0
        if self._seen is None or self._seen.etag != seen.etag:
            self._seen, self._since_ms = seen, answered_ms
        return max(0.0, self._since_ms + seen.primary.lease_ms - sent_ms)

    def renewed(self, seen: Seen | None) -> bool:
        """Whether the object has changed since it was first looked at: its owner lives."""
        return self._seen is not None and seen is not None and seen.etag != self._seen.etag


class OwnLease:
    """The lease of this server, by its own clock: a thread renews it, the owner asks before it acknowledges writes.

    It begins in doubt: a server that closes the term before this one has filled a slot need not have seen any lease.
    """

    def __init__(self, lease_s: float, clock: Callable[[], float]) -> None:
        self._lease_s, self._clock = lease_s, clock
        self._until_s = float("-inf")
        # When the newest renewal was sent that the bucket has answered.
        self.renewed_s = float("-inf")
        self._ran_s = clock()
        self._doubts = True

    @property
    def holds(self) -> bool:
        """Until the lease has ended no other server closes the term, unless it is promoted by force."""
        return self._clock() < self._until_s

    def renewed(self, sent_s: float) -> None:
        """The bucket has answered a renewal whose first attempt was sent then."""
        if self.holds:
            self._until_s = sent_s + self._lease_s
        self.renewed_s = sent_s

    def proven(self, renewed_s: float) -> None:
        """A slot was filled by a request whose first attempt was made after the renewal of then had been answered."""
        self._until_s = max(self._until_s, renewed_s + self._lease_s)

    def slept(self) -> bool:
        """Called in every tick that acknowledges writes: whether the owner has slept past the end of the lease.

        A bucket that is away while the owner runs is not that: it goes on, and notices when the bucket is back.
        """
        now_s = self._clock()
        slept_s, self._ran_s = now_s - self._ran_s, now_s
        if slept_s <= max(SLEPT_S_MIN, SLEPT_SHARE * self._lease_s) or now_s < self._until_s:
            return False
        self._doubts = True
        return True

    @property
    def in_doubt(self) -> bool:
        """Whether it has begun or slept, and the bucket has not told since that it is primary."""
        if self._doubts and self.holds:
            self._doubts = False
        return self._doubts
