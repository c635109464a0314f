"""A commit of many stages: each turn does a slice of it, by a clock that the test moves, and so does what follows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from tests.txns.rig import TxnRig
from topics.engine.core.waiting.runner import Runner
from topics.engine.log.topic import Topic
from topics.engine.transactions import commit as module
from topics.engine.transactions.commit import SLICE_S, CommitTarget
from topics.engine.transactions.ledger import Ledger
from topics.engine.transactions.verbs import REMOVED_AT_ONCE

STAGES, TOPICS = 40, 8
# What one record, or one topic of a stage, is said to take.
WORK_S = SLICE_S / 4


class Worked:
    """Moves the clock of the background with each piece of work, and counts the pieces of each turn."""

    def __init__(self, runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        self.pieces = 0
        self.in_turns: list[int] = []
        runner.clock_s = lambda: self.now_s
        self._count(monkeypatch, CommitTarget, "add")
        self._count(monkeypatch, CommitTarget, "number")
        self._count(monkeypatch, module, "with_heads")

    def _count(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        original = getattr(owner, name)

        def counted(*args: object) -> object:
            self.pieces += 1
            self.now_s += WORK_S
            return original(*args)

        monkeypatch.setattr(owner, name, counted)

    def end_turn(self) -> None:
        self.in_turns.append(self.pieces)
        self.pieces = 0


@pytest.fixture
def rig(tmp_path: Path) -> TxnRig:
    return TxnRig(tmp_path / "data")


def stage_all(rig: TxnRig) -> list[str]:
    stages = [f"s{n}" for n in range(STAGES)]
    for stage in stages:
        rig.stage("app", 1, stage, *({"data": stage, "topic": f"t{n}"} for n in range(TOPICS)))
    return stages


@pytest.mark.parametrize("inline", [True, False])
def test_no_turn_of_a_commit_does_more_than_a_slice(rig: TxnRig, monkeypatch: pytest.MonkeyPatch, inline: bool) -> None:
    if not inline:
        monkeypatch.setattr(module, "INLINE_RECORDS_MAX", 0)
    with rig:
        stages = stage_all(rig)
        worked = Worked(rig.store.background, monkeypatch)
        outcome = rig.begin_commit("app", 1, *stages)

        def is_done() -> bool:
            while not outcome.done:
                rig.work()
                worked.end_turn()
                rig.store.settle()
            return outcome.done

        rig.wait_until(is_done)
        assert outcome.error is None
        # Each stage for each topic is gathered and copied, each topic numbered.
        assert sum(worked.in_turns) == 2 * STAGES * TOPICS + TOPICS
        # A stage is gathered as a whole.
        assert max(worked.in_turns) <= 4 + TOPICS
        assert rig.payloads("t0") == stages


def test_hidden_topics_of_committed_stages_are_removed_afterwards_in_slices(
    rig: TxnRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rig:
        rig.commit("app", 1, *stage_all(rig))
        ledger = rig.store.state.feature(Ledger)
        assert rig.abandoned() == STAGES * TOPICS
        assert ledger.stages == ledger.bytes == 0
        now_s = 0.0
        remove = rig.store.state.remove

        def removing(topic: Topic) -> None:
            nonlocal now_s
            now_s += 1.0
            remove(topic)

        monkeypatch.setattr(rig.store.state, "remove", removing)
        rig.store.background.clock_s = lambda: now_s
        left = [rig.abandoned()]
        while rig.store.transactions.keep_house():
            left.append(rig.abandoned())
        assert rig.abandoned() == rig.hidden() == 0
        assert {before - after for before, after in pairwise(left)} == {REMOVED_AT_ONCE}


@pytest.mark.parametrize("checkpointed", [False, True])
def test_a_start_removes_what_a_commit_had_left(rig: TxnRig, checkpointed: bool) -> None:
    with rig:
        stages = stage_all(rig)
        rig.commit("app", 1, *stages)
        if checkpointed:
            rig.checkpoint()
        assert rig.abandoned() == STAGES * TOPICS
        rig.crash()
        assert rig.abandoned() == rig.hidden() == 0
        assert rig.payloads("t0") == stages


def test_a_stage_that_is_dropped_while_a_checkpoint_runs_is_in_its_snapshot(rig: TxnRig) -> None:
    with rig:
        stages = stage_all(rig)
        checkpoint = rig.store._checkpointer.steps()
        state = rig.store.state
        while not state.checkpoint:
            next(checkpoint)
            rig.store.settle()
        rig.commit("app", 1, *stages)
        while rig.store.transactions.keep_house():
            pass
        assert not state.hidden
        for _ in checkpoint:
            rig.store.settle()
        rig.crash()
        assert rig.payloads("t0") == stages
        assert rig.commit("app", 1, *stages).deduped


def test_staging_removes_more_than_it_adds(rig: TxnRig) -> None:
    with rig:
        rig.commit("app", 1, *stage_all(rig))
        before = rig.abandoned()
        rig.stage("app", 2, "s", 1, topic="t0")
        assert rig.abandoned() == before - 2
