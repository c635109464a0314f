"""A copy of a store in use: what is in it, what it pins while it is made, and how the copy continues."""

import errno
import io
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine.rig import Rig
from tests.faults import FaultyDisk, Kind
from topics.engine.opening.skipping import SEQS_PER_S_MAX
from topics.model.errors import DamagedData, InvalidRequest, ReadOnly
from topics.storage.archive import ArchiveReader
from topics.storage.backup import Backup
from topics.storage.disk import Disk

SMALL_LOG: dict[str, Any] = {"wal_file_bytes": 256 * 1024}


def begin(rig: Rig) -> Backup:
    backup = rig.store.begin_backup("topics test")
    while not backup.is_synced:
        rig.store.settle()
    for _ in backup.plan():
        pass
    return backup


def read_all(backup: Backup, between: Callable[[], object] = lambda: None) -> bytes:
    pieces: list[bytes] = []
    while piece := backup.read():
        pieces.append(piece)
        between()
    backup.release()
    return b"".join(pieces)


def unpacked(archive: bytes, path: Path) -> Path:
    checker = ArchiveReader()
    checker.feed(archive)
    checker.finish()
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(path, filter="data")
    return path


def restored(archive: bytes, path: Path, rig: Rig, **settings: Any) -> Rig:
    return Rig(unpacked(archive, path), clock=rig.clock, **settings)


