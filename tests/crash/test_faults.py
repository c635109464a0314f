"""A disk that fails under the engine: what becomes visible, what continues, what a restart finds."""

from __future__ import annotations

import errno
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import COLD, OpenRig
from tests.engine.rig import WAIT_S_MAX, Rig
from tests.engine.test_append import request
from tests.engine.test_checkpoint import everything, fill
from tests.faults import FaultyDisk, Gate, Kind
from topics.model.errors import (
    DamagedData,
    DataDirLocked,
    ReadOnly,
    StorageError,
    StorageFull,
    Throttled,
    TopicsError,
)
from topics.storage.wal import wal as wal_module


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def rig(open_rig: OpenRig, disk: FaultyDisk) -> Rig:
    rig = open_rig(disk=disk)
    rig.append("a", 1, 2, 3)
    rig.configure("f", durability="fsync")
    rig.append("f", 1)
    return rig


def restart(rig: Rig) -> None:
    """Open again on a sound disk of the same boot, as after a kill."""
    rig.disk = FaultyDisk()
    rig.crash()


# --- a write that fails and cannot be removed ---


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_that_stays_in_the_log_is_no_clean_refusal(rig: Rig, disk: FaultyDisk, error: int) -> None:
    disk.fail("pwritev", error=error, path=".log", keep_bytes=1 << 20)
    disk.fail("truncate", path=".log")
    with pytest.raises(StorageError, match="may be there after a restart"):
        rig.append("a", 4)
    with pytest.raises(ReadOnly):
        rig.append("a", 5)
    assert rig.seqs("a") == [1, 2, 3]
    restart(rig)
    assert [record["data"] for record in rig.records("a")] == [1, 2, 3, 4]


# --- a sync that fails ---


def test_a_failed_sync_turns_the_engine_read_only_until_a_restart(rig: Rig, disk: FaultyDisk) -> None:
    disk.fail("fdatasync", path=".log")
    with pytest.raises(ReadOnly, match="this write was under way, and may be there after the restart"):
        rig.append("f", 2)
    for verb in (
        lambda: rig.append("f", 3),
        lambda: rig.append("a", 4),
        lambda: rig.append("new", 1),
        lambda: rig.configure("a", ttl_ms=5),
        lambda: rig.configure("new"),
        lambda: rig.delete("a", before_seq=2),
        lambda: rig.drop("a"),
    ):
        with pytest.raises(ReadOnly) as refused:
            verb()
        assert "may be there" not in refused.value.message
    assert (rig.seqs("a"), rig.seqs("f")) == ([1, 2, 3], [1])
    assert rig.look("f").head_seq == 1
    assert [state.topic for state in rig.engine.list().topics] == ["a", "f"]


def test_after_a_failed_sync_a_restart_has_everything_acknowledged_and_writes_again(rig: Rig, disk: FaultyDisk) -> None:
    disk.fail("fdatasync", path=".log")
    with pytest.raises(ReadOnly):
        rig.append("f", 2)
    rig.close()
    restart(rig)
    assert rig.seqs("a") == [1, 2, 3]
    assert rig.seqs("f")[0] == 1
    assert rig.append("a", 4).first_seq == 4
    assert rig.append("f", 9).first_seq == rig.look("f").head_seq


def test_a_sync_that_failed_in_the_background_is_noticed_by_the_next_write(rig: Rig, disk: FaultyDisk) -> None:
    disk.fail("fdatasync", path=".log")
    rig.append("a", 4)
    rig.store.syncer.want_sync(rig.store.wal.written_to)
    while rig.store.syncer.failed is None:
        rig.store.settle()
    rig.store.settle()
    with pytest.raises(ReadOnly):
        rig.append("a", 5)
    assert rig.seqs("a") == [1, 2, 3, 4]


