"""Reading the log back: a prefix after a cut, a refusal after damage, the same bytes every time."""

import logging
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults import FaultyDisk
from tests.storage.logs import bodies, fill, flip_bit, log_files, new_log, opened, reopen, replay, sync_by_hand
from topics.storage.disk import Disk
from topics.storage.wal.frame import (
    FILE_HEADER_BYTES,
    FRAME_HEADER_BYTES,
    FileHeader,
    encode,
    encode_file_header,
)
from topics.storage.wal.log_file import log_name
from topics.storage.wal.log_scan import WINDOW_BYTES, SplitBody
from topics.storage.wal.replay import DamagedLog, LargeFrame, Replay
from topics.storage.wal.wal import Wal

pytestmark = pytest.mark.usefixtures("every_file_closed")


def content(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in log_files(path)}


def closed_log(path: Path, wanted: list[bytes], file_bytes: int = 4096, synced_every: int = 0) -> list[int]:
    """A log of a clean stop; returns where its frames end."""
    wal = new_log(Disk(), path, file_bytes)
    ends: list[int] = []
    for number, body in enumerate(wanted, 1):
        ends.append(wal.append(body))
        wal.flush()
        if synced_every and number % synced_every == 0:
            sync_by_hand(wal)
    sync_by_hand(wal)
    wal.close()
    return ends


def abandoned(wal: Wal) -> None:
    """Let go of a log the way a killed process does."""
    for file in wal.unsynced_files:
        wal.disk.close(file.fd)
        file.fd = -1
    wal.unsynced_files = []
    opened.remove(wal)


# --- the torn end ---


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_log_cut_at_every_byte_recovers_a_prefix(tmp_path: Path, same_boot: bool) -> None:
    wanted = [b"a", b"bcd" * 7, b"", b"efgh" * 4]
    ends = closed_log(tmp_path / "whole", wanted)
    whole = log_files(tmp_path / "whole")[0].read_bytes()

    for length in range(len(whole) + 1):
        path = tmp_path / f"cut-{length}"
        path.mkdir()
        (path / log_files(tmp_path / "whole")[0].name).write_bytes(whole[:length])
        expected = [body for body, end in zip(wanted, ends, strict=True) if FILE_HEADER_BYTES + end <= length]

        reading = replay(Disk(), path, same_boot=same_boot)

        assert [body for _, body in reading] == expected, length
        assert reading.tail.position == sum(FRAME_HEADER_BYTES + len(body) for body in expected)
        found, wal = reopen(Disk(), path, same_boot=same_boot)
        fill(wal, [b"goes on"])
        abandoned(wal)
        assert found == expected
        assert bodies(path, same_boot=same_boot) == [*expected, b"goes on"], length


def test_a_log_of_several_files_cut_in_its_last_file_recovers_a_prefix(tmp_path: Path) -> None:
    wanted = [f"{number:03d}".encode() * 20 for number in range(60)]
    closed_log(tmp_path / "whole", wanted, file_bytes=2048)
    last = log_files(tmp_path / "whole")[-1]
    frame_bytes = FRAME_HEADER_BYTES + 60
    before = len(wanted) - (last.stat().st_size - FILE_HEADER_BYTES) // frame_bytes

    for length in range(0, last.stat().st_size, 13):
        path = tmp_path / f"cut-{length}"
        shutil.copytree(tmp_path / "whole", path)
        (path / last.name).write_bytes(last.read_bytes()[:length])
        whole_frames = max(0, length - FILE_HEADER_BYTES) // frame_bytes
        assert bodies(path) == wanted[: before + whole_frames], length