def test_a_copy_holds_everything_acknowledged_before_and_nothing_after(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("a", 1, 2)
        rig.checkpoint()
        rig.append("a", 3)
        backup = begin(rig)
        rig.append("a", 4)
        with restored(read_all(backup), tmp_path / "copy", rig) as copy:
            assert [record["data"] for record in copy.records("a")] == [1, 2, 3]


def test_a_copy_can_be_made_before_there_is_any_snapshot_or_any_record(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        empty = read_all(begin(rig))
        rig.append("a", 1)
        one = read_all(begin(rig))
        with restored(empty, tmp_path / "empty", rig) as copy:
            assert not copy.store.state.by_name
        with restored(one, tmp_path / "one", rig) as copy:
            assert copy.seqs("a") == [1]


def test_its_length_is_known_before_it_is_read(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("a", "x" * 1000)
        rig.checkpoint()
        rig.append("a", "x" * 1000)
        backup = begin(rig)
        assert backup.archive_bytes == len(read_all(backup))


def test_checkpoints_deletes_and_drops_in_the_middle_change_nothing_in_it(tmp_path: Path) -> None:
    with Rig(tmp_path / "data", **SMALL_LOG) as rig:
        for number in range(300):
            rig.append("a", f"{number}" + "x" * 3000)
            rig.append("b", number)
        rig.checkpoint()
        for number in range(100):
            rig.append("a", f"{number}" + "y" * 3000)
        expected = rig.records("a"), rig.records("b")
        backup = begin(rig)
        turns = iter(range(1_000_000))

        def meanwhile() -> None:
            turn = next(turns)
            rig.append("a", *["z" * 3000] * 10)
            if turn == 0:
                rig.drop("b")
                rig.delete("a", before_seq=300)
            rig.checkpoint()

        with restored(read_all(backup, meanwhile), tmp_path / "copy", rig) as copy:
            assert (copy.records("a"), copy.records("b")) == expected


def test_what_a_copy_held_on_to_goes_when_it_is_released(tmp_path: Path) -> None:
    with Rig(tmp_path / "data", **SMALL_LOG) as rig:

        def write_and_forget() -> None:
            rig.append("a", *["x" * 10_000] * 50)
            rig.delete("a", before_seq=rig.look("a").head_seq + 1)
            rig.checkpoint()

        def files() -> set[str]:
            return {path.name for path in (tmp_path / "data").rglob("*.*") if path.suffix in (".log", ".pack", ".snap")}

        rig.append("a", *["x" * 10_000] * 50)
        rig.checkpoint()
        before = files()
        backup = begin(rig)
        for _ in range(4):
            write_and_forget()
        held = files()
        assert {name for name in before if not name.endswith(".log")} <= held
        backup.release()
        backup.release()
        for _ in range(3):
            write_and_forget()
        assert not {name for name in before if not name.endswith(".log")} & files()
        assert sum(name.endswith(".log") for name in files()) < sum(name.endswith(".log") for name in held)


def test_packs_that_move_to_the_cold_directory_meanwhile_are_in_it(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"cold_dir": str(tmp_path / "cold"), "hot_retain_segments": 0, "hot_retain_bytes": 0}
    with Rig(tmp_path / "data", **settings) as rig:
        for _ in range(20):
            rig.append("a", *["x" * 1000] * 1000)
            rig.checkpoint()
        expected = rig.records("a")
        backup = begin(rig)

        def meanwhile() -> None:
            rig.append("b", 1)
            rig.checkpoint()

        archive = read_all(backup, meanwhile)
        assert list((tmp_path / "cold").rglob("*.pack")), "nothing has moved"
        with restored(archive, tmp_path / "copy", rig) as copy:
            assert copy.records("a") == expected


@pytest.mark.parametrize("durability", ["disk", "fsync", "memory", "ephemeral"])
def test_a_copy_numbers_on_above_all_that_the_original_can_have_handed_out_since(
    tmp_path: Path, durability: str
) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.configure("a", durability=durability)
        rig.append("a", 1, 2)
        archive = read_all(begin(rig))
        later_ms = 3_600_000
        rig.clock.advance(later_ms)
        with restored(archive, tmp_path / "copy", rig) as copy:
            head_seq = copy.look("a").head_seq
            assert head_seq >= later_ms // 1000 * SEQS_PER_S_MAX
            assert copy.append("a", 3).first_seq == head_seq + 1
            told = copy.diff("a", 1000).tombstone
            assert told is not None
            assert (told.reason, told.gap_to) == ("lost", head_seq)
            copy.reopen()
            assert copy.look("a").head_seq == head_seq + 1, "it is skipped once"


class DiesWhenNoted(Disk):
    """Keeps the directory as it is at the moment when its first opening has been noted."""

    left: Path | None = None

    def rename(self, source: str, target: str) -> None:
        super().rename(source, target)
        path = Path(target)
        if path.name == "meta.json" and self.left is None:
            self.left = path.parent.with_name("left")
            shutil.copytree(path.parent, self.left)


def test_a_copy_that_dies_as_soon_as_its_first_opening_is_noted_has_skipped(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("a", 1)
        disk = DiesWhenNoted()
        restored(read_all(begin(rig)), tmp_path / "copy", rig, disk=disk).abandon()
        assert disk.left is not None
        with Rig(disk.left, clock=rig.clock) as again:
            assert again.look("a").head_seq >= 60 * SEQS_PER_S_MAX
            assert again.seqs("a") == [1]


def test_no_copy_is_begun_when_the_log_cannot_be_synced(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("a", 1)
        rig.store.syncer.failed = OSError("no")
        rig.store.settle()
        with pytest.raises(ReadOnly):
            rig.store.begin_backup("topics test")


def test_a_copy_gets_its_name_only_when_it_is_complete(tmp_path: Path) -> None:
    disk = FaultyDisk()
    target = tmp_path / "copy.tar"
    with Rig(tmp_path / "data", disk=disk) as rig:
        rig.append("a", *range(100))
        rig.checkpoint()
        kinds: tuple[Kind, ...] = ("pwritev", "fdatasync", "rename")
        for kind in kinds:
            backup = begin(rig)
            disk.fail(kind, path=target.name, error=errno.EIO)
            with pytest.raises(OSError, match="Input/output error"):
                backup.save(str(target))
            backup.release()
            assert [path.name for path in tmp_path.iterdir()] == ["data"], kind
        backup = begin(rig)
        backup.save(str(target))
        backup.release()
        with restored(target.read_bytes(), tmp_path / "copy", rig) as copy:
            assert [record["data"] for record in copy.records("a", limit=100)] == list(range(100))
        # The copy is whole by then, and an error all the same: its name may not outlast a power failure.
        backup = begin(rig)
        disk.fail("fsync_dir", error=errno.EIO)
        with pytest.raises(OSError, match="Input/output error"):
            backup.save(str(tmp_path / "unsynced.tar"))
        backup.release()
        assert (tmp_path / "unsynced.tar").stat().st_size == target.stat().st_size
        before = target.read_bytes()
        backup = begin(rig)
        with pytest.raises(InvalidRequest, match="does not replace files"):
            backup.save(str(target))
        backup.release()
        assert target.read_bytes() == before


def test_a_file_that_ends_too_soon_ends_the_copy(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("a", *range(100))
        rig.checkpoint()
        backup = begin(rig)
        (snapshot,) = (tmp_path / "data").rglob("snapshots/0*")
        os.truncate(snapshot, 64)
        with pytest.raises(DamagedData, match="ends at byte 64"):
            read_all(backup)
        backup.release()