def test_nothing_waiting_for_a_sync_is_ever_acknowledged_after_it_failed(rig: Rig, disk: FaultyDisk) -> None:
    disk.fail("fdatasync", path=".log", times=1)
    change = [rig.engine.append("f", request(number)) for number in range(5)]
    rig.store.commit_log.flush()
    change += [rig.engine.append("f", request(number)) for number in range(5)] if not rig.store.wal.broken else []
    while not all(one.done for one in change):
        rig.store.settle()
    disk.heal()
    for _ in range(5):
        rig.store.settle()
    assert all(isinstance(one.error, ReadOnly) for one in change)
    assert rig.seqs("f") == [1]


def test_refusing_again_and_again_costs_no_memory(rig: Rig, disk: FaultyDisk) -> None:
    disk.fail("fdatasync", path=".log")
    with pytest.raises(ReadOnly):
        rig.append("f", 2)
    lengths: list[int] = []
    for _ in range(20):
        with pytest.raises(ReadOnly) as caught:
            rig.append("a", 1)
        lengths.append(len(traceback.extract_tb(caught.value.__traceback__)))
    assert len(set(lengths)) == 1


def test_an_error_of_the_checkpoint_after_a_failed_sync_is_no_success(rig: Rig, disk: FaultyDisk) -> None:
    disk.fail("fdatasync", path=".log")
    with pytest.raises(ReadOnly):
        rig.append("f", 2)
    assert rig.store.checkpoint() is False


# --- a write that fails ---


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory"])
@pytest.mark.parametrize("keep_bytes", [None, 1, 40])
def test_a_write_that_fails_shows_nothing_and_the_log_goes_on(
    open_rig: OpenRig, disk: FaultyDisk, durability: str, keep_bytes: int | None
) -> None:
    rig = open_rig(disk=disk)
    rig.configure("a", durability=durability)
    rig.append("a", 1)
    disk.fail("pwritev", path=".log", keep_bytes=keep_bytes)
    with pytest.raises(StorageError):
        rig.append("a", "failed")
    assert rig.seqs("a") == [1]
    assert rig.look("a").head_seq == 1
    change = rig.append("a", "good")
    assert change.first_seq == 2
    assert [record["data"] for record in rig.records("a")] == [1, "good"]
    restart(rig)
    assert [record["data"] for record in rig.records("a")] == [1, "good"]
    assert rig.append("a", 3).first_seq == 3


def test_a_write_that_fails_fails_every_op_of_its_tick_and_no_other(rig: Rig, disk: FaultyDisk) -> None:
    disk.fail("pwritev", path=".log")
    change = [rig.engine.append(topic, request(9)) for topic in ("a", "f", "a", "new")]
    rig.store.commit_log.flush()
    assert all(isinstance(one.error, StorageError) for one in change)
    assert [state.topic for state in rig.engine.list().topics] == ["a", "f"]
    topic = rig.store.state.by_name["a"]
    assert (topic.assigned_seq, topic.pending_count, topic.pending_bytes) == (3, 0, 0)
    assert rig.store.commit_log.pending_bytes == 0
    assert rig.append("a", 4).first_seq == 4
    assert rig.append("new", 1).first_seq == 1


def test_records_waiting_for_their_sync_survive_a_later_write_that_fails(rig: Rig, disk: FaultyDisk) -> None:
    gate = disk.hold("fdatasync", path=".log")
    waiting = rig.engine.append("f", request(2))
    rig.store.commit_log.flush()
    disk.fail("pwritev", path=".log")
    failed = rig.engine.append("f", request("failed"))
    # The cut must be durable before the log continues, so the gate is opened first.
    gate.open()
    rig.store.commit_log.flush()
    assert isinstance(failed.error, StorageError)
    rig.finish(waiting)
    assert rig.append("f", 3).first_seq == 3
    assert [record["data"] for record in rig.records("f")] == [1, 2, 3]
    restart(rig)
    assert [record["data"] for record in rig.records("f")] == [1, 2, 3]