def test_a_torn_last_frame_is_cut_and_logged_with_its_place(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ends = closed_log(tmp_path / "wal", [b"first", b"second", b"third"])
    file = log_files(tmp_path / "wal")[0]
    file.write_bytes(file.read_bytes()[:-2])

    with caplog.at_level(logging.WARNING, "topics.storage"):
        reading = replay(Disk(), tmp_path / "wal")
        found = [body for _, body in reading]

    offset = FILE_HEADER_BYTES + ends[1]
    assert found == [b"first", b"second"]
    assert f"{file} has a torn tail and was cut at offset {offset}" in caplog.text
    assert reading.torn is not None
    assert reading.torn[:4] == (str(file), offset, ends[1], ends[2] - 2)
    assert file.stat().st_size == offset
    assert kept(reading) == [(1, 0, ends[1], offset)]


def test_a_log_that_just_ends_is_not_called_torn(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    wal = new_log(Disk(), tmp_path / "wal")
    fill(wal, [b"first", b"second"])
    abandoned(wal)

    with caplog.at_level(logging.INFO, "topics.storage"):
        reading = replay(Disk(), tmp_path / "wal")
        found = [body for _, body in reading]

    assert found == [b"first", b"second"]
    assert reading.torn is None
    assert caplog.text == ""


def test_a_log_whose_first_frame_was_never_written_is_not_called_torn(tmp_path: Path) -> None:
    closed_log(tmp_path / "wal", [b"first"])
    (file,) = log_files(tmp_path / "wal")
    file.write_bytes(file.read_bytes()[:FILE_HEADER_BYTES])
    reading = replay(Disk(), tmp_path / "wal")
    assert (list(reading), reading.torn) == ([], None)


def test_recovering_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    wal = new_log(Disk(), path)
    fill(wal, [b"first", b"second" * 100, b"third" * 200])
    abandoned(wal)
    last = log_files(path)[-1]
    with last.open("r+b") as file:
        file.seek(FILE_HEADER_BYTES + wal.written_to - 40)
        file.write(bytes(40))

    first = [body for _, body in replay(Disk(), path)]
    after_first = content(path)
    second = [body for _, body in replay(Disk(), path)]

    assert first == second == [b"first", b"second" * 100]
    assert content(path) == after_first


def test_a_hole_in_what_was_never_synced_is_cut_after_a_power_failure(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    wal = new_log(Disk(), path, file_bytes=2048)
    ends = fill(wal, [bytes([number]) * 60 for number in range(60)])
    abandoned(wal)
    assert len(log_files(path)) > 2
    flip_bit(log_files(path)[0], FILE_HEADER_BYTES + ends[4] + 40)

    reading = replay(Disk(), path, same_boot=False)

    assert [end for end, _ in reading] == ends[:5]
    assert reading.torn is not None
    assert reading.torn.to_position == ends[-1]
    assert len(log_files(path)) == 1, "files after the cut hold only un-synced frames and are gone"
    assert bodies(path, same_boot=True) == [bytes([number]) * 60 for number in range(5)]


# --- damage ---


def assert_refused(path: Path, file: Path, offset: int, **evidence: object) -> None:
    before = content(path)
    with pytest.raises(DamagedLog) as refusal:
        list(replay(Disk(), path, **evidence))  # type: ignore[reportArgumentType]
    assert str(file) in refusal.value.message
    assert f"offset {offset}" in refusal.value.message
    assert "topics repair" in refusal.value.message
    assert (refusal.value.detail["file"], refusal.value.detail["offset"]) == (str(file), offset)
    assert content(path) == before, "a refusal changes nothing"


def test_a_flipped_bit_in_synced_frames_is_refused_even_after_a_power_failure(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"%d" % number * 9 for number in range(10)], synced_every=2)
    file = log_files(tmp_path / "wal")[0]
    flip_bit(file, FILE_HEADER_BYTES + ends[3] + FRAME_HEADER_BYTES + 2)

    assert_refused(tmp_path / "wal", file, FILE_HEADER_BYTES + ends[3], same_boot=False)


def test_a_flipped_bit_in_unsynced_frames_is_refused_if_no_power_failed(tmp_path: Path) -> None:
    wal = new_log(Disk(), tmp_path / "wal")
    ends = fill(wal, [b"%d" % number * 9 for number in range(10)])
    abandoned(wal)
    file = log_files(tmp_path / "wal")[0]
    flip_bit(file, FILE_HEADER_BYTES + ends[3])

    assert_refused(tmp_path / "wal", file, FILE_HEADER_BYTES + ends[3], same_boot=True)


def test_a_damaged_last_frame_of_a_clean_stop_is_refused(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"first", b"second", b"third"])
    file = log_files(tmp_path / "wal")[0]
    flip_bit(file, FILE_HEADER_BYTES + ends[1] + FRAME_HEADER_BYTES)

    assert_refused(tmp_path / "wal", file, FILE_HEADER_BYTES + ends[1], same_boot=False, durable_to=ends[2])


def test_every_flipped_bit_before_the_last_frame_is_refused(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"first", b"second", b"third"])
    file = log_files(tmp_path / "wal")[0]
    pristine = file.read_bytes()

    for offset in range(FILE_HEADER_BYTES + ends[1]):
        flip_bit(file, offset, bit=offset % 8)
        with pytest.raises(DamagedLog):
            list(replay(Disk(), tmp_path / "wal"))
        file.write_bytes(pristine)
    assert bodies(tmp_path / "wal") == [b"first", b"second", b"third"]


