"""The note of how far the log was synced: never too far, whole after any power failure, and no harm if it fails."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.faults import FaultyDisk, Mode
from tests.storage.logs import new_log
from topics.storage.disk import Disk
from topics.storage.wal.sync_mark import SLOT_BYTES, SYNC_EVERY_S, SyncMark, noted_position
from topics.storage.wal.syncer import Syncer

pytestmark = pytest.mark.usefixtures("every_file_closed")


def test_without_a_note_nothing_is_known(tmp_path: Path) -> None:
    assert noted_position(Disk(), str(tmp_path)) == 0


@pytest.mark.parametrize("content", [b"", bytes(2 * SLOT_BYTES), b"x" * 600])
def test_a_file_without_a_whole_note_says_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "synced").write_bytes(content)
    assert noted_position(Disk(), str(tmp_path)) == 0


def test_the_last_note_counts_and_a_new_process_goes_on_from_it(tmp_path: Path) -> None:
    for position in (10, 20, 30, 40):
        mark = SyncMark(Disk(), str(tmp_path))
        mark.note(position)
        mark.close()
        assert noted_position(Disk(), str(tmp_path)) == position


def test_the_bytes_of_a_note_are_those_that_older_versions_wrote_and_read(tmp_path: Path) -> None:
    mark = SyncMark(Disk(), str(tmp_path))
    mark.note(0x1122)
    mark.close()
    content = (tmp_path / "synced").read_bytes()
    assert content[512:].rstrip(b"\0").hex() == "4d524b310000000001000000000000002211000000000000c5acdae779bb0672"
    assert not content[:512].strip(b"\0")


def test_a_flipped_bit_costs_one_note(tmp_path: Path) -> None:
    mark = SyncMark(Disk(), str(tmp_path))
    for position in (10, 20):
        mark.note(position)
    mark.close()
    whole = (tmp_path / "synced").read_bytes()
    assert len(whole) == 2 * SLOT_BYTES
    # Every byte, and by turns every bit of one.
    for bit in range(0, 8 * len(whole), 7):
        changed = bytearray(whole)
        changed[bit // 8] ^= 1 << bit % 8
        (tmp_path / "synced").write_bytes(changed)
        assert noted_position(Disk(), str(tmp_path)) in (10, 20)


@pytest.mark.parametrize("mode", ["keep", "drop", "torn", "reorder"])
def test_after_a_power_failure_the_note_is_at_least_the_last_one_that_was_synced(tmp_path: Path, mode: Mode) -> None:
    disk = FaultyDisk()
    (tmp_path / "wal").mkdir()
    mark = SyncMark(disk, str(tmp_path / "wal"))
    for number in range(1, 6):
        mark.note(10 * number)
        if number == 3:
            assert mark.sync(0.0)
    for seed in range(20):
        into = tmp_path / f"{mode}{seed}"
        disk.power_loss(tmp_path / "wal", into, mode, seed)
        assert 30 <= noted_position(Disk(), str(into)) <= 50
    mark.close()


def test_it_is_synced_once_in_a_while_and_only_if_there_is_news(tmp_path: Path) -> None:
    mark = SyncMark(Disk(), str(tmp_path))
    assert mark.due_in_s(0.0) is None
    assert mark.sync(0.0) is False
    mark.note(10)
    assert mark.sync(100.0) is True
    assert not mark.sync(200.0)
    mark.note(20)
    assert mark.due_in_s(100.25) == SYNC_EVERY_S - 0.25
    assert not mark.sync(100.25)
    assert mark.sync(100.0 + SYNC_EVERY_S)
    mark.close()


@pytest.mark.parametrize("kind", ["pwritev", "fdatasync"])
def test_a_note_that_fails_fails_no_sync_of_the_log(tmp_path: Path, kind: str) -> None:
    disk = FaultyDisk()
    wal = new_log(disk, tmp_path / "wal")
    syncer = Syncer(wal, lambda: None, mark=SyncMark(disk, str(tmp_path / "wal")))
    disk.fail(kind, error=errno.EIO, times=-1, path="synced")  # type: ignore[reportArgumentType]
    syncer.start()
    for number in range(3):
        wal.append(b"%d" % number)
        syncer.want_sync(wal.flush())
    syncer.stop()
    assert syncer.failed is None
    assert wal.synced_to == wal.written_to


def test_the_commit_thread_notes_what_it_synced(tmp_path: Path) -> None:
    wal = new_log(Disk(), tmp_path / "wal")
    syncer = Syncer(wal, lambda: None, mark=SyncMark(Disk(), str(tmp_path / "wal")))
    syncer.start()
    wal.append(b"one")
    syncer.want_sync(wal.flush())
    syncer.stop()
    assert noted_position(Disk(), str(tmp_path / "wal")) == wal.synced_to == wal.written_to > 0


@pytest.mark.parametrize("kind", ["pwritev", "fdatasync"])
def test_a_mark_that_failed_once_is_given_up_and_says_so(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk = FaultyDisk()
    mark = SyncMark(disk, str(tmp_path))
    mark.note(10)
    disk.fail(kind, error=errno.EIO, path="synced")  # type: ignore[reportArgumentType]
    mark.note(20)
    mark.sync(0.0)
    assert "cannot be written any more" in caplog.text
    writes = disk.calls["pwritev"]
    mark.note(30)
    assert disk.calls["pwritev"] == writes
    assert mark.due_in_s(0.0) is None
    mark.close()
    assert noted_position(Disk(), str(tmp_path)) in (10, 20)
