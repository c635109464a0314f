"""How many records a tombstone says were lost where the log does not say, to the record."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.folding import Folding
from topics.engine.core.ops import Deleted
from topics.engine.log.deletion import Run
from topics.engine.log.topic import Topic
from topics.engine.opening import loss_estimates as estimates
from topics.engine.opening.skipping import seqs_since
from topics.storage.wal.replay import LogGap

T = 1


@pytest.fixture
def log(tmp_path: Path) -> Folding:
    folding = Folding(tmp_path / "packs")
    folding.create(T, "t")
    return folding


def topic(log: Folding) -> Topic:
    return log.state.by_id[T]


def test_a_log_that_is_whole_lost_nothing(log: Folding) -> None:
    log.append(T, *range(5))
    assert estimates.nothing(topic(log)) == 0


def test_after_a_power_failure_as_many_as_came_after_the_last_sync_and_are_left(log: Folding) -> None:
    log.append(T, *range(8))
    log.fold(Deleted(T, 1, [Run(5, 1, 0)]))
    assert estimates.since_sync({T: 3})(topic(log)) == 4
    assert estimates.since_sync({T: 8})(topic(log)) == 0
    assert estimates.since_sync({})(topic(log)) == 7
    assert estimates.since_sync(None)(topic(log)) == 0


@pytest.mark.parametrize(
    ("now_ms", "lost"),
    [(500, 1), (400, 1), (600, 11), (700, 15), (701, 16), (750, 20), (800, 24), (900, 24), (10_000, 24)],
)
def test_in_a_copy_as_many_as_came_in_as_long_a_time_before_it(log: Folding, now_ms: int, lost: int) -> None:
    for first_ts, last_ts, count in ((200, 300, 9), (300, 300, 4), (400, 499, 10), (500, 500, 1)):
        for ts, some in ((first_ts, 1), (last_ts, count - 1)):
            if some:
                log.append(T, *range(some), ts=ts)
        topic(log).close_tail()
    assert estimates.since_copy(500, now_ms)(topic(log)) == lost


def test_a_copy_whose_original_did_not_go_on_lost_nothing(log: Folding) -> None:
    log.append(T, 1, ts=499)
    assert [estimates.since_copy(500, now_ms)(topic(log)) for now_ms in (400, 500, 501)] == [0, 0, 1]


def gap(from_position: int, to_position: int) -> LogGap:
    return LogGap("log", 0, from_position, to_position, "bad")


def test_in_a_log_with_gaps_as_many_as_fit_into_them(log: Folding) -> None:
    assert estimates.in_gaps(log.state, [gap(5, 5 + 128)])(topic(log)) == 2
    log.append(T, 0)
    assert estimates.in_gaps(log.state, [gap(5, 5 + 64 + topic(log).bytes)])(topic(log)) == 1
    log.append(T, 1)
    usual = 64 + topic(log).bytes // 2
    for lost_bytes, lost in ((0, 0), (1, 1), (3 * usual, 3), (3 * usual + 1, 4)):
        gaps = [gap(100, 100 + lost_bytes // 2), gap(900, 900 + lost_bytes - lost_bytes // 2)]
        assert estimates.in_gaps(log.state, gaps)(topic(log)) == lost


def test_more_seqs_than_one_topic_can_get_are_skipped_in_a_copy() -> None:
    a_minute = 60 * 2**21
    assert seqs_since(1000, 1000) == seqs_since(5000, 1000) == a_minute
    assert seqs_since(1000, 2000) == a_minute + 2**21
