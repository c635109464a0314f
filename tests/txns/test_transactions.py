"""What a transaction promises, verb by verb, on an engine driven by hand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.txns.rig import TxnRig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[TxnRig]:
    with TxnRig(tmp_path / "data") as rig:
        yield rig


def test_what_is_staged_is_seen_only_when_it_is_committed(rig: TxnRig) -> None:
    rig.append("orders", "before")
    rig.stage("app", 1, "a", 1, 2, topic="orders")
    rig.stage("app", 1, "b", 3, topic="orders")
    assert rig.payloads("orders") == ["before"]
    done = rig.commit("app", 1, "a", "b")
    assert not done.deduped
    assert [tuple(landed) for landed in done.landed or ()] == [("orders", 2, 4, 3)]
    assert rig.payloads("orders") == ["before", 1, 2, 3]
    assert rig.hidden() == 0 and rig.stages("app") == []
    rig.append("orders", "after")
    assert rig.seqs("orders") == [1, 2, 3, 4, 5]


def test_a_large_commit_is_spliced(rig: TxnRig) -> None:
    rig.append("orders", "before")
    for part in range(4):
        rig.stage_many("app", 1, "a", "orders", 5_000, part)
    done = rig.commit("app", 1, "a")
    assert done.landed is not None and done.landed[0].last_seq == 20_001
    rig.append("orders", "after")
    expected = ["before", *(number for _ in range(4) for number in range(5_000)), "after"]
    assert rig.payloads("orders") == expected
    assert rig.seqs("orders") == list(range(1, 20_003))
    rig.crash()
    assert rig.payloads("orders") == expected
    rig.checkpoint()
    rig.reopen()
    assert rig.payloads("orders") == expected
    assert rig.version("app") == 1 and rig.hidden() == 0
