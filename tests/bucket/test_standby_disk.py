"""A standby whose disk fails begins again; it does not stand still with what it has."""

from __future__ import annotations

from pathlib import Path

from tests.bucket.interrupted import until_shipped
from tests.bucket.standbys import until
from tests.engine.rig import Rig
from tests.faults import FaultyDisk


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