def test_a_missing_file_in_the_middle_is_refused(tmp_path: Path) -> None:
    closed_log(tmp_path / "wal", [b"x" * 100] * 100)
    files = log_files(tmp_path / "wal")
    files[1].unlink()

    assert_refused(tmp_path / "wal", files[2], 0, same_boot=False)


def test_a_missing_first_file_is_refused_unless_a_snapshot_covers_it(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"%03d" % number * 30 for number in range(100)])
    files = log_files(tmp_path / "wal")
    files[0].unlink()

    assert_refused(tmp_path / "wal", files[1], 0, same_boot=True)
    assert bodies(tmp_path / "wal", ends[50]) == [b"%03d" % number * 30 for number in range(51, 100)]


def test_a_damaged_header_of_a_later_file_is_refused(tmp_path: Path) -> None:
    closed_log(tmp_path / "wal", [b"x" * 100] * 50)
    file = log_files(tmp_path / "wal")[-1]
    flip_bit(file, 33)

    assert_refused(tmp_path / "wal", file, 0, same_boot=False)


def test_a_log_that_vanished_after_a_clean_stop_is_refused(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"first"])
    log_files(tmp_path / "wal")[0].unlink()

    assert_refused(tmp_path / "wal", tmp_path / "wal", 0, same_boot=True, durable_to=ends[0])


def test_a_file_cut_short_in_the_middle_of_the_log_is_refused(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"x" * 100] * 50)
    first = log_files(tmp_path / "wal")[0]
    first.write_bytes(first.read_bytes()[: FILE_HEADER_BYTES + ends[10] + 7])

    assert_refused(tmp_path / "wal", first, FILE_HEADER_BYTES + ends[10], same_boot=True)


def test_a_good_frame_far_after_a_damaged_one_is_found(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [bytes(3 * WINDOW_BYTES), b"second"], file_bytes=8 * WINDOW_BYTES)
    (file,) = log_files(tmp_path / "wal")
    flip_bit(file, FILE_HEADER_BYTES)

    assert_refused(tmp_path / "wal", file, FILE_HEADER_BYTES, same_boot=True)
    reading = replay(Disk(), tmp_path / "wal", repair=True)
    assert [body for _, body in reading] == [b"second"]
    assert [gap[1:4] for gap in reading.repaired] == [(FILE_HEADER_BYTES, 0, ends[0])]


@pytest.mark.parametrize("synced", [1, 2])
def test_after_a_power_failure_only_what_was_synced_past_it_proves_damage(tmp_path: Path, synced: int) -> None:
    wal = new_log(Disk(), tmp_path / "wal")
    ends = fill(wal, [b"first"])
    sync_by_hand(wal)
    ends += fill(wal, [b"second"])
    if synced == 2:
        sync_by_hand(wal)
    ends += fill(wal, [b"third"])
    abandoned(wal)
    file = log_files(tmp_path / "wal")[0]
    flip_bit(file, FILE_HEADER_BYTES + ends[0])

    if synced == 2:
        assert_refused(tmp_path / "wal", file, FILE_HEADER_BYTES + ends[0], same_boot=False)
        return
    reading = replay(Disk(), tmp_path / "wal", same_boot=False, durable_to=ends[0])
    assert [body for _, body in reading] == [b"first"]
    assert reading.torn == (str(file), FILE_HEADER_BYTES + ends[0], ends[0], ends[2], "torn tail")


