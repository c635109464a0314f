"""The data directory: one process at a time, and a word from each run to the next."""

import errno
import fcntl
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from xxhash import xxh3_64_hexdigest

from tests.faults import FaultyDisk, SmallDisk
from tests.patience import PATIENCE_S
from topics.model.errors import DataDirIncompatible, DataDirLocked, StorageError
from topics.storage.directory import FORMAT, DataDirectory, Meta
from topics.storage.disk import Buffer, Disk, read_file, replace_file

META_FILES = ("meta.json", "meta.copy.json")
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


def flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


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


def test_a_disk_that_is_full_to_its_last_page_lets_a_run_begin_and_end(tmp_path: Path) -> None:
    disk = SmallDisk(1 << 20)
    first = opened(tmp_path, disk)
    first.mark_open()
    first.close()
    disk.size_bytes = disk.used_bytes
    with pytest.raises(OSError, match="No space left"):
        replace_file(disk, str(tmp_path / "more"), b"x")

    second = opened(tmp_path, disk)
    second.mark_open()
    second.mark_clean(4711)
    second.close()
    third = opened(tmp_path, disk)
    assert third.previous.log_end == 4711
    assert not third.damaged_meta


class HalfWritten(Disk):
    """Between the two files that say how a run ended it waits, if it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.stops = False
        self.stopped, self.goes_on = threading.Event(), threading.Event()

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        if self.stops and target.endswith(META_FILES[0]):
            self.stopped.set()
            self.goes_on.wait(PATIENCE_S)


def test_what_is_just_being_recorded_is_not_taken_for_that_of_another_process(tmp_path: Path) -> None:
    """A standby that becomes primary records that while a checkpoint looks whether the directory is its own."""
    disk, errors = HalfWritten(), list[StorageError]()
    directory = DataDirectory(disk, str(tmp_path / "data"))
    directory.open()

    def verify() -> None:
        try:
            directory.verify_owned()
        except StorageError as error:
            errors.append(error)

    directory.mark_clean(1)
    disk.stops = True
    recording, verifying = threading.Thread(target=directory.mark_open), threading.Thread(target=verify)
    recording.start()
    assert disk.stopped.wait(PATIENCE_S)
    verifying.start()
    # Without a lock it ends here, and has found something.
    verifying.join(0.1)
    disk.goes_on.set()
    verifying.join(PATIENCE_S)
    recording.join(PATIENCE_S)
    assert errors == []
    directory.close()


def test_a_meta_file_torn_on_a_full_disk_is_served_by_the_other(tmp_path: Path) -> None:
    disk = TearingDisk(1 << 20)
    first = opened(tmp_path, disk)
    first.mark_open()
    disk.size_bytes = disk.used_bytes
    disk.tears = True
    with pytest.raises(OSError, match="torn"):
        first.mark_clean(4711)
    first.close()
    second = opened(tmp_path, SmallDisk(1 << 20))
    assert second.previous == Meta(disk.boot_id(), False, 0)


class TearingDisk(SmallDisk):
    """Fails after half of a write to a file that has its page already."""

    tears = False

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        if not self.tears or not os.fstat(fd).st_size:
            return super().pwritev(fd, buffers, offset)
        content = b"".join(buffers)
        super().pwritev(fd, [content[: len(content) // 2]], offset)
        raise OSError(errno.EIO, "torn")


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
    for name in META_FILES:
        (tmp_path / name).write_bytes(content)

    for _ in range(2):
        with pytest.raises(DataDirIncompatible):
            opened(tmp_path)


def test_a_directory_of_a_newer_version_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    opened(tmp_path).close()
    fields = json.loads((tmp_path / "meta.json").read_text()) | {"format": FORMAT + 1, "of_the_future": 7}
    del fields["xxh3"]
    fields["xxh3"] = xxh3_64_hexdigest(f"{json.dumps(fields, indent=1)}\n".encode())
    for name in META_FILES:
        (tmp_path / name).write_text(json.dumps(fields, indent=1) + "\n")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and path.name != "lock"}

    with pytest.raises(DataDirIncompatible, match=rf"format {FORMAT + 1}, this program reads up to {FORMAT}"):
        opened(tmp_path)
    assert {path: path.read_bytes() for path in before} == before


def test_the_first_opening_of_an_older_directory_writes_the_present_format(tmp_path: Path) -> None:
    opened(tmp_path, FaultyDisk("boot-1")).close()
    old = {"format": 1, "boot_id": "boot-1", "clean_stop": True, "log_end": 0, "copied_ms": 0}
    (tmp_path / "meta.json").write_text(json.dumps(old, indent=1) + "\n")
    (tmp_path / "meta.copy.json").unlink()

    directory = opened(tmp_path, FaultyDisk("boot-1"))
    assert json.loads((tmp_path / "meta.json").read_text())["format"] == 1
    directory.mark_open()
    assert json.loads((tmp_path / "meta.json").read_text())["format"] == FORMAT


def test_data_without_meta_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    for name in META_FILES:
        (tmp_path / name).unlink()

    with pytest.raises(DataDirIncompatible, match=r"no meta\.json"):
        opened(tmp_path)


@pytest.mark.parametrize("name", META_FILES)
def test_any_flipped_bit_of_one_meta_file_is_logged_and_the_other_serves(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    directory = opened(tmp_path, FaultyDisk("boot-1"))
    directory.mark_clean(4711)
    directory.close()
    content = (tmp_path / name).read_bytes()
    for bit in range(8 * len(content)):
        (tmp_path / name).write_bytes(flipped(content, bit))
        caplog.clear()
        again = DataDirectory(Disk(), str(tmp_path))
        again.open()
        again.close()
        assert again.previous == Meta("boot-1", True, 4711), bit
        assert name in caplog.text


def test_a_cut_or_missing_meta_file_is_served_by_the_other(tmp_path: Path) -> None:
    directory = opened(tmp_path, FaultyDisk("boot-1"))
    directory.mark_clean(4711)
    directory.close()
    content = (tmp_path / "meta.json").read_bytes()
    for length in range(len(content)):
        (tmp_path / "meta.json").write_bytes(content[:length])
        assert DataDirectory(Disk(), str(tmp_path)).read_meta() == Meta("boot-1", True, 4711)
    (tmp_path / "meta.json").unlink()
    assert DataDirectory(Disk(), str(tmp_path)).read_meta() == Meta("boot-1", True, 4711)


def test_both_meta_files_damaged_is_refused(tmp_path: Path) -> None:
    opened(tmp_path).close()
    for bit, name in enumerate(META_FILES, 300):
        (tmp_path / name).write_bytes(flipped((tmp_path / name).read_bytes(), bit))
    with pytest.raises(DataDirIncompatible, match=r"meta\.json is damaged.*meta\.copy\.json is damaged.*topics repair"):
        opened(tmp_path)


def test_the_newer_meta_file_counts_if_a_crash_came_between_the_two(tmp_path: Path) -> None:
    directory = opened(tmp_path, FaultyDisk("boot-1"))
    before = (tmp_path / "meta.copy.json").read_bytes()
    directory.mark_clean(4711)
    directory.close()
    (tmp_path / "meta.copy.json").write_bytes(before)
    assert DataDirectory(Disk(), str(tmp_path)).read_meta() == Meta("boot-1", True, 4711)


def test_a_meta_json_of_version_0_1_counts_more_than_an_older_copy(tmp_path: Path) -> None:
    disk = FaultyDisk("boot-1")
    opened(tmp_path, disk).close()
    old = {"format": 1, "boot_id": "boot-1", "clean_stop": True, "log_end": 99, "copied_ms": 0}
    (tmp_path / "meta.json").write_text(json.dumps(old, indent=1) + "\n")
    directory = opened(tmp_path, FaultyDisk("boot-1"))
    assert directory.previous == Meta("boot-1", True, 99)

    # A crash between the two writings of the next mark: the copy from before 0.1 is not taken for the newer one.
    copy = (tmp_path / "meta.copy.json").read_bytes()
    directory.mark_open()
    directory.close()
    (tmp_path / "meta.copy.json").write_bytes(copy)
    assert opened(tmp_path, FaultyDisk("boot-1")).previous == Meta("boot-1", False, 0)


def test_a_removed_lock_lets_nobody_in(tmp_path: Path) -> None:
    first = opened(tmp_path)
    (tmp_path / "lock").unlink()
    with pytest.raises(DataDirLocked):
        opened(tmp_path)
    first.mark_open()
    first.verify_owned()
    assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n", "taken again, so that version 0.1 is kept out"
    first.close()


def test_a_holder_of_the_lock_file_alone_keeps_us_out(tmp_path: Path) -> None:
    """As version 0.1 takes it."""
    opened(tmp_path).close()
    with open(tmp_path / "lock", "r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(DataDirLocked):
            opened(tmp_path)


def a_new_directory_in_its_place(path: Path) -> None:
    path.rename(path.with_name("moved"))
    path.mkdir()


def removed(path: Path) -> None:
    path.rename(path.with_name("moved"))


def another_process_in_it(path: Path) -> None:
    other = DataDirectory(Disk(), str(path))
    other.read_meta()
    other.mark_open()


def a_lock_that_another_process_took(path: Path) -> None:
    """As version 0.1 could after an `rm lock`."""
    (path / "lock").unlink()
    fcntl.flock(os.open(path / "lock", os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)


@pytest.mark.parametrize(
    "happens",
    [a_new_directory_in_its_place, removed, another_process_in_it, a_lock_that_another_process_took],
)
def test_a_directory_that_may_be_another_process_s_is_noticed(tmp_path: Path, happens: Callable[[Path], None]) -> None:
    path = tmp_path / "data"
    directory = opened(path, FaultyDisk("boot-1"))
    directory.mark_open()
    directory.verify_owned()
    happens(path)
    with pytest.raises(StorageError, match="data"):
        directory.verify_owned()


def test_another_boot_id_is_noticed(tmp_path: Path) -> None:
    disk = FaultyDisk("boot-1")
    directory = opened(tmp_path, disk)
    directory.mark_open()
    disk._boot_id = "boot-2"
    with pytest.raises(StorageError, match="boot id"):
        directory.verify_owned()


def test_a_meta_file_damaged_while_the_directory_is_open_is_written_anew(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    directory.mark_open()
    whole = (tmp_path / "meta.json").read_bytes()
    for name in META_FILES:
        (tmp_path / name).write_bytes(flipped(whole, 300))
    directory.verify_owned()
    again = DataDirectory(Disk(), str(tmp_path))
    assert again.read_meta() == Meta(Disk().boot_id(), False, 0)
    assert again.damaged_meta == []


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


# --- a directory that becomes vacant ---


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("how", ["set aside", "emptied"])
def test_a_directory_whose_data_is_moved_or_removed_is_vacant(tmp_path: Path, how: str, cold: bool) -> None:
    directory = DataDirectory(Disk(), str(tmp_path / "data"), cold=str(tmp_path / "cold") if cold else None)
    directory.open()
    assert len(directory.file_paths) == (4 if cold else 3)
    for kind, path in directory.file_paths.items():
        (Path(path) / "file").write_text(kind)
    (tmp_path / "data/other").write_text("other")

    aside = directory.set_aside("aside", "other") if how == "set aside" else directory.empty()
    if aside is None:
        directory.empty()

    assert directory.vacant
    assert directory.previous == Meta("", True, 0)
    assert not any(Path(path).exists() for path in directory.file_paths.values())
    assert not any((tmp_path / "data" / name).exists() for name in META_FILES)
    found = {file.read_text() for file in tmp_path.rglob("file")}
    if aside is None:
        assert found == set()
    else:
        assert found == set(directory.file_paths)
        assert sorted(file.name for file in Path(aside).iterdir()) == sorted([*META_FILES, "other", "shard-00"])
    directory.close()


def test_what_a_restore_left_is_cleared_and_the_rest_stays(tmp_path: Path) -> None:
    directory = opened(tmp_path)
    for path in (directory.wal_path, directory.restoring_path):
        Path(path).mkdir(parents=True, exist_ok=True)
        (Path(path) / "file").write_text("left")
    (tmp_path / "other").write_text("other")
    for _ in range(2):
        directory.clear_unfinished()
        assert list(Path(directory.restoring_path).iterdir()) == []
        assert not Path(directory.wal_path).exists()
    assert (tmp_path / "other").read_text() == "other"
    directory.close()


def test_an_unfinished_restore_is_not_served(tmp_path: Path) -> None:
    Path(DataDirectory(Disk(), str(tmp_path)).restoring_path).mkdir()
    with pytest.raises(DataDirIncompatible, match="unfinished restore"):
        opened(tmp_path)


def test_a_meta_file_that_cannot_be_replaced_is_not_overwritten_unless_the_disk_is_full(tmp_path: Path) -> None:
    disk = FaultyDisk()
    directory = opened(tmp_path, disk)
    before = [(tmp_path / name).read_bytes() for name in META_FILES]
    disk.fail("rename")
    with pytest.raises(OSError, match="Input/output"):
        directory.replace_meta(Meta("boot", False, 7))
    assert [(tmp_path / name).read_bytes() for name in META_FILES] == before
    directory.close()
