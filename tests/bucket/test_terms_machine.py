"""The model of the protocol: servers, leases and a bucket that loses, delays and repeats; what must hold always holds.

It runs the protocol of `topics.storage.bucket` itself, request by request, with the requests of all servers in any
order. Records are numbers; a server here is no more than what it may acknowledge. One that could not keep its log until
the bucket took it has a gap there, and goes on from a snapshot.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from typing import NamedTuple, TypeVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.bucket.faulty import Fate, FaultyBucket
from tests.examples import examples
from topics.storage.bucket.bucket import BucketError, Changed, Exists, Found, Unreachable
from topics.storage.bucket.lease import OwnLease, Primary, Seen, Watched, announce, read_primary
from topics.storage.bucket.slots import SNAPSHOTS, LogPiece, Slot, TermClosing, decode_slot, term_prefix
from topics.storage.bucket.terms import (
    BEGINNING,
    Create,
    List,
    Place,
    Read,
    Reply,
    Request,
    Steps,
    Swap,
    TakenOver,
    read_slot,
    take_term,
    write_piece,
)

LEASE_MS = 10
# A server has at most this many seqs that are not in the bucket yet; whoever takes over skips as many.
UNSENT_MAX = 3
T = TypeVar("T")


class Record(NamedTuple):
    seq: int
    value: int
    replicated: bool


class Skip(NamedTuple):
    """Seqs that a server skipped when it took over: what had them is announced as lost."""

    from_seq: int
    to_seq: int


Entry = Record | Skip
# None: there is nothing to ask; the server is stepped again later.
Life = Generator[Request | None, Reply, T]


def encode(entries: list[Entry]) -> bytes:
    return json.dumps([(type(entry).__name__, *entry) for entry in entries]).encode()


def decode(frames: bytes | memoryview) -> list[Entry]:
    kinds = {"Record": Record, "Skip": Skip}
    return [kinds[kind](*fields) for kind, *fields in json.loads(bytes(frames))]


class Server:
    """One run of a server: it waits for the lease, takes over, ships its log, and keeps its lease."""

    def __init__(self, world: World, number: int, clock_ahead_ms: int) -> None:
        self.world = world
        self.token = f"run {number}"
        self.clock_ahead_ms = clock_ahead_ms
        self.log: list[Entry] = []
        self.term = self.slot = 0
        # How much of the log is in the bucket, and what the last slot ends with.
        self.shipped = self.end = 0
        # False: the bucket lacks a part of the log.
        self.whole = True
        self.lease = OwnLease(LEASE_MS, self.now_ms)
        self.seen: Seen | None = None
        self.primary = False
        self.fenced = False
        # What the bucket has answered, and has not arrived.
        self.answer: Reply | BucketError = None
        self.is_answered = False
        self.life = self.live()
        self.request = next(self.life)

    def now_ms(self) -> float:
        """Its own clock, which shows any time; only how fast it goes is as it should be."""
        return self.world.now_ms + self.clock_ahead_ms

    def step(self, fate: Fate) -> None:
        try:
            if self.request is None:
                self.request = next(self.life)
                return
            if not self.is_answered:
                self.ask(self.request, fate)
                if fate is Fate.SLOW:
                    return
            self.is_answered = False
            if isinstance(self.answer, BucketError):
                self.request = self.life.throw(self.answer)
            else:
                self.request = self.life.send(self.answer)
        except TakenOver:
            self.fenced, self.primary = True, False

    def ask(self, request: Request, fate: Fate) -> None:
        self.is_answered = True
        try:
            self.answer = self.world.bucket.meet(request, fate)
        except BucketError as error:
            self.answer = error

    # --- its life ---

    def own_a_term(self) -> Life[None]:
        """Wait for the lease, read the log, and close its last term where it ends, if nobody has gone on since."""
        while True:
            seen = yield from self.free_lease()
            place, self.log, self.whole = yield from self.until_answered(read_all)
            self.seen = yield from self.until_answered(read_primary)
            if (self.seen and self.seen.etag) == (seen and seen.etag):
                taken = yield from self.until_answered(lambda place=place: take_term(self.token, self.token, 0, place))
                if taken:
                    self.term = place.term + 1
                    return
            yield None

    def free_lease(self) -> Life[Seen | None]:
        """Who was primary last, when its lease has ended."""
        watched = Watched()
        while True:
            sent_ms = self.now_ms()
            seen = yield from self.until_answered(read_primary)
            if not watched.look(seen, sent_ms, self.now_ms()):
                return seen
            yield None

    def live(self) -> Life[None]:
        yield from self.own_a_term()
        self.shipped = self.end = len(self.log)
        mine, seen = Primary(self.term, self.token, self.token, "", LEASE_MS), self.seen
        self.seen = yield from self.until_answered(lambda: announce(mine, seen))
        if self.seen.must_wait:
            until_ms = self.now_ms() + LEASE_MS
            while self.now_ms() < until_ms:
                yield None
        yield from self.renew()
        yield from self.prove()
        last_seq = max((entry.seq if isinstance(entry, Record) else entry.to_seq for entry in self.log), default=0)
        self.log.append(Skip(last_seq + 1, last_seq + UNSENT_MAX))
        # Before anything is acknowledged: a server that takes over later must know which seqs are taken.
        yield from self.ship()
        self.world.took_over(self)
        self.primary = True
        while True:
            yield None
            if len(self.log) > self.shipped:
                yield from self.ship()
            yield from self.renew()
            yield from self.prove()

    def renew(self) -> Life[None]:
        """If half of the lease is over, and if it is in doubt."""
        if self.now_ms() < self.lease.renewed_s + LEASE_MS / 2:
            return
        assert self.seen is not None
        # From before the first attempt: the others may have seen the object since then.
        sent_ms, mine, seen = self.now_ms(), self.seen.primary.later(), self.seen
        self.seen = yield from self.until_answered(lambda: announce(mine, seen))
        self.lease.renewed(sent_ms)

    def prove(self) -> Life[None]:
        """Fill a slot with nothing, if the lease had ended when it was renewed."""
        if not self.lease.holds:
            yield from self.fill_slot(self.end, self.end)

    def ship(self) -> Life[None]:
        first, end = self.shipped, len(self.log)
        if self.whole:
            yield from self.fill_slot(first, end)
        else:
            # The log goes on from a snapshot, which comes after a slot that makes the gap, and counts after another.
            place = Place(self.term, self.slot)
            yield from self.fill_slot(end, end)
            yield from self.until_answered(lambda: write_snapshot(place, self.log[:end]))
            yield from self.fill_slot(end, end)
            self.whole = True
        self.shipped = end
        for entry in self.log[first:end]:
            if isinstance(entry, Record) and entry.replicated:
                self.world.acknowledged(self, entry)

    def fill_slot(self, first: int, end: int) -> Life[None]:
        """The lease is renewed meanwhile, if there is no answer."""
        piece, renewed_ms = LogPiece(self.term, self.slot, self.token, 0, first, end, 0), self.lease.renewed_s
        frames = encode(self.log[first:end])
        while True:
            try:
                yield from write_piece(piece, frames)
            except (Unreachable, Changed):
                yield None
                yield from self.renew()
            else:
                break
        self.lease.proven(renewed_ms)
        self.slot, self.end = self.slot + 1, end

    def until_answered(self, attempt: Callable[[], Steps[T]]) -> Life[T]:
        while True:
            try:
                return (yield from attempt())
            except (Unreachable, Changed):
                yield None

    # --- what clients ask of it ---

    def append(self, value: int, replicated: bool) -> None:
        unsent = sum(isinstance(entry, Record) for entry in self.log[self.shipped :])
        if not self.primary or not self.lease.holds or unsent >= UNSENT_MAX:
            return
        last = self.log[-1]
        record = Record((last.seq if isinstance(last, Record) else last.to_seq) + 1, value, replicated)
        self.log.append(record)
        self.world.assigned(record)
        if not replicated:
            self.world.acknowledged(self, record)


class Standby(Server):
    """A server that follows the log from the start, and closes only the term that it has read to its end."""

    def own_a_term(self) -> Life[None]:
        place, self.log = yield from self.until_answered(newest_snapshot)
        watched = Watched()
        while True:
            found = yield from self.until_answered(lambda place=place: read_slot(place))
            sent_ms = self.now_ms()
            seen = yield from self.until_answered(read_primary)
            lease_ended = not watched.look(seen, sent_ms, self.now_ms())
            if found is not None:
                if lease_ended and isinstance(found[0], LogPiece) and found[0].from_position != len(self.log):
                    # Whoever made the gap is gone: what comes before it is all that is left.
                    yield from super().own_a_term()
                    return
                place = yield from self.follow(place, *found)
            elif not lease_ended:
                yield None
            elif (yield from self.is_its_own(place)):
                self.seen, self.term = seen, place.term + 1
                return
            else:
                watched = Watched()

    def is_its_own(self, place: Place) -> Life[bool]:
        return (yield from self.until_answered(lambda: take_term(self.token, self.token, 0, place)))

    def follow(self, place: Place, head: Slot, frames: memoryview) -> Life[Place]:
        if isinstance(head, TermClosing):
            return Place(place.term + 1, 0)
        if head.from_position != len(self.log):
            # A gap: a newer snapshot leads over it, now or later.
            yield None
            place, self.log = yield from self.until_answered(newest_snapshot)
            return place
        self.log += decode(frames)
        return place.next


def read_all() -> Steps[tuple[Place, list[Entry], bool]]:
    """The first free slot, the log up to there, and whether that is all of it."""
    place, log = yield from newest_snapshot()
    whole = True
    while (found := (yield from read_slot(place))) is not None:
        head, frames = found
        if isinstance(head, TermClosing):
            place = Place(place.term + 1, 0)
            continue
        whole = whole and head.from_position == len(log)
        if whole:
            log += decode(frames)
        place = place.next
    return place, log, whole


def write_snapshot(place: Place, log: list[Entry]) -> Steps[None]:
    key = f"{SNAPSHOTS}{place.term:05d}-{len(log):05d}-{place.slot:05d}"
    try:
        yield Create(key, encode(log))
    except Exists:
        """An earlier attempt, whose answer was lost."""


def newest_snapshot() -> Steps[tuple[Place, list[Entry]]]:
    """Where the log goes on after the newest snapshot; a list shows what was there when it was asked for."""
    listed = yield List(SNAPSHOTS, "")
    assert isinstance(listed, list)
    if not listed:
        return BEGINNING, []
    key = listed[-1].key
    found = yield Read(key)
    assert isinstance(found, Found)
    term, _, slot = map(int, key.removeprefix(SNAPSHOTS).split("-"))
    return Place(term, slot), decode(found.data)


class World:
    def __init__(self) -> None:
        self.bucket = FaultyBucket()
        self.now_ms = 0.0
        self.servers: list[Server] = []
        self.values_by_seq: dict[int, int] = {}
        self.acks: list[Record] = []
        self.primaries: dict[int, Server] = {}

    def assigned(self, record: Record) -> None:
        assert record.seq not in self.values_by_seq, f"seq {record.seq} is used twice"
        self.values_by_seq[record.seq] = record.value

    def acknowledged(self, server: Server, record: Record) -> None:
        assert self.primaries.setdefault(server.term, server) is server, f"two servers acknowledge in {server.term}"
        if not record.replicated:
            assert not self.is_closed(server.term), "a server acknowledges by itself after another has taken over"
        self.acks.append(record)

    def is_closed(self, term: int) -> bool:
        slots = [(key, found.data) for key, found in self.bucket.objects.items() if key.startswith(term_prefix(term))]
        return bool(slots) and isinstance(decode_slot(*max(slots))[0], TermClosing)

    def took_over(self, server: Server) -> None:
        """A new primary has everything replicated, as it was acknowledged, and announces exactly the other losses."""
        kept = {entry for entry in server.log if isinstance(entry, Record)}
        skips = [entry for entry in server.log if isinstance(entry, Skip)]
        for record in self.acks:
            if record.replicated:
                assert record in kept, f"{record} was acknowledged as replicated and is lost"
            elif record not in kept:
                assert any(skip.from_seq <= record.seq <= skip.to_seq for skip in skips), f"{record} is lost in silence"
        for record in kept:
            assert self.values_by_seq[record.seq] == record.value
            assert not any(skip.from_seq <= record.seq <= skip.to_seq for skip in skips), f"{record} is said to be lost"


class TermsMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.values = 0

    def some(self, number: int) -> Server:
        return self.world.servers[number % len(self.world.servers)]

    @initialize()
    def first_server(self) -> None:
        self.start_server(0)

    @precondition(lambda self: len(self.world.servers) < 5)
    @rule(clock_ahead_ms=st.sampled_from((0, 0, 3_600_000, -3_600_000)), standby=st.booleans())
    def start_server(self, clock_ahead_ms: int, standby: bool = False) -> None:
        kind = Standby if standby else Server
        self.world.servers.append(kind(self.world, len(self.world.servers), clock_ahead_ms))

    @rule(
        number=st.integers(0, 4), fates=st.lists(st.sampled_from([*Fate, *[Fate.ANSWERED] * 4]), min_size=1, max_size=4)
    )
    def step(self, number: int, fates: list[Fate]) -> None:
        for fate in fates:
            if not self.some(number).fenced:
                self.some(number).step(fate)

    @rule(number=st.integers(0, 4), steps=st.integers(5, 40), time_passes=st.booleans())
    def run(self, number: int, steps: int, time_passes: bool) -> None:
        """One server alone, while the bucket works."""
        for _ in range(steps):
            if not self.some(number).fenced:
                self.some(number).step(Fate.ANSWERED)
                self.world.now_ms += time_passes

    @rule(number=st.integers(0, 4), kind=st.sampled_from((Create, Swap)), time_passes=st.booleans())
    def run_until_it_writes(self, number: int, kind: type[Create | Swap], time_passes: bool) -> None:
        """And stop just before that: between the closing of a term and the name of its next owner, for example."""
        for _ in range(40):
            server = self.some(number)
            if server.fenced or isinstance(server.request, kind):
                break
            server.step(Fate.ANSWERED)
            self.world.now_ms += time_passes

    @rule(number=st.integers(0, 4), steps=st.integers(5, 40))
    def wake_up(self, number: int, steps: int) -> None:
        """It has slept past every lease, gets writes, and goes on."""
        self.world.now_ms += 2 * LEASE_MS
        for _ in range(steps):
            if not self.some(number).fenced:
                self.append(number, replicated=False, count=1)
                self.some(number).step(Fate.ANSWERED)

    @rule(number=st.integers(0, 4), replicated=st.booleans(), count=st.integers(1, 3))
    def append(self, number: int, replicated: bool, count: int) -> None:
        for _ in range(count):
            self.values += 1
            self.some(number).append(self.values, replicated)

    @rule(number=st.integers(0, 4))
    def give_up_the_log(self, number: int) -> None:
        """It cannot keep what the bucket does not take."""
        server = self.some(number)
        if server.primary and server.request is None and len(server.log) > server.shipped:
            server.whole = False

    @rule(passed_ms=st.sampled_from((1, 4, LEASE_MS, 3 * LEASE_MS)))
    def wait(self, passed_ms: int) -> None:
        self.world.now_ms += passed_ms

    @precondition(lambda self: bool(self.world.bucket.under_way))
    @rule(number=st.integers(0, 9))
    def land(self, number: int) -> None:
        """A write that was given up is carried out after all."""
        self.world.bucket.land(number % len(self.world.bucket.under_way))

    def teardown(self) -> None:
        """In the end the bucket works and one more server takes over: nothing acknowledged is missing."""
        world = self.world
        while world.bucket.under_way:
            world.bucket.land(0)
        last = Server(world, len(world.servers), 0)
        for _ in range(500):
            if last.primary or last.fenced:
                break
            last.step(Fate.ANSWERED)
            world.now_ms += 1
        assert last.primary, "a server that is alone takes over"


TestTerms = TermsMachine.TestCase
TestTerms.settings = settings(max_examples=examples(40), stateful_step_count=40)
