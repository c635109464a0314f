"""Stores with a bucket that a test can interrupt."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.bucket.interrupted import Interrupted, nothing, shipping_of
from tests.engine.rig import Rig
from tests.patience import PATIENCE_S
from topics.storage.bucket import lease, shipping
from topics.storage.bucket.starting import joining


@pytest.fixture
def interrupted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Interrupted:
    """The bucket of every store that is opened from now on."""
    bucket = Interrupted(tmp_path / "bucket")
    monkeypatch.setattr(joining, "connect", lambda url, environ: bucket)
    monkeypatch.setattr(shipping, "RETRY_S_MIN", 0.001)
    monkeypatch.setattr(shipping, "RETRY_S_MAX", 0.01)
    # On a busy machine a test may stop for longer than its short lease: that is no sleep.
    monkeypatch.setattr(lease, "SLEPT_S_MIN", PATIENCE_S)
    return bucket


@pytest.fixture
def opened(tmp_path: Path, interrupted: Interrupted) -> Iterator[Callable[..., Rig]]:
    """Opens a store in a directory of its own; the bucket is reliable again when it is closed, unless it died."""
    rigs: list[Rig] = []

    def open_rig(name: str, **more: Any) -> Rig:
        url = f"file://{tmp_path}/bucket"
        rigs.append(Rig(tmp_path / name, **{"bucket": url, "bucket_piece_ms": 1, "bucket_lease_ms": 1_000, **more}))
        return rigs[-1]

    yield open_rig
    interrupted.before = nothing
    for rig in rigs:
        if shipping_of(rig)._thread.is_alive():
            rig.close()
