"""Transactions in a copy of a store: what was committed is there, what was only staged is not trusted."""

from pathlib import Path

import pytest

from tests.engine.test_backup import begin, read_all, unpacked
from tests.txns.rig import TxnRig
from topics.model.errors import TopicsError


def test_a_copy_has_the_committed_versions_and_forgets_what_was_only_staged(tmp_path: Path) -> None:
    rig = TxnRig(tmp_path / "data")
    with rig:
        rig.stage("app", 1, "one", "a", "b", topic="t")
        rig.commit("app", 1, "one")
        # Its second part comes after the copy: committed there, the stage would miss it in silence.
        rig.stage("app", 2, "two", "c", topic="t")
        archive = read_all(begin(rig))
        rig.stage("app", 2, "two", "d", part=1, topic="t")
        copy = TxnRig(unpacked(archive, tmp_path / "copy"), clock=rig.clock)
        with copy:
            assert copy.payloads("t") == ["a", "b"]
            assert copy.version("app") == 1
            assert copy.commit("app", 1, "one").deduped
            with pytest.raises(TopicsError, match="two"):
                copy.commit("app", 2, "two")
