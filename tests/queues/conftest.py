"""Hand-driven queues for the tests of this folder, each put away when its test is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.queues.queue_rig import QueueRig

OpenRig = Callable[..., QueueRig]


@pytest.fixture
def open_rig(tmp_path: Path) -> Iterator[OpenRig]:
    """Opens a rig by settings; every one gets a directory of its own."""
    rigs: list[QueueRig] = []

    def open_one(**settings: object) -> QueueRig:
        rigs.append(QueueRig(tmp_path / f"data{len(rigs)}", **{"wal_file_bytes": 1 << 16, **settings}))
        return rigs[-1]

    yield open_one
    for rig in rigs:
        rig.abandon()


@pytest.fixture
def rig(open_rig: OpenRig) -> QueueRig:
    return open_rig()