def test_the_frames_of_a_file_end_where_the_next_file_begins(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"first", b"second", b"never acknowledged"])
    following = FileHeader(shard=0, file_number=2, base_position=ends[1], salt=7)
    frame = b"".join(encode(b"third", ends[1], 0, following.salt))
    (tmp_path / "wal" / log_name(2)).write_bytes(encode_file_header(following) + frame)

    assert bodies(tmp_path / "wal") == [b"first", b"second", b"third"]


# --- frames larger than a window ---


def large_log(path: Path) -> tuple[list[bytes], list[int], Path]:
    """In one file, because its first frame is the large one."""
    wanted = [bytes(range(256)) * (2 * WINDOW_BYTES // 256), b"after"]
    ends = closed_log(path, wanted, file_bytes=8 * WINDOW_BYTES)
    (file,) = log_files(path)
    return wanted, ends, file


@pytest.mark.parametrize("size", [WINDOW_BYTES - FRAME_HEADER_BYTES, WINDOW_BYTES - FRAME_HEADER_BYTES + 1])
def test_a_frame_as_large_as_a_window_and_one_that_is_larger_come_back(tmp_path: Path, size: int) -> None:
    wanted = [bytes(size), b"small", b"x" * size]
    ends = closed_log(tmp_path / "wal", wanted, file_bytes=8 * WINDOW_BYTES)
    reading = replay(Disk(), tmp_path / "wal", durable_to=ends[-1])
    assert list(reading) == list(zip(ends, wanted, strict=True))
    assert reading.frames == 3


def test_a_large_frame_comes_in_the_parts_that_are_asked_for(tmp_path: Path) -> None:
    wanted, ends, _ = large_log(tmp_path / "wal")
    reading = replay(Disk(), tmp_path / "wal", split=lambda _, __: 10)
    assert [window for window in reading.windows() if window] == [
        LargeFrame(ends[0], SplitBody(wanted[0][:10], wanted[0][10:])),
        [(ends[1], wanted[1])],
    ]
    assert (reading.frames, reading.progress, reading.torn) == (2, 1.0, None)


def test_a_changed_byte_in_a_large_frame_is_refused(tmp_path: Path) -> None:
    _, ends, file = large_log(tmp_path / "wal")
    flip_bit(file, FILE_HEADER_BYTES + ends[0] - 1)
    assert_refused(tmp_path / "wal", file, FILE_HEADER_BYTES, same_boot=True)


@pytest.mark.parametrize("left", [1, FRAME_HEADER_BYTES - 1, FRAME_HEADER_BYTES, WINDOW_BYTES, 2 * WINDOW_BYTES])
def test_a_large_frame_that_is_torn_is_cut_and_says_how_much_there_was(tmp_path: Path, left: int) -> None:
    _, _, file = large_log(tmp_path / "wal")
    file.write_bytes(file.read_bytes()[: FILE_HEADER_BYTES + left])

    reading = replay(Disk(), tmp_path / "wal")

    assert list(reading) == []
    assert reading.torn == (str(file), FILE_HEADER_BYTES, 0, left, "torn tail")
    assert file.stat().st_size == FILE_HEADER_BYTES


def test_a_last_frame_with_a_changed_byte_is_torn_as_a_whole(tmp_path: Path) -> None:
    wal = new_log(Disk(), tmp_path / "wal")
    ends = fill(wal, [b"first", b"second"])
    abandoned(wal)
    file = log_files(tmp_path / "wal")[0]
    flip_bit(file, FILE_HEADER_BYTES + ends[1] - 1)

    reading = replay(Disk(), tmp_path / "wal")

    assert [body for _, body in reading] == [b"first"]
    assert reading.torn == (str(file), FILE_HEADER_BYTES + ends[0], ends[0], ends[1], "torn tail")


@pytest.mark.parametrize("harmed_at", [0, 16])
def test_a_last_frame_that_does_not_look_like_one_is_where_the_log_ends(tmp_path: Path, harmed_at: int) -> None:
    wal = new_log(Disk(), tmp_path / "wal")
    ends = fill(wal, [b"first", b"second"])
    abandoned(wal)
    flip_bit(log_files(tmp_path / "wal")[0], FILE_HEADER_BYTES + ends[0] + harmed_at)

    reading = replay(Disk(), tmp_path / "wal")

    assert [body for _, body in reading] == [b"first"]
    assert reading.torn is None


def test_a_file_cut_within_a_large_frame_before_the_next_file_is_refused(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"before", bytes(2 * WINDOW_BYTES), b"after"])
    first, second, _ = log_files(tmp_path / "wal")
    second.write_bytes(second.read_bytes()[:WINDOW_BYTES])
    assert_refused(tmp_path / "wal", second, FILE_HEADER_BYTES, same_boot=True)
    assert first.stat().st_size == 4096
    assert ends[0] == FRAME_HEADER_BYTES + 6


# --- files that were never begun ---


def test_files_that_were_all_never_begun_are_removed(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()
    for number in (3, 4, 5):
        (tmp_path / "wal" / log_name(number)).write_bytes(bytes(4096))

    reading = replay(Disk(), tmp_path / "wal", 10)

    assert list(reading) == []
    assert (reading.tail.next_number, reading.tail.position, kept(reading)) == (1, 10, [])
    assert log_files(tmp_path / "wal") == []


def test_a_file_that_a_power_failure_left_without_a_header_ends_the_log(tmp_path: Path) -> None:
    wal = new_log(Disk(), tmp_path / "wal")
    fill(wal, [b"x" * 100] * 80)
    abandoned(wal)
    first, second, third = log_files(tmp_path / "wal")
    second.write_bytes(bytes(4096))
    noting = UnlinkingDisk()

    reading = replay(noting, tmp_path / "wal", same_boot=False)

    assert len(list(reading)) == (4096 - FILE_HEADER_BYTES) // (FRAME_HEADER_BYTES + 100)
    assert noting.unlinked == [str(third), str(second)], "from the end: a kill between leaves no gap"
    assert log_files(tmp_path / "wal") == [first]
    assert reading.tail.next_number == 2
    assert reading.torn is not None
    assert reading.torn.to_position == wal.written_to


class UnlinkingDisk(Disk):
    def __init__(self) -> None:
        super().__init__()
        self.unlinked: list[str] = []

    def unlink(self, path: str) -> None:
        self.unlinked.append(path)
        super().unlink(path)


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_file_whose_header_was_never_written_counts_as_not_there(tmp_path: Path, same_boot: bool) -> None:
    closed_log(tmp_path / "wal", [b"first"])
    (tmp_path / "wal" / "00000000000000000002.log").write_bytes(bytes(4096))

    found, wal = reopen(Disk(), tmp_path / "wal", same_boot=same_boot)
    fill(wal, [b"second"])
    abandoned(wal)

    assert found == [b"first"]
    assert bodies(tmp_path / "wal") == [b"first", b"second"]


def test_a_recycled_file_with_the_header_of_its_earlier_life_counts_as_not_there(tmp_path: Path) -> None:
    closed_log(tmp_path / "wal", [b"first"])
    closed_log(tmp_path / "earlier", [b"of an earlier life"])
    old_life = log_files(tmp_path / "earlier")[0].read_bytes()
    (tmp_path / "wal" / "00000000000000000002.log").write_bytes(old_life)

    assert bodies(tmp_path / "wal") == [b"first"]


# --- repair ---


def test_repair_skips_to_the_next_good_frame_and_says_what_is_lost(tmp_path: Path) -> None:
    wanted = [b"%d" % number * 9 for number in range(10)]
    ends = closed_log(tmp_path / "wal", wanted)
    file = log_files(tmp_path / "wal")[0]
    flip_bit(file, FILE_HEADER_BYTES + ends[3])
    flip_bit(file, FILE_HEADER_BYTES + ends[6] + 35)

    reading = replay(Disk(), tmp_path / "wal", repair=True)
    found = list(reading)

    assert [body for _, body in found] == wanted[:4] + wanted[5:7] + wanted[8:]
    assert [end for end, _ in found] == ends[:4] + ends[5:7] + ends[8:]
    assert [gap[:4] for gap in reading.repaired] == [
        (str(file), FILE_HEADER_BYTES + ends[3], ends[3], ends[4]),
        (str(file), FILE_HEADER_BYTES + ends[6], ends[6], ends[7]),
    ]
    assert reading.tail.position == ends[-1]


def test_repair_continues_after_a_missing_file(tmp_path: Path) -> None:
    wanted = [b"%03d" % number * 30 for number in range(100)]
    closed_log(tmp_path / "wal", wanted)
    first, second, third, *_ = log_files(tmp_path / "wal")
    frames_before = (first.stat().st_size - FILE_HEADER_BYTES) // 122
    frames_lost = (second.stat().st_size - FILE_HEADER_BYTES) // 122
    second.unlink()

    reading = replay(Disk(), tmp_path / "wal", repair=True)

    assert [body for _, body in reading] == wanted[:frames_before] + wanted[frames_before + frames_lost :]
    assert [(gap.file, gap.to_position - gap.from_position) for gap in reading.repaired] == [
        (str(third), 122 * frames_lost)
    ]


def test_a_log_goes_on_above_what_repair_found_lost_at_its_end(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"first", b"second", b"third"])
    flip_bit(log_files(tmp_path / "wal")[0], FILE_HEADER_BYTES + ends[1])

    reading = replay(Disk(), tmp_path / "wal", durable_to=ends[2], repair=True)

    assert [body for _, body in reading] == [b"first", b"second"]
    assert reading.repaired[0].to_position == ends[2]
    assert reading.tail.position == ends[2]


def kept(reading: Replay) -> list[tuple[int, int, int | None, int]]:
    return [(file.number, file.base_position, file.end_position, file.capacity_bytes) for file in reading.tail.files]


def test_a_whole_log_goes_on_in_the_next_file(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"%03d" % number * 30 for number in range(80)])
    frames = (4096 - FILE_HEADER_BYTES) // 122
    starts = [0, ends[frames - 1], ends[2 * frames - 1], ends[-1]]
    disk = FaultyDisk()

    reading = replay(disk, tmp_path / "wal", starts[1] + 122, durable_to=ends[-1])

    assert [end for end, _ in reading] == ends[frames + 1 :]
    assert (reading.tail.next_number, reading.tail.position) == (4, ends[-1])
    assert disk.calls["fdatasync.log"] == 2, "those that were read"
    assert disk.calls["truncate"] == disk.calls["unlink"] == 0
    sizes = [file.stat().st_size for file in log_files(tmp_path / "wal")]
    assert kept(reading) == [(number, starts[number - 1], starts[number], sizes[number - 1]) for number in (1, 2, 3)]


