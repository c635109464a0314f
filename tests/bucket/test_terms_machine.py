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
from topics.storage.bucket.lease import Primary, Seen, Watched, announce, read_primary
from topics.storage.bucket.slots import SNAPSHOTS, LogPiece, Slot, TermClosing, parse_slot_key
from topics.storage.bucket.terms import (
    BEGINNING,
    Create,
    List,
    Opened,
    Place,
    Read,
    Reply,
    Request,
    Steps,
    TakenOver,
    open_term,
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

    def __init__(self, world: World, number: int, start: Place, clock_ahead_ms: int) -> None:
        self.world = world
        self.token = f"run {number}"
        self.start = start
        self.clock_ahead_ms = clock_ahead_ms
        self.log: list[Entry] = []
        self.term = self.slot = 0
        self.shipped = 0
        # False: the bucket lacks a part of the log.
        self.whole = True
        self.lease_until_ms = -1.0
        self.primary = False
        self.fenced = False
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
            try:
                reply = self.world.bucket.meet(self.request, fate)
            except BucketError as error:
                self.request = self.life.throw(error)
            else:
                self.request = self.life.send(reply)
        except TakenOver:
            self.fenced, self.primary = True, False

    # --- its life ---

    def own_a_term(self) -> Life[Seen | None]:
        """Wait for the lease, close whatever term is the newest, and read the log; who was primary."""
        watched = Watched()
        seen = yield from self.until_answered(read_primary)
        while watched.look(seen, self.now_ms()) > 0.0:
            yield None
            seen = yield from self.until_answered(read_primary)
        opened = yield from self.until_answered(lambda: open_term(self.token, self.token, 0, self.start))
        self.term = opened.term
        self.log, self.whole = yield from self.until_answered(lambda: self.read_all(opened))
        return seen

    def live(self) -> Life[None]:
        seen = yield from self.own_a_term()
        self.shipped = len(self.log)
        last_seq = max((entry.seq if isinstance(entry, Record) else entry.to_seq for entry in self.log), default=0)
        self.log.append(Skip(last_seq + 1, last_seq + UNSENT_MAX))
        # Before anything is acknowledged: a server that takes over later must know which seqs are taken.
        yield from self.ship()
        sent_ms, mine = self.now_ms(), Primary(self.term, self.token, self.token, "", LEASE_MS)
        seen = yield from self.until_answered(lambda: announce(mine, seen))
        self.lease_until_ms = sent_ms + LEASE_MS
        if seen.must_wait:
            until_ms = self.now_ms() + LEASE_MS
            while self.now_ms() < until_ms:
                yield None
        self.world.took_over(self)
        self.primary = True
        while True:
            yield None
            if len(self.log) > self.shipped:
                yield from self.ship()
            if self.lease_until_ms - self.now_ms() < LEASE_MS / 2:
                # From before the first attempt: the others may have seen the object since then.
                sent_ms, mine = self.now_ms(), mine.later()
                seen = yield from self.until_answered(lambda mine=mine, seen=seen: announce(mine, seen))
                self.lease_until_ms = sent_ms + LEASE_MS

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
        piece = LogPiece(self.term, self.slot, self.token, 0, first, end, 0)
        frames = encode(self.log[first:end])
        yield from self.until_answered(lambda: write_piece(piece, frames))
        self.slot += 1

    def read_all(self, opened: Opened) -> Steps[tuple[list[Entry], bool]]:
        """The log up to the closing, and whether that is all of it."""
        place, log = yield from newest_snapshot()
        whole = True
        while place != opened.closed:
            found = yield from read_slot(place)
            assert found is not None, "slots are without gaps"
            head, frames = found
            if isinstance(head, TermClosing):
                place = Place(place.term + 1, 0)
                continue
            whole = whole and head.from_position == len(log)
            if whole:
                log += decode(frames)
            place = place.next
        return log, whole

    def until_answered(self, attempt: Callable[[], Steps[T]]) -> Life[T]:
        while True:
            try:
                return (yield from attempt())
            except (Unreachable, Changed):
                yield None

    # --- what clients ask of it ---

    def append(self, value: int, replicated: bool) -> None:
        unsent = sum(isinstance(entry, Record) for entry in self.log[self.shipped :])
        if not self.primary or self.now_ms() >= self.lease_until_ms or unsent >= UNSENT_MAX:
            return
        last = self.log[-1]
        record = Record((last.seq if isinstance(last, Record) else last.to_seq) + 1, value, replicated)
        self.log.append(record)
        self.world.assigned(record)
        if not replicated:
            self.world.acknowledged(self, record)


class Standby(Server):
    """A server that follows the log from the start, and closes only the term that it has read to its end."""

    def own_a_term(self) -> Life[Seen | None]:
        place, self.log = yield from self.until_answered(newest_snapshot)
        watched = Watched()
        while True:
            found = yield from self.until_answered(lambda place=place: read_slot(place))
            if found is not None:
                place = yield from self.follow(place, *found)
                continue
            seen = yield from self.until_answered(read_primary)
            if watched.look(seen, self.now_ms()) > 0.0:
                yield None
                continue
            taken = yield from self.until_answered(lambda place=place: take_term(self.token, self.token, 0, place))
            if taken:
                self.term = place.term + 1
                return seen
            watched = Watched()

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
        self.newest_term = 0

    def assigned(self, record: Record) -> None:
        assert record.seq not in self.values_by_seq, f"seq {record.seq} is used twice"
        self.values_by_seq[record.seq] = record.value

    def acknowledged(self, server: Server, record: Record) -> None:
        assert self.primaries.setdefault(server.term, server) is server, f"two servers acknowledge in {server.term}"
        if not record.replicated:
            assert server.term == self.newest_term, "a server acknowledges by itself after another has taken over"
        self.acks.append(record)

    def took_over(self, server: Server) -> None:
        """A new primary has everything replicated, as it was acknowledged, and announces exactly the other losses."""
        self.newest_term = max(self.newest_term, server.term)
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
        self.start_server(0, 0)

    @precondition(lambda self: len(self.world.servers) < 5)
    @rule(stale=st.integers(0, 9), clock_ahead_ms=st.sampled_from((0, 0, 3_600_000, -3_600_000)), standby=st.booleans())
    def start_server(self, stale: int, clock_ahead_ms: int, standby: bool = False) -> None:
        """It begins at the end of a list that may be out of date."""
        listed = [place for key in sorted(self.world.bucket.objects) if (place := parse_slot_key(key)) is not None]
        shown = listed[: len(listed) - stale]
        start = Place(*shown[-1]) if shown else BEGINNING
        kind = Standby if standby else Server
        self.world.servers.append(kind(self.world, len(self.world.servers), start, clock_ahead_ms))

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
        last = Server(world, len(world.servers), BEGINNING, 0)
        for _ in range(500):
            if last.primary or last.fenced:
                break
            last.step(Fate.ANSWERED)
            world.now_ms += 1
        assert last.primary, "a server that is alone takes over"


TestTerms = TermsMachine.TestCase
TestTerms.settings = settings(max_examples=examples(40), stateful_step_count=40)
