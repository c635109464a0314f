"""When a piece of the log is due and what it has, by times that are passed in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.storage.bucket.piece_queue import WANTED_SHARES, PieceQueue
from topics.storage.wal.wal import LogSpan

INTERVAL_S = 50.0
SHARE_S = INTERVAL_S / WANTED_SHARES
PIECE_BYTES = 1_000


@pytest.fixture
def queue() -> PieceQueue:
    return PieceQueue(INTERVAL_S, PIECE_BYTES)


def span(start: int, end: int, path: str = "1") -> LogSpan:
    return LogSpan(path, start, end, 0, 7)


def ends(taken: LogSpan | None) -> tuple[int, int]:
    assert taken is not None
    return taken.from_position, taken.to_position


def test_nothing_is_due_while_nothing_waits(queue: PieceQueue) -> None:
    assert queue.due_s() == math.inf
    queue.want(10)
    assert queue.due_s() == math.inf, "its sync is under way"
    assert queue.take(1.0) is None
    assert queue.since_s is None


def test_what_nobody_waits_for_leaves_when_its_oldest_byte_has_waited_for_the_interval(queue: PieceQueue) -> None:
    queue.offer(span(0, 10), 100.0)
    queue.offer(span(10, 20), 140.0)
    assert queue.due_s() == 100.0 + INTERVAL_S
    assert ends(queue.take(150.0)) == (0, 20)
    queue.offer(span(20, 30), 151.0)
    assert queue.due_s() == 151.0 + INTERVAL_S, "it does not matter when the piece before it left"


def test_enough_bytes_are_due_at_once(queue: PieceQueue) -> None:
    queue.offer(span(0, 600), 100.0)
    queue.offer(span(600, 1_000), 100.0)
    assert queue.due_s() == -math.inf
    queue.offer(span(1_000, 1_500), 100.0)
    assert ends(queue.take(100.0)) == (0, 1_000)
    assert queue.due_s() == 100.0 + INTERVAL_S, "the rest is not enough"


def test_the_first_write_after_a_pause_leaves_at_once(queue: PieceQueue) -> None:
    queue.want(10)
    queue.offer(span(0, 10), 100.0)
    assert queue.due_s() <= 100.0
    queue.take(100.0)
    queue.done()
    queue.want(20)
    queue.offer(span(10, 20), 100.0 + SHARE_S)
    assert queue.due_s() == 100.0 + SHARE_S


def test_while_writes_wait_pieces_leave_after_a_share_of_the_interval_and_many_writers_share_one(
    queue: PieceQueue,
) -> None:
    queue.want(10)
    queue.offer(span(0, 10), 100.0)
    queue.take(100.0)
    for end in range(20, 80, 10):
        queue.want(end)
        queue.offer(span(end - 10, end), 101.0)
        assert queue.due_s() == 100.0 + SHARE_S
    assert ends(queue.take(100.0 + SHARE_S)) == (10, 70)
    assert queue.due_s() == math.inf


def test_a_bucket_that_takes_longer_than_that_is_the_only_bound(queue: PieceQueue) -> None:
    queue.want(10)
    queue.offer(span(0, 10), 100.0)
    queue.take(100.0)
    queue.want(20)
    queue.offer(span(10, 20), 101.0)
    assert queue.due_s() < 100.0 + INTERVAL_S, "at once, when the answer comes by then"


def test_a_write_that_waits_takes_along_what_nobody_waits_for(queue: PieceQueue) -> None:
    queue.offer(span(0, 10), 100.0)
    queue.want(20)
    assert queue.due_s() == 100.0 + INTERVAL_S, "what is there is not what is waited for"
    queue.offer(span(10, 20), 101.0)
    assert queue.due_s() < 101.0
    assert ends(queue.take(101.0)) == (0, 20)


def test_what_is_about_to_be_synced_shares_the_next_piece(queue: PieceQueue) -> None:
    queue.want(10)
    queue.offer(span(0, 10), 100.0)
    queue.want(20)
    queue.want(30)
    queue.take(100.0)
    queue.offer(span(10, 20), 101.0)
    assert queue.due_s() == 101.0 + INTERVAL_S, "the sync up to 30 is under way"
    queue.want(40)
    queue.offer(span(20, 30), 102.0)
    assert queue.due_s() == 100.0 + SHARE_S, "later ones are not waited for"
    assert ends(queue.take(110.0)) == (10, 30)


def test_a_change_that_is_in_the_bucket_no_longer_hurries(queue: PieceQueue) -> None:
    queue.want(10)
    queue.offer(span(0, 10), 100.0)
    queue.take(100.0)
    queue.done()
    queue.offer(span(10, 20), 200.0)
    assert queue.due_s() == 200.0 + INTERVAL_S


def test_a_piece_is_of_one_file(queue: PieceQueue) -> None:
    queue.offer(span(0, 10), 100.0)
    queue.offer(span(10, 20, "2"), 100.0)
    assert ends(queue.take(150.0)) == (0, 10)
    assert ends(queue.take(150.0)) == (10, 20)


def test_what_could_not_be_read_is_the_next_piece_again(queue: PieceQueue) -> None:
    queue.want(10)
    queue.offer(span(0, 10), 100.0)
    queue.take(100.0)
    queue.put_back()
    assert queue.due_s() == 100.0 + SHARE_S
    queue.offer(span(10, 20), 101.0)
    assert ends(queue.take(110.0)) == (0, 20)


def test_the_rest_of_what_is_too_long_is_the_next_piece(queue: PieceQueue) -> None:
    queue.want(30)
    queue.offer(span(0, 30), 100.0)
    queue.take(100.0)
    queue.leave(10)
    assert queue.since_s == 100.0
    queue.done()
    assert queue.since_s == 100.0
    assert queue.due_s() == 100.0 + SHARE_S
    assert ends(queue.take(110.0)) == (10, 30)
    assert queue.due_s() == math.inf


def test_the_age_is_that_of_the_oldest_byte_that_is_not_in_the_bucket(queue: PieceQueue) -> None:
    queue.offer(span(0, 10), 100.0)
    queue.take(150.0)
    queue.offer(span(10, 20), 151.0)
    assert queue.since_s == 100.0
    queue.put_back()
    assert queue.since_s == 100.0
    queue.take(160.0)
    queue.done()
    assert queue.since_s is None
    queue.offer(span(20, 30), 170.0)
    assert queue.since_s == 170.0


def test_after_a_gap_the_log_is_sent_again_and_who_waits_still_hurries(queue: PieceQueue) -> None:
    queue.offer(span(0, 10), 100.0)
    queue.want(30)
    queue.offer(span(10, 30), 100.0)
    queue.take(100.0)
    queue.clear()
    queue.done()
    assert not queue
    assert queue.due_s() == math.inf
    queue.offer(span(20, 30), 500.0)
    assert queue.due_s() <= 500.0


@given(st.lists(st.tuples(st.integers(1, 600), st.booleans(), st.sampled_from(["offer", "take", "put_back", "leave"]))))
def test_nothing_is_left_out_or_sent_twice(steps: list[tuple[int, bool, str]]) -> None:
    queue, now_s, offered_to, sent_to = PieceQueue(INTERVAL_S, PIECE_BYTES), 0.0, 0, 0
    wanted: list[int] = []
    for size, wants, step in steps:
        now_s += 1.0
        if step == "offer":
            end = offered_to + size
            if wants:
                queue.want(end)
                wanted.append(end)
            queue.offer(span(offered_to, end, str(offered_to // 5_000)), now_s)
            offered_to = end
        elif (taken := queue.take(now_s)) is not None:
            assert ends(taken)[0] == sent_to
            if step == "put_back":
                queue.put_back()
            else:
                sent_to = ends(taken)[1]
                if step == "leave" and sent_to - ends(taken)[0] > 1:
                    sent_to = (sent_to + ends(taken)[0]) // 2
                    queue.leave(sent_to)
                queue.done()
        waits = any(sent_to < end <= offered_to for end in wanted)
        assert bool(queue) == (sent_to < offered_to)
        assert (queue.due_s() <= now_s + SHARE_S) or not waits
        assert queue.due_s() <= now_s + INTERVAL_S or not queue
