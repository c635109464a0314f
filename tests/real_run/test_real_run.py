"""Some seconds of the run against real processes; `make real-run` takes minutes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.real_run.world import RealWorld
from tests.simulation.checkers import check

SECONDS = 25.0


@pytest.mark.crash
@pytest.mark.timeout(1200)
def test_kills_pauses_full_disks_and_clock_steps_break_no_promise(tmp_path: Path) -> None:
    world = RealWorld(tmp_path, seed=7, seconds=SECONDS)
    world.run()
    assert len(world.history.times("start")) > 3
    assert not check(world)
