"""A directory or a backup read without its server: the same records and gaps that a reader of the server gets."""

import os
import pickle
import shutil
import tarfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engine.rig import Rig
from tests.examples import examples
from topics.engine.log.retention import Tombstone
from topics.engine.opening.scan import Chunk, Part, Scan, read_part
from topics.model.errors import DamagedData, DataDirIncompatible, StorageError, TopicNotFound
from topics.storage.archive import DamagedBackup
from topics.storage.steps import at_once

Gap = tuple[int, int]
WAL_FILE_BYTES = 1 << 20


def scan_of(rig: Rig) -> Scan:
    return Scan.open(str(rig.path), clock=rig.clock)


def content(parts: list[Part]) -> tuple[list[Any], list[Gap]]:
    """Records and gaps of all parts, each sent through a pickle as to another machine."""
    records: list[Any] = []
    gaps: list[Gap] = []
    for part in parts:
        for piece in read_part(pickle.loads(pickle.dumps(part))):
            if isinstance(piece, Tombstone):
                gaps.append((piece.gap_from, piece.gap_to))
            else:
                records += [msgspec.json.decode(line) for line in piece.lines().splitlines()]
    return records, gaps


def scanned(rig: Rig, topic: str, from_seq: int = 0, to_seq: int | None = None, parts: int = 1) -> Any:
    scan = scan_of(rig)
    try:
        return content(scan.plan(topic, from_seq, to_seq, parts))
    finally:
        scan.close()


def served(rig: Rig, topic: str, from_seq: int = 0) -> tuple[list[Any], list[Gap]]:
    """The same as reads of the server give it."""
    records: list[Any] = []
    gaps: list[Gap] = []
    while True:
        diff = rig.diff(topic, from_seq, limit=1000)
        if diff.tombstone is not None:
            gaps.append((diff.tombstone.gap_from, diff.tombstone.gap_to))
        records += msgspec.json.decode(b"[%b]" % diff.records())
        if diff.caught_up:
            return records, gaps
        from_seq = diff.next_from_seq


def files(path: Path) -> dict[str, tuple[int, bytes]]:
    return {
        str(file.relative_to(path)): (file.stat().st_mtime_ns, file.read_bytes())
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


# --- the same as the server ---

STEPS = st.one_of(
    st.tuples(st.just("append"), st.integers(1, 30), st.sampled_from(["x", "x" * 3000])),
    st.tuples(st.just("delete"), st.sampled_from(["t0", "t1", "t2"])),
    st.tuples(st.just("trim"), st.integers(1, 200)),
    st.tuples(
        st.just("configure"), st.sampled_from([{}, {"cap_records": 40}, {"cap_bytes": 20_000}, {"ttl_ms": 1000}])
    ),
    st.tuples(st.just("class"), st.sampled_from(["ephemeral", "memory", "disk", "fsync"])),
    st.tuples(st.just("wait"), st.integers(1, 900)),
    st.tuples(st.sampled_from(["checkpoint", "reopen", "crash", "drop"])),
)


def take(rig: Rig, step: tuple[Any, ...]) -> None:
    match step:
        case "append", count, text:
            rig.append("t", *[{"data": [text, n], "tag": f"t{n % 4}", "meta": {"n": n}} for n in range(count)])
        case "delete", tag:
            rig.delete("t", match=tag)
        case "trim", seq:
            rig.delete("t", before_seq=seq)
        case "configure", config:
            rig.configure("t", **config)
        case "class", durability:
            rig.configure("t", durability=durability)
        case "wait", ms:
            rig.clock.advance(ms)
        case ("checkpoint",):
            rig.checkpoint()
        case ("reopen",):
            rig.reopen()
        case ("crash",):
            rig.crash()
        case _:
            rig.drop("t")
            rig.append("t", "anew")


@given(steps=st.lists(STEPS, min_size=3, max_size=14), parts=st.integers(1, 4), from_seq=st.integers(0, 60))
@settings(max_examples=examples(20))
def test_whatever_was_done_a_scan_finds_what_a_reader_of_the_server_does(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], parts: int, from_seq: int
) -> None:
    path = tmp_path_factory.mktemp("scan")
    with Rig(path / "data", segment_max_events=25, hot_retain_segments=1, wal_file_bytes=WAL_FILE_BYTES) as rig:
        rig.append("t", "first")
        for step in steps:
            take(rig, step)
        if ("class", "ephemeral") in steps:
            # Records that are only in memory can be read only by the server.
            rig.reopen()
        assert scanned(rig, "t", from_seq, parts=parts) == served(rig, "t", from_seq)
    shutil.rmtree(path)


