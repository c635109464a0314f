"""The log in use: rotation, recycling, failing writes, a full disk."""

import errno
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.faults import FaultyDisk, Mode, SmallDisk
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
from topics.storage.disk import Buffer, Disk, write_all
from topics.storage.wal import wal as wal_module
from topics.storage.wal.frame import FILE_HEADER_BYTES, FRAME_HEADER_BYTES
from topics.storage.wal.log_file import FILE_BYTES as FILE_BYTES_MAX
from topics.storage.wal.log_file import FIRST_FILE_BYTES, RESERVE_SHARE, LogTail
from topics.storage.wal.log_scan import read_window
from topics.storage.wal.wal import PIECES_MAX, UNSYNCED_BYTES_MAX, Wal

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


class NotingDisk(Disk):
    """Notes how many buffers each write has."""

    def __init__(self) -> None:
        super().__init__()
        self.buffers: list[int] = []

    def pwritev(self, fd: int, buffers: Sequence[Buffer], offset: int) -> int:
        self.buffers.append(len(buffers))
        return super().pwritev(fd, buffers, offset)


def test_many_small_frames_are_joined_before_they_are_written(tmp_path: Path) -> None:
    disk = NotingDisk()
    wal = new_log(disk, tmp_path / "wal")
    for count in (1, PIECES_MAX // 2, PIECES_MAX // 2 + 1):
        for body in numbered(count, 20):
            wal.append(body)
        wal.flush()
    assert disk.buffers == [3, PIECES_MAX, 1], "two for each frame, and the header of the file; or one"
    assert PIECES_MAX == 16


def test_frames_writes_and_bytes_are_counted(wal: Wal, tmp_path: Path) -> None:
    for body in numbered(3):
        wal.append(body)
    wal.flush()
    assert wal.flush() == wal.written_to > 0
    wal.append(b"x")
    wal.flush()
    assert (wal.stats.frames_total, wal.stats.batches_total) == (4, 2)
    assert wal.stats.bytes_written_total == FILE_HEADER_BYTES + wal.written_to
    assert (wal.stats.rotations_total, wal.stats.handovers_total, wal.stats.write_errors_total) == (0, 0, 0)


def test_a_log_is_overloaded_above_a_limit_of_bytes_that_are_not_synced(
    wal: Wal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert UNSYNCED_BYTES_MAX == 64 << 20
    monkeypatch.setattr(wal_module, "UNSYNCED_BYTES_MAX", 100 + FRAME_HEADER_BYTES)
    wal.append(bytes(100))
    assert not wal.overloaded
    wal.append(b"")
    assert wal.overloaded
    wal.flush()
    sync_by_hand(wal)
    assert not wal.overloaded


def test_a_salt_is_a_random_number_of_64_bits() -> None:
    drawn = {wal_module.random_u64() for _ in range(100)}
    assert len(drawn) == 100
    assert 1 << 60 < max(drawn) < 1 << 64


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

    fill(wal, [b"before"])
    wal.append(large)
    allocated = [file.stat().st_size for file in log_files(tmp_path / "wal")]
    fill(wal, [b"after"])

    sizes = [file.stat().st_size for file in log_files(tmp_path / "wal")]
    assert sizes == [FILE_BYTES, FILE_HEADER_BYTES + FRAME_HEADER_BYTES + len(large), FILE_BYTES]
    assert allocated == sizes[:2], "before anything is written to it"
    assert bodies(tmp_path / "wal") == [b"before", large, b"after"]


def test_a_first_frame_larger_than_a_file_leaves_no_hole_in_the_numbers(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    wal.append(b"forgotten")
    wal.drop()

    ends = fill(wal, [bytes(2 * FILE_BYTES), b"after"])

    assert (wal.file_starts(), wal.stats.rotations_total) == ([0, ends[0]], 1)
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


def test_a_log_to_which_nothing_was_written_is_closed_without_a_file(wal: Wal, tmp_path: Path) -> None:
    wal.append(b"forgotten")
    wal.close()
    assert log_files(tmp_path / "wal") == []
    assert len(list((tmp_path / "wal").glob("spare-*"))) == 2, "its file is one again"
    assert wal.buffered_to == 0


def test_a_closed_log_has_no_unused_bytes(wal: Wal, disk: FaultyDisk, tmp_path: Path) -> None:
    fill(wal, [b"one", b"two"])
    sync_by_hand(wal)
    wal.close()

    disk.power_loss(tmp_path / "wal", tmp_path / "after", "drop")
    for path in (tmp_path / "wal", tmp_path / "after"):
        assert [file.stat().st_size for file in log_files(path)] == [FILE_HEADER_BYTES + wal.written_to]
        assert bodies(path) == [b"one", b"two"]
    assert wal.file_starts() == [0]
    assert [(file.fd, file.end_position) for file in wal._files.sealed] == [(-1, wal.written_to)]


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


def test_at_most_two_files_are_kept_for_recycling(wal: Wal, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    fill(wal, numbered(300))
    sync_by_hand(wal)
    wal.trim(wal.synced_to)
    unlink_trimmed(wal)

    assert len(log_files(tmp_path / "wal")) == 1
    assert len(list((tmp_path / "wal").glob("spare-*"))) == 2
    assert caplog.text == ""


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
    for spare in (tmp_path / "wal").glob("spare-*[!9]"):
        spare.unlink()

    found, wal = reopen(Disk(), tmp_path / "wal")
    wal.append(b"never written")

    assert found == []
    assert len(log_files(tmp_path / "wal")) == 1
    assert bodies(tmp_path / "wal") == []


@pytest.mark.parametrize("size", [FILE_BYTES - 1, FILE_BYTES, 4 * FILE_BYTES, 4 * FILE_BYTES + 1])
def test_spares_of_an_earlier_run_are_kept_if_they_are_large_enough_and_not_far_too_large(
    disk: FaultyDisk, tmp_path: Path, size: int
) -> None:
    path = tmp_path / "wal"
    path.mkdir()
    for name in ("spare-5", "spare-12", "spare-x", "5", "spare-"):
        (path / name).write_bytes(bytes(size))
    fits = FILE_BYTES <= size <= 4 * FILE_BYTES

    wal = new_log(disk, path)
    made = [int(file.name[6:]) for file in path.glob("spare-0*")]
    assert (made == []) is fits, "the reserve"
    assert all(number > 12 for number in made), "no number is used again, even if its file goes"
    unlink_trimmed(wal)

    assert {name for name in ("spare-5", "spare-12") if (path / name).exists()} == (
        {"spare-5", "spare-12"} if fits else set()
    )
    assert all((path / name).exists() for name in ("spare-x", "5", "spare-"))


def test_of_the_spares_of_an_earlier_run_two_are_kept(disk: FaultyDisk, tmp_path: Path) -> None:
    path = tmp_path / "wal"
    path.mkdir()
    for number in range(4):
        (path / f"spare-{number}").write_bytes(bytes(FILE_BYTES))
    wal = new_log(disk, path)
    unlink_trimmed(wal)
    assert wal.unlink_one_trimmed() is False
    assert sorted(file.name for file in path.iterdir()) == ["spare-0", "spare-1"]
    assert not wal.full


def test_a_spare_with_the_header_of_an_earlier_file_is_used_again(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    fill(wal, numbered(100))
    sync_by_hand(wal)
    wal.trim(wal.synced_to)
    unlink_trimmed(wal)
    recycled = [file for file in (tmp_path / "wal").glob("spare-*") if file.read_bytes()[:4] == b"WAL1"]
    assert recycled
    _, again = reopen(disk, tmp_path / "wal", start=wal.synced_to)
    unlink_trimmed(again)
    assert all(file.exists() for file in recycled)


def test_a_frame_that_just_fills_a_file_takes_a_spare(disk: FaultyDisk, wal: Wal) -> None:
    fill(wal, [b"first"])
    wal.prepare_spare()
    allocated = disk.calls["allocate"]
    fill(wal, [bytes(FILE_BYTES - FILE_HEADER_BYTES - FRAME_HEADER_BYTES)])
    assert disk.calls["allocate"] == allocated
    wal.append(b"")
    assert wal.stats.rotations_total == 2, "not one more fits"


@pytest.mark.parametrize("below", [0, 1])
def test_a_file_is_trimmed_at_its_very_end(wal: Wal, tmp_path: Path, below: int) -> None:
    fill(wal, numbered(100))
    sync_by_hand(wal)
    starts = wal.file_starts()
    assert (wal.oldest_position, len(starts)) == (0, 4)
    wal.trim(starts[2] - below)
    assert wal.file_starts() == starts[2 - below :]
    assert wal.oldest_position == starts[2 - below]


def test_a_file_that_is_still_open_is_not_trimmed(wal: Wal) -> None:
    fill(wal, numbered(100))
    sync_by_hand(wal)
    starts = wal.file_starts()
    open_file = wal._files.sealed[1]
    open_file.fd = 0
    wal.trim(starts[3])
    assert wal.file_starts() == starts[1:]
    open_file.fd = -1
    wal.trim(starts[3])
    assert wal.file_starts() == starts[3:]


def test_what_is_needed_elsewhere_is_not_trimmed(wal: Wal) -> None:
    fill(wal, numbered(100))
    sync_by_hand(wal)
    starts = wal.file_starts()
    wal.keep_from = starts[1]
    wal.trim(starts[3])
    assert wal.file_starts() == starts[1:]
    wal.trim(0)
    assert wal.file_starts() == starts[1:]
    wal.keep_from = None
    wal.trim(starts[3])
    assert wal.file_starts() == starts[3:]


# --- which bytes of which files ---


def test_the_files_and_their_parts_between_two_positions(wal: Wal, tmp_path: Path) -> None:
    ends = fill(wal, numbered(100))
    sync_by_hand(wal)
    starts = [*wal.file_starts(), wal.written_to]
    paths = [str(file) for file in log_files(tmp_path / "wal")]

    for start in (0, starts[1] - 1, starts[1], ends[40], starts[3], ends[-1]):
        for end in (*starts, ends[20], ends[99]):
            reached = [number for number in range(4) if max(start, starts[number]) < min(end, starts[number + 1])]
            wanted = [(max(start, starts[number]), min(end, starts[number + 1])) for number in reached]
            assert wal.files_between(start, end) == [
                (paths[number], FILE_HEADER_BYTES + part[1] - starts[number])
                for number, part in zip(reached, wanted, strict=True)
            ]
            spans = wal.spans(start, end)
            assert [(span.path, span.base_position) for span in spans] == [
                (paths[number], starts[number]) for number in reached
            ]
            assert [(span.from_position, span.to_position) for span in spans] == wanted
            for span in spans:
                content = Path(span.path).read_bytes()[span.offset_of(span.from_position) : span.offset_of(end)]
                assert read_window(content, span.from_position, span.salt)[1] > 0 or span.from_position not in ends


def test_a_log_without_files_starts_where_it_goes_on(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal", position=500)
    assert (wal.file_starts(), wal.oldest_position, wal.spans(0, 500), wal.files_between(0, 500)) == ([], 500, [], [])


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
    assert [(file.base_position, file.end_position) for file in wal._files.sealed] == [(0, wal.written_to)]

    # The same length as what was lost, so that anything left after it would fit.
    fill(wal, [b"after1" * 6])

    assert bodies(tmp_path / "wal") == [b"before", b"after1" * 6]
    assert wal.stats.write_errors_total == 1


@pytest.mark.parametrize("mode", ["keep", "drop", "torn", "reorder"])
def test_a_failed_write_does_not_come_back_after_a_power_failure(disk: FaultyDisk, tmp_path: Path, mode: Mode) -> None:
    wal = new_log(disk, tmp_path / "wal")
    fill(wal, [b"before"])
    disk.fail("pwritev", keep_bytes=FRAME_HEADER_BYTES + 4)
    wal.append(b"lost")
    with pytest.raises(OSError, match="Input/output"):
        wal.flush()
    for seed in range(10):
        after = tmp_path / f"after-{seed}"
        disk.power_loss(tmp_path / "wal", after, mode, seed)
        assert b"lost" not in bodies(after, same_boot=False)


@pytest.mark.parametrize("written_bytes", [0, 30, 64, 100, 150])
def test_a_failed_first_write_of_a_file_leaves_no_trace(disk: FaultyDisk, tmp_path: Path, written_bytes: int) -> None:
    wal = new_log(disk, tmp_path / "wal")
    disk.fail("pwritev", keep_bytes=written_bytes)
    wal.append(b"lost" * 10)
    wal.append(b"gone" * 10)
    with pytest.raises(OSError, match="Input/output"):
        wal.flush()

    assert log_files(tmp_path / "wal") == []
    assert {file.stat().st_size for file in (tmp_path / "wal").iterdir()} == {FILE_BYTES}, "it is no spare either"
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
    with pytest.raises(StorageFull):
        wal.append(b"not urgent")
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


def test_an_urgent_frame_may_fill_the_reserve_of_a_full_disk(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    fill_current_file(wal)
    disk.fail("allocate", times=-1, error=errno.ENOSPC)
    largest = FILE_BYTES - FILE_HEADER_BYTES - FRAME_HEADER_BYTES
    with pytest.raises(StorageFull):
        wal.append(bytes(largest + 1), urgent=True)
    wal.append(bytes(largest), urgent=True)
    wal.flush()
    assert [len(body) for body in bodies(tmp_path / "wal")[1:]] == [largest]


def test_a_log_says_whether_the_disk_was_full(disk: FaultyDisk, tmp_path: Path) -> None:
    wal = new_log(disk, tmp_path / "wal")
    assert not wal.full
    fill_current_file(wal)
    for error, full in ((errno.EIO, False), (errno.ENOSPC, True), (errno.EIO, False), (errno.EDQUOT, True)):
        disk.fail("allocate", times=-1, error=error)
        with pytest.raises(StorageError if full is False else StorageFull):
            wal.append(b"refused" * 20)
        assert wal.full is full
        disk.heal()
    wal.append(b"accepted" * 20)
    assert not wal.full


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
    left = len(log_files(tmp_path / "wal"))
    assert left == 1 if kind == "rename" else left > 1, "what cannot be recycled is unlinked"
    fill(wal, [b"accepted"])
    assert bodies(tmp_path / "wal", ends[-1]) == [b"accepted"]


def test_a_file_that_cannot_be_removed_after_a_failed_write_is_replaced_by_the_next(
    disk: FaultyDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wal = new_log(disk, tmp_path / "wal")
    disk.fail("pwritev", keep_bytes=70)
    disk.fail("unlink")
    wal.append(b"lost")
    with pytest.raises(OSError, match="Input/output"):
        wal.flush()
    (left,) = log_files(tmp_path / "wal")
    assert left.stat().st_size == 0
    assert f"cannot remove {left}" in caplog.text
    fill(wal, [b"next"])
    assert log_files(tmp_path / "wal") == [left]
    assert bodies(tmp_path / "wal") == [b"next"]


def test_a_spare_that_cannot_be_made_in_advance_is_made_when_it_is_needed(
    disk: FaultyDisk, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    wal = new_log(disk, tmp_path / "wal")
    fill_current_file(wal)
    assert wal.stats.rotations_total == 0
    fill(wal, [b"x" * 100])
    disk.fail("allocate", times=-1)
    assert wal.prepare_spare() is True
    assert wal.prepare_spare() is False, "once for each rotation"
    assert f"cannot create a spare log file in {tmp_path / 'wal'}" in caplog.text
    disk.heal()
    fill_current_file(wal)
    assert wal.stats.rotations_total == 2


# --- files grow with use ---


@pytest.mark.parametrize(("file_bytes", "steps"), [(2 * FIRST_FILE_BYTES, 2), (2 * FIRST_FILE_BYTES + 1, 4)])
def test_a_file_is_the_power_of_two_that_its_first_frame_needs(tmp_path: Path, file_bytes: int, steps: int) -> None:
    wal = new_log(Disk(), tmp_path / "wal", file_bytes=8 * FIRST_FILE_BYTES)
    wal.append(bytes(file_bytes - FILE_HEADER_BYTES - FRAME_HEADER_BYTES))
    (file,) = log_files(tmp_path / "wal")
    assert file.stat().st_size == steps * FIRST_FILE_BYTES


def test_a_file_has_256_kib_to_64_mib_and_the_reserve_an_eighth(tmp_path: Path) -> None:
    wal = Wal(Disk(), str(tmp_path), LogTail(1, 0, []))
    assert (FIRST_FILE_BYTES, wal._files.file_bytes, RESERVE_SHARE) == (256 << 10, 64 << 20, 8)


def test_files_are_as_large_as_the_log_before_them_within_bounds(tmp_path: Path) -> None:
    wal = new_log(Disk(), tmp_path / "wal", file_bytes=4 * FIRST_FILE_BYTES)
    fill(wal, [bytes(FIRST_FILE_BYTES // 4)] * 60)
    sizes = [file.stat().st_size for file in log_files(tmp_path / "wal")]
    steps = [1, 1, 2, 4, 4, 4]
    assert sizes[: len(steps)] == [step * FIRST_FILE_BYTES for step in steps]
    assert wal.unlink_one_trimmed() is False, "no spare is given up for a larger one"
    assert bodies(tmp_path / "wal") == [bytes(FIRST_FILE_BYTES // 4)] * 60


@pytest.mark.parametrize(
    ("disk_bytes", "files", "spares"),
    [
        (3 << 20, [1, 1, 2, 4, 2, 1], [1]),
        ((4 << 20) - 4096, [1, 1, 2, 4, 4, 2], [1]),
        (6 << 20, [1, 1, 2, 4, 8, 4, 2], [1, 1]),
        (9 << 20, [1, 1, 2, 4, 8, 16, 2], [1, 1]),
    ],
)
def test_on_a_disk_that_fills_up_files_get_smaller_and_a_reserve_stays(
    tmp_path: Path, disk_bytes: int, files: list[int], spares: list[int]
) -> None:
    disk = SmallDisk(disk_bytes)
    wal = new_log(disk, tmp_path / "wal", file_bytes=16 * FIRST_FILE_BYTES)
    with pytest.raises(StorageFull):
        fill(wal, [bytes(FIRST_FILE_BYTES // 4)] * 1000)
    assert [file.stat().st_size // FIRST_FILE_BYTES for file in log_files(tmp_path / "wal")] == files
    assert [file.stat().st_size // FIRST_FILE_BYTES for file in (tmp_path / "wal").glob("spare-*")] == spares
    assert disk.used_bytes == disk_bytes // FIRST_FILE_BYTES * FIRST_FILE_BYTES, "nothing smaller is made"
    wal.append(bytes(FIRST_FILE_BYTES // 2), urgent=True)


def test_a_spare_that_is_too_small_for_the_next_file_stays(tmp_path: Path) -> None:
    wal = new_log(Disk(), tmp_path / "wal", file_bytes=8 * FIRST_FILE_BYTES)
    fill(wal, [b"first"])
    wal.prepare_spare()
    spares = sorted((tmp_path / "wal").glob("spare-*"))
    wal.append(bytes(FIRST_FILE_BYTES))
    assert wal.unlink_one_trimmed() is False
    assert sorted((tmp_path / "wal").glob("spare-*")) == spares
    assert len(spares) == 2


def test_after_trimming_files_are_small_again(tmp_path: Path) -> None:
    wal = new_log(Disk(), tmp_path / "wal", file_bytes=16 * FIRST_FILE_BYTES)
    while len(wal.file_starts()) < 6:
        fill(wal, [bytes(FIRST_FILE_BYTES // 4)])
    sync_by_hand(wal)
    wal.trim(wal.synced_to)
    unlink_trimmed(wal)
    _, again = reopen(Disk(), tmp_path / "wal", 16 * FIRST_FILE_BYTES, start=wal.synced_to)
    unlink_trimmed(again)
    fill(again, [b"after"])
    last, new = (file.stat().st_size for file in log_files(tmp_path / "wal"))
    assert (last, new) == (FIRST_FILE_BYTES // 4 + FILE_HEADER_BYTES + FRAME_HEADER_BYTES, 2 * FIRST_FILE_BYTES)


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
