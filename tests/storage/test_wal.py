"""The log in use: rotation, recycling, failing writes, a full disk."""

import errno
import logging
from pathlib import Path

import pytest

from tests.faults import FaultyDisk
from tests.storage.logs import (
    FILE_BYTES,
    bodies,
    fill,
    log_files,
    new_log,
    reopen,
    replay,
    sync_by_hand,
    unlink_trimmed,
)
from topics.model.errors import StorageError, StorageFull
from topics.storage.disk import Disk, write_all
from topics.storage.wal.frame import FILE_HEADER_BYTES, FRAME_HEADER_BYTES
from topics.storage.wal.log_file import FILE_BYTES as FILE_BYTES_MAX
from topics.storage.wal.log_file import FIRST_FILE_BYTES, RESERVE_SHARE
from topics.storage.wal.wal import Wal

pytestmark = pytest.mark.usefixtures("every_file_closed")


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def wal(disk: FaultyDisk, tmp_path: Path) -> Wal:
    return new_log(disk, tmp_path / "wal")


def numbered(count: int, size: int = 100) -> list[bytes]:
    return [f"{number:06d}".encode().ljust(size, b".") for number in range(count)]


def test_frames_buffered_together_go_out_in_one_write(wal: Wal, disk: FaultyDisk, tmp_path: Path) -> None:
    for body in numbered(20):
        wal.append(body)

    assert disk.calls["pwritev"] == 0
    assert wal.written_to == 0
    assert wal.flush() == wal.buffered_to
    assert disk.calls["pwritev"] == 1
    assert bodies(tmp_path / "wal") == numbered(20)


def test_an_end_position_is_where_the_next_frame_starts(wal: Wal, disk: FaultyDisk, tmp_path: Path) -> None:
    ends = fill(wal, [b"a", b"bb", b""])

    assert ends == [33, 67, 99]
    assert [end for end, _ in replay(disk, tmp_path / "wal")] == ends


def test_replay_from_a_position_gives_what_comes_after_it(wal: Wal, disk: FaultyDisk, tmp_path: Path) -> None:
    wanted = numbered(100)
    ends = fill(wal, wanted)

    for number in (0, 1, 30, 57, 99):
        assert bodies(tmp_path / "wal", ends[number]) == wanted[number + 1 :]


def test_a_full_file_is_followed_by_the_next(wal: Wal, disk: FaultyDisk, tmp_path: Path) -> None:
    wanted = numbered(100)

    fill(wal, wanted, flush_every=7)

    assert len(log_files(tmp_path / "wal")) == 4
    assert wal.stats.rotations_total == 3
    assert bodies(tmp_path / "wal") == wanted
    assert all(file.stat().st_size == FILE_BYTES for file in log_files(tmp_path / "wal"))


def test_a_frame_larger_than_a_file_gets_a_file_of_its_size(wal: Wal, disk: FaultyDisk, tmp_path: Path) -> None:
    large = bytes(3 * FILE_BYTES)

    fill(wal, [b"before", large, b"after"])

    sizes = [file.stat().st_size for file in log_files(tmp_path / "wal")]
    assert sizes == [FILE_BYTES, FILE_HEADER_BYTES + FRAME_HEADER_BYTES + len(large), FILE_BYTES]
    assert bodies(tmp_path / "wal") == [b"before", large, b"after"]


