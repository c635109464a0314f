"""Packs: extents come back as they were given, space when nothing lives, and no move is seen half-way."""

import errno
import threading
from pathlib import Path

import pytest
from xxhash import xxh3_64_intdigest

from tests.faults import WAIT_S_MAX, FaultyDisk
from topics.model.errors import DamagedData
from topics.storage.disk import Disk
from topics.storage.pack import WRITE_BYTES, Extent, Packs


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("hot", "cold"):
        (tmp_path / "root" / name).mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def packs(disk: FaultyDisk, root: Path) -> Packs:
    return reopened(disk, root)


def reopened(disk: Disk, root: Path, open_max: int = 128) -> Packs:
    return Packs(disk, str(root / "hot"), str(root / "cold"), open_max=open_max)


def write(packs: Packs, *contents: bytes) -> list[Extent]:
    writer = packs.writer()
    extents = [writer.add([content]) for content in contents]
    writer.finish()
    return extents


def checked(packs: Packs, number: int) -> list[Extent]:
    """The extents of a pack, if the pack is in order."""
    found = packs.checksums(number)
    for extent, checksum in found.items():
        if xxh3_64_intdigest(packs.read(extent)) != checksum:
            raise DamagedData(f"{number:020d}.pack is damaged at offset {extent.offset}")
    return list(found)


def files(root: Path, name: str = "hot") -> list[str]:
    return sorted(file.name for file in (root / name).iterdir())


def test_extents_come_back_as_they_were_given(packs: Packs) -> None:
    writer = packs.writer()
    contents = [b"", b"one", b"two" * 1000, bytes(WRITE_BYTES * 2 + 17), b"three"]
    extents = [writer.add([content[:5], memoryview(content)[5:]]) for content in contents]
    writer.finish()

    assert [packs.read(extent) for extent in extents] == contents
    assert checked(packs, writer.number) == extents
    assert writer.bytes_added == packs.live_bytes(writer.number) == sum(map(len, contents))


class DeferredExtent:
    """A large extent that is made when it is written."""

    def __init__(self, *buffers: bytes) -> None:
        self.made = list(buffers)
        self.asked = 0

    def __len__(self) -> int:
        return sum(map(len, self.made))

    def buffers(self) -> list[bytes]:
        self.asked += 1
        return self.made


def test_deferred_extents_are_written_by_finish_between_the_others(packs: Packs) -> None:
    writer = packs.writer()
    first, second = DeferredExtent(b"a" * 3_000_000, b"b"), DeferredExtent(b"c" * 2_000_000)
    extents = [
        writer.add([b"one"]),
        writer.add_deferred(first),
        writer.add_deferred(second),
        writer.add([b"two", b"three"]),
    ]
    assert (first.asked, second.asked) == (0, 0)
    writer.finish()
    assert [packs.read(extent) for extent in extents] == [b"one", b"".join(first.made), second.made[0], b"twothree"]
    assert checked(packs, writer.number) == extents


def test_many_small_extents_make_few_writes(packs: Packs, disk: FaultyDisk) -> None:
    extents = write(packs, *[b"%05d" % number for number in range(5000)])

    assert disk.calls["pwritev"] <= 15
    assert [packs.read(extent) for extent in extents[::999]] == [b"%05d" % number for number in range(0, 5000, 999)]


def test_a_pack_that_is_not_finished_has_no_name(packs: Packs, disk: FaultyDisk, root: Path) -> None:
    writer = packs.writer()
    writer.add([b"never finished"])

    assert files(root) == ["00000000000000000001.pack.tmp"]
    assert packs.numbers() == []
    assert reopened(disk, root).numbers() == []
    assert files(root) == []


@pytest.mark.parametrize("kind", ["pwritev", "fdatasync", "rename", "fsync_dir"])
def test_a_pack_that_fails_is_forgotten_and_the_next_one_works(
    packs: Packs, disk: FaultyDisk, root: Path, kind: str
) -> None:
    writer = packs.writer()
    writer.add([b"lost"])
    disk.fail(kind, error=errno.ENOSPC)  # type: ignore[reportArgumentType]
    with pytest.raises(OSError, match="No space"):
        writer.finish()
    writer.abort()

    (extent,) = write(packs, b"kept")

    assert files(root) == [f"{extent.pack:020d}.pack"]
    assert packs.read(extent) == b"kept"
    assert packs.dead == set()