def test_a_topic_tells_where_it_stands(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.configure("t", cap_records=50)
        rig.append("t", *range(60))
        rig.checkpoint()
        rig.append("t", 60, 61)
        rig.append("other", 1)
        scan = scan_of(rig)
        assert scan.names() == ["other", "t"]
        topic = scan.topic("t")
        assert (topic.head_seq, topic.earliest_seq, topic.sealed_seq, topic.records) == (62, 13, 60, 50)
        assert topic.config.cap_records == 50
        assert topic.epoch == rig.diff("t", 62).epoch
        scan.close()


def test_parts_are_of_about_the_same_size_and_none_overlap(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        for _ in range(20):
            rig.append("t", *["y" * 1000] * 250)
        rig.checkpoint()
        scan = scan_of(rig)
        parts = scan.plan("t", 100, 4900, parts=4)
        scan.close()
        assert len(parts) == 4
        assert [part.from_seq for part in parts] == [100, *(part.to_seq for part in parts[:-1])]
        assert parts[-1].to_seq == 4900
        assert max(part.size_bytes for part in parts) < 2 * min(part.size_bytes for part in parts)
        records, gaps = content(parts)
        assert [record["$seq"] for record in records] == list(range(101, 4901))
        assert gaps == []


def test_a_gap_is_told_once_and_no_longer_than_the_stretch(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.configure("t", cap_records=5)
        rig.append("t", *range(20))
        assert scanned(rig, "t", 0, 8) == ([], [(1, 8)])
        assert scanned(rig, "t", 3, parts=4)[1] == [(4, 15)]
        records, gaps = scanned(rig, "t", 99)
        assert (len(records), gaps) == (5, [(1, 20)])


def test_a_topic_that_is_not_there_is_said(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        scan = scan_of(rig)
        with pytest.raises(TopicNotFound):
            scan.plan("nobody")
        scan.close()
    with pytest.raises(DataDirIncompatible, match="neither a data directory nor a backup"):
        Scan.open(str(tmp_path))


def test_a_directory_that_cannot_be_written_can_be_read_and_stays_as_it_is(tmp_path: Path) -> None:
    with Rig(tmp_path / "data", wal_file_bytes=WAL_FILE_BYTES) as rig:
        rig.append("t", *range(100))
        rig.checkpoint()
        rig.append("t", "last")
        rig.close()
    for folder, _, names in os.walk(tmp_path / "data"):
        for name in names:
            os.chmod(os.path.join(folder, name), 0o400)
        os.chmod(folder, 0o500)
    try:
        before = files(tmp_path / "data")
        scan = Scan.open(str(tmp_path / "data"))
        assert len(content(scan.plan("t"))[0]) == 101
        scan.close()
        assert files(tmp_path / "data") == before
    finally:
        for folder, _, _ in os.walk(tmp_path / "data"):
            os.chmod(folder, 0o700)


# --- beside a running server ---


def test_a_part_whose_pack_went_away_is_planned_again(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("t", *[{"data": [n, "z" * 500], "tag": f"t{n % 8}"} for n in range(3000)])
        rig.checkpoint()
        scan = scan_of(rig)
        parts = scan.plan("t", parts=2)
        scan.close()
        for number in range(7):
            rig.delete("t", match=f"t{number}")
        before = set((tmp_path / "data/shard-00/packs").glob("*.pack"))
        for _ in range(4):
            rig.append("other", 1)
            rig.checkpoint()
        assert not before & set((tmp_path / "data/shard-00/packs").glob("*.pack"))
        assert content(parts) == served(rig, "t")


def test_a_part_of_a_topic_that_is_gone_is_refused(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("t", *range(100))
        rig.checkpoint()
        scan = scan_of(rig)
        (part,) = scan.plan("t")
        scan.close()
        rig.drop("t")
        rig.append("t", *range(100))
        for _ in range(3):
            rig.append("other", 1)
            rig.checkpoint()
        with pytest.raises(StorageError, match="was deleted while it was read"):
            list(read_part(part))


# --- damage ---


def test_a_damaged_extent_names_the_seqs(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("t", *range(100))
        rig.checkpoint()
        (pack,) = (tmp_path / "data/shard-00/packs").glob("*.pack")
        damaged = bytearray(pack.read_bytes())
        damaged[500] ^= 1
        pack.write_bytes(damaged)
        scan = scan_of(rig)
        with pytest.raises(DamagedData, match="seqs 97 to 100 cannot be read") as caught:
            content(scan.plan("t"))
        assert (caught.value.detail["from_seq"], caught.value.detail["to_seq"]) == (97, 100)
        scan.close()


def test_a_missing_pack_names_the_seqs(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("t", *range(100))
        rig.checkpoint()
        (pack,) = (tmp_path / "data/shard-00/packs").glob("*.pack")
        pack.unlink()
        scan = scan_of(rig)
        with pytest.raises(DamagedData, match="seqs 1 to 100 of topic t cannot be read: pack 1 is missing"):
            content(scan.plan("t"))
        scan.close()


def test_damage_in_the_middle_of_the_log_is_refused_and_a_torn_end_is_not(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        for number in range(50):
            rig.append("t", number)
        (log,) = (tmp_path / "data/shard-00/wal").glob("0*.log")
        whole = log.read_bytes()
        torn = whole.index(b'"data":49') + 3
        log.write_bytes(whole[:torn] + bytes(len(whole) - torn))
        at_once(rig.store.wait_synced())
        rig.abandon()
        with pytest.raises(DamagedData, match="had been synced"):
            scan_of(rig)
        (log.parent / "synced").unlink()  # as if it had not been synced yet
        assert len(scanned(rig, "t")[0]) == 49
        at = whole.index(b'"data":20')
        log.write_bytes(whole[:at] + b"X" + whole[at + 1 :])
        with pytest.raises(DamagedData, match="damaged at offset"):
            scan_of(rig)


# --- backups ---


def make_backup(rig: Rig, file: Path) -> None:
    backup = rig.store.begin_backup("a test")
    at_once(rig.store.wait_synced())
    for _ in backup.plan():
        pass
    with file.open("wb") as out:
        while piece := backup.read():
            out.write(piece)
    backup.release()


def test_a_backup_is_read_where_it_stands_and_unpacked(tmp_path: Path) -> None:
    with Rig(tmp_path / "data", segment_max_events=25, hot_retain_segments=0) as rig:
        for first in range(0, 300, 30):
            rig.append("t", *[{"data": n, "tag": f"t{n % 3}"} for n in range(first, first + 30)])
        rig.checkpoint()
        rig.append("t", "in the log")
        rig.delete("t", match="t1")
        make_backup(rig, tmp_path / "backup.tar")
        wanted = served(rig, "t")
        rig.append("t", "later")
    with tarfile.open(tmp_path / "backup.tar") as tar:
        tar.extractall(tmp_path / "unpacked", filter="data")
    for place in ("backup.tar", "unpacked"):
        scan = Scan.open(str(tmp_path / place))
        assert content(scan.plan("t", parts=3)) == wanted
        scan.close()


def test_a_cut_backup_is_refused(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("t", *range(1000))
        make_backup(rig, tmp_path / "backup.tar")
    whole = (tmp_path / "backup.tar").read_bytes()
    (tmp_path / "cut.tar").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(DamagedBackup, match="truncated or not a backup"):
        Scan.open(str(tmp_path / "cut.tar"))


def test_a_chunk_gives_the_live_records_only(tmp_path: Path) -> None:
    with Rig(tmp_path / "data") as rig:
        rig.append("t", *[{"data": n, "tag": f"t{n % 2}"} for n in range(10)])
        rig.delete("t", match="t1")
        scan = scan_of(rig)
        (piece,) = read_part(scan.plan("t", 2, 7)[0])
        assert isinstance(piece, Chunk)
        assert [msgspec.json.decode(line)["data"] for line in piece.lines().splitlines()] == [2, 4, 6]
        scan.close()