def test_a_first_frame_larger_than_a_file_leaves_no_hole_in_the_numbers(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    wal.append(b"forgotten")
    wal.drop()

    fill(wal, [bytes(2 * FILE_BYTES), b"after"])

    assert [file.stem[-2:] for file in log_files(tmp_path / "wal")] == ["01", "02"]
    assert bodies(tmp_path / "wal") == [bytes(2 * FILE_BYTES), b"after"]


def test_dropped_frames_are_never_written(wal: Wal, disk: FaultyDisk, tmp_path: Path) -> None:
    fill(wal, [b"kept"])
    wal.append(b"dropped")
    wal.drop()
    fill(wal, [b"next"])

    assert bodies(tmp_path / "wal") == [b"kept", b"next"]


def test_a_log_goes_on_after_a_restart_in_a_new_file(disk: FaultyDisk, tmp_path: Path) -> None:
    wanted = numbered(60)
    fill(new_log(disk, tmp_path / "wal"), wanted[:30])

    found, wal = reopen(disk, tmp_path / "wal")
    fill(wal, wanted[30:])

    assert found == wanted[:30]
    assert bodies(tmp_path / "wal") == wanted


def test_a_closed_log_has_no_unused_bytes(wal: Wal, disk: FaultyDisk, tmp_path: Path) -> None:
    fill(wal, [b"one", b"two"])
    sync_by_hand(wal)
    wal.close()

    assert [file.stat().st_size for file in log_files(tmp_path / "wal")] == [FILE_HEADER_BYTES + wal.written_to]
    assert bodies(tmp_path / "wal") == [b"one", b"two"]


# --- trimming and recycling ---


def test_trimming_keeps_what_is_above_the_position(wal: Wal, disk: FaultyDisk, tmp_path: Path) -> None:
    wanted = numbered(100)
    ends = fill(wal, wanted)
    sync_by_hand(wal)

    wal.trim(ends[60])
    unlink_trimmed(wal)

    assert wal.oldest_position <= ends[60]
    assert len(log_files(tmp_path / "wal")) == 2
    assert bodies(tmp_path / "wal", ends[60]) == wanted[61:]


def test_what_is_not_synced_is_not_trimmed(wal: Wal, tmp_path: Path) -> None:
    ends = fill(wal, numbered(100))

    wal.trim(ends[-1])

    assert len(log_files(tmp_path / "wal")) == 4


def test_at_most_two_files_are_kept_for_recycling(wal: Wal, tmp_path: Path) -> None:
    fill(wal, numbered(300))
    sync_by_hand(wal)
    wal.trim(wal.synced_to)
    unlink_trimmed(wal)

    assert len(log_files(tmp_path / "wal")) == 1
    assert len(list((tmp_path / "wal").glob("spare-*"))) == 2


def test_a_recycled_file_never_shows_its_earlier_life(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    fill(wal, numbered(100))
    sync_by_hand(wal)
    start = wal.synced_to
    wal.trim(start)
    created = disk.calls["allocate"]

    late = [b"late" * 20] * 40
    fill(wal, late)

    old_life = [file for file in log_files(tmp_path / "wal") if b"0000" in file.read_bytes()]
    assert disk.calls["allocate"] == created, "the files were created again, not recycled"
    assert old_life, "no recycled file holds bytes of its earlier life"
    reading = replay(disk, tmp_path / "wal", start)
    assert [body for _, body in reading] == late
    assert reading.torn is None


def test_a_recycled_file_that_repeats_its_earlier_life_byte_for_byte_ends_where_it_was_cut(
    disk: FaultyDisk, tmp_path: Path
) -> None:
    # The same positions and bodies again, in the same file: only the salt distinguishes its uses.
    path = tmp_path / "wal"
    first = new_log(disk, path)
    fill(first, numbered(20))
    old = log_files(path)[0].read_bytes()
    for file in path.iterdir():
        file.unlink()

    second = new_log(disk, path)
    second._files._random_u64 = lambda: 12345
    fill(second, numbered(10))
    new = log_files(path)[0].read_bytes()
    end = FILE_HEADER_BYTES + second.written_to
    log_files(path)[0].write_bytes(new[:end] + old[end:])

    assert bodies(path) == numbered(10)


def test_spares_of_an_earlier_run_are_used_again(disk: FaultyDisk, tmp_path: Path) -> None:
    fill(new_log(disk, tmp_path / "wal"), [b"one"])
    spares = sorted((tmp_path / "wal").glob("spare-*"))
    allocated = disk.calls["allocate"]

    reopen(disk, tmp_path / "wal")

    assert spares
    assert sorted((tmp_path / "wal").glob("spare-*")) == spares
    assert disk.calls["allocate"] == allocated


def test_a_spare_that_was_a_log_file_before_its_renaming_was_undone_is_not_used_again(
    disk: FaultyDisk, tmp_path: Path
) -> None:
    fill(new_log(disk, tmp_path / "wal"), [b"lost with the power"])
    (left,) = log_files(tmp_path / "wal")
    left.rename(tmp_path / "wal" / "spare-00000000000000000009")

    found, wal = reopen(Disk(), tmp_path / "wal")
    wal.append(b"never written")

    assert found == []
    assert len(log_files(tmp_path / "wal")) == 1
    assert bodies(tmp_path / "wal") == []


# --- failing writes ---


@pytest.mark.parametrize("written_bytes", [0, 1, 31, 32, 70, 140, 200])
def test_a_failed_write_leaves_nothing_and_the_log_continues(
    disk: FaultyDisk, tmp_path: Path, written_bytes: int
) -> None:
    wal = new_log(disk, tmp_path / "wal")
    fill(wal, [b"before"])
    disk.fail("pwritev", keep_bytes=written_bytes)
    for body in (b"lost 1" * 6, b"lost 2" * 6, b"lost 3" * 6):
        wal.append(body)
    with pytest.raises(OSError, match="Input/output"):
        wal.flush()
    assert wal.buffered_to == wal.written_to == FRAME_HEADER_BYTES + len(b"before")
    assert bodies(tmp_path / "wal") == [b"before"], "after the failure"

    # The same length as what was lost, so that anything left after it would fit.
    fill(wal, [b"after1" * 6])

    assert bodies(tmp_path / "wal") == [b"before", b"after1" * 6]
    assert wal.stats.write_errors_total == 1


@pytest.mark.parametrize("written_bytes", [0, 30, 64, 100, 150])
def test_a_failed_first_write_of_a_file_leaves_no_trace(disk: FaultyDisk, tmp_path: Path, written_bytes: int) -> None:
    wal = new_log(disk, tmp_path / "wal")
    disk.fail("pwritev", keep_bytes=written_bytes)
    wal.append(b"lost" * 10)
    wal.append(b"gone" * 10)
    with pytest.raises(OSError, match="Input/output"):
        wal.flush()

    assert log_files(tmp_path / "wal") == []
    fill(wal, [b"next"])
    assert bodies(tmp_path / "wal") == [b"next"]


def test_a_failed_write_during_rotation_loses_only_what_was_buffered(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    fill(wal, [b"before"])
    disk.fail("pwritev")
    wal.append(b"lost")
    with pytest.raises(OSError, match="Input/output"):
        wal.append(bytes(FILE_BYTES))

    fill(wal, [b"after"])
    assert bodies(tmp_path / "wal") == [b"before", b"after"]


def test_a_log_that_cannot_be_cut_back_takes_no_more(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    fill(wal, [b"before"])
    disk.fail("pwritev")
    disk.fail("truncate")
    wal.append(b"lost")
    with pytest.raises(OSError, match="Input/output"):
        wal.flush()

    assert wal.broken
    with pytest.raises(StorageError, match="accepts no writes"):
        wal.append(b"refused")
    with pytest.raises(StorageError, match="accepts no writes"):
        wal.flush()


@pytest.mark.parametrize("keep_bytes", [1, 63, 64, 65, 1000])
def test_a_short_write_goes_on_where_it_stopped(disk: FaultyDisk, tmp_path: Path, keep_bytes: int) -> None:
    wal = new_log(disk, tmp_path / "wal")
    disk.shorten(times=3, keep_bytes=keep_bytes)

    fill(wal, numbered(30), flush_every=30)

    assert disk.calls["pwritev"] >= 4
    assert bodies(tmp_path / "wal") == numbered(30)


def test_a_write_that_makes_no_progress_is_an_error(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    disk.shorten(times=-1, keep_bytes=0)
    wal.append(b"stuck")

    with pytest.raises(OSError, match="no progress"):
        wal.flush()


def test_more_buffers_than_one_call_takes_are_all_written(tmp_path: Path) -> None:
    disk = Disk()
    fd = disk.open(str(tmp_path / "file"), 0o102)
    buffers = [bytes([number % 256]) * (number % 5) for number in range(5000)]

    written = write_all(disk, fd, buffers, 3)

    assert written == len(b"".join(buffers))
    assert disk.pread(fd, written + 10, 3) == b"".join(buffers)
    disk.close(fd)


# --- a full disk ---


def fill_current_file(wal: Wal) -> None:
    """Use up all but a few bytes of the file being written."""
    wal.append(bytes(FILE_BYTES - FILE_HEADER_BYTES - FRAME_HEADER_BYTES - 40))
    wal.flush()


def test_a_full_disk_refuses_frames_and_keeps_the_rest(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    fill_current_file(wal)
    wal.append(b"fits")
    disk.fail("allocate", times=-1, error=errno.ENOSPC)
    before = wal.buffered_to

    with pytest.raises(StorageFull):
        wal.append(b"does not fit any more")

    assert wal.buffered_to == before
    assert wal.flush() == before
    assert bodies(tmp_path / "wal")[1:] == [b"fits"]


def test_urgent_frames_go_into_the_reserve_of_a_full_disk(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    fill_current_file(wal)
    disk.fail("allocate", times=-1, error=errno.ENOSPC)

    wal.append(b"a delete that frees space", urgent=True)
    with pytest.raises(StorageFull):
        wal.append(b"not urgent")
    wal.append(b"another delete", urgent=True)
    wal.flush()

    assert bodies(tmp_path / "wal")[1:] == [b"a delete that frees space", b"another delete"]
    with pytest.raises(StorageFull):
        wal.append(bytes(FILE_BYTES - 190), urgent=True)


def test_the_reserve_is_made_again_before_ordinary_frames_go_on(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    fill_current_file(wal)
    disk.fail("allocate", times=-1, error=errno.ENOSPC)
    wal.append(b"a delete that frees space", urgent=True)
    disk.heal()

    fill(wal, [b"not urgent", b"nor this"])

    assert bodies(tmp_path / "wal")[2:] == [b"not urgent", b"nor this"]
    assert len(list((tmp_path / "wal").glob("spare-*"))) == 1


def test_writing_resumes_when_there_is_room_again(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    fill_current_file(wal)
    disk.fail("allocate", times=-1, error=errno.EDQUOT)
    with pytest.raises(StorageFull):
        wal.append(b"refused" * 20)
    disk.heal()

    fill(wal, [b"accepted" * 20])

    assert bodies(tmp_path / "wal")[1:] == [b"accepted" * 20]
    assert len(list((tmp_path / "wal").glob("spare-*"))) == 1, "the reserve"


def test_a_log_opens_on_a_full_disk(disk: FaultyDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk.fail("allocate", times=-1, error=errno.ENOSPC)

    with caplog.at_level(logging.WARNING, "topics.storage"):
        wal = new_log(disk, tmp_path / "wal")

    assert "no room for the reserve" in caplog.text
    with pytest.raises(StorageFull):
        wal.append(b"refused")
    disk.heal()
    fill(wal, [b"accepted"])
    assert bodies(tmp_path / "wal") == [b"accepted"]


def test_a_directory_that_takes_no_new_file_refuses_the_frame_alone(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    fill_current_file(wal)
    disk.fail("rename")

    with pytest.raises(StorageError, match="cannot create"):
        wal.append(b"refused" * 20)

    fill(wal, [b"accepted" * 20])
    assert bodies(tmp_path / "wal")[1:] == [b"accepted" * 20]


@pytest.mark.parametrize("kind", ["rename", "unlink"])
def test_files_that_cannot_be_recycled_or_removed_stay_and_the_log_goes_on(
    disk: FaultyDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    wal = new_log(disk, tmp_path / "wal")
    ends = fill(wal, [bytes(400)] * 60)
    sync_by_hand(wal)
    disk.fail(kind, times=-1)  # type: ignore[reportArgumentType]
    wal.trim(ends[-1])
    wal.prepare_spare()
    unlink_trimmed(wal)
    disk.heal()
    assert "cannot" in caplog.text
    fill(wal, [b"accepted"])
    assert bodies(tmp_path / "wal", ends[-1]) == [b"accepted"]


# --- files grow with use ---


def test_files_are_as_large_as_the_log_before_them_within_bounds(tmp_path: Path) -> None:
    wal = new_log(Disk(), tmp_path / "wal", file_bytes=4 * FIRST_FILE_BYTES)
    fill(wal, [bytes(FIRST_FILE_BYTES // 4)] * 60)
    sizes = [file.stat().st_size for file in log_files(tmp_path / "wal")]
    steps = [1, 1, 2, 4, 4, 4]
    assert sizes[: len(steps)] == [step * FIRST_FILE_BYTES for step in steps]
    assert bodies(tmp_path / "wal") == [bytes(FIRST_FILE_BYTES // 4)] * 60


def test_a_new_log_takes_little_room(tmp_path: Path) -> None:
    wal = new_log(Disk(), tmp_path / "wal", file_bytes=FILE_BYTES_MAX)
    fill(wal, [b"one", b"two"])
    wal.prepare_spare()
    allocated = sum(file.stat().st_blocks * 512 for file in (tmp_path / "wal").iterdir())
    assert 2 * FIRST_FILE_BYTES <= allocated <= 4 * FIRST_FILE_BYTES


def test_the_reserve_grows_with_the_log(tmp_path: Path) -> None:
    wal = new_log(Disk(), tmp_path / "wal", file_bytes=FILE_BYTES_MAX)
    for _ in range(40):
        fill(wal, [bytes(1 << 20)])
        wal.prepare_spare()
        unlink_trimmed(wal)
    largest = max(file.stat().st_size for file in log_files(tmp_path / "wal"))
    spares = sorted(file.stat().st_size for file in (tmp_path / "wal").glob("spare-*"))
    assert largest >= 16 << 20
    assert 2 <= len(spares) <= 4
    assert spares[-2] >= largest // RESERVE_SHARE, "one to take next, and the reserve"


def test_spares_that_are_far_too_large_go_back_to_the_file_system(tmp_path: Path) -> None:
    """As 0.1 left them, whose files were all of the largest size."""
    path = tmp_path / "wal"
    path.mkdir()
    for number in (1, 2):
        (path / f"spare-{number:020d}").write_bytes(bytes(FILE_BYTES_MAX))
    wal = new_log(Disk(), path, file_bytes=FILE_BYTES_MAX)
    unlink_trimmed(wal)
    assert sum(file.stat().st_size for file in path.iterdir()) <= 2 * FIRST_FILE_BYTES
