"""Snapshots: whole or not there, the previous one kept, damage costs time and no data."""

import errno
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults import FaultyDisk
from topics.model.errors import DamagedData
from topics.storage.disk import Disk
from topics.storage.snapshot import READ_BYTES, Snapshot, Snapshots

pytestmark = pytest.mark.usefixtures("every_file_closed")


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = tmp_path / "snapshots"
    path.mkdir()
    return path


def write(snapshots: Snapshots, position: int, *chunks: bytes, packs: tuple[int, ...] = ()) -> None:
    writer = snapshots.writer(position)
    for chunk in chunks:
        writer.add(chunk)
    writer.finish(packs)


def newest(disk: Disk, root: Path) -> Snapshot:
    snapshot = Snapshots(disk, str(root)).load_newest()
    assert snapshot is not None
    return snapshot


def files(root: Path) -> list[str]:
    return sorted(file.name.lstrip("0") for file in root.iterdir())


def test_there_is_none_at_first(disk: FaultyDisk, root: Path) -> None:
    snapshots = Snapshots(disk, str(root))

    assert snapshots.load_newest() is None
    assert snapshots.trim_position == 0
    assert snapshots.kept_packs == frozenset()


@given(chunks=st.lists(st.binary(max_size=300), max_size=20), position=st.integers(0, 2**62))
def test_a_snapshot_comes_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], position: int
) -> None:
    root = tmp_path_factory.mktemp("snapshots")
    write(Snapshots(Disk(), str(root)), position, *chunks, packs=(3, 1, 2**40))

    snapshot = newest(Disk(), root)

    assert list(snapshot.chunks()) == chunks
    assert snapshot.position == position
    assert snapshot.packs == {1, 3, 2**40}


def test_chunks_larger_than_a_window_come_back(disk: FaultyDisk, root: Path) -> None:
    chunks = [b"small", bytes(READ_BYTES * 2 + 5), b"", b"x" * (READ_BYTES - 4), b"small again"]
    write(Snapshots(disk, str(root)), 1, *chunks)

    assert list(newest(disk, root).chunks()) == chunks


def test_the_previous_one_is_kept_and_older_ones_go(disk: FaultyDisk, root: Path) -> None:
    snapshots = Snapshots(disk, str(root))
    for number in range(1, 5):
        write(snapshots, number * 100, b"state %d" % number, packs=(number,))

    assert files(root) == ["3.snap", "4.snap"]
    assert snapshots.trim_position == 300, "the log that the previous one needs stays"
    assert snapshots.kept_packs == {3, 4}
    again = Snapshots(disk, str(root))
    found = again.load_newest()
    assert found is not None
    assert (found.number, found.position) == (4, 400)
    assert (again.trim_position, again.kept_packs) == (300, {3, 4})


def test_nothing_is_trimmed_before_there_are_two(disk: FaultyDisk, root: Path) -> None:
    snapshots = Snapshots(disk, str(root))
    write(snapshots, 100, b"state")

    assert snapshots.trim_position == 0


def test_every_damaged_byte_of_the_newest_leads_to_the_previous(disk: FaultyDisk, root: Path) -> None:
    snapshots = Snapshots(disk, str(root))
    write(snapshots, 100, b"previous", packs=(1,))
    write(snapshots, 200, b"newest", packs=(2,))
    path = root / f"{2:020d}.snap"
    pristine = path.read_bytes()

    for offset in range(len(pristine)):
        path.write_bytes(pristine[:offset] + bytes([pristine[offset] ^ 1]) + pristine[offset + 1 :])
        again = Snapshots(disk, str(root))
        found = again.load_newest()
        assert found is not None
        assert (found.number, list(found.chunks())) == (1, [b"previous"]), offset
        assert again.trim_position == 0
        aside = path.with_name(path.name + ".damaged")
        assert aside.exists()
        aside.unlink()
    path.write_bytes(pristine)
    assert newest(disk, root).position == 200