def test_repair_goes_on_without_a_first_file_whose_header_is_damaged(tmp_path: Path) -> None:
    wanted = [b"%03d" % number * 30 for number in range(80)]
    ends = closed_log(tmp_path / "wal", wanted)
    frames = (4096 - FILE_HEADER_BYTES) // 122
    first, second, third = log_files(tmp_path / "wal")
    flip_bit(first, 33)

    reading = replay(Disk(), tmp_path / "wal", repair=True)

    assert [body for _, body in reading] == wanted[frames:]
    assert reading.repaired == [(str(second), 0, 0, ends[frames - 1], "the log before this file is missing")]
    assert kept(reading) == [
        (1, ends[frames - 1], ends[frames - 1], 0),
        (2, ends[frames - 1], ends[2 * frames - 1], second.stat().st_size),
        (3, ends[2 * frames - 1], ends[-1], third.stat().st_size),
    ]


def test_repair_goes_on_without_any_file(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"first", b"second"])
    (file,) = log_files(tmp_path / "wal")
    flip_bit(file, 33)
    assert_refused(tmp_path / "wal", file, 0, same_boot=True)

    reading = replay(Disk(), tmp_path / "wal", 10, repair=True)
    assert list(reading) == []
    assert reading.repaired == [(str(file), 0, 10, 10, "the header of the file does not verify")]
    assert (reading.tail.next_number, reading.tail.position, kept(reading)) == (1, 10, [])
    assert [found.name for found in (tmp_path / "wal").glob("*.log*")] == [file.name + ".damaged"]

    reading = replay(Disk(), tmp_path / "wal", 10, durable_to=ends[-1], repair=True)
    assert list(reading) == []
    assert reading.repaired == [(str(tmp_path / "wal"), 0, 10, ends[-1], "the log is missing")]
    assert reading.tail.position == ends[-1]


