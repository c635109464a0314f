"""A log looked at while it is written: a prefix of it, never taken for damage; a backup looked at as a directory."""

import os
import tarfile
from pathlib import Path

import pytest

from tests.engine.rig import Rig
from tests.engine.test_backup import begin, read_all, unpacked
from topics.model.errors import DamagedData
from topics.storage.archive import BLOCK_BYTES, MANIFEST, DamagedBackup, padding
from topics.storage.viewing import ArchiveDisk, LogView, ViewDisk
from topics.storage.wal.frame import FILE_HEADER_BYTES

FRAMES_WRITTEN = 20


class LateDisk(ViewDisk):
    """The bytes at `hidden_from` are missing until the bytes after them are read."""

    def __init__(self, hidden_from: int, *, ever: bool) -> None:
        self._hidden_from = hidden_from
        self._ever = ever
        self._hidden = True

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        data = super().pread(fd, length, offset)
        if offset > self._hidden_from:
            self._hidden = not self._ever
            return data
        if self._hidden and offset + len(data) > self._hidden_from:
            at = self._hidden_from - offset
            data = data[:at] + bytes(8) + data[at + 8 :]
        return data


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with Rig(tmp_path / "data") as rig:
        for number in range(FRAMES_WRITTEN):
            rig.append("t", number)
    return tmp_path / "data/shard-00/wal"


def positions(log: Path, disk: ViewDisk) -> list[int]:
    return [position for position, _ in LogView(disk, str(log), same_boot=True, durable_to=0, repair=False)]


def test_a_frame_that_comes_while_it_is_looked_at_ends_the_view(log: Path) -> None:
    whole = positions(log, ViewDisk())
    assert len(whole) > FRAMES_WRITTEN
    late = LateDisk(FILE_HEADER_BYTES + whole[9], ever=True)
    assert positions(log, late) == whole[:10]


def test_a_frame_that_never_comes_is_damage(log: Path) -> None:
    whole = positions(log, ViewDisk())
    with pytest.raises(DamagedData, match="damaged at offset"):
        positions(log, LateDisk(FILE_HEADER_BYTES + whole[9], ever=False))


def test_nothing_can_be_opened_for_writing(log: Path) -> None:
    disk = ViewDisk()
    (file,) = log.glob("0*.log")
    for flags in (os.O_RDWR, os.O_WRONLY, os.O_RDONLY | os.O_CREAT):
        with pytest.raises(OSError, match="a view cannot be changed"):
            disk.open(str(file), flags)
    disk.unlink(str(file))
    disk.rename(str(file), str(file) + ".damaged")
    assert file.exists()


def test_a_view_of_what_is_not_there_is_empty_and_stays_so(tmp_path: Path) -> None:
    disk = ViewDisk()
    assert disk.listdir(str(tmp_path / "absent")) == []
    with pytest.raises(OSError, match="a view cannot be changed"):
        disk.makedirs(str(tmp_path / "absent"))
    disk.fsync_dir(str(tmp_path / "absent"))
    disk.fdatasync(-1)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    with Rig(tmp_path / "data") as rig:
        rig.append("t", *range(FRAMES_WRITTEN))
        rig.checkpoint()
        rig.append("t", "later")
        path = tmp_path / "backup.tar"
        path.write_bytes(read_all(begin(rig)))
    return path


def test_the_files_of_a_backup_are_those_that_it_unpacks_to(archive: Path, tmp_path: Path) -> None:
    disk = ArchiveDisk(str(archive))
    folder = unpacked(archive.read_bytes(), tmp_path / "unpacked")
    files = [path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name != MANIFEST]
    assert len(files) > 3
    for name in files:
        content = (folder / name).read_bytes()
        fd = disk.open(str(archive / name), os.O_RDONLY)
        assert (disk.size(fd), disk.pread(fd, len(content), 0)) == (len(content), content)
        # Not a byte of the next file of the tar, whatever is asked for.
        assert disk.pread(fd, len(content) + 4096, 0) == content
        assert disk.pread(fd, 16, len(content) + 8) == b""
        assert disk.pread_nowait(fd, len(content), 0) in (None, content)
        assert disk.pread_nowait(fd, 16, len(content) - 8) is None
        disk.close(fd)
        assert name.name in disk.listdir(str(archive / name.parent)) or name.parent == Path()
    assert disk.exists(str(archive / files[0]))
    assert not disk.exists(str(archive / "absent"))
    with pytest.raises(FileNotFoundError, match="the backup has no such file"):
        disk.open(str(archive / "absent"), os.O_RDONLY)
    with pytest.raises(OSError, match="a view cannot be changed"):
        disk.open(str(archive / files[0]), os.O_RDWR)
    assert disk.boot_id() == ""


def test_a_backup_that_is_cut_or_lacks_a_file_is_refused(archive: Path, tmp_path: Path) -> None:
    whole = archive.read_bytes()
    for length in (0, 100, BLOCK_BYTES, len(whole) // 2 // BLOCK_BYTES * BLOCK_BYTES):
        (tmp_path / "cut.tar").write_bytes(whole[:length])
        with pytest.raises(DamagedBackup, match="truncated or not a backup"):
            ArchiveDisk(str(tmp_path / "cut.tar"))
    first = tarfile.TarInfo.frombuf(whole[:BLOCK_BYTES], "utf-8", "strict")
    (tmp_path / "short.tar").write_bytes(whole[BLOCK_BYTES + first.size + len(padding(first.size)) :])
    with pytest.raises(DamagedBackup, match="differ from its manifest"):
        ArchiveDisk(str(tmp_path / "short.tar"))
