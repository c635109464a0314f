"""A checkpoint of very many topics or jobs: each of its steps does a bounded part of the work, and no step writes."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Sequence
from types import FrameType
from typing import Any

import pytest

from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig
from tests.engine.test_append import request
from tests.engine.test_checkpoint import drive, everything
from tests.faults import FaultyDisk
from topics.engine.core.checkpoints.checkpoint import SLICE_MS, Steps
from topics.engine.log.on_disk.packing import UNWRITTEN_BYTES_MAX
from topics.engine.queues.part import queue_of
from topics.model.clock import ManualClock
from topics.storage.disk import Buffer

# What a call of a function is taken to cost.
CALL_MS = 0.01
TOPICS = 1_500


class CallClock(ManualClock):
    """A clock that every call of a Python function moves on, while a step runs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls_ms = 0.0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.calls_ms

    def charge(self, frame: FrameType, event: str, argument: Any) -> None:
        del frame, argument
        if event == "call":
            self.calls_ms += CALL_MS

    def run_step(self, steps: Steps[bool]) -> tuple[bool, float]:
        """Run one step; what it said, and what it cost."""
        before_ms = self.calls_ms
        # What a collection finalises is not the step's: it may be the garbage of earlier tests.
        gc.disable()
        sys.setprofile(self.charge)
        try:
            more = next(steps)
        finally:
            sys.setprofile(None)
            gc.enable()
        return more, self.calls_ms - before_ms


def longest_step_ms(rig: Rig, clock: CallClock) -> float:
    """Run a checkpoint to its end; what its busiest step cost."""
    longest_ms = 0.0
    steps = rig.store._checkpointer.steps()
    while True:
        try:
            more, cost_ms = clock.run_step(steps)
        except StopIteration:
            return longest_ms
        longest_ms = max(longest_ms, cost_ms)
        if not more:
            rig.store.settle()


@pytest.fixture
def clock() -> CallClock:
    return CallClock()


def test_no_step_of_a_checkpoint_goes_over_all_topics(open_rig: OpenRig, clock: CallClock) -> None:
    rig = open_rig(clock=clock)
    for _ in range(2):
        for number in range(TOPICS):
            rig.engine.append(f"t{number}", request(1))
        rig.store.commit_log.flush()
        # A unit of work, which is a topic, costs less than a slice.
        assert longest_step_ms(rig, clock) < 2 * SLICE_MS
    before = everything(rig)
    rig.crash()
    assert everything(rig) == before


def test_no_step_of_a_checkpoint_goes_over_all_jobs_of_a_queue(open_rig: OpenRig, clock: CallClock) -> None:
    rig = open_rig(clock=clock)
    rig.configure("q", type="queue")
    for _ in range(4):
        rig.append("q", *({"data": 1, "delay_ms": 60_000} for _ in range(1_000)))
    # 500 jobs a part, and a few calls for each
    assert longest_step_ms(rig, clock) < 500 * 5 * CALL_MS
    rig.crash()
    queue = queue_of(rig.store.state.by_name["q"])
    assert queue is not None
    assert queue.delayed == 4_000


class WatchedDisk(FaultyDisk):
    """Notes which threads write to packs."""

    def __init__(self) -> None:
        super().__init__()
        self.writers: list[str] = []
        self._packs: set[int] = set()

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        fd = super().open(path, flags, mode)
        (self._packs.add if ".pack" in path else self._packs.discard)(fd)
        return fd

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        if fd in self._packs:
            self.writers.append(threading.current_thread().name)
        return super().pwritev(fd, buffers, offset)


def test_a_pack_is_written_by_the_worker(open_rig: OpenRig) -> None:
    disk = WatchedDisk()
    rig = open_rig(disk=disk)
    for _ in range(6):
        rig.append("a", *["x" * 100_000] * 10)
    before = everything(rig)
    rig.checkpoint()
    assert len(disk.writers) > 2
    assert set(disk.writers) == {"topics-worker"}
    rig.crash()
    assert everything(rig) == before


def test_a_checkpoint_waits_for_a_disk_that_does_not_keep_up(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    for _ in range(50):
        rig.append("a", *["x" * 100_000] * 10)
    before = everything(rig)
    gate = disk.hold("pwritev", path=".pack")
    steps = rig.store._checkpointer.steps()
    assert drive(rig, steps, until=gate) is None
    while next(steps):
        pass
    packing: Any = rig.store._checkpointer._packing
    assert UNWRITTEN_BYTES_MAX < packing._writer.unwritten_bytes < 2 * UNWRITTEN_BYTES_MAX
    gate.open()
    assert drive(rig, steps) is True
    rig.crash()
    assert everything(rig) == before


def test_a_pack_whose_writing_fails_is_forgotten_and_the_next_checkpoint_succeeds(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    for _ in range(6):
        rig.append("a", *["x" * 100_000] * 10)
    before = everything(rig)
    disk.fail("pwritev", path=".pack")
    assert not rig.store.checkpoint()
    assert rig.store.packs.numbers() == []
    rig.checkpoint()
    rig.crash()
    assert everything(rig) == before
