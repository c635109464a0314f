"""Terms, case by case: what the model of all cases would find, where it can be read."""

from __future__ import annotations

import pytest

from tests.bucket.faulty import Fate, FaultyBucket, MemoryBucket
from tests.bucket.test_terms_machine import LEASE_MS, Server, World
from topics.model.errors import DamagedData
from topics.storage.bucket.bucket import Unreachable
from topics.storage.bucket.lease import Primary, Watched, announce, read_primary
from topics.storage.bucket.slots import LogPiece, TermClosing, decode_slot, encode_slot, slot_key
from topics.storage.bucket.terms import BEGINNING, Create, Place, TakenOver, find_end, open_term, run, write_piece


def piece(slot: int, token: str = "a", term: int = 1) -> LogPiece:
    return LogPiece(term, slot, token, 0, slot, slot + 1, 7)


def test_a_server_that_was_taken_over_is_refused_for_ever() -> None:
    bucket = MemoryBucket()
    assert run(bucket, open_term("A", "a", 0)).term == 1
    run(bucket, write_piece(piece(0), b"one"))
    opened = run(bucket, open_term("B", "b", 0))
    assert (opened.term, opened.closed, opened.before) == (2, Place(1, 1), "A")
    for _ in range(2):
        with pytest.raises(TakenOver, match="B has taken over with term 2"):
            run(bucket, write_piece(piece(1), b"two"))
    run(bucket, write_piece(piece(0, "b", 2), b"two"))
    newest = run(bucket, find_end())
    assert newest.place == Place(2, 1)
    assert newest.owner == "B"
    assert newest.piece == piece(0, "b", 2)


def test_a_piece_whose_answer_was_lost_is_recognised_as_written() -> None:
    bucket = FaultyBucket()
    run(bucket, open_term("A", "a", 0))
    request = next(write_piece(piece(0), b"one"))
    with pytest.raises(Unreachable):
        bucket.meet(request, Fate.UNANSWERED)
    run(bucket, write_piece(piece(0), b"one"))


def test_of_a_late_piece_and_a_closing_one_wins_and_both_know() -> None:
    bucket = FaultyBucket()
    run(bucket, open_term("A", "a", 0))
    with pytest.raises(Unreachable):
        bucket.meet(next(write_piece(piece(0), b"one")), Fate.LATE)
    bucket.land(0)
    assert run(bucket, open_term("B", "b", 0)).closed == Place(1, 1), "the piece was there first"
    with pytest.raises(Unreachable):
        bucket.meet(Create(slot_key(2, 0), encode_slot(piece(0, "b", 2))), Fate.LATE)
    assert run(bucket, open_term("C", "c", 0)).closed == Place(2, 0), "the closing was there first"
    bucket.land(0)
    with pytest.raises(TakenOver):
        run(bucket, write_piece(piece(0, "b", 2), b""))


def test_of_two_that_take_over_one_has_the_term() -> None:
    bucket = MemoryBucket()
    run(bucket, open_term("A", "a", 0))
    terms = {run(bucket, open_term(name, name, 0)).term for name in ("B", "C")}
    assert terms == {2, 3}
    with pytest.raises(TakenOver):
        run(bucket, write_piece(piece(0, "B", 2), b""))


def test_an_opening_whose_answer_was_lost_is_not_repeated() -> None:
    bucket = FaultyBucket()
    with pytest.raises(Unreachable):
        bucket.meet(next(open_term("A", "a", 0)), Fate.UNANSWERED)
    assert run(bucket, open_term("A", "a", 0)).closed == BEGINNING


def test_a_server_whose_lease_has_ended_acknowledges_nothing() -> None:
    world = World()
    first, second = Server(world, 0, BEGINNING, 0), Server(world, 1, BEGINNING, 3_600_000)
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
    assert watched.look(run(bucket, read_primary()), 100.0) == LEASE_MS
    seen = run(bucket, announce(mine, None))
    assert watched.look(run(bucket, read_primary()), 100.0 + LEASE_MS) == 0.0, "the second attempt wrote nothing"
    run(bucket, announce(mine.later(), seen))
    assert watched.look(run(bucket, read_primary()), 100.0 + LEASE_MS) == LEASE_MS


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
    early, late = Server(world, 0, BEGINNING, 0), Server(world, 1, BEGINNING, 0)
    late.step(Fate.ANSWERED)
    while not early.primary:
        early.step(Fate.ANSWERED)
    while not late.primary:
        late.step(Fate.ANSWERED)
        world.now_ms += 1
    assert world.now_ms >= LEASE_MS
    early.append(1, replicated=False)
    assert world.acks == []
