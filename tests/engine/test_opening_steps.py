"""Recovery gives way by time: whatever a log holds, no step between two yields does more than a few milliseconds' work.

The clock is passed in and moves by what is done, so that these tests count work and not the machine's speed.
"""

from __future__ import annotations

import os
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig
from topics.engine.core.checkpoints import image
from topics.engine.core.checkpoints.image import ITEMS_PER_STEP
from topics.engine.core.state import State
from topics.engine.log import block, body
from topics.engine.log.block import Block
from topics.engine.opening.store import SLICE_MS, Store
from topics.model.settings import Settings
from topics.storage.disk import Disk
from topics.storage.wal.log_scan import PIECE_BYTES
from topics.storage.wal.replay import DamagedLog

MIB = 1 << 20
# What reading a byte is taken to cost: a mebibyte is a slice's worth.
READ_MS_PER_BYTE = SLICE_MS / MIB


class WorkClock:
    """Stands still but for the work that is charged to it."""

    def __init__(self) -> None:
        self.passed_ms = 0.0

    def now_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic_ms(self) -> float:
        return self.passed_ms


class ReadingDisk(Disk):
    """Charges a clock for every byte that is read."""

    def __init__(self, clock: WorkClock) -> None:
        super().__init__()
        self._clock = clock

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        data = super().pread(fd, length, offset)
        self._clock.passed_ms += READ_MS_PER_BYTE * len(data)
        return data


def longest_step_ms(path: Path, clock: WorkClock, disk: Disk | None = None, **settings: Any) -> float:
    """Open what a killed process left; how much work the busiest step did."""
    store = Store(str(path), Settings(**settings), clock=clock, disk=disk)
    longest_ms, before_ms = 0.0, clock.passed_ms
    for _ in store.opening():
        longest_ms = max(longest_ms, clock.passed_ms - before_ms)
        before_ms = clock.passed_ms
    longest_ms = max(longest_ms, clock.passed_ms - before_ms)
    store.syncer.stop()
    store.worker.stop()
    return longest_ms


def charge_for_folding(monkeypatch: pytest.MonkeyPatch, clock: WorkClock, ms_per_op: float) -> Counter[str]:
    """Every op that is folded in costs this much; counts them."""
    apply = State.apply
    folded: Counter[str] = Counter()

    def charged(state: State, op: Any, position: int) -> Any:
        folded[type(op).__name__] += 1
        clock.passed_ms += ms_per_op
        return apply(state, op, position)

    monkeypatch.setattr(State, "apply", charged)
    return folded


def charge_for(monkeypatch: pytest.MonkeyPatch, clock: WorkClock, name: str) -> None:
    """Every call of this function, from a block or a body, costs a slice."""
    function = getattr(block, name)

    def charged(*arguments: Any) -> Any:
        clock.passed_ms += SLICE_MS
        return function(*arguments)

    for module in (block, body):
        monkeypatch.setattr(module, name, charged, raising=False)


def left_by_a_kill(rig: Rig) -> Path:
    rig.abandon()
    return Path(shutil.copytree(rig.path, rig.path.with_name("left")))


def large_log(rig: Rig, batches: int, batch: int) -> Path:
    body = b'{"records":[%b]}' % b",".join([b'{"data":1,"tag":"t"}'] * batch)
    for _ in range(batches):
        rig.append_body("t", body)
    return left_by_a_kill(rig)


