"""Seqs that are skipped: nothing goes on before the topics are above them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bucket.interrupted import shipping_of
from tests.engine.rig import Rig
from topics.engine.opening.loss_estimates import nothing
from topics.model.errors import NotPrimary
from topics.storage.bucket.terms import TakenOver
from topics.storage.steps import at_once


def test_a_lease_in_doubt_delays_what_is_skipped_and_what_comes_after(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("t", 1)
        store = rig.store
        answers = iter([False] * 5)
        store.commit_log.may_answer = lambda: next(answers, True)
        at_once(store.skipping.skip(frozenset(), nothing, 1000))
        assert rig.append("t", 2).first_seq > 1000


def test_a_start_that_was_taken_over_meanwhile_ends(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with Rig(tmp_path / "data", bucket=f"file://{bucket}") as rig:
        rig.append("t", 1)
        store = rig.store
        store.commit_log.may_answer = lambda: False
        shipping_of(rig).fenced = TakenOver("another server is primary")
        with pytest.raises(NotPrimary):
            at_once(store.skipping.skip(frozenset(), nothing, 1000))
        rig.close()
