"""A log looked at while it is written: a prefix of it, never taken for damage."""

import os
from pathlib import Path

import pytest

from tests.engine.rig import Rig
from topics.model.errors import DamagedData
from topics.storage.viewing import LogView, ViewDisk
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
    return [position for position, _ in LogView(disk, str(log), same_boot=True)]


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
