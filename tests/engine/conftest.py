"""Hand-driven stores for the engine's tests, each put away when its test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.rig import Rig
from tests.in_memory import tmp_path

__all__ = ["tmp_path"]

OpenRig = Callable[..., Rig]

# Settings under which everything that can be on disk only, is: a record or two a segment, nothing kept in memory.
COLD = {"segment_max_events": 2, "hot_retain_segments": 0, "hot_retain_bytes": 0}


@pytest.fixture
def open_rig(tmp_path: Path) -> Iterator[OpenRig]:
    """Opens a rig by settings; every one gets a directory of its own."""
    rigs: list[Rig] = []

    def open_one(**settings: Any) -> Rig:
        settings.setdefault("wal_file_bytes", 1 << 20)  # a crash copies the files
        rigs.append(Rig(tmp_path / f"data{len(rigs)}", **settings))
        return rigs[-1]

    yield open_one
    for rig in rigs:
        rig.abandon()


@pytest.fixture
def rig(open_rig: OpenRig) -> Rig:
    return open_rig()
