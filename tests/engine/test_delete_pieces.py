"""Deletes of many records that lie apart: several changes, others between them, one answer."""

import pytest

from tests.engine.rig import Rig
from topics.engine.core import pending
from topics.model.requests.records import DeleteRequest


@pytest.fixture(autouse=True)
def few_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "RUNS_PER_CHANGE", 10)


def fill(rig: Rig, records: int) -> None:
    rig.append("t", *({"data": n, "tag": "ab"[n % 2]} for n in range(records)))


def test_no_change_removes_more_than_a_few_runs_and_others_have_their_turn(rig: Rig) -> None:
    fill(rig, 200)
    steps = rig.engine.delete("t", DeleteRequest(match="a"))
    pauses = appended = 0
    while True:
        try:
            assert next(steps) is None
        except StopIteration as end:
            change = end.value
            break
        pauses += 1
        if pauses == 3:
            appended = rig.append("t", {"data": "new", "tag": "a"}).first_seq
    assert pauses == 9
    rig.finish(change)
    assert change.result[0] == 100
    assert rig.seqs("t") == [*range(2, 201, 2), appended], "what came after the delete began stays"


def test_the_pieces_survive_a_crash(rig: Rig) -> None:
    fill(rig, 95)
    assert rig.delete("t", match="a") == 48
    rig.crash()
    assert rig.seqs("t") == list(range(2, 96, 2))


def test_a_topic_dropped_between_two_pieces_ends_the_delete(rig: Rig) -> None:
    from topics.model.errors import TopicNotFound

    fill(rig, 200)
    steps = rig.engine.delete("t", DeleteRequest(match="a"))
    next(steps)
    rig.drop("t")
    with pytest.raises(TopicNotFound):
        list(steps)
