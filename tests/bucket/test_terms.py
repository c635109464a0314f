"""Terms, case by case: what the model of all cases would find, where it can be read."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.bucket.faulty import Fate, FaultyBucket, MemoryBucket, close_newest
from tests.bucket.test_terms_machine import LEASE_MS, Record, Server, Standby, World
from topics.model.errors import DamagedData
from topics.storage.bucket.bucket import Unreachable
from topics.storage.bucket.chain import walk
from topics.storage.bucket.lease import OwnLease, Primary, Watched, announce, read_primary
from topics.storage.bucket.slots import LogPiece, TermClosing, decode_slot, encode_slot, slot_key
from topics.storage.bucket.terms import BEGINNING, Create, Place, Swap, TakenOver, run, take_term, write_piece


def piece(slot: int, token: str = "a", term: int = 1) -> LogPiece:
    return LogPiece(term, slot, token, 0, slot, slot + 1, 7)


def test_a_server_that_was_taken_over_is_refused_for_ever() -> None:
    bucket = MemoryBucket()
    assert close_newest(bucket, "A") == BEGINNING
    run(bucket, write_piece(piece(0), b"one"))
    assert not run(bucket, take_term("B", "b", 0, Place(1, 0))), "there is a piece that B has not read"
    assert close_newest(bucket, "B") == Place(1, 1)
    for _ in range(2):
        with pytest.raises(TakenOver, match="B has taken over with term 2"):
            run(bucket, write_piece(piece(1), b"two"))
    run(bucket, write_piece(piece(0, "b", 2), b"two"))
    end = walk(bucket, None)
    assert (end.place, end.owner) == (Place(2, 1), "B")


def test_a_piece_whose_answer_was_lost_is_recognised_as_written() -> None:
    bucket = FaultyBucket()
    close_newest(bucket, "A")
    request = next(write_piece(piece(0), b"one"))
    with pytest.raises(Unreachable):
        bucket.meet(request, Fate.UNANSWERED)
    run(bucket, write_piece(piece(0), b"one"))


def test_of_a_late_piece_and_a_closing_one_wins_and_both_know() -> None:
    bucket = FaultyBucket()
    close_newest(bucket, "A")
    with pytest.raises(Unreachable):
        bucket.meet(next(write_piece(piece(0), b"one")), Fate.LATE)
    bucket.land(0)
    assert close_newest(bucket, "B") == Place(1, 1), "the piece was there first"
    with pytest.raises(Unreachable):
        bucket.meet(Create(slot_key(2, 0), encode_slot(piece(0, "b", 2))), Fate.LATE)
    assert close_newest(bucket, "C") == Place(2, 0), "the closing was there first"
    bucket.land(0)
    with pytest.raises(TakenOver):
        run(bucket, write_piece(piece(0, "b", 2), b""))


def test_of_two_that_take_over_one_has_the_term() -> None:
    bucket = MemoryBucket()
    close_newest(bucket, "A")
    assert [run(bucket, take_term(name, name, 0, Place(1, 0))) for name in ("B", "C")] == [True, False]
    with pytest.raises(TakenOver):
        run(bucket, write_piece(piece(0), b""))


def test_an_opening_whose_answer_was_lost_is_not_repeated() -> None:
    bucket = FaultyBucket()
    with pytest.raises(Unreachable):
        bucket.meet(next(take_term("A", "a", 0, BEGINNING)), Fate.UNANSWERED)
    assert run(bucket, take_term("A", "a", 0, BEGINNING))


def test_a_server_whose_lease_has_ended_acknowledges_nothing() -> None:
    world = World()
    first, second = Server(world, 0, 0), Server(world, 1, 3_600_000)
    while not first.primary:
        first.step(Fate.ANSWERED)
    first.append(1, replicated=False)
    assert [record.value for record in world.acks] == [1]
    while not second.primary:
        second.step(Fate.ANSWERED)
        world.now_ms += 1
    assert world.now_ms >= LEASE_MS, "the second waits for the lease of the first"
    first.append(2, replicated=False)
    assert [record.value for record in world.acks] == [1]


def test_a_renewal_counts_from_its_first_attempt() -> None:
    """Its answer was lost, but the others have seen the new version: their wait began before the second attempt."""
    bucket = FaultyBucket()
    mine = Primary(1, "A", "a", "", LEASE_MS)
    with pytest.raises(Unreachable):
        bucket.meet(next(announce(mine, None)), Fate.UNANSWERED)
    watched = Watched()
    assert watched.look(run(bucket, read_primary()), 100.0, 100.0) == LEASE_MS
    seen = run(bucket, announce(mine, None))
    later_ms = 100.0 + LEASE_MS
    assert watched.look(run(bucket, read_primary()), later_ms, later_ms) == 0.0, "the second attempt wrote nothing"
    run(bucket, announce(mine.later(), seen))
    assert watched.look(run(bucket, read_primary()), later_ms, later_ms) == LEASE_MS


def test_how_long_an_object_did_not_change_counts_from_an_answer_to_a_question() -> None:
    """Both may take long: the object may have been written just before the answer, and read just after the question."""
    bucket = FaultyBucket()
    run(bucket, announce(Primary(1, "A", "a", "", LEASE_MS), None))
    seen, watched = run(bucket, read_primary()), Watched()
    assert watched.look(seen, 100.0, 109.0) == LEASE_MS + 9
    assert watched.look(seen, 110.0, 119.5) == LEASE_MS - 1
    assert watched.look(seen, 119.0, 119.0) == 0.0


def test_an_older_term_cannot_be_announced_over_a_newer_one() -> None:
    bucket = MemoryBucket()
    seen = run(bucket, announce(Primary(1, "A", "a", "", LEASE_MS), None))
    run(bucket, announce(Primary(2, "B", "b", "http://b", LEASE_MS), seen))
    with pytest.raises(TakenOver, match="B is primary in term 2"):
        run(bucket, announce(Primary(1, "A", "a", "", LEASE_MS).later(), seen))


@pytest.mark.parametrize("at", [0, 5, 20, -9, -1])
def test_a_changed_byte_of_a_slot_is_found(at: int) -> None:
    data = bytearray(encode_slot(TermClosing(1, 2, "a", 3, "A"), b"frames"))
    head, frames = decode_slot(slot_key(1, 2), bytes(data))
    assert (head, bytes(frames)) == (TermClosing(1, 2, "a", 3, "A"), b"frames")
    with pytest.raises(DamagedData):
        decode_slot(slot_key(1, 3), bytes(data))
    data[at] ^= 1
    with pytest.raises(DamagedData):
        decode_slot(slot_key(1, 2), bytes(data))
    with pytest.raises(DamagedData):
        decode_slot(slot_key(1, 2), bytes(data[:at]))


def test_two_that_start_together_do_not_both_acknowledge() -> None:
    """Neither has seen a lease; the later one waits for that of the other, which it has replaced."""
    world = World()
    early, late = Server(world, 0, 0), Server(world, 1, 0)
    late.step(Fate.ANSWERED)
    while not early.primary:
        early.step(Fate.ANSWERED)
    while not late.primary:
        late.step(Fate.ANSWERED)
        world.now_ms += 1
    assert world.now_ms >= LEASE_MS
    early.append(1, replicated=False)
    assert world.acks == []


# --- a server that slept past its lease, and asks ---


class Sleeper:
    """A primary that sleeps past its lease, while a standby follows it."""

    def __init__(self) -> None:
        self.world = World()
        self.primary, self.standby = Server(self.world, 0, 0), Standby(self.world, 1, 0)
        self.until(lambda: self.primary.primary, self.primary)
        for _ in range(20):
            self.standby.step(Fate.ANSWERED)

    def sleep(self) -> None:
        self.world.now_ms += 2 * LEASE_MS

    def until(self, condition: Callable[[], bool], server: Server, fate: Fate = Fate.ANSWERED) -> None:
        for _ in range(200):
            if condition():
                return
            server.step(fate)
        raise AssertionError

    def wake(self, steps: int = 50) -> None:
        """The primary runs, and gets a write before each of its steps."""
        for number in range(steps):
            self.primary.append(number, replicated=False)
            if not self.primary.fenced:
                self.primary.step(Fate.ANSWERED)

    def until_standby_asks(self, kind: type[Create | Swap]) -> None:
        self.until(lambda: isinstance(self.standby.request, kind), self.standby)


def test_between_the_closing_and_the_name_a_waking_primary_acknowledges_nothing() -> None:
    asleep = Sleeper()
    asleep.sleep()
    asleep.until_standby_asks(Swap)
    asleep.wake()
    assert asleep.primary.fenced
    assert asleep.world.acks == []


def test_a_waking_primary_whose_last_piece_had_arrived_is_not_told_that_its_term_is_open() -> None:
    """The standby has read that piece, and closed the term after it; to find it there proves nothing."""
    asleep = Sleeper()
    primary, world = asleep.primary, asleep.world
    primary.append(1, replicated=True)
    asleep.until(lambda: isinstance(primary.request, Create), primary)
    primary.step(Fate.UNANSWERED)
    asleep.sleep()
    asleep.until_standby_asks(Swap)
    asleep.wake()
    assert primary.fenced
    assert [record for record in world.acks if not record.replicated] == []
    while not asleep.standby.primary:
        asleep.standby.step(Fate.ANSWERED)
        world.now_ms += 1
    assert [entry.value for entry in asleep.standby.log if isinstance(entry, Record)] == [1]


def test_a_closing_that_was_decided_before_a_primary_woke_up_is_refused_and_waits_for_its_lease() -> None:
    asleep = Sleeper()
    asleep.sleep()
    asleep.until_standby_asks(Create)
    asleep.wake(20)
    assert asleep.world.acks, "it is primary again"
    for _ in range(50):
        asleep.standby.step(Fate.ANSWERED)
    assert not asleep.world.is_closed(asleep.primary.term)
    asleep.world.now_ms += LEASE_MS
    asleep.until(lambda: asleep.world.is_closed(asleep.primary.term), asleep.standby)


def test_a_late_renewal_counts_only_with_a_slot_that_was_filled_after_it() -> None:
    now_s = 0.0
    lease = OwnLease(10.0, lambda: now_s)
    assert lease.in_doubt
    lease.renewed(0.0)
    assert lease.in_doubt
    lease.proven(0.0)
    assert not lease.in_doubt
    now_s = 9.0
    lease.renewed(8.0)
    now_s = 17.0
    assert lease.holds, "continued before it ended"
    now_s = 30.0
    assert lease.slept()
    lease.renewed(30.0)
    lease.proven(8.0)
    assert lease.in_doubt, "the slot was asked for before the renewal"
    lease.proven(30.0)
    assert not lease.in_doubt