@pytest.mark.parametrize("length", [0, 10, 64, 95, 96, -1])
def test_a_newest_that_is_cut_short_leads_to_the_previous(disk: FaultyDisk, root: Path, length: int) -> None:
    snapshots = Snapshots(disk, str(root))
    write(snapshots, 100, b"previous")
    write(snapshots, 200, b"newest" * 10)
    path = root / f"{2:020d}.snap"
    path.write_bytes(path.read_bytes()[:length])

    assert newest(disk, root).position == 100


def test_after_a_fall_back_the_next_one_takes_a_new_number(disk: FaultyDisk, root: Path) -> None:
    snapshots = Snapshots(disk, str(root))
    write(snapshots, 100, b"previous")
    write(snapshots, 200, b"newest")
    (root / f"{2:020d}.snap").write_bytes(b"")

    again = Snapshots(disk, str(root))
    again.load_newest()
    write(again, 300, b"after")

    assert files(root) == ["1.snap", "2.snap.damaged", "3.snap"]
    assert newest(disk, root).position == 300


def test_if_all_are_damaged_the_start_is_refused(disk: FaultyDisk, root: Path) -> None:
    snapshots = Snapshots(disk, str(root))
    for position in (100, 200):
        write(snapshots, position, b"state")
    for file in root.iterdir():
        file.write_bytes(file.read_bytes()[:-1])

    with pytest.raises(DamagedData, match="topics repair"):
        Snapshots(disk, str(root)).load_newest()
    assert files(root) == ["1.snap", "2.snap"], "a refusal changes nothing"
    assert Snapshots(disk, str(root)).load_newest(repair=True) is None
    assert files(root) == ["1.snap.damaged", "2.snap.damaged"]


def test_an_aborted_one_leaves_nothing(disk: FaultyDisk, root: Path) -> None:
    snapshots = Snapshots(disk, str(root))
    write(snapshots, 100, b"state")
    writer = snapshots.writer(200)
    writer.add(b"never finished")
    writer.abort()

    assert files(root) == ["1.snap"]
    assert newest(disk, root).position == 100


def test_one_cut_off_by_a_kill_is_cleared_away(disk: FaultyDisk, root: Path) -> None:
    snapshots = Snapshots(disk, str(root))
    write(snapshots, 100, b"state")
    writer = snapshots.writer(200)
    writer.add(b"never finished")
    assert files(root) == ["1.snap", "2.snap.tmp"]

    assert newest(disk, root).position == 100
    assert files(root) == ["1.snap"]
    writer.abort()


@pytest.mark.parametrize("kind", ["pwritev", "fdatasync", "rename", "fsync_dir"])
@pytest.mark.parametrize("mode", ["keep", "drop", "torn", "reorder"])
def test_a_snapshot_that_fails_or_is_cut_off_leaves_a_whole_one(
    disk: FaultyDisk, root: Path, tmp_path: Path, kind: str, mode: str
) -> None:
    snapshots = Snapshots(disk, str(root))
    write(snapshots, 100, b"old" * 2000)
    writer = snapshots.writer(200)
    writer.add(b"new" * 5000)
    disk.fail(kind, error=errno.EIO)  # type: ignore[reportArgumentType]
    with pytest.raises(OSError, match="Input/output"):
        writer.finish()

    for seed in range(5):
        after = tmp_path / f"after-{seed}"
        found = newest(disk.power_loss(root, after, mode, seed), after)  # type: ignore[reportArgumentType]
        assert list(found.chunks()) == [b"old" * 2000 if found.position == 100 else b"new" * 5000]
    writer.abort()
    write(snapshots, 300, b"next")
    assert newest(disk, root).position == 300
    assert snapshots.trim_position == 100


@pytest.mark.parametrize("mode", ["drop", "torn", "reorder"])
def test_a_finished_one_survives_a_power_failure(disk: FaultyDisk, root: Path, tmp_path: Path, mode: str) -> None:
    snapshots = Snapshots(disk, str(root))
    for position in (100, 200, 300):
        write(snapshots, position, b"%d" % position * 3000)

    for seed in range(5):
        after = tmp_path / f"after-{seed}"
        found = newest(disk.power_loss(root, after, mode, seed), after)  # type: ignore[reportArgumentType]
        assert found.position == 300
        assert list(found.chunks()) == [b"300" * 3000]
