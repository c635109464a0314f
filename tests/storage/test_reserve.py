"""Room for the next checkpoint: kept on a disk that fills up, never free while it is handed over, never leaked."""

import errno
import os
from pathlib import Path

import pytest

from tests.faults import FaultyDisk, SmallDisk
from topics.storage.disk import Disk
from topics.storage.reserve import SMALLEST_BYTES, SPARE, TAKEN, Reserve, Room

pytestmark = pytest.mark.usefixtures("every_file_closed")

KIB = 1 << 10


def room_in(disk: Disk, folder: Path) -> Room:
    return Room(disk, str(folder / SPARE))


def reserve_in(disk: Disk, folder: Path) -> Reserve:
    for name in ("packs", "snapshots"):
        (folder / name).mkdir()
    return Reserve(disk, str(folder / "packs"), str(folder / "snapshots"))


def files(folder: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir())}


def test_a_room_is_found_again_by_the_next_process(tmp_path: Path) -> None:
    room_in(Disk(), tmp_path).grow(64 * KIB)
    assert room_in(Disk(), tmp_path).size_bytes == 64 * KIB
    assert files(tmp_path) == {SPARE: 64 * KIB}


def test_a_room_that_does_not_fit_stays_as_it_was(tmp_path: Path) -> None:
    disk = SmallDisk(100 * KIB)
    room = room_in(disk, tmp_path)
    room.grow(40 * KIB)
    with pytest.raises(OSError, match="No space"):
        room.grow(200 * KIB)
    assert (room.size_bytes, files(tmp_path), disk.used_bytes) == (40 * KIB, {SPARE: 40 * KIB}, 40 * KIB)
    room.grow(10 * KIB)
    assert room.size_bytes == 40 * KIB, "a room only grows by this"
    room.shrink(40 * KIB)
    room.shrink(8 * KIB)
    assert (room.size_bytes, disk.used_bytes) == (8 * KIB, 8 * KIB)


def test_a_room_that_is_as_wanted_asks_nothing_of_the_disk(tmp_path: Path) -> None:
    disk = FaultyDisk()
    room = room_in(disk, tmp_path)
    room.grow(16 * KIB)
    opened = disk.calls["open"]
    room.grow(16 * KIB)
    room.shrink(16 * KIB)
    assert disk.calls["open"] == opened


class HalfDisk(Disk):
    """Fails in the middle of an allocation: what it has got by then stays in the file."""

    def allocate(self, fd: int, length: int) -> None:
        os.ftruncate(fd, length // 2)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_what_half_an_allocation_got_is_given_back(tmp_path: Path) -> None:
    room_in(Disk(), tmp_path).grow(16 * KIB)
    room = room_in(HalfDisk(), tmp_path)
    with pytest.raises(OSError, match="No space"):
        room.grow(256 * KIB)
    assert (room.size_bytes, files(tmp_path)) == (16 * KIB, {SPARE: 16 * KIB})


def test_a_file_is_opened_in_the_room_on_a_disk_without_any_other(tmp_path: Path) -> None:
    disk = SmallDisk(40 * KIB)
    room = room_in(disk, tmp_path)
    room.grow(40 * KIB)
    fd = room.open_as(str(tmp_path / "pack"))
    assert disk.pwritev(fd, [b"x" * 30 * KIB], 0) == 30 * KIB
    disk.close(fd)
    assert (room.size_bytes, files(tmp_path)) == (0, {"pack": 40 * KIB})
    fd = room.open_as(str(tmp_path / "other"))
    with pytest.raises(OSError, match="No space"):
        disk.pwritev(fd, [b"x"], 0)
    disk.close(fd)


def test_room_is_given_back_if_the_file_in_it_cannot_be_opened(tmp_path: Path) -> None:
    disk = FaultyDisk()
    room = room_in(disk, tmp_path)
    room.grow(16 * KIB)
    disk.fail("open", path="pack", error=errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        room.open_as(str(tmp_path / "pack"))
    assert (room.size_bytes, files(tmp_path)) == (0, {})


def test_a_full_disk_is_told_from_a_broken_one(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reserve = reserve_in(disk, tmp_path)
    assert (reserve.grow(32 * KIB, 16 * KIB), reserve.short) == (True, False)
    for error, short in ((errno.EIO, False), (errno.ENOSPC, True), (errno.EDQUOT, True)):
        disk.fail("allocate", error=error)
        assert (reserve.grow(64 * KIB, 16 * KIB), reserve.short) == (False, short)
        assert reserve.error is not None
    assert (reserve.grow(64 * KIB, 16 * KIB), reserve.short, reserve.error) == (True, False, None)


def test_on_a_nearly_full_disk_the_rooms_take_what_there_is(tmp_path: Path) -> None:
    disk = SmallDisk(184 * KIB)
    reserve = reserve_in(disk, tmp_path)
    reserve.grow_as_far_as_it_goes(1000 * KIB, 60 * KIB)
    assert reserve.snapshot.size_bytes == 60 * KIB
    assert 3 * 124 * KIB // 4 <= reserve.pack.size_bytes <= 124 * KIB
    size = reserve.pack.size_bytes
    reserve.grow_as_far_as_it_goes(size, SMALLEST_BYTES)
    assert (reserve.pack.size_bytes, reserve.snapshot.size_bytes) == (size, 60 * KIB)


@pytest.mark.parametrize(("free", "taken"), [(20 * KIB, 33 * KIB // 2), (16 * KIB, 0)])
def test_a_room_too_small_for_any_checkpoint_is_not_taken(tmp_path: Path, free: int, taken: int) -> None:
    reserve = reserve_in(SmallDisk(free), tmp_path)
    reserve.grow_as_far_as_it_goes(22 * KIB, 0)
    assert reserve.pack.size_bytes == taken


def test_a_checkpoint_takes_both_rooms_and_gives_them_back(tmp_path: Path) -> None:
    reserve = reserve_in(Disk(), tmp_path)
    assert [room.size_bytes for room in reserve.detach()] == [0, 0], "there is none yet"
    reserve.grow(32 * KIB, 16 * KIB)
    pack, snapshot = reserve.detach()
    assert (pack.size_bytes, snapshot.size_bytes) == (32 * KIB, 16 * KIB)
    assert (reserve.pack.size_bytes, reserve.snapshot.size_bytes) == (0, 0)
    assert files(tmp_path / "packs") == {TAKEN: 32 * KIB}
    assert reserve.grow(8 * KIB, 8 * KIB), "room for the checkpoint after it"
    for room in (pack, snapshot, pack):
        room.discard()
    assert (files(tmp_path / "packs"), files(tmp_path / "snapshots")) == ({SPARE: 8 * KIB}, {SPARE: 8 * KIB})


def test_one_room_is_not_kept_if_the_other_cannot_be_taken(tmp_path: Path) -> None:
    disk = FaultyDisk()
    reserve = reserve_in(disk, tmp_path)
    reserve.grow(32 * KIB, 16 * KIB)
    disk.fail("rename", path=os.path.join("snapshots", SPARE))
    with pytest.raises(OSError, match="Input/output error"):
        reserve.detach()
    assert (files(tmp_path / "packs"), files(tmp_path / "snapshots")) == ({}, {SPARE: 16 * KIB})
    assert (reserve.pack.size_bytes, reserve.snapshot.size_bytes) == (0, 16 * KIB)
