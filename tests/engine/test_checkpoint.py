"""Checkpoints: taken during normal work, they lose nothing, trim the log and make a start fast."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.decoders import delete_decoder
from tests.engine.conftest import COLD, OpenRig
from tests.engine.rig import WAIT_S_MAX, Rig
from tests.engine.test_append import request
from tests.faults import FaultyDisk, Gate, Kind
from topics.engine.core.checkpoints.checkpoint import Steps
from topics.engine.core.pending import PendingChange
from topics.engine.log.on_disk.extent import BodyExtent
from topics.engine.log.on_disk.packing import LARGE_BYTES
from topics.model.clock import ManualClock
from topics.model.requests.records import decode_body


def everything(rig: Rig) -> dict[str, Any]:
    """All that a reader can learn, by topic."""
    found: dict[str, Any] = {}
    for state in rig.engine.list().topics:
        name = state.topic
        look = rig.look(name)
        found[name] = (
            rig.records(name, include_tags=True),
            (look.head_seq, look.earliest_seq, look.count, look.bytes, look.epoch, look.config),
            rig.diff(name, 0, limit=1).tombstone,
        )
    return found


def fill(rig: Rig) -> None:
    rig.configure("capped", cap_records=7)
    rig.configure("small", cap_bytes=600)
    for number in range(15):
        rig.append("plain", {"data": number, "tag": f"t{number % 3}", "node": "n", "meta": {"m": number}})
        rig.append("capped", number)
        rig.append("small", "x" * (number * 7 % 50))
    rig.delete("plain", match="t1")


@pytest.mark.parametrize("settings", [{}, COLD, {"segment_max_events": 4, "hot_retain_segments": 1}])
def test_what_is_seen_is_the_same_before_and_after_checkpoints_and_restarts(
    open_rig: OpenRig, settings: dict[str, int]
) -> None:
    rig = open_rig(**settings)
    fill(rig)
    before = everything(rig)
    for step in ("checkpoint", "crash", "checkpoint", "checkpoint", "reopen", "crash", "reopen", "reopen"):
        getattr(rig, step)()
        assert everything(rig) == before, step


def test_records_copied_out_of_a_sparse_pack_survive_the_next_checkpoints_and_a_restart(open_rig: OpenRig) -> None:
    rig = open_rig(segment_max_events=1, hot_retain_segments=0, hot_retain_bytes=0)
    for number in range(10):
        rig.append("a", {"data": "x" * 300, "tag": f"t{number}"})
    rig.append("b", 1)
    for _ in range(2):
        rig.checkpoint()
    for number in range(1, 10):
        rig.delete("a", match=f"t{number}")
    for _ in range(4):
        rig.checkpoint()
    assert rig.store.packs.numbers() != [1], "what lived was copied out"
    rig.reopen()
    assert (rig.seqs("a"), rig.seqs("b")) == ([1], [1])


MOMENTS: list[tuple[Kind, str]] = [
    ("pwritev", "packs"),
    ("fdatasync", "packs"),
    ("rename", ".pack"),
    ("fsync_dir", "packs"),
    ("pwritev", "snapshots"),
    ("fdatasync", "snapshots"),
    ("rename", ".snap"),
    ("fsync_dir", "snapshots"),
    ("unlink", "shard-00"),
    ("fdatasync", "wal"),
]


@pytest.mark.parametrize("settings", [{}, COLD], ids=["hot", "cold"])
@pytest.mark.parametrize("moment", MOMENTS, ids="-".join)
def test_what_happens_while_a_checkpoint_runs_is_kept_whenever_it_happens(
    open_rig: OpenRig, settings: dict[str, int], moment: tuple[Kind, str]
) -> None:
    """A write, a delete, an eviction, a creation and a drop, while the checkpoint hangs in one of its calls."""
    disk = FaultyDisk()
    rig = open_rig(disk=disk, **settings)
    for _ in range(2):
        fill(rig)
        rig.append("victim", 1, 2, 3)
        rig.checkpoint()
    fill(rig)
    kind, path = moment
    gate = disk.hold(kind, path=path)
    steps = rig.store._checkpointer.steps()
    outcome = drive(rig, steps, until=gate)
    change = disturb(rig)
    gate.open()
    if outcome is None:
        outcome = drive(rig, steps)
    for one in change:
        rig.finish(one)
    assert outcome is True
    before = everything(rig)
    rig.disk = FaultyDisk()
    rig.crash()
    assert everything(rig) == before
    rig.reopen()
    assert everything(rig) == before


def bytes_of_packs(rig: Rig) -> int:
    return sum(path.stat().st_size for path in (rig.path / "shard-00" / "packs").iterdir())


def test_a_compaction_fails_when_the_server_turns_read_only(open_rig: OpenRig) -> None:
    rig = open_rig()
    outcome: list[bool] = []
    rig.store.compact(outcome.append)
    rig.store.commit_log.refuse_writes("a sync failed")
    rig.wait_until(lambda: rig.store.step() or outcome)
    assert outcome == [False]


@pytest.mark.parametrize("moment", [None, *MOMENTS[:4]], ids=lambda moment: "-".join(moment or ("before",)))
def test_compaction_frees_a_pack_that_another_topic_was_copied_out_of(
    open_rig: OpenRig, moment: tuple[Kind, str] | None
) -> None:
    """Both topics are in one pack; the larger one is dropped after the checkpoint that wrote it, or while it ran."""
    disk = FaultyDisk()
    rig = open_rig(disk=disk, hot_retain_bytes=0)
    rig.append("dropped", *["x" * 1000] * 2000)
    rig.append("kept", *range(10))
    steps = rig.store._checkpointer.steps()
    gate = None if moment is None else disk.hold(moment[0], path=moment[1])
    drive(rig, steps, until=gate)
    change = rig.engine.drop("dropped")
    rig.store.commit_log.flush()
    outcome: list[bool] = []
    rig.store.compact(outcome.append)
    if gate is not None:
        gate.open()
        assert drive(rig, steps)
    rig.finish(change)
    assert bytes_of_packs(rig) > 2_000_000
    rig.checkpoint()
    assert outcome == [True]
    assert bytes_of_packs(rig) < 300_000
    rig.crash()
    assert [record["data"] for record in rig.records("kept")] == list(range(10))


def drive(rig: Rig, steps: Steps[bool], until: Gate | None = None) -> bool | None:
    """Run a checkpoint to its end, or until a call hangs; its outcome, None if it has none yet."""
    while until is None or not until.reached.is_set():
        try:
            if not next(steps):
                time.sleep(0.0002)
                rig.store.settle()
        except StopIteration as end:
            return end.value
    return None


def disturb(rig: Rig) -> list[PendingChange]:
    """Change everything, without waiting for a sync that may be held back."""
    change = [
        rig.engine.append("plain", request("during", "also")),
        rig.engine.append("capped", request(*range(9))),
        rig.engine.append("small", request("y" * 90)),
        rig.engine.append("made", request(1, 2)),
        rig.engine.drop("victim"),
    ]
    finding = rig.engine.delete("plain", decode_body(delete_decoder, b'{"match":"t0"}'))
    try:
        while True:
            rig.fetch(next(finding))
    except StopIteration as end:
        change.append(end.value)
    rig.store.commit_log.flush()
    return change


def test_a_topic_that_changes_before_it_is_captured_is_captured_as_it_was(open_rig: OpenRig) -> None:
    rig = open_rig()
    for topic in "abc":
        rig.append(topic, 1)
    change = []
    steps = rig.store._checkpointer.steps()
    while True:
        try:
            if not next(steps):
                rig.store.settle()
        except StopIteration:
            break
        change += [rig.engine.append(topic, request(2)) for topic in "abc"]
        rig.store.commit_log.flush()
    for one in change:
        rig.finish(one)
    before = everything(rig)
    rig.crash()
    assert everything(rig) == before


def log_bytes(path: Path) -> int:
    return sum(entry.stat().st_size for entry in (path / "shard-00" / "wal").iterdir())


def shrinks_to(path: Path, bytes_max: int) -> bool:
    """Whether the log gets so small; the commit thread unlinks what was trimmed when it has time."""
    give_up_s = time.monotonic() + WAIT_S_MAX
    while time.monotonic() < give_up_s:
        try:
            if log_bytes(path) <= bytes_max:
                return True
        except FileNotFoundError:
            continue  # one went while they were counted
        time.sleep(0.001)
    return False


def test_a_large_block_is_summed_up_and_written_by_the_worker_thread(
    open_rig: OpenRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[bool, str]] = []
    buffers = BodyExtent.buffers

    def noting(extent: BodyExtent) -> list[bytes]:
        made.append((len(extent) > LARGE_BYTES, threading.current_thread().name))
        return buffers(extent)

    monkeypatch.setattr(BodyExtent, "buffers", noting)
    rig = open_rig()
    rig.append("small", *range(10))
    rig.append("large", *["z" * 100_000] * 20)
    rig.append("large", 1)
    before = rig.records("large")
    rig.checkpoint()
    owner, worker = threading.current_thread().name, rig.store.worker._thread.name
    assert sorted(made) == [(False, owner), (False, owner), (True, worker)]
    rig.crash()
    assert rig.records("large") == before
    assert rig.records("small", 9)[0]["data"] == 9


def test_the_log_is_trimmed_so_that_it_does_not_grow_for_ever(open_rig: OpenRig) -> None:
    rig = open_rig(wal_file_bytes=8192)
    for _ in range(12):
        for _ in range(10):
            rig.append("a", "x" * 1000)
        rig.checkpoint()
        assert shrinks_to(rig.path, 64_000)


def test_an_idle_topic_does_not_pin_the_log(open_rig: OpenRig) -> None:
    rig = open_rig(wal_file_bytes=8192)
    rig.append("idle", "stays")
    for _ in range(8):
        for _ in range(10):
            rig.append("busy", "x" * 1000)
        rig.checkpoint()
    assert shrinks_to(rig.path, 64_000)
    rig.crash()
    assert [record["data"] for record in rig.records("idle")] == ["stays"]


def test_a_clean_stop_leaves_nothing_to_replay(open_rig: OpenRig) -> None:
    rig = open_rig(wal_file_bytes=8192)
    rig.append("a", *range(100))
    rig.close()
    size = log_bytes(rig.path)
    rig.open()
    assert rig.progress[-1] == 1.0
    assert all(block.body is None for block in rig.store.state.by_name["a"].blocks)
    assert rig.seqs("a") == list(range(1, 101))
    assert size <= 3 * 8192


def test_a_checkpoint_is_due_by_bytes_and_by_time(open_rig: OpenRig) -> None:
    rig = open_rig(checkpoint_bytes=2000, checkpoint_ms=5000)
    assert not rig.store._checkpointer.due()
    rig.append("a", 1)
    assert not rig.store._checkpointer.due()
    rig.append("a", "x" * 3000)
    assert rig.store._checkpointer.due()
    rig.checkpoint()
    assert not rig.store._checkpointer.due()
    rig.append("a", 1)
    rig.clock.advance(5000)
    assert rig.store._checkpointer.due()
    rig.checkpoint()
    rig.clock.advance(5000)
    assert not rig.store._checkpointer.due(), "nothing changed"


def test_recovering_twice_gives_the_same(open_rig: OpenRig) -> None:
    rig = open_rig(**COLD)
    fill(rig)
    rig.checkpoint()
    fill(rig)
    rig.crash()
    first = everything(rig)
    rig.abandon()
    rig.store.directory.close()
    rig.open()
    assert everything(rig) == first


class RestlessClock(ManualClock):
    """A millisecond passes between two looks at it."""

    def monotonic_ms(self) -> float:
        self.advance(1)
        return super().monotonic_ms()


def test_progress_never_falls_and_ends_at_one(open_rig: OpenRig) -> None:
    rig = open_rig(clock=RestlessClock())
    for _ in range(3):
        for number in range(800):
            rig.engine.append("a", request(number)) if number else rig.append("a", 0)
        rig.store.commit_log.flush()
        rig.crash()
        assert rig.progress == sorted(rig.progress)
        assert rig.progress[-1] == 1.0
        assert len(rig.progress) > 1
        rig.checkpoint()
