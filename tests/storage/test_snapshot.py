"""Snapshots: whole or not there, the previous one kept, damage costs time and no data."""

import errno
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from tests.faults import FaultyDisk
from topics.model.errors import DamagedData
from topics.storage import snapshot as snapshot_module
from topics.storage.disk import Disk
from topics.storage.reserve import Room
from topics.storage.snapshot import HEADER_BYTES, READ_BYTES, WRITE_BYTES, Snapshot, Snapshots

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


@given(chunks=st.lists(st.binary(max_size=20), max_size=12), window=st.integers(4, 50))
@example(chunks=[b"a", b""], window=50)
@example(chunks=[b"a"], window=4)
def test_chunks_come_back_wherever_a_window_cuts_them(
    tmp_path_factory: pytest.TempPathFactory, chunks: list[bytes], window: int
) -> None:
    root = tmp_path_factory.mktemp("snapshots")
    write(Snapshots(Disk(), str(root)), 1, *chunks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(snapshot_module, "READ_BYTES", window)
        assert list(newest(Disk(), root).chunks()) == chunks


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


@pytest.mark.parametrize("length", [0, 10, 40, 64, 95, 96, -1])
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


def test_one_without_chunks_or_packs_is_one(disk: FaultyDisk, root: Path) -> None:
    write(Snapshots(disk, str(root)), 100)
    assert (newest(disk, root).position, list(newest(disk, root).chunks())) == (100, [])


def test_a_footer_that_points_past_itself_is_damage(disk: FaultyDisk, root: Path) -> None:
    write(Snapshots(disk, str(root)), 100, b"state")
    path = root / f"{1:020d}.snap"
    content = bytearray(path.read_bytes())
    content[-32] += 1
    path.write_bytes(content)
    with pytest.raises(DamagedData):
        Snapshots(disk, str(root)).load_newest()


# --- what is kept ---


def test_on_a_full_disk_the_newest_is_kept_alone_until_the_next(disk: FaultyDisk, root: Path) -> None:
    snapshots = Snapshots(disk, str(root))
    assert (snapshots.has_older, snapshots.keep_only_newest()) == (False, False)
    write(snapshots, 100, b"first", packs=(1,))
    assert snapshots.has_older, "the log before it"
    write(snapshots, 200, b"second", packs=(2,))
    assert snapshots.keep_only_newest() is True
    assert (files(root), snapshots.trim_position, snapshots.kept_packs) == (["2.snap"], 200, {2})
    assert (snapshots.has_older, snapshots.keep_only_newest()) == (False, False)
    write(snapshots, 300, b"third")
    assert (files(root), snapshots.trim_position, snapshots.has_older) == (["2.snap", "3.snap"], 200, True)


@pytest.mark.parametrize("packs", [(), (1, 2)])
def test_a_pinned_one_stays_with_its_packs_and_the_log_after_it(
    disk: FaultyDisk, root: Path, packs: tuple[int, ...]
) -> None:
    snapshots = Snapshots(disk, str(root))
    before = snapshots.pin()
    assert before == (0, 0, frozenset(), None, 0)
    write(snapshots, 100, b"pinned", packs=packs)
    size_bytes = (root / f"{1:020d}.snap").stat().st_size
    one, other = snapshots.pin(), snapshots.pin()
    assert one == other == (1, 100, frozenset(packs), str(root / f"{1:020d}.snap"), size_bytes)
    for number in (2, 3, 4):
        write(snapshots, 100 * number, b"later", packs=(10 * number,))
    assert snapshots.trim_position == 0, "from before the first"
    snapshots.unpin(before)
    assert (files(root), snapshots.trim_position) == (["1.snap", "3.snap", "4.snap"], 100)
    assert snapshots.kept_packs == {*packs, 30, 40}
    snapshots.unpin(one)
    write(snapshots, 500, b"later")
    assert (files(root), snapshots.trim_position) == (["1.snap", "4.snap", "5.snap"], 100), "the other pin"
    snapshots.unpin(other)
    write(snapshots, 600, b"later")
    assert (files(root), snapshots.trim_position) == (["5.snap", "6.snap"], 500)


@pytest.mark.parametrize("packs", [(), (1, 2)])
def test_size_and_position_of_the_newest_are_known_without_reading_it(
    disk: FaultyDisk, root: Path, packs: tuple[int, ...]
) -> None:
    snapshots = Snapshots(disk, str(root))
    assert (snapshots.newest_bytes, snapshots.newest_position) == (0, 0)
    write(snapshots, 100, b"first")
    write(snapshots, 200, b"second" * 10, packs=packs)
    found = Snapshots(disk, str(root))
    found.load_newest()
    for one in (snapshots, found):
        assert one.newest_bytes == (root / f"{2:020d}.snap").stat().st_size
        assert one.newest_position == 200


def test_one_that_cannot_be_removed_is_left_for_the_next_time(
    disk: FaultyDisk, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    snapshots = Snapshots(disk, str(root))
    disk.fail("unlink", times=2)
    for number in range(1, 5):
        write(snapshots, number * 100, b"state")
    assert caplog.text.count("cannot unlink the snapshot 00000000000000000001.snap") == 2
    assert files(root) == ["1.snap", "3.snap", "4.snap"]
    write(snapshots, 500, b"state")
    assert files(root) == ["4.snap", "5.snap"]


def test_more_than_two_are_read_from_the_newest_on_and_only_two_are_kept(disk: FaultyDisk, root: Path) -> None:
    snapshots = Snapshots(disk, str(root))
    write(snapshots, 100, b"state 1", packs=(1,))
    snapshots.pin()
    for number in (2, 3):
        write(snapshots, number * 100, b"state %d" % number, packs=(number,))
    assert files(root) == ["1.snap", "2.snap", "3.snap"]

    again = Snapshots(disk, str(root))
    again.load_newest()

    assert (again.newest_position, again.trim_position, again.kept_packs) == (300, 200, {2, 3})


def test_only_whole_names_are_snapshots_and_numbers_are_not_used_again(disk: FaultyDisk, root: Path) -> None:
    write(Snapshots(disk, str(root)), 100, b"state")
    for name in ("0.tmp", "7.snap.damaged", "notes.snap", "notes"):
        (root / name).write_bytes(b"")
    snapshots = Snapshots(disk, str(root))
    snapshots.load_newest()
    assert snapshots.newest_position == 100
    write(snapshots, 200, b"state")
    write(snapshots, 300, b"state")
    assert files(root) == ["7.snap.damaged", "8.snap", "9.snap", "notes", "notes.snap"]


# --- damage in the older one ---


def test_an_older_one_is_read_in_full_only_if_that_is_asked_for(disk: FaultyDisk, root: Path) -> None:
    snapshots = Snapshots(disk, str(root))
    write(snapshots, 100, b"older")
    write(snapshots, 200, b"newer")
    path = root / f"{1:020d}.snap"
    content = bytearray(path.read_bytes())
    content[70] ^= 1
    path.write_bytes(content)

    quick = Snapshots(disk, str(root))
    assert quick.load_newest() is not None
    assert (quick.damaged, quick.trim_position) == ([], 100)
    thorough = Snapshots(disk, str(root))
    newest = thorough.load_newest(thorough=True)
    assert newest is not None
    assert (newest.position, thorough.damaged, thorough.trim_position) == (200, [str(path)], 0)
    assert files(root) == ["1.snap.damaged", "2.snap"]


def test_a_refusal_names_the_newest(disk: FaultyDisk, root: Path) -> None:
    snapshots = Snapshots(disk, str(root))
    for position in (100, 200):
        write(snapshots, position, b"state")
    for file in root.iterdir():
        file.write_bytes(b"")
    with pytest.raises(DamagedData) as refusal:
        Snapshots(disk, str(root)).load_newest()
    assert refusal.value.detail == {"file": str(root / f"{2:020d}.snap"), "offset": 0}
    assert refusal.value.message.startswith(str(root / f"{2:020d}.snap"))


@pytest.mark.parametrize("field", [0, 4, 8, 16])
def test_one_of_another_kind_version_shard_or_number_is_not_read(disk: FaultyDisk, root: Path, field: int) -> None:
    write(Snapshots(disk, str(root)), 100, b"state")
    path = root / f"{1:020d}.snap"
    content = bytearray(path.read_bytes())
    content[field] += 1
    content[56:64] = xxh3_64_intdigest(content[:56]).to_bytes(8, "little")
    content[-8:] = xxh3_64_intdigest(content[:-8]).to_bytes(8, "little")
    path.write_bytes(content)
    with pytest.raises(DamagedData):
        Snapshots(disk, str(root)).load_newest()


# --- writing ---


def test_chunks_go_out_a_megabyte_at_a_time(disk: FaultyDisk, root: Path) -> None:
    writer = Snapshots(disk, str(root)).writer(100)
    writer.add(bytes(WRITE_BYTES - HEADER_BYTES - 5))
    assert (disk.calls["pwritev"], writer.size_bytes) == (0, WRITE_BYTES - 1)
    writer.abort()
    writer = Snapshots(disk, str(root)).writer(100)
    writer.add(bytes(WRITE_BYTES - HEADER_BYTES - 4))
    assert (disk.calls["pwritev"], writer.size_bytes) == (1, WRITE_BYTES)
    writer.add(b"x")
    assert (disk.calls["pwritev"], writer.size_bytes) == (1, WRITE_BYTES + 5)
    writer.abort()
    assert (WRITE_BYTES, READ_BYTES) == (1 << 20, 1 << 20)


def test_one_that_is_written_into_a_room_is_cut_at_its_end(disk: FaultyDisk, root: Path) -> None:
    room = Room(disk, str(root / "spare"))
    room.grow(1 << 16)
    snapshots = Snapshots(disk, str(root))
    writer = snapshots.writer(100, room)
    writer.add(b"state")
    writer.finish((7,))
    assert (root / f"{1:020d}.snap").stat().st_size == snapshots.newest_bytes < 200
    assert list(newest(disk, root).chunks()) == [b"state"]
    writer.abort()
    assert files(root) == [], "what is given up after it was finished"


def test_the_bytes_are_those_that_older_versions_wrote_and_read(disk: FaultyDisk, root: Path) -> None:
    write(Snapshots(disk, str(root)), 0x1122, b"chunk", packs=(5, 3))
    content = (root / f"{1:020d}.snap").read_bytes()
    header, chunk, end = content[:HEADER_BYTES], content[HEADER_BYTES:-48], content[-48:]
    assert header.hex() == (
        "534e5031010000000000000000000000010000000000000022110000000000000000000000000000"
        "0000000000000000000000000000000032e17e5bd009bf84"
    )
    assert chunk.hex() == "050000006368756e6b"
    assert end.hex() == (
        "03000000000000000500000000000000490000000000000001000000000000003e0e4c641b66223ced0c241b9b6ea529"
    )
