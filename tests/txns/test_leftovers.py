"""Hidden topics of dropped stages go without an op: servers that still have them and those that have not agree."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.txns.rig import TxnRig
from topics.engine.core.ops import Created, Dropped
from topics.engine.core.state import State
from topics.engine.log.topic import STAGING
from topics.model.requests.config import TopicConfig


@pytest.fixture
def rig(tmp_path: Path) -> TxnRig:
    return TxnRig(tmp_path / "data")


@pytest.fixture
def snapshots_of_before(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From now on, snapshots are read as if they did not have the next id, as before."""
    return lambda: monkeypatch.setattr(State, "restore_next_id", lambda *_: None)


def drop_a_stage(rig: TxnRig) -> int:
    """Its hidden topic is there until `clean_up`; its id."""
    rig.stage("app", 1, "dropped", 1, topic="t", fence=1)
    (hidden,) = (topic.id for name, topic in rig.store.state.hidden.items() if name.startswith(STAGING))
    rig.abort("app", 1, "dropped", fence=1)
    return hidden


def clean_up(rig: TxnRig) -> None:
    while rig.store.transactions.keep_house():
        pass
    assert not rig.store.state.hidden


def lose_the_newest_snapshot(rig: TxnRig) -> None:
    newest = max((rig.path / "shard-00" / "snapshots").glob("*.snap"), key=lambda path: path.name)
    newest.write_bytes(b"")


@pytest.mark.parametrize("before", [False, True])
def test_a_server_without_the_hidden_topic_folds_its_removal(
    rig: TxnRig, snapshots_of_before: Callable[[], None], before: bool
) -> None:
    if before:
        snapshots_of_before()
    with rig:
        rig.append("t", 1)
        rig.take_fence("app")
        hidden = drop_a_stage(rig)
        clean_up(rig)
        rig.checkpoint()
        rig.crash()
        # What a server writes when it takes over, and has started with a snapshot from before the removal.
        op = Dropped(hidden)
        rig.store.commit_log.submit(op, op.encode(), gated=False)
        rig.store.commit_log.flush()
        rig.crash()
        assert rig.payloads("t") == [1]
        rig.append("new", 2)
        assert rig.store.state.by_name["new"].id > hidden


def test_the_id_of_a_hidden_topic_that_was_removed_is_not_given_out_again(rig: TxnRig) -> None:
    with rig:
        rig.append("t", 1)
        rig.take_fence("app")
        hidden = drop_a_stage(rig)
        clean_up(rig)
        rig.checkpoint()
        rig.crash()
        rig.append("new", 2)
        assert rig.store.state.by_name["new"].id > hidden


@pytest.mark.parametrize("in_snapshot", [False, True])
@pytest.mark.parametrize("then", ["append", "stage", "both"])
def test_a_topic_with_the_id_of_a_hidden_one_that_is_still_here_replaces_it(
    rig: TxnRig, snapshots_of_before: Callable[[], None], in_snapshot: bool, then: str
) -> None:
    """A server of before gave the id out again; this one reads its log from a snapshot before the removal."""
    snapshots_of_before()
    with rig:
        rig.append("t", 1)
        rig.take_fence("app")
        if not in_snapshot:
            rig.checkpoint()
        hidden = drop_a_stage(rig)
        if in_snapshot:
            rig.checkpoint()
        clean_up(rig)
        rig.append("t", 2)
        rig.checkpoint()
        rig.crash()
        if then == "stage":
            rig.stage("app", 2, "s", "staged", topic="t", fence=1)
            assert hidden in rig.store.state.by_id
        else:
            rig.append("new", 3)
            assert rig.store.state.by_name["new"].id == hidden
        if then == "both":
            rig.stage("app", 2, "s", "staged", topic="t", fence=1)
        lose_the_newest_snapshot(rig)
        rig.crash()
        for _ in range(2):
            if then != "stage":
                assert rig.payloads("new") == [3]
            rig.checkpoint()
            rig.crash()
        if then != "append":
            rig.commit("app", 2, "s", fence=1)
            assert rig.payloads("t") == [1, 2, "staged"]
        clean_up(rig)


def test_a_hidden_topic_that_another_server_removed_is_not_removed_again(rig: TxnRig) -> None:
    with rig:
        rig.append("t", 1)
        rig.take_fence("app")
        op = Dropped(drop_a_stage(rig))
        rig.store.commit_log.submit(op, op.encode(), gated=False)
        rig.store.commit_log.flush()
        assert rig.abandoned()
        clean_up(rig)
        assert not rig.abandoned()


def test_a_topic_that_replaces_a_hidden_one_while_a_checkpoint_runs_is_not_in_its_snapshot(rig: TxnRig) -> None:
    with rig:
        rig.append("t", 1)
        rig.take_fence("app")
        hidden = drop_a_stage(rig)
        state, checkpoint = rig.store.state, rig.store._checkpointer.steps()
        while not state.checkpoint:
            next(checkpoint)
            rig.store.settle()
        op = Created(hidden, 1, 0, 0, "new", TopicConfig())
        rig.store.commit_log.submit(op, op.encode(), gated=False)
        rig.append("new", 2)
        for _ in checkpoint:
            rig.store.settle()
        rig.crash()
        assert rig.payloads("new") == [2]
        assert rig.store.state.names == ["new", "t"]
        assert rig.store.state.count == 2
