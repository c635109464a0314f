"""Seqs that are skipped: nothing goes on before the topics are above them."""

from __future__ import annotations

from pathlib import Path

from tests.engine.rig import Rig
from topics.engine.opening.loss_estimates import nothing


def test_a_lease_in_doubt_delays_what_is_skipped_and_what_comes_after(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("t", 1)
        store = rig.store
        answers = iter([False] * 5)
        store.commit_log.may_answer = lambda: next(answers, True)
        for _ in store.skipping.skip(frozenset(), nothing, 1000):
            pass
        assert rig.append("t", 2).first_seq > 1000
