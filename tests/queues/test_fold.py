"""What the ops of queues do to a state that is folded from the log, whatever came before them there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.folding import Folding, batch_of
from topics.engine.core.appended import Appended
from topics.engine.core.op_table import Op
from topics.engine.core.ops import Deleted
from topics.engine.log.deletion import Run
from topics.engine.log.topic import Topic
from topics.engine.queues.due import JobPlace
from topics.engine.queues.ops import Buried, Extended, Leased, Moved, Paused, Released
from topics.engine.queues.part import letters_of, open_results, queue_of, results_of
from topics.engine.queues.queue import Queue
from topics.engine.queues.results.ended import EndedJob, EndState
from topics.engine.queues.results.ops import Ended, GroupNotified, GroupsForgotten, Progressed

Q, DEAD = 1, 2
NOTIFIED_TS = 50


@pytest.fixture
def log(tmp_path: Path) -> Folding:
    folding = Folding(tmp_path / "packs")
    folding.create(Q, "q", type="queue")
    folding.create(DEAD, "dead")
    return folding


def queue(log: Folding) -> Queue:
    found = queue_of(log.state.by_id[Q])
    assert found is not None
    return found


def leased(log: Folding, *seqs: int, cursor: int, deadline: int = 90) -> None:
    log.fold(Leased(Q, cursor, deadline, 0, "w", [(seq, seq, 1) for seq in seqs]))


def place(log: Folding, seq: int) -> JobPlace:
    group = queue(log).jobs[seq].group
    assert group is not None
    return group.place


def test_a_lease_shows_how_far_fresh_jobs_had_been_handed_out(log: Folding) -> None:
    log.append(Q, *range(5))
    leased(log, 2, cursor=3)
    assert (queue(log).cursor, queue(log).fresh, queue(log).ahead) == (3, 2, 0)
    assert [place(log, seq) for seq in (1, 2, 3)] == [JobPlace.READY, JobPlace.LEASED, JobPlace.READY]


def test_a_job_that_has_died_is_not_leased_again(log: Folding) -> None:
    log.append(Q, *range(3))
    log.fold(Deleted(Q, 1, [Run(1, 1, 0)]))
    leased(log, 1, 2, cursor=2)
    assert list(queue(log).jobs) == [2]


@pytest.mark.parametrize("seqs", [[1], [1, 2]], ids=["of one job", "of neighbours"])
def test_what_was_folded_when_it_was_decided_is_not_folded_again(log: Folding, seqs: list[int]) -> None:
    log.append(Q, *range(3))
    leased(log, 1, 2, cursor=2)
    for op in (
        Leased(Q, 3, 90, 0, "w", [(3, 3, 1)], ahead=True),
        Extended(Q, 1000, 0, seqs, ahead=True),
        Released(Q, 0, "no", seqs, ahead=True),
        Progressed(Q, b"1", seqs, ahead=True),
    ):
        log.state.apply(op, 0)
    assert sorted(queue(log).jobs) == [1, 2]
    for seq in seqs:
        assert place(log, seq) is JobPlace.LEASED
        assert (queue(log).jobs[seq].deadline, queue(log).jobs[seq].error) == (90, "")
    assert results_of(log.state.by_id[Q]) is None


@pytest.mark.parametrize(
    "op",
    [
        Leased(DEAD, 3, 90, 0, "w", [(1, 1, 1)]),
        Released(DEAD, 5, "no", [1]),
        Extended(DEAD, 5, 0, [1]),
        Paused(DEAD, True),
        Buried(DEAD, 2, None),
        GroupNotified(DEAD, 1, 1, "g", None),
        GroupsForgotten(DEAD, [1]),
    ],
)
def test_a_log_is_no_queue_whatever_is_said_of_it(log: Folding, op: Op) -> None:
    log.append(DEAD, 1)
    log.fold(op)
    assert log.state.by_id[DEAD].queue is None


def test_a_job_keeps_its_last_error(log: Folding) -> None:
    log.append(Q, 0)
    for error, kept in (("first", "first"), ("", "first"), ("second", "second")):
        leased(log, 1, cursor=1)
        log.fold(Released(Q, 0, error, [1]))
        assert queue(log).jobs[1].error == kept
        assert place(log, 1) is JobPlace.READY


def test_a_pause_lasts_until_it_is_ended(log: Folding) -> None:
    for paused in (True, False):
        log.fold(Paused(Q, paused))
        assert queue(log).paused is paused


# --- jobs that leave ---


def grouped(log: Folding, jobs: int) -> None:
    log.append(Q, *[{"data": 0, "group": {"name": "g", "size": 9, "notify": "ends"}}] * jobs)


def ended(log: Folding) -> list[int]:
    """Of the group: removed, done, dead, cancelled."""
    results = results_of(log.state.by_id[Q])
    assert results is not None
    return results.groups.by_name["g"].ended


def gone(first_seq: int) -> Deleted:
    return Deleted(Q, 1, [Run(first_seq, 1, 0)])


def moved(first_seq: int, to_seq: int, *, dead: bool, to_id: int = DEAD) -> Moved:
    return Moved(Q, dead, 1, gone(first_seq).runs, Appended(to_id, 0, b"", batch_of(to_seq, "x")))


def test_jobs_count_as_dead_only_while_they_are_moved_or_buried_as_such(log: Folding) -> None:
    grouped(log, 6)
    log.fold(moved(1, 1, dead=True))
    assert ended(log) == [0, 0, 1, 0]
    log.fold(gone(2))
    assert ended(log) == [1, 0, 1, 0]
    log.fold(Buried(Q, 1, gone(3)))
    assert ended(log) == [1, 0, 2, 0]
    log.fold(gone(4))
    assert ended(log) == [2, 0, 2, 0]
    log.fold(moved(5, 2, dead=False))
    assert ended(log) == [3, 0, 2, 0]
    assert queue(log).dead_lettered == 2
    assert log.state.by_id[DEAD].count == 2
    assert log.state.count == 3


def test_the_end_of_a_job_is_that_of_the_op_that_says_so(log: Folding) -> None:
    grouped(log, 4)
    kept = EndedJob(1, EndState.DONE, 1, 2, 3, 1, "w", "", b"", b"7").encode()
    log.fold(Ended(EndState.DONE, kept, gone(1)), gone(2))
    assert ended(log) == [1, 1, 0, 0]
    results = results_of(log.state.by_id[Q])
    assert results is not None
    assert len(results.ended) == 1
    log.fold(Ended(EndState.CANCELLED, b"", gone(3)), gone(4))
    assert ended(log) == [2, 1, 0, 1]
    assert len(results.ended) == 1, "nothing is kept of the others"


def test_buried_letters_count_with_and_without_their_records(log: Folding) -> None:
    dead = log.state.by_id[DEAD]
    log.append(Q, *range(3))
    log.fold(Buried(Q, 2, None))
    assert queue(log).dead_lettered == 2
    log.fold(Buried(Q, 1, Appended(DEAD, 0, b"", batch_of(1, "x"))))
    assert (queue(log).dead_lettered, dead.count) == (3, 1)
    letters = letters_of(dead)
    assert letters is not None
    assert letters.left_of(log.state.by_id[Q]) == 1


def test_letters_are_known_by_their_queue_and_records_that_go_home_are_none(log: Folding) -> None:
    dead = log.state.by_id[DEAD]
    log.append(Q, *range(4))
    log.fold(moved(1, 1, dead=False))
    assert letters_of(dead) is None
    log.fold(moved(2, 2, dead=True), moved(3, 3, dead=True))
    letters = letters_of(dead)
    assert letters is not None
    assert letters.left_of(log.state.by_id[Q]) == 2


def test_letters_that_have_left_are_forgotten_in_time(log: Folding, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("topics.engine.log.seq_spans.SPANS_MIN", 2)
    log.create(3, "other", type="queue")
    dead = log.state.by_id[DEAD]
    for seq in range(1, 9):
        # Neighbours of two queues in turn: a span each.
        log.append(2 * (seq % 2) + 1, 0)
        source = log.state.by_id[2 * (seq % 2) + 1]
        letter = Appended(DEAD, 0, b"", batch_of(seq, "x"))
        log.fold(Moved(source.id, True, 1, [Run(source.head_seq, 1, 0)], letter))
        log.fold(Deleted(DEAD, 1, [Run(seq, 1, 0)]))
    letters = letters_of(dead)
    assert letters is not None
    spans = len(letters.encode()) // 24
    assert spans < 8


def test_records_for_a_topic_that_is_gone_only_leave(log: Folding) -> None:
    log.append(Q, *range(2))
    log.fold(moved(1, 1, dead=True, to_id=9))
    assert (log.state.by_id[Q].count, log.state.count, 9 in log.state.by_id) == (1, 1, False)


@pytest.mark.parametrize(
    "op",
    [
        moved(1, 1, dead=True),
        Buried(Q, 1, Appended(DEAD, 0, b"", batch_of(1, "x"))),
        GroupNotified(Q, 1, 1, "g", Appended(DEAD, 0, b"", batch_of(1, "x"))),
        Ended(EndState.DEAD, b"", moved(1, 1, dead=True)),
    ],
)
def test_a_running_checkpoint_captures_the_other_topic_before_records_land_in_it(log: Folding, op: Op) -> None:
    log.append(Q, 0)
    captured: list[tuple[Topic, int]] = []
    state = log.state
    state.dirty.clear()
    state.checkpoint, state.capture_from = 1, log.position
    state.capture = lambda topic: captured.append((topic, topic.head_seq))
    log.fold(op)
    assert (state.by_id[DEAD], 0) in captured
    assert state.by_id[DEAD] in state.dirty


# --- progress and groups ---


def test_progress_is_kept_of_jobs_that_are_there(log: Folding) -> None:
    log.append(Q, *range(2))
    log.fold(gone(1), Progressed(Q, b'{"done":1}', [1, 2]))
    assert open_results(log.state.by_id[Q]).progress == {2: b'{"done":1}'}


@pytest.mark.parametrize("with_record", [False, True])
def test_a_group_is_notified_with_or_without_its_record(log: Folding, with_record: bool) -> None:
    grouped(log, 1)
    record: Any = Appended(DEAD, 0, b"", batch_of(1, "x")) if with_record else None
    log.fold(GroupNotified(Q, NOTIFIED_TS, 1, "g", record))
    results = open_results(log.state.by_id[Q])
    assert (results.groups.by_name["g"].notified_ts, results.groups.by_name["g"].notified_seq) == (NOTIFIED_TS, 1)
    assert log.state.by_id[DEAD].count == int(with_record)


def test_a_group_is_notified_where_its_topic_is_gone(log: Folding) -> None:
    grouped(log, 1)
    log.fold(GroupNotified(Q, NOTIFIED_TS, 1, "g", Appended(9, 0, b"", batch_of(1, "x"))))
    assert open_results(log.state.by_id[Q]).groups.by_name["g"].notified_ts == NOTIFIED_TS


def test_groups_are_forgotten_by_number(log: Folding) -> None:
    grouped(log, 1)
    group = open_results(log.state.by_id[Q]).groups.by_name["g"]
    log.fold(gone(1), GroupsForgotten(Q, [group.number]))
    assert open_results(log.state.by_id[Q]).groups.by_name == {}
