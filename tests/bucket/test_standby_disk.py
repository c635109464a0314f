"""A standby, driven by hand: its disk fails, or it folds much at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bucket.interrupted import until_shipped
from tests.bucket.standbys import until
from tests.engine.rig import Rig
from tests.faults import FaultyDisk
from topics.engine.opening import standby as module


def test_a_failed_write_to_the_own_log_is_noticed(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    settings = {"bucket": f"file://{bucket}", "bucket_piece_ms": 1}
    disk = FaultyDisk()
    with Rig(tmp_path / "a", **settings) as primary, Rig(tmp_path / "b", disk=disk, standby=True, **settings) as rig:
        standby = rig.store.standby
        assert standby is not None
        primary.append("t", 1)
        until_shipped(primary)

        def follows() -> bool:
            rig.store.turn()
            return rig.store.wal.synced_to == primary.store.wal.written_to

        until(follows, "the standby follows")
        disk.fail("pwritev", path=".log")
        # So much at once is written by the commit thread.
        primary.append("t", *["x" * 900_000] * 6)
        until_shipped(primary)

        def has_noticed() -> bool:
            rig.store.turn()
            return standby.following.lost is not None

        until(has_noticed, "the failed write is noticed")
        standby.following.stop()
        primary.close()


def test_tags_of_a_large_append_are_indexed_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_S", 0.0)
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    settings = {"bucket": f"file://{bucket}", "bucket_piece_ms": 1}
    with Rig(tmp_path / "a", **settings) as primary, Rig(tmp_path / "b", standby=True, **settings) as rig:
        standby, store = rig.store.standby, rig.store
        assert standby is not None
        primary.append("t", *[{"data": "x" * 200, "tag": f"tag {number}"} for number in range(2000)])
        until_shipped(primary)
        slices = 0

        def follows() -> bool:
            nonlocal slices
            store.turn()
            slices += store.commit_log.unfolded and store.wal.written_to == primary.store.wal.written_to
            return "t" in store.state.by_name and store.state.by_name["t"].count == 2000

        until(follows, "the standby follows")
        assert slices >= 2
        standby.following.stop()
        primary.close()
