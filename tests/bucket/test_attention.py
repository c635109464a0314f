"""What the overview, and so the console and `topics server status`, says of a copy that does not keep up."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bucket.interrupted import Interrupted, nothing, shipping_of, until_shipped
from tests.bucket.standbys import until
from tests.engine.rig import Rig
from tests.patience import PATIENCE_S
from topics.api.console import overview
from topics.api.console.overview import Finding, _of_bucket


def findings(rig: Rig) -> list[Finding]:
    return list(_of_bucket(rig.store))


def test_a_bucket_that_answers_too_slowly_is_named(
    interrupted: Interrupted, opened: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = opened("a")
    rig.append("t", 1)
    until_shipped(rig)
    assert findings(rig) == []
    goes_on = threading.Event()

    def hold_up(key: str) -> None:
        if key != "primary":
            goes_on.wait(PATIENCE_S)

    interrupted.before = hold_up
    monkeypatch.setattr(overview, "BUCKET_LAG_MS_MAX", 50)
    rig.append("t", 2)
    rig.wait_until(lambda: bool(findings(rig)))
    (found,) = findings(rig)
    assert (found.severity, found.problem, found.value > 50) == ("warning", "bucket_behind", True)
    assert "does not keep up" in found.text
    interrupted.before = nothing
    goes_on.set()
    until_shipped(rig)
    assert findings(rig) == []


def test_a_standby_that_does_not_keep_up_is_named(
    tmp_path: Path, opened: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    primary = opened("a")
    with Rig(tmp_path / "b", bucket=f"file://{tmp_path}/bucket", standby=True) as rig:
        standby = rig.store.standby
        assert standby is not None
        assert findings(rig) == []
        standby.following.stop()
        monkeypatch.setattr(overview, "BUCKET_LAG_MS_MAX", 50)
        until(lambda: findings(rig))
        assert [found.problem for found in findings(rig)] == ["bucket_behind"]
        assert "what it shows is" in findings(rig)[0].text
    until_shipped(primary)
    assert shipping_of(primary).fenced is None