@pytest.mark.parametrize("mode", ["drop", "torn", "reorder"])
def test_a_finished_pack_survives_a_power_failure(
    packs: Packs, disk: FaultyDisk, root: Path, tmp_path: Path, mode: str
) -> None:
    extents = write(packs, b"one" * 5000, b"two" * 5000)

    for seed in range(5):
        after = tmp_path / f"after-{seed}"
        found = reopened(disk.power_loss(root, after, mode, seed), after)  # type: ignore[reportArgumentType]
        assert [found.read(extent) for extent in extents] == [b"one" * 5000, b"two" * 5000]
        assert checked(found, extents[0].pack) == extents


# --- damage ---


def test_every_damaged_byte_is_found_when_a_pack_is_checked(packs: Packs, root: Path) -> None:
    (first, *_) = write(packs, b"some content", b"and more")
    path = root / "hot" / files(root)[0]
    pristine = path.read_bytes()

    for offset in range(len(pristine)):
        path.write_bytes(pristine[:offset] + bytes([pristine[offset] ^ 4]) + pristine[offset + 1 :])
        with pytest.raises(DamagedData, match=path.name):
            checked(packs, first.pack)
    path.write_bytes(pristine)
    assert len(checked(packs, first.pack)) == 2


def test_a_pack_that_is_missing_or_cut_short_is_damage(disk: FaultyDisk, packs: Packs, root: Path) -> None:
    (extent,) = write(packs, bytes(1000))
    path = root / "hot" / files(root)[0]
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(DamagedData, match="ends before") as cut:
        packs.read(extent)
    assert cut.value.detail == {"file": str(path), "offset": extent.offset}
    path.unlink()
    with pytest.raises(DamagedData, match="is missing"):
        reopened(disk, root).read(extent)


# --- what lives ---


def test_a_pack_dies_with_its_last_extent_and_is_unlinked_by_the_sweep(packs: Packs, root: Path) -> None:
    one, two = write(packs, b"one", b"two")
    packs.release(one)
    assert packs.dead == set()
    packs.release(two)

    assert packs.dead == {one.pack}
    assert packs.read(one) == b"one", "readable until it is swept"
    assert packs.sweep(keep={one.pack}) == []
    assert len(files(root)) == 1
    assert packs.sweep(keep=set()) == [one.pack]
    assert files(root) == []
    assert packs.dead == set()


def test_extents_released_while_their_pack_is_being_written_do_not_live(packs: Packs) -> None:
    writer = packs.writer()
    extent = writer.add([b"gone before it was there"])
    packs.release(extent)
    assert packs.dead == set()
    writer.finish()

    assert packs.dead == {extent.pack}


def test_a_pack_that_is_mostly_dead_is_sparse(packs: Packs) -> None:
    extents = write(packs, *[bytes(1000)] * 10)
    for extent in extents[:7]:
        packs.release(extent)
    assert packs.sparse() == []

    packs.release(extents[7])

    assert packs.sparse() == [extents[0].pack]
    for extent in extents[8:]:
        packs.release(extent)
    assert packs.sparse() == [], "a dead pack is not sparse"


def test_after_a_restart_only_what_is_referred_to_lives(packs: Packs, disk: FaultyDisk, root: Path) -> None:
    (lives,) = write(packs, b"lives")
    (kept,) = write(packs, b"an older snapshot needs it")
    (orphan,) = write(packs, b"no snapshot knows it")

    again = reopened(disk, root)
    again.adopt([lives], keep=[kept.pack])

    assert again.numbers() == [lives.pack, kept.pack]
    assert again.dead == {kept.pack}
    assert again.live_bytes(lives.pack) == lives.length
    assert again.sweep(keep=set()) == [kept.pack]
    assert again.writer().number == orphan.pack + 1, "a number is not used twice"


def test_an_extent_of_a_missing_pack_is_told_at_recovery(packs: Packs, caplog: pytest.LogCaptureFixture) -> None:
    packs.adopt([Extent(99, 64, 10)])

    assert "pack 99 is missing" in caplog.text
    with pytest.raises(DamagedData):
        packs.read(Extent(99, 64, 10))


# --- open files ---