def test_what_is_wrong_is_said_in_the_refusal(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"x" * 100] * 80)
    first, second, third = log_files(tmp_path / "wal")
    pristine = {file: file.read_bytes() for file in (first, second, third)}

    def reason(durable_to: int = 0) -> str:
        with pytest.raises(DamagedLog) as refusal:
            list(replay(Disk(), tmp_path / "wal", same_boot=False, durable_to=durable_to))
        for file, content in pristine.items():
            file.write_bytes(content)
        return refusal.value.detail["reason"]

    flip_bit(second, 33)
    assert reason() == "the header of the file does not verify"
    second.unlink()
    assert reason() == "the log file before this one is missing"
    first.unlink()
    assert reason() == "the log before this file is missing"
    assert reason(ends[-1] + 1) == f"the log had been synced up to position {ends[-1] + 1}"


# --- what is accepted is durable ---


def test_accepted_frames_are_synced_before_they_are_served(tmp_path: Path) -> None:
    path = tmp_path / "wal"
    disk = FaultyDisk()
    wal = new_log(disk, path)
    wanted = [b"x" * 100] * 50
    fill(wal, wanted)

    list(replay(disk, path))

    disk.power_loss(path, tmp_path / "after", "drop")
    assert bodies(tmp_path / "after", same_boot=False) == wanted


