"""Packs that are only in the bucket, in a store driven by hand: when they leave, how they are read, what is copied."""

from __future__ import annotations

import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.bucket.interrupted import Interrupted, die, nothing, refuse, until_shipped
from tests.engine.rig import Rig
from tests.faults import QuickDisk
from tests.patience import PATIENCE_S
from topics.cli.commands.upkeep import repair_directory, verify_directory
from topics.engine.opening.scan import Chunk, Scan, read_part
from topics.model.errors import BucketAway, DamagedData, DataDirIncompatible, StorageError
from topics.model.setting_types import WrongSetting
from topics.storage.backup import Backup
from topics.storage.bucket.starting import joining
from topics.storage.remote import range_reader

# Room for one pack of ten records.
LOCAL_BYTES = 4_000
# Every body leaves memory with the checkpoint that packs it.
SMALL: dict[str, Any] = {
    "segment_max_events": 5,
    "hot_retain_segments": 0,
    "hot_retain_bytes": 0,
    "local_bytes": LOCAL_BYTES,
}
Open = Callable[..., Rig]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packs of a test are small, too."""
    monkeypatch.setattr(range_reader, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(range_reader, "AWAY_S", 0.0)


def payload(number: int) -> dict[str, Any]:
    return {"n": number, "filler": "x" * 200}


def fill(rig: Rig, topic: str = "t", packs: int = 6, start: int = 0) -> None:
    """Some packs of ten records each; all but the newest are only in the bucket then."""
    for pack in range(packs):
        rig.append(topic, *[payload(start + 10 * pack + number) for number in range(10)])
        rig.checkpoint()
    until_offloaded(rig)


def until_offloaded(rig: Rig) -> None:
    until_shipped(rig)
    rig.wait_until(lambda: rig.store.packs.local_bytes <= LOCAL_BYTES)


def later_checkpoints(rig: Rig, is_so: Callable[[], bool]) -> None:
    """Until it is so; a snapshot that is on its way to the bucket keeps its packs, so their number is not known."""
    deadline_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < deadline_s
        rig.append("later", 1)
        rig.checkpoint()
        until_shipped(rig)


def numbers(rig: Rig, topic: str = "t") -> list[int]:
    return [record["data"]["n"] for record in rig.records(topic)]


def local_packs(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path / "shard-00/packs") if name.endswith(".pack"))


def stubs(path: Path) -> list[str]:
    return sorted(name for name in os.listdir(path / "shard-00/packs") if name.endswith(".remote"))


def test_old_packs_leave_the_disk_and_are_read_from_the_bucket(interrupted: Interrupted, opened: Open) -> None:
    rig = opened("a", **SMALL)
    fill(rig)
    packs = rig.store.packs
    assert packs.remote_bytes > packs.local_bytes > 0
    assert len(stubs(rig.path)) == len(packs.remotes())
    assert sorted(remote.number for remote in packs.remotes()) == packs.numbers()[: len(packs.remotes())], "the oldest"
    assert numbers(rig) == list(range(60))
    rig.reopen()
    assert packs.remotes() == rig.store.packs.remotes()
    assert numbers(rig) == list(range(60))


def test_a_first_read_takes_one_request_and_the_next_ones_none(interrupted: Interrupted, opened: Open) -> None:
    rig = opened("a", **SMALL)
    fill(rig)
    interrupted.ranges.clear()
    found = rig.diff("t", 0, limit=1)
    assert found.count == 1
    assert len(interrupted.ranges) == 1
    # Memory keeps one body from now on: what is read again comes from the cache of chunks.
    rig.store.state.cold._cache_bytes = 1
    for _ in range(2):
        assert len(rig.records("t", 0, limit=5)) == 60
    ranges = rig.store.packs.ranges
    assert ranges is not None
    assert len(interrupted.ranges) == ranges.requests_total == len(rig.store.packs.remotes())
    assert ranges.hits_total > 0


def test_a_cache_has_a_limit(interrupted: Interrupted, opened: Open) -> None:
    rig = opened("a", **SMALL)
    fill(rig)
    ranges = rig.store.packs.ranges
    assert ranges is not None
    ranges._cache_bytes = 6_000
    assert numbers(rig) == list(range(60))
    assert ranges.cached_bytes <= 6_000
    assert numbers(rig) == list(range(60))


def test_nothing_leaves_before_the_manifest_that_names_it_is_there(interrupted: Interrupted, opened: Open) -> None:
    rig = opened("a", **SMALL)
    interrupted.before = lambda key: refuse(key) if key.startswith("snapshots/") else None
    for number in range(4):
        rig.append("t", *[payload(10 * number + n) for n in range(10)])
        rig.checkpoint()
    rig.wait_until(lambda: [key for key in interrupted.uploaded if ".pack-" in key])
    assert stubs(rig.path) == []
    assert rig.store.packs.local_bytes > LOCAL_BYTES
    interrupted.before = nothing
    until_offloaded(rig)
    assert stubs(rig.path) != []
    assert numbers(rig) == list(range(40))


class Copying(QuickDisk):
    """Copies the directory as it is before the n-th call that a move of packs makes: what a kill would leave."""

    def __init__(self) -> None:
        super().__init__()
        self.nth, self.calls = 0, 0
        self.source = self.target = Path()

    def _called(self, path: str) -> None:
        if self.nth and threading.current_thread().name == "topics-worker" and "/packs" in path:
            self.calls += 1
            if self.calls == self.nth:
                shutil.copytree(self.source, self.target)

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        if path.endswith(".remote"):
            self._called(path)
        return super().open(path, flags, mode)

    def fsync_dir(self, path: str) -> None:
        self._called(path)
        super().fsync_dir(path)

    def unlink(self, path: str) -> None:
        if path.endswith(".pack"):
            self._called(path)
        super().unlink(path)


@pytest.mark.parametrize("nth", range(1, 12))
def test_a_kill_at_any_step_of_a_move_loses_nothing(
    nth: int, interrupted: Interrupted, opened: Open, tmp_path: Path
) -> None:
    disk = Copying()
    rig = opened("a", disk=disk, **{**SMALL, "local_bytes": 1 << 30})
    for number in range(6):
        rig.append("t", *[payload(10 * number + n) for n in range(10)])
        rig.checkpoint()
    rig.wait_until(lambda: len(_shipping(rig).stored) == 7)
    # Five packs leave at once: a file in the place of each, a sync, an unlink each.
    disk.source, disk.target, disk.nth = rig.path, tmp_path / "killed", nth
    offloading = rig.store.history._offloading
    assert offloading is not None
    offloading._local_bytes_max, offloading._seen = LOCAL_BYTES, ()
    until_offloaded(rig)
    rig.wait_until(lambda: disk.calls == 11)
    assert disk.target.exists()
    die(rig, interrupted)
    again = opened("killed", **SMALL)
    assert numbers(again) == list(range(60))
    fill(again, packs=1, start=60)
    assert numbers(again) == list(range(70))
    assert not set(stubs(again.path)) & {name.replace(".pack", "") for name in local_packs(again.path)}


def test_while_the_bucket_is_away_only_what_is_there_cannot_be_read(interrupted: Interrupted, opened: Open) -> None:
    rig = opened("a", **SMALL)
    fill(rig)
    interrupted.before_range = refuse
    with pytest.raises(BucketAway) as refused:
        rig.diff("t", 0)
    assert refused.value.detail["from_seq"] == 1
    assert refused.value.retry_after_s is not None
    assert [record["data"]["n"] for record in rig.records("t", 55)] == [55, 56, 57, 58, 59]
    rig.append("t", payload(60))
    rig.checkpoint()
    interrupted.before_range = nothing
    assert numbers(rig) == list(range(61))


@pytest.mark.parametrize("damage", ["flipped", "removed"])
def test_a_damaged_or_lost_object_names_the_seqs(damage: str, interrupted: Interrupted, opened: Open) -> None:
    rig = opened("a", **SMALL)
    fill(rig)
    path = Path(interrupted._path) / rig.store.packs.remotes()[0].key
    if damage == "removed":
        path.unlink()
    else:
        data = bytearray(path.read_bytes())
        data[300] ^= 1
        path.write_bytes(data)
    with pytest.raises(DamagedData) as found:
        rig.records("t")
    assert (found.value.detail["from_seq"], found.value.detail["pack"]) == (1, 1)
    assert found.value.detail["to_seq"] <= 10
    assert [record["data"]["n"] for record in rig.records("t", 10)] == list(range(10, 60))


def test_caps_and_deletes_free_packs_in_the_bucket(interrupted: Interrupted, opened: Open) -> None:
    rig = opened("a", **SMALL)
    fill(rig)
    before = len(stubs(rig.path))
    interrupted.ranges.clear()
    rig.configure("t", cap_records=15)
    assert numbers(rig)[-10:] == list(range(50, 60))
    later_checkpoints(rig, lambda: len(stubs(rig.path)) < before)
    assert len(rig.store.packs.remotes()) == len(stubs(rig.path))


def test_expiry_needs_no_bucket(interrupted: Interrupted, opened: Open) -> None:
    """Not even for a block that expires only in part, and reads of newer records go on."""
    rig = opened("a", **{**SMALL, "segment_max_events": 10})
    rig.configure("t", ttl_ms=1_000)
    for number in range(6):
        rig.append("t", *[payload(10 * number + n) for n in range(5)])
        rig.clock.advance(50)
        rig.append("t", *[payload(10 * number + n) for n in range(5, 10)])
        rig.clock.advance(50)
        rig.checkpoint()
    until_offloaded(rig)
    interrupted.before_range = refuse
    rig.clock.advance(425)
    assert [record["data"]["n"] for record in rig.records("t", 50)] == list(range(50, 60))
    interrupted.before_range = nothing
    assert numbers(rig) == list(range(5, 60))
    rig.clock.advance(10_000)
    assert numbers(rig) == []


def test_what_is_left_of_a_pack_in_the_bucket_is_copied_out(interrupted: Interrupted, opened: Open) -> None:
    rig = opened("a", **SMALL)
    for number in range(4):
        rig.append("kept", payload(number))
        rig.append("big", *[payload(n) for n in range(30)])
        rig.checkpoint()
    until_offloaded(rig)
    first = rig.store.packs.remotes()[0]
    rig.drop("big")
    interrupted.before_range = refuse
    rig.checkpoint()
    assert first in rig.store.packs.remotes(), "without the bucket a checkpoint goes on, and copies nothing"
    interrupted.before_range = nothing
    later_checkpoints(rig, lambda: first not in rig.store.packs.remotes())
    assert numbers(rig, "kept") == [0, 1, 2, 3]


def test_a_restore_fetches_only_what_fits(interrupted: Interrupted, opened: Open) -> None:
    rig = opened("a", **SMALL)
    fill(rig)
    rig.close()
    restored = opened("b", **SMALL)
    assert restored.store.packs.local_bytes <= LOCAL_BYTES
    assert len(stubs(restored.path)) >= 4
    assert numbers(restored) == list(range(60))
    fill(restored, packs=2, start=60)
    assert numbers(restored) == list(range(80))
    restored.close()
    whole = opened("c", **{**SMALL, "local_bytes": 0})
    assert stubs(whole.path) == []
    assert whole.store.packs.remote_bytes == 0
    assert numbers(whole) == list(range(80))


def test_a_backup_has_everything(interrupted: Interrupted, opened: Open, tmp_path: Path) -> None:
    rig = opened("a", **SMALL)
    fill(rig)
    backup: Backup = rig.store.begin_backup("test")
    rig.wait_until(lambda: backup.is_synced)
    for _ in backup.plan():
        pass
    backup.save(str(tmp_path / "all.tar"))
    backup.release()
    scan = Scan.open(str(tmp_path / "all.tar"))
    assert scan.topic("t").records == 60
    (part,) = scan.plan("t")
    lines = b"".join(piece.lines() for piece in read_part(part) if isinstance(piece, Chunk))
    assert lines.count(b"\n") == 60
    scan.close()


def test_who_has_no_bucket_says_so(interrupted: Interrupted, opened: Open, capsys: pytest.CaptureFixture[str]) -> None:
    rig = opened("a", **SMALL)
    fill(rig)
    scan = Scan.open(str(rig.path))
    assert scan.topic("t").records == 60
    with pytest.raises(StorageError, match=r"only in the bucket.*through the server"):
        list(read_part(scan.plan("t")[0]))
    assert len(list(read_part(scan.plan("t", 55)[0]))) > 0, "what is here can be read"
    scan.close()
    rig.close()
    assert verify_directory(str(rig.path)) == 0
    assert "packs are only in the bucket and were not read" in capsys.readouterr().out
    before = stubs(rig.path)
    assert repair_directory(str(rig.path), yes=True) == 0
    assert stubs(rig.path) == before
    with pytest.raises(DataDirIncompatible, match="only in its bucket: set TOPICS_BUCKET"):
        Rig(rig.path)
    again = opened("a", **SMALL)
    assert numbers(again) == list(range(60))


def test_another_bucket_is_refused(
    interrupted: Interrupted, opened: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = opened("a", **SMALL)
    fill(rig)
    rig.close()
    other = Interrupted(tmp_path / "other")
    monkeypatch.setattr(joining, "connect", lambda url, environ: other)
    with pytest.raises(DataDirIncompatible, match="this one does not have them"):
        opened("a", **SMALL, bucket=f"file://{tmp_path}/other")


def test_a_start_whose_first_read_of_an_old_pack_meets_a_hiccup_asks_again(
    interrupted: Interrupted, opened: Open
) -> None:
    rig = opened("a", **SMALL)
    fill(rig)
    rig.close()
    refused: list[str] = []

    def refuse_once(key: str) -> None:
        if not refused:
            refused.append(key)
            refuse(key)

    interrupted.before_range = refuse_once
    assert numbers(opened("a", **SMALL)) == list(range(60))
    assert refused


def test_a_place_for_old_packs_is_needed_and_one_only(tmp_path: Path) -> None:
    with pytest.raises(WrongSetting, match="TOPICS_LOCAL_BYTES is set, but TOPICS_BUCKET is not"):
        Rig(tmp_path / "a", local_bytes=1)
    with pytest.raises(WrongSetting, match="TOPICS_LOCAL_BYTES and TOPICS_COLD_DIR are both set"):
        Rig(tmp_path / "a", local_bytes=1, cold_dir=str(tmp_path / "cold"), bucket=f"file://{tmp_path}")
    assert not (tmp_path / "a").exists()


def _shipping(rig: Rig) -> Any:
    assert rig.store.shipping is not None
    return rig.store.shipping