@pytest.mark.parametrize("keep_bytes", [0, 1, 31, 33, 60])
def test_a_short_write_is_finished(rig: Rig, disk: FaultyDisk, keep_bytes: int) -> None:
    if keep_bytes:
        disk.shorten(keep_bytes=keep_bytes, path=".log")
        rig.append("a", 4)
        assert rig.seqs("a") == [1, 2, 3, 4]
    else:
        disk.shorten(keep_bytes=0, path=".log", times=-1)
        with pytest.raises(StorageError):
            rig.append("a", 4)
        disk.heal()
        rig.append("a", 4)
    restart(rig)
    assert rig.seqs("a") == [1, 2, 3, 4]


def test_a_log_that_cannot_be_cut_back_takes_no_more(rig: Rig, disk: FaultyDisk) -> None:
    disk.fail("pwritev", path=".log", keep_bytes=20)
    disk.fail("truncate", path="wal", times=-1)
    with pytest.raises(TopicsError):
        rig.append("a", 4)
    disk.heal()
    with pytest.raises(TopicsError):
        rig.append("a", 5)
    assert rig.seqs("a") == [1, 2, 3]
    restart(rig)
    assert rig.seqs("a") == [1, 2, 3]


# --- a full disk ---


def test_a_full_disk_refuses_writes_clearly_and_writing_resumes_with_room(open_rig: OpenRig, disk: FaultyDisk) -> None:
    rig = open_rig(disk=disk)
    rig.append("a", 1)
    disk.fail("pwritev", error=errno.ENOSPC, times=-1, path=".log")
    for _ in range(3):
        with pytest.raises(StorageFull):
            rig.append("a", "no room")
    assert rig.seqs("a") == [1]
    disk.heal()
    assert rig.append("a", 2).first_seq == 2
    restart(rig)
    assert rig.seqs("a") == [1, 2]


def test_deletes_and_drops_go_on_while_no_new_log_file_can_be_made(open_rig: OpenRig, disk: FaultyDisk) -> None:
    rig = open_rig(disk=disk, wal_file_bytes=4096)
    for _ in range(3):
        rig.append("a", "x" * 100)
    rig.append("b", 1)
    disk.fail("allocate", error=errno.ENOSPC, times=-1)
    disk.fail("open", error=errno.ENOSPC, times=-1, path="packs")
    refused = 0
    for _ in range(200):
        try:
            rig.append("a", "x" * 500)
        except StorageFull:
            refused += 1
    assert refused > 100
    seqs = rig.seqs("a")
    assert seqs == list(range(1, len(seqs) + 1))
    assert rig.delete("a", before_seq=3) == 2
    assert rig.drop("b") is True
    with pytest.raises(StorageFull):
        rig.append("a", "x" * 500)
    disk.heal()
    assert rig.append("a", "x" * 500).first_seq == seqs[-1] + 1
    restart(rig)
    assert rig.seqs("a") == [*seqs[2:], seqs[-1] + 1]


def test_a_first_write_refused_by_a_full_disk_leaves_no_topic_behind(open_rig: OpenRig, disk: FaultyDisk) -> None:
    rig = open_rig(disk=disk, wal_file_bytes=4096)
    rig.append("a", 1)
    disk.fail("allocate", error=errno.ENOSPC, times=-1)
    for _ in range(20):
        try:
            rig.append("a", "x" * 1000)
        except StorageFull:
            break
    with pytest.raises(StorageFull):
        rig.append("new", "x" * 3000)
    rig.store.commit_log.flush()
    disk.heal()
    assert [state.topic for state in rig.engine.list().topics] == ["a"]


# --- checkpoints ---