def test_open_files_are_bounded_and_reads_go_on(disk: FaultyDisk, root: Path) -> None:
    packs = reopened(disk, root, open_max=3)
    extents = [write(packs, b"%d" % number)[0] for number in range(10)]

    assert [packs.read(extent) for extent in extents * 2] == [b"%d" % number for number in range(10)] * 2

    assert len(disk._open_files) <= 3
    packs.close()
    assert len(disk._open_files) == 0


def test_a_file_pushed_out_during_a_read_is_closed_after_it(disk: FaultyDisk, root: Path) -> None:
    packs = reopened(disk, root, open_max=1)
    (slow,), (other,) = write(packs, b"slow"), write(packs, b"other")
    gate = disk.hold("pread", path=f"{slow.pack:020d}")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append(packs.read(slow)))
    reader.start()
    assert gate.reached.wait(WAIT_S_MAX)

    assert packs.read(other) == b"other"
    gate.open()
    reader.join()

    assert got == [b"slow"]
    assert len(disk._open_files) == 1


def test_a_read_that_must_not_wait_is_refused_until_the_pack_is_open(root: Path) -> None:
    packs = reopened(Disk(), root)
    (extent,) = write(packs, b"content")

    assert packs.read_nowait(extent) is None
    packs.read(extent)
    assert packs.read_nowait(extent) in (b"content", None)
    assert packs.read_nowait(extent._replace(length=10_000)) is None
    packs.close()


# --- cold ---


def test_a_pack_moved_to_the_cold_directory_is_read_from_there(packs: Packs, disk: FaultyDisk, root: Path) -> None:
    (extent,) = write(packs, b"content" * 1000)
    packs.read(extent)

    packs.move_cold(extent.pack)

    assert (files(root, "hot"), len(files(root, "cold"))) == ([], 1)
    assert packs.is_cold(extent.pack)
    assert packs.read(extent) == b"content" * 1000
    again = reopened(disk, root)
    again.adopt([extent])
    assert again.read(extent) == b"content" * 1000
    again.release(extent)
    assert again.sweep(keep=set()) == [extent.pack]
    assert files(root, "cold") == []


@pytest.mark.parametrize("kind", ["open", "pwritev", "fdatasync", "rename", "fsync_dir", "unlink"])
@pytest.mark.parametrize("mode", ["keep", "drop", "torn", "reorder"])
def test_a_move_that_fails_anywhere_loses_nothing(
    packs: Packs, disk: FaultyDisk, root: Path, tmp_path: Path, kind: str, mode: str
) -> None:
    (extent,) = write(packs, b"content" * 1000)
    disk.fail(kind, path="cold" if kind != "unlink" else "hot")  # type: ignore[reportArgumentType]
    with pytest.raises(OSError, match="Input/output"):
        packs.move_cold(extent.pack)
    disk.heal()
    assert packs.read(extent) == b"content" * 1000

    for seed in range(5):
        after = tmp_path / f"after-{seed}"
        found = reopened(disk.power_loss(root, after, mode, seed), after)  # type: ignore[reportArgumentType]
        found.adopt([extent])
        assert found.read(extent) == b"content" * 1000
        assert len(files(after, "hot")) + len(files(after, "cold")) == 1
    packs.move_cold(extent.pack)
    assert packs.read(extent) == b"content" * 1000


def test_a_pack_can_be_read_at_every_moment_of_its_move(packs: Packs, disk: FaultyDisk) -> None:
    (extent,) = write(packs, b"content")
    gate = disk.hold("unlink", path="hot")
    mover = threading.Thread(target=packs.move_cold, args=(extent.pack,))
    mover.start()
    assert gate.reached.wait(WAIT_S_MAX)
    during = packs.read(extent)
    gate.open()
    mover.join()

    assert during == packs.read(extent) == b"content"


def test_a_dead_pack_that_cannot_be_unlinked_is_left_to_the_next_start(
    packs: Packs, disk: FaultyDisk, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (extent,) = write(packs, b"dead")
    packs.release(extent)
    disk.fail("unlink", path=".pack")
    packs.sweep(keep=set())
    assert "cannot unlink" in caplog.text
    assert len(files(root)) == 1


def test_what_is_not_there_is_released_and_given_up_in_vain_and_has_no_size(packs: Packs) -> None:
    packs.release(Extent(99, 0, 10))
    packs.forget(99)
    with pytest.raises(DamagedData, match="is missing"):
        packs.size_of(99)