def test_600000_records_in_batches_of_10000_are_folded_in_a_batch_a_step(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = large_log(open_rig(wal_file_bytes=8 * MIB), batches=60, batch=10_000)
    clock = WorkClock()
    folded = charge_for_folding(monkeypatch, clock, ms_per_op=10.0)

    longest_ms = longest_step_ms(path, clock)

    assert folded["Appended"] == 60
    assert longest_ms == 10.0


def test_the_tags_of_a_large_batch_are_sorted_in_steps_of_their_own(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = open_rig()
    records = b",".join(b'{"data":%d,"tag":"tag-%d"}' % (n, n % 100) for n in range(10_000))
    rig.append_body("t", b'{"records":[%b]}' % records)
    path = left_by_a_kill(rig)
    clock = WorkClock()
    charge_for_folding(monkeypatch, clock, ms_per_op=SLICE_MS)
    for name in ("all_tags", "tag_order_of", "build_filter"):
        charge_for(monkeypatch, clock, name)

    longest_ms = longest_step_ms(path, clock)

    assert clock.passed_ms >= 4 * SLICE_MS
    assert longest_ms == SLICE_MS
    rig.crash()
    assert rig.delete("t", match=["tag", "Glob", "tag-7*"]) == 1_100


@pytest.mark.parametrize("ms_per_op", [0.01, 0.5, 1.9])
def test_small_frames_share_a_step_until_it_is_used_up(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch, ms_per_op: float
) -> None:
    path = large_log(open_rig(), batches=1_200, batch=1)
    clock = WorkClock()
    folded = charge_for_folding(monkeypatch, clock, ms_per_op)

    longest_ms = longest_step_ms(path, clock)

    assert folded["Appended"] == 1_200
    assert SLICE_MS <= longest_ms < SLICE_MS + 2 * ms_per_op


def test_a_huge_frame_is_read_a_piece_at_a_time(open_rig: OpenRig) -> None:
    rig = open_rig(max_record_bytes=40 * MIB)
    payload = b'"%b"' % (b"x" * (30 * MIB))
    rig.append("t", payload)
    clock = WorkClock()

    longest_ms = longest_step_ms(left_by_a_kill(rig), clock, ReadingDisk(clock))

    assert clock.passed_ms > 30 * SLICE_MS
    assert longest_ms <= SLICE_MS + 2 * PIECE_BYTES * READ_MS_PER_BYTE
    rig.crash()
    assert [record["data"].encode() for record in rig.records("t")] == [payload[1:-1]]


def test_a_damaged_byte_of_a_huge_frame_is_found(open_rig: OpenRig) -> None:
    rig = open_rig(max_record_bytes=40 * MIB, wal_file_bytes=8 * MIB)
    rig.append("t", b'"%b"' % (b"x" * (5 * MIB)))
    rig.append("t", b'"the next one"')
    path = left_by_a_kill(rig)
    log = max((path / "shard-00" / "wal").glob("*.log"), key=lambda file: file.stat().st_size)
    with log.open("r+b") as file:
        file.seek(3 * MIB)
        file.write(b"y")

    with pytest.raises(DamagedLog):
        longest_step_ms(path, WorkClock())


def test_the_search_after_the_end_of_the_log_pauses(open_rig: OpenRig) -> None:
    rig = open_rig()
    rig.append("t", b"1")
    path = left_by_a_kill(rig)
    (log,) = (path / "shard-00" / "wal").glob("*.log")
    os.truncate(log, 32 * MIB)
    clock = WorkClock()

    longest_ms = longest_step_ms(path, clock, ReadingDisk(clock))

    assert clock.passed_ms > 30 * SLICE_MS
    assert longest_ms < 2 * SLICE_MS


def test_topics_that_number_on_after_a_kill_share_a_step(open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = open_rig()
    for number in range(300):
        rig.append(f"t{number}", b"1", config={"durability": "ephemeral"})
    path = left_by_a_kill(rig)
    clock = WorkClock()
    folded = charge_for_folding(monkeypatch, clock, ms_per_op=0.1)

    longest_ms = longest_step_ms(path, clock)

    assert folded["Skipped"] == 300
    assert longest_ms < 10 * SLICE_MS


def test_a_snapshot_is_read_and_a_topic_of_many_blocks_restored_in_steps(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = open_rig(segment_max_events=1)
    for number in range(2 * ITEMS_PER_STEP + 10):
        rig.append("t", b"%d" % number, idempotency_key=f"key-{number}")
    assert rig.store.checkpoint()
    rig.close()
    clock = WorkClock()
    restored: list[int] = []
    decode_blocks = image.decode_blocks

    def charged(data: bytes) -> Iterator[Block]:
        for restored_block in decode_blocks(data):
            clock.passed_ms += 0.01
            restored.append(restored_block.first_seq)
            yield restored_block

    monkeypatch.setattr(image, "decode_blocks", charged)

    longest_ms = longest_step_ms(rig.path, clock)

    assert len(restored) == 2 * ITEMS_PER_STEP + 10
    assert longest_ms <= ITEMS_PER_STEP * 0.01 + SLICE_MS


@pytest.mark.parametrize("where", ["_fold", "_go_on"])
def test_a_start_that_fails_leaves_no_thread_and_no_file_open(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    rig = open_rig(segment_max_events=2, hot_retain_segments=0, hot_retain_bytes=0)
    for number in range(5):
        rig.append("t", number)
    rig.checkpoint()
    rig.close()

    def fails(store: Store, *_: object) -> None:
        for topic in store.state.by_id.values():
            for found in topic.blocks:
                assert found.extent is not None
                store.packs.read(found.extent)
        raise OSError("no more")

    before = sorted(os.listdir("/proc/self/fd")), threading.enumerate()
    with monkeypatch.context() as patch:
        patch.setattr(Store, where, fails)
        with pytest.raises(OSError, match="no more"):
            list(Store(str(rig.path)).opening())
    assert (sorted(os.listdir("/proc/self/fd")), threading.enumerate()) == before
    rig.open()
    assert rig.seqs("t") == [1, 2, 3, 4, 5]