CALLS: list[Kind] = ["open", "pwritev", "fdatasync", "fsync_dir", "rename", "unlink", "allocate", "truncate", "pread"]


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_checkpoint_that_fails_at_any_call_loses_nothing_and_the_next_one_works(
    open_rig: OpenRig, tmp_path: Path, kind: Kind, error: int
) -> None:
    settings: dict[str, Any] = {**COLD, "cold_dir": str(tmp_path / "cold"), "wal_file_bytes": 8192}
    nth = 0
    failures = 0
    while failures == nth:
        nth += 1
        disk = FaultyDisk()
        settings["cold_dir"] = str(tmp_path / f"cold{nth}")
        rig = open_rig(disk=disk, **settings)
        for _ in range(2):
            fill(rig)
            rig.checkpoint()
        fill(rig)
        for tag in ("t0", "t2"):
            rig.delete("plain", match=tag, before_seq=30)
        before = everything(rig)
        calls = disk.calls[kind]
        disk.fail(kind, nth=nth, error=error)
        rig.store.checkpoint()
        reached = disk.calls[kind] - calls >= nth
        disk.heal()
        failures += reached
        if rig.store.commit_log.read_only is None:
            assert everything(rig) == before, f"{kind} {nth}"
            assert rig.store.checkpoint() is True, f"{kind} {nth}"
            assert rig.append("after", 1).first_seq == 1
            before = everything(rig)
        rig.disk = FaultyDisk()
        rig.crash()
        assert everything(rig) == before, f"{kind} {nth}"
        rig.abandon()
    assert nth < 100
    assert nth > 1 or kind in ("allocate", "truncate"), "the sweep met something"


@pytest.mark.parametrize("kind", ["open", "pwritev", "fdatasync", "fsync_dir", "rename", "truncate"])
def test_a_start_that_fails_at_any_call_may_be_tried_again(open_rig: OpenRig, kind: Kind) -> None:
    rig = open_rig(disk=FaultyDisk(), wal_file_bytes=8192, **COLD)
    fill(rig)
    rig.checkpoint()
    fill(rig)
    before = everything(rig)
    rig.disk = FaultyDisk()
    rig.crash()
    for nth in range(1, 100):
        rig.abandon()
        rig.store.directory.close()
        disk = rig.disk = FaultyDisk()
        disk.fail(kind, nth=nth)
        try:
            rig.open()
        except (OSError, TopicsError):
            disk.heal()
            rig.open()
        else:
            disk.heal()
        calls = disk.calls[kind]
        assert everything(rig) == before, f"{kind} {nth}"
        if calls < nth:
            break
    else:
        pytest.fail("a start makes fewer calls than that")


# --- the directory ---


def test_a_second_opener_is_refused_by_the_pid_of_the_first(open_rig: OpenRig) -> None:
    rig = open_rig()
    with pytest.raises(DataDirLocked) as caught:
        Rig(rig.path)
    assert str(caught.value.detail.get("pid", caught.value.message))
    rig.append("a", 1)
    rig.reopen()


def test_a_start_that_was_refused_lets_go_of_the_lock(open_rig: OpenRig) -> None:
    rig = open_rig(wal_file_bytes=8192)
    for number in range(20):
        rig.append("a", number)
    rig.close()
    (log,) = [path for path in (rig.path / "shard-00" / "wal").iterdir() if path.name.startswith("0")]
    whole = log.read_bytes()
    log.write_bytes(whole[:200] + b"\xff" + whole[201:])
    for path in (rig.path / "shard-00" / "snapshots").iterdir():
        path.unlink()
    for _ in range(2):
        with pytest.raises(DamagedData) as caught:
            rig.open()
        assert "topics repair" in caught.value.message
    log.write_bytes(whole)
    rig.open()
    assert len(rig.seqs("a")) == 20


class PreparingDisk(FaultyDisk):
    """Lets the commit thread prepare a spare at the worst moment: while the owner takes another."""

    prepare: Callable[[], None] | None = None

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if self.prepare is not None and "spare" in source:
            self.prepare()


