"""Joining a bucket: what is missing or forged in it is refused, and a server that stops in order makes room."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.engine.rig import Rig
from topics.model.errors import DamagedData
from topics.storage.bucket.bucket import Found, Listed, Unreachable
from topics.storage.bucket.chain import encode_manifest, read_manifest
from topics.storage.bucket.lease import announce
from topics.storage.bucket.shared_directory import SharedDirectory
from topics.storage.bucket.slots import PRIMARY, SNAPSHOTS
from topics.storage.bucket.starting.joining import Directory, Joined, Joining
from topics.storage.bucket.starting.patience import Patience
from topics.storage.bucket.terms import run
from topics.storage.disk import Disk

OUTSIDE = "../../outside"


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """One in which a server has left a snapshot and two pieces of its log."""
    path = tmp_path / "bucket"
    path.mkdir()
    rig = opened(tmp_path, "a")
    for number in range(2):
        rig.append("t", number)
        rig.wait_until(lambda: rig.store.shipping is not None and not rig.store.shipping.status.lag_bytes)
    rig.checkpoint()
    rig.wait_until((path / "snapshots").exists)
    rig.close()
    return path


def opened(tmp_path: Path, name: str) -> Rig:
    return Rig(tmp_path / name, bucket=f"file://{tmp_path}/bucket", bucket_piece_ms=1, bucket_lease_ms=1_000)


def joined(bucket: SharedDirectory, path: Path) -> Joined:
    path.mkdir()
    joining = Joining(
        bucket,
        Disk(),
        Directory(str(path), None, True),
        url=f"http://{path.name}",
        lease_ms=60_000,
        now_ms=lambda: int(time.time() * 1000),
        patience=Patience(time.sleep),
    )
    return joining.join(str(path / "restoring"))


def test_a_log_whose_beginning_and_snapshots_are_missing_is_not_a_new_one(tmp_path: Path, bucket: Path) -> None:
    shutil.rmtree(bucket / "snapshots")
    min(path for path in (bucket / "log").rglob("*") if path.is_file()).unlink()
    with pytest.raises(DamagedData, match="nor a snapshot after it"):
        opened(tmp_path, "b")


class Late(SharedDirectory):
    """Another server is primary: after the first list of snapshots it makes one, and removes the log before it."""

    lists = 0

    def listing(self, prefix: str, after: str = "") -> Iterator[Listed]:
        self.lists += prefix == SNAPSHOTS
        return iter(()) if prefix == SNAPSHOTS and self.lists == 1 else super().listing(prefix, after)


def test_a_start_beside_a_primary_that_removes_what_it_reads_reads_on_from_the_newest_snapshot(
    tmp_path: Path, bucket: Path
) -> None:
    min(path for path in (bucket / "log").rglob("*") if path.is_file()).unlink()
    assert joined(Late(str(bucket)), tmp_path / "b").restored


def test_a_folder_that_cannot_be_read_is_not_an_empty_one(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def stale(path: Any) -> Any:
        if os.fspath(path).rstrip("/").endswith("snapshots"):
            raise OSError(errno.ESTALE, "Stale file handle")
        return scandir(path)

    monkeypatch.setattr(os, "scandir", stale)
    with pytest.raises(Unreachable, match="Stale file handle"):
        list(SharedDirectory(str(bucket)).listing("snapshots/"))


def test_a_manifest_that_names_a_file_elsewhere_is_refused(tmp_path: Path, bucket: Path) -> None:
    store = SharedDirectory(str(bucket))
    for listed in list(store.listing("snapshots/")):
        manifest = read_manifest(store, listed.key)
        files = [msgspec.structs.replace(file, name=OUTSIDE) for file in manifest.files]
        (bucket / listed.key).write_bytes(encode_manifest(msgspec.structs.replace(manifest, files=files)))
    with pytest.raises(DamagedData, match="cannot have a file named"):
        opened(tmp_path, "b")
    assert not (tmp_path / "outside").exists()


class Stopping(SharedDirectory):
    """Its primary gives up the lease after another server has looked at it once."""

    looks = 0
    release: Callable[[], object]

    def read(self, key: str) -> Found | None:
        found = super().read(key)
        if key == PRIMARY:
            self.looks += 1
            if self.looks == 1:
                self.release()
        return found


def test_a_server_that_waits_for_a_primary_to_stop_takes_over_when_it_does(tmp_path: Path) -> None:
    (tmp_path / "bucket").mkdir()
    plain, stopping = SharedDirectory(str(tmp_path / "bucket")), Stopping(str(tmp_path / "bucket"))
    first = joined(plain, tmp_path / "a")
    stopping.release = lambda: run(plain, announce(first.seen.primary.last(0), first.seen))
    assert joined(stopping, tmp_path / "b").term == first.term + 1