def test_a_snapshot_at_the_very_end_of_the_log_leaves_nothing_to_read(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"first", b"second"])

    reading = replay(Disk(), tmp_path / "wal", ends[1])

    assert list(reading) == []
    assert reading.tail.position == ends[1]


def test_an_empty_directory_goes_on_at_the_position_of_the_snapshot(tmp_path: Path) -> None:
    (tmp_path / "wal").mkdir()

    reading = replay(Disk(), tmp_path / "wal", 4711)

    assert list(reading) == []
    assert reading.tail.position == 4711


def test_progress_is_the_share_of_the_bytes_that_are_read(tmp_path: Path) -> None:
    ends = closed_log(tmp_path / "wal", [b"x" * 100] * 80)
    sizes = [file.stat().st_size for file in log_files(tmp_path / "wal")]
    frames = (4096 - FILE_HEADER_BYTES) // 132

    reading = replay(Disk(), tmp_path / "wal", ends[frames - 1])
    seen = [reading.progress for window in reading.windows() if window]
    read = [FILE_HEADER_BYTES + frames * 132, sizes[1] + sizes[2]]
    assert seen == [read[0] / sum(sizes[1:]), 0.99]


def test_progress_runs_from_zero_to_one(tmp_path: Path) -> None:
    closed_log(tmp_path / "wal", [b"x" * 100] * 100)
    reading = replay(Disk(), tmp_path / "wal")
    seen = [reading.progress]

    seen.extend(reading.progress for _ in reading)

    assert seen[0] == 0.0
    assert seen == sorted(seen)
    assert all(step < 1.0 for step in seen)
    assert len(set(seen)) > 2
    assert reading.progress == 1.0
    assert reading.frames == 100


@given(
    sizes=st.lists(st.integers(0, 3000), max_size=40),
    flush_every=st.integers(1, 7),
    restarts=st.sets(st.integers(0, 40), max_size=3),
)
def test_whatever_is_written_comes_back(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], flush_every: int, restarts: set[int]
) -> None:
    path = tmp_path_factory.mktemp("log")
    wal = new_log(Disk(), path, file_bytes=2048)
    wanted: list[bytes] = []
    for number, size in enumerate(sizes):
        if number in restarts:
            wal.flush()
            abandoned(wal)
            found, wal = reopen(Disk(), path, file_bytes=2048)
            assert found == wanted
        wanted.append(bytes([number]) * size)
        wal.append(wanted[-1])
        if number % flush_every == 0:
            wal.flush()
    wal.flush()
    abandoned(wal)

    assert bodies(path) == wanted
