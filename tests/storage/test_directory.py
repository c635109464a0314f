"""The data directory: one process at a time, and a word from each run to the next."""

import errno
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults import FaultyDisk
from topics.model.errors import DataDirIncompatible, DataDirLocked
from topics.storage.directory import DataDirectory, Meta
from topics.storage.disk import Disk, read_file, replace_file

HOLDER = """
import sys
from topics.storage.directory import DataDirectory
from topics.storage.disk import Disk
directory = DataDirectory(Disk(), sys.argv[1])
directory.open()
print("open", flush=True)
sys.stdin.read()
"""


def opened(path: Path, disk: Disk | None = None) -> DataDirectory:
    directory = DataDirectory(disk or Disk(), str(path))
    directory.open()
    return directory


def test_a_second_process_is_refused_until_the_first_is_gone(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(DataDirLocked, match=f"in use by process {holder.pid}"):
            opened(tmp_path)
        holder.kill()
        holder.wait()

    opened(tmp_path).close()


def test_a_second_open_in_the_same_process_is_refused(tmp_path: Path) -> None:
    first = opened(tmp_path)
    with pytest.raises(DataDirLocked):
        opened(tmp_path)
    first.close()

    opened(tmp_path).close()


def test_a_new_directory_has_its_layout_and_counts_as_cleanly_stopped(tmp_path: Path) -> None:
    directory = DataDirectory(Disk(), str(tmp_path / "data"), cold=str(tmp_path / "cold"))
    directory.open()

    assert directory.previous == Meta("", True, 0)
    assert not directory.same_boot
    for path in (directory.wal_path, directory.packs_path, directory.snapshots_path, directory.cold_path):
        assert path is not None
        assert Path(path).is_dir()
    directory.close()


def test_a_run_tells_the_next_how_it_ended(tmp_path: Path) -> None:
    disk = FaultyDisk("boot-1")
    first = opened(tmp_path, disk)
    first.mark_open()
    first.close()
    killed = opened(tmp_path, disk)
    assert killed.previous == Meta("boot-1", False, 0)
    assert killed.same_boot
    killed.mark_clean(4711)
    killed.close()

    other_boot = opened(tmp_path, FaultyDisk("boot-2"))
    assert other_boot.previous == Meta("boot-1", True, 4711)
    assert not other_boot.same_boot


def test_an_unknown_boot_is_never_the_same(tmp_path: Path) -> None:
    disk = FaultyDisk(boot_id="")
    first = opened(tmp_path, disk)
    first.mark_open()
    first.close()

    assert not opened(tmp_path, disk).same_boot


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"format": 1}', b'{"format": 2, "boot_id": "", "clean_stop": true, "log_end": 0}']
)
def test_a_directory_that_cannot_be_understood_is_refused_and_unlocked(tmp_path: Path, content: bytes) -> None:
    opened(tmp_path).close()
    (tmp_path / "meta.json").write_bytes(content)

    for _ in range(2):
        with pytest.raises(DataDirIncompatible):
            opened(tmp_path)


def test_data_without_meta_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / "meta.json").unlink()

    with pytest.raises(DataDirIncompatible, match=r"no meta\.json"):
        opened(tmp_path)


@pytest.mark.parametrize("kind", ["open", "pwritev", "fdatasync", "rename", "fsync_dir"])
@pytest.mark.parametrize("mode", ["keep", "drop", "torn", "reorder"])
def test_a_replaced_file_is_the_old_or_the_new_one_whatever_fails(tmp_path: Path, kind: str, mode: str) -> None:
    disk = FaultyDisk()
    root = tmp_path / "root"
    root.mkdir()
    path = root / "meta.json"
    old, new = b"old" * 1000, json.dumps({"new": "x" * 9000}).encode()
    replace_file(disk, str(path), old)
    disk.fail(kind, error=errno.EIO, path="meta.json" if kind != "fsync_dir" else "")  # type: ignore[reportArgumentType]
    with pytest.raises(OSError, match="Input/output"):
        replace_file(disk, str(path), new)

    for seed in range(10):
        after = tmp_path / f"after-{seed}"
        disk.power_loss(root, after, mode, seed)  # type: ignore[reportArgumentType]
        assert read_file(Disk(), str(after / "meta.json")) in (old, new)
