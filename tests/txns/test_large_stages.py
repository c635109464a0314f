"""Large parts of a stage: rendered in steps, joined by the thread that writes them, the same after a crash."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.txns.rig import TxnRig
from topics.engine.transactions.verbs import RENDERED_PER_STEP
from topics.model.requests import batch
from topics.model.requests.transactions import StageRequest


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TxnRig:
    """Every batch is a large one here."""
    monkeypatch.setattr(batch, "DEFERRED_BYTES_MIN", 0)
    return TxnRig(tmp_path / "data")


def test_a_stage_that_the_writing_thread_has_joined_is_committed_whole(rig: TxnRig) -> None:
    with rig:
        for part in range(3):
            records = [{"data": [part, n], "tag": f"{n}", "topic": "ab"[n % 2]} for n in range(20)]
            rig.stage("app", 1, "s", *records, part=part)
        rig.crash()
        rig.commit("app", 1, "s")
        for name, odd in (("a", 0), ("b", 1)):
            assert rig.payloads(name) == [[part, n] for part in range(3) for n in range(odd, 20, 2)]


def test_no_step_renders_more_than_some_records(rig: TxnRig) -> None:
    with rig:
        records = [{"data": n, "topic": f"t{n % 100}"} for n in range(10_000)]
        body = msgspec.json.encode({"stage": "s", "records": records})
        request = msgspec.json.decode(body, type=StageRequest)
        assert sum(1 for _ in rig.store.transactions.preparing(request)) >= 10_000 // RENDERED_PER_STEP