def test_a_spare_prepared_while_another_is_taken_is_not_mixed_up_with_it(open_rig: OpenRig) -> None:
    disk = PreparingDisk()
    rig = open_rig(disk=disk, wal_file_bytes=4096)
    files = rig.store.wal._files
    # What `prepare` adds when it began before the owner made a spare of its own.
    disk.prepare = lambda: files._make_spare(files.file_bytes)
    for number in range(30):
        assert rig.append("a", "x" * 1000).first_seq == number + 1


def test_checkpoints_that_fail_leave_no_files_behind(rig: Rig, disk: FaultyDisk) -> None:
    rig.checkpoint()
    before = sorted(path.name for path in rig.path.rglob("*") if path.is_file())
    kinds: list[tuple[Kind, str]] = [
        ("fdatasync", "packs"),
        ("rename", ".pack"),
        ("fdatasync", "snap"),
        ("rename", ".snap"),
    ]
    for kind, path in kinds:
        rig.append("a", "x" * 100)
        disk.fail(kind, path=path)
        assert rig.store.checkpoint() is False
        disk.heal()
    assert sorted(path.name for path in rig.path.rglob("*") if path.is_file()) == before
    rig.clock.advance(60_000)
    assert rig.store._checkpointer.due(), "what failed is tried again"
    rig.checkpoint()


# --- a disk that stalls ---


def stall(rig: Rig, disk: FaultyDisk) -> Gate:
    """A sync that is out, and counts as out for longer than the owner waits before it hands writing over."""
    gate = disk.hold("fdatasync", path=".log")
    rig.engine.append("f", request("stalled"))
    rig.store.commit_log.flush()
    assert gate.reached.wait(WAIT_S_MAX)
    rig.syncs_stall = True
    return gate


def test_writes_during_a_stalled_sync_wait_for_the_disk_and_keep_their_order(rig: Rig, disk: FaultyDisk) -> None:
    gate = stall(rig, disk)
    change = [rig.engine.append("a", request(number)) for number in (4, 5)]
    rig.store.commit_log.flush()
    change += [rig.engine.append("a", request(number)) for number in (6, 7)]
    rig.store.commit_log.flush()
    assert not any(one.done for one in change), "nothing is acknowledged before it is written"
    assert rig.seqs("a") == [1, 2, 3]
    gate.open()
    for one in change:
        rig.finish(one)
    assert rig.seqs("a") == [1, 2, 3, 4, 5, 6, 7]
    assert rig.append("a", 8).first_seq == 8
    restart(rig)
    assert [record["data"] for record in rig.records("a")] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [record["data"] for record in rig.records("f")] == [1, "stalled"]


def test_a_write_that_fails_after_it_was_handed_over_shows_nothing(rig: Rig, disk: FaultyDisk) -> None:
    gate = stall(rig, disk)
    disk.fail("pwritev", path=".log")
    change = [rig.engine.append("a", request(number)) for number in (4, 5)]
    rig.store.commit_log.flush()
    gate.open()
    while not all(one.done for one in change):
        rig.store.settle()
    assert all(isinstance(one.error, StorageError) for one in change)
    assert rig.seqs("a") == [1, 2, 3]
    assert rig.append("a", "good").first_seq == 4
    restart(rig)
    assert [record["data"] for record in rig.records("a")] == [1, 2, 3, "good"]
    assert [record["data"] for record in rig.records("f")] == [1, "stalled"]


def test_too_much_that_is_not_synced_is_throttled_until_it_is(
    rig: Rig, disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_module, "UNSYNCED_BYTES_MAX", 10_000)
    gate = disk.hold("fdatasync", path=".log")
    refusal: Throttled | None = None
    for _ in range(20):
        try:
            change = rig.engine.append("a", request("x" * 1000))
        except Throttled as throttled:
            refusal = throttled
            break
        rig.store.commit_log.flush()
        assert change.done
    assert refusal is not None
    assert refusal.detail["retry_after_ms"] > 0
    gate.open()
    position = rig.store.wal.written_to
    rig.store.syncer.want_sync(position)
    while rig.store.wal.synced_to < position:
        rig.store.settle()
    rig.append("a", "room again")
