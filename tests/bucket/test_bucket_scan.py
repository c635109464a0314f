"""A bucket read without its server: the records and gaps that a reader of the server gets, and then what follows."""

from __future__ import annotations

import builtins
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bucket.interrupted import Interrupted, die, nothing, refuse, shipping_of, until_shipped
from tests.engine.rig import Rig
from tests.engine.scanning import STEPS, content, served, take
from tests.examples import examples
from tests.patience import PATIENCE_S
from topics.engine.opening import bucket_view, scan
from topics.engine.opening.scan import Chunk, Scan, read_part
from topics.model.clock import ManualClock
from topics.model.errors import DamagedData, DataDirIncompatible, TopicNotFound
from topics.model.setting_types import WrongSetting
from topics.storage.bucket.bucket import Found, Listed, Unreachable
from topics.storage.bucket.chain import SnapshotManifest, read_manifest, snapshots_in
from topics.storage.bucket.in_place import patient
from topics.storage.bucket.in_place.patient import PatientReads
from topics.storage.bucket.keeping import clean
from topics.storage.bucket.shared_directory import SharedDirectory
from topics.storage.bucket.slots import LOG

Opened = Callable[..., Rig]


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def always_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look finds out whether there is a newer snapshot."""
    monkeypatch.setattr(bucket_view, "LIST_S", 0.0)


def ship_snapshot(rig: Rig, bucket: SharedDirectory) -> SnapshotManifest:
    rig.checkpoint()
    position = rig.store.snapshots.newest_position
    rig.wait_until(lambda: [moment.position for moment in snapshots_in(bucket)][-1:] == [position])
    return read_manifest(bucket, snapshots_in(bucket)[-1].key)


def make_gap(rig: Rig, bucket: Interrupted) -> None:
    """More than may wait for the bucket; there is a snapshot that leads over it."""
    bucket.before = refuse
    for number in range(60):
        rig.append("t", "x" * 50_000)
        if number == 30:
            rig.checkpoint()
    rig.wait_until(lambda: shipping_of(rig).status.state == "gap")


def scanned(found: Scan, topic: str, from_seq: int = 0, parts: int = 1) -> Any:
    return content(found.plan(topic, from_seq, parts=parts))


def opened_scan(url: str, rig: Rig) -> Scan:
    return Scan.open(url, clock=rig.clock)


LASTING = STEPS.filter(lambda step: step[0] != "crash" and step != ("class", "ephemeral"))


@given(steps=st.lists(LASTING, min_size=3, max_size=12), parts=st.integers(1, 4), from_seq=st.integers(0, 60))
@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_was_done_the_bucket_has_what_a_reader_of_the_server_gets(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], parts: int, from_seq: int
) -> None:
    """A scan of the end and one that has followed from the beginning."""
    path = tmp_path_factory.mktemp("scan")
    (path / "bucket").mkdir()
    url = f"file://{path}/bucket"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket_view, "LIST_S", 0.0)
        rig = Rig(path / "data", segment_max_events=25, hot_retain_segments=1, bucket=url, bucket_piece_ms=1)
        rig.append("t", "first")
        until_shipped(rig)
        following = opened_scan(url, rig)
        for step in steps:
            take(rig, step)
            until_shipped(rig)
            following.refresh()
            assert scanned(following, "t", from_seq, parts) == served(rig, "t", from_seq), step
        assert scanned(opened_scan(url, rig), "t", from_seq, parts) == served(rig, "t", from_seq)
        following.close()
        rig.close()
    shutil.rmtree(path)


def test_pieces_alone_are_enough(url: str, opened: Opened) -> None:
    rig = opened("a")
    rig.append("t", *range(10))
    rig.append("u", "other")
    until_shipped(rig)
    found = opened_scan(url, rig)
    assert found.names() == ["t", "u"]
    (part,) = found.plan("t")
    assert (part.path, part.objects, part.records) == (url, (), 10)
    assert scanned(found, "t") == served(rig, "t")
    with pytest.raises(TopicNotFound):
        found.plan("none")


def test_a_snapshot_and_the_pieces_after_it_are_one_topic(url: str, opened: Opened, interrupted: Interrupted) -> None:
    rig = opened("a")
    for _ in range(2):
        rig.append("t", *["y" * 1000] * 450)
    manifest = ship_snapshot(rig, interrupted)
    rig.append("t", "after")
    until_shipped(rig)
    found = opened_scan(url, rig)
    parts = found.plan("t", parts=3)
    packs = {file.key for file in manifest.files if file.name.endswith(".pack")}
    assert {key for part in parts for _, key in part.objects} == packs
    assert [len(part.bodies) for part in parts] == [0, 0, 1]
    assert [len(part.objects) for part in parts] == [1, 1, 0]
    assert content(parts) == served(rig, "t")
    assert found.topic("t").sealed_seq == 900


def test_a_scan_goes_on_over_a_lost_machine(url: str, opened: Opened, interrupted: Interrupted) -> None:
    """Two terms: what the next server skips is a gap for readers of the bucket as for those of the server."""
    rig = opened("a")
    rig.append("t", 1, 2)
    until_shipped(rig)
    following = opened_scan(url, rig)
    assert scanned(following, "t") == served(rig, "t")
    die(rig, interrupted)
    rig = opened("b")
    rig.append("t", 3)
    until_shipped(rig)
    following.refresh()
    records, gaps = scanned(following, "t")
    assert (records, gaps) == served(rig, "t") == scanned(opened_scan(url, rig), "t")
    assert [record["data"] for record in records] == [1, 2, 3]
    assert len(gaps) == 1


def test_a_pack_that_went_away_is_planned_again(url: str, opened: Opened, interrupted: Interrupted) -> None:
    rig = opened("a")
    rig.append("t", *[{"data": ["y" * 1000, n], "tag": f"t{n % 10}"} for n in range(900)])
    before = ship_snapshot(rig, interrupted)
    planned = opened_scan(url, rig).plan("t", parts=2)
    for number in range(9):
        rig.delete("t", match=f"t{number}")
    ship_snapshot(rig, interrupted)
    rig.append("u", 1)
    after = ship_snapshot(rig, interrupted)
    gone = {file.key for file in before.files} - {file.key for file in after.files}
    assert {key for part in planned for _, key in part.objects} <= gone, "the test needs packs that were replaced"
    interrupted.delete(list(gone))
    assert content(planned) == served(rig, "t")


def test_a_pack_that_is_lost_is_damage_that_names_the_seqs(url: str, opened: Opened, interrupted: Interrupted) -> None:
    rig = opened("a")
    rig.append("t", *["y" * 1000] * 900)
    manifest = ship_snapshot(rig, interrupted)
    (part,) = opened_scan(url, rig).plan("t")
    interrupted.delete([file.key for file in manifest.files if file.name.endswith(".pack")])
    with pytest.raises(DamagedData, match="seqs 1 to 900 of topic t cannot be read: pack 1 is missing"):
        list(read_part(part))


def test_a_flipped_bit_is_damage_that_names_the_seqs(url: str, opened: Opened, interrupted: Interrupted) -> None:
    rig = opened("a")
    rig.append("t", *["y" * 1000] * 900)
    manifest = ship_snapshot(rig, interrupted)
    (pack,) = (file for file in manifest.files if file.name.endswith(".pack"))
    path = Path(url.removeprefix("file://")) / pack.key
    data = bytearray(path.read_bytes())
    data[5000] ^= 1
    path.write_bytes(data)
    (part,) = opened_scan(url, rig).plan("t")
    with pytest.raises(DamagedData, match=r"seqs \d+ to \d+ cannot be read"):
        list(read_part(part))


# --- what follows ---


@pytest.mark.usefixtures("always_listed")
def test_much_in_memory_is_left_to_the_next_snapshot(
    url: str, opened: Opened, interrupted: Interrupted, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = opened("a")
    rig.append("t", 1)
    until_shipped(rig)
    following = opened_scan(url, rig)
    rig.append("t", 2)
    ship_snapshot(rig, interrupted)
    following.refresh()
    assert following.plan("t")[0].bodies, "there is no reason to use it"
    monkeypatch.setattr(bucket_view, "FOLDED_BYTES_MAX", 1)
    following.refresh()
    assert not following.plan("t")[0].bodies
    assert scanned(following, "t") == served(rig, "t")


@pytest.mark.usefixtures("always_listed")
def test_a_reader_that_slept_while_its_slots_were_removed_goes_on_from_a_snapshot(
    url: str, opened: Opened, interrupted: Interrupted
) -> None:
    rig = opened("a")
    rig.append("t", 1)
    ship_snapshot(rig, interrupted)
    following = opened_scan(url, rig)
    for number in range(3):
        rig.clock.advance(1000)
        rig.append("t", number)
        ship_snapshot(rig, interrupted)
    newest = read_manifest(interrupted, snapshots_in(interrupted)[-1].key)
    assert clean(interrupted, newest, 0, lambda: None) > 3
    following.refresh()
    assert scanned(following, "t") == served(rig, "t")
    rig.append("t", "after")
    until_shipped(rig)
    following.refresh()
    assert scanned(following, "t") == served(rig, "t")


def test_a_gap_is_announced_and_ends_with_the_next_snapshot(
    url: str, opened: Opened, interrupted: Interrupted, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    rig = opened("a", bucket_backlog_bytes=1 << 20, wal_file_bytes=1 << 16)
    rig.append("t", "first")
    until_shipped(rig)
    following = opened_scan(url, rig)
    make_gap(rig, interrupted)
    # The slot that announces the gap comes before the snapshot that ends it.
    interrupted.before = lambda key: refuse(key) if key.startswith("snapshots/") else nothing(key)
    rig.wait_until(lambda: following.refresh() or "has a gap after position" in caplog.text)
    assert following.topic("t").head_seq < 31
    interrupted.before = nothing
    rig.append("t", "last")
    until_shipped(rig)
    following.refresh()
    assert scanned(following, "t") == served(rig, "t")


def test_a_snapshot_that_arrives_after_a_take_over_misleads_a_reader_only_until_the_next_one(
    url: str, opened: Opened, interrupted: Interrupted
) -> None:
    """It ends a gap in the log of a server that was taken over meanwhile: nobody continues that log."""
    first = opened("a", bucket_backlog_bytes=1 << 20, wal_file_bytes=1 << 16)
    first.append("t", "first")
    until_shipped(first)
    make_gap(first, interrupted)
    held, goes_on = threading.Event(), threading.Event()
    late = shipping_of(first)._thread

    def hold(key: str) -> None:
        if threading.current_thread() is late and key.startswith("snapshots/"):
            held.set()
            goes_on.wait(PATIENCE_S)

    interrupted.before = hold
    first.wait_until(held.is_set)
    first.abandon()
    rig = opened("b")
    goes_on.set()
    late.join(PATIENCE_S)
    following = opened_scan(url, rig)
    assert following.topic("t").head_seq > 30, "the test needs a reader of the wrong snapshot"
    rig.append("t", "of b")
    ship_snapshot(rig, interrupted)
    rig.append("t", "after")
    until_shipped(rig)
    following.refresh()
    assert scanned(following, "t") == served(rig, "t")


def test_what_a_reader_drops_by_its_clock_is_there_again_if_the_server_kept_it(url: str, opened: Opened) -> None:
    """The state that is followed is the one of the log: retention applies to what is read from it."""
    rig = opened("a")
    rig.configure("t", ttl_ms=60_000)
    rig.append("t", *range(5))
    until_shipped(rig)
    following = Scan.open(url, clock=ManualClock(rig.clock.now_ms() + 100_000))
    assert scanned(following, "t") == ([], [(1, 5)])
    rig.configure("t", ttl_ms=0)
    until_shipped(rig)
    following.refresh()
    assert scanned(following, "t") == served(rig, "t")


# --- requests ---


class Counted(SharedDirectory):
    """Which requests were made."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.requests: list[str] = []

    def read(self, key: str) -> Found | None:
        self.requests.append(f"read {key}")
        return super().read(key)

    def read_range(self, key: str, offset: int, length: int) -> bytes | None:
        self.requests.append(f"range {key}")
        return super().read_range(key, offset, length)

    def listing(self, prefix: str, after: str = "") -> Iterator[Listed]:
        self.requests.append(f"list {prefix}")
        return super().listing(prefix, after)


@pytest.fixture
def counted(url: str, monkeypatch: pytest.MonkeyPatch) -> Counted:
    bucket = Counted(url.removeprefix("file://"))
    monkeypatch.setattr(scan, "_bucket", lambda path: PatientReads(bucket))
    return bucket


def test_a_look_that_finds_nothing_is_one_request(url: str, opened: Opened, counted: Counted) -> None:
    rig = opened("a")
    rig.append("t", 1)
    until_shipped(rig)
    found = opened_scan(url, rig)
    counted.requests.clear()
    found.refresh()
    assert [request.partition("/")[0] for request in counted.requests] == ["read log"]


def test_blocks_that_are_neighbours_are_read_by_one_request(
    url: str, opened: Opened, interrupted: Interrupted, counted: Counted
) -> None:
    rig = opened("a")
    for _ in range(12):
        rig.append("t", *["y" * 1000] * 300)
    ship_snapshot(rig, interrupted)
    (part,) = opened_scan(url, rig).plan("t")
    counted.requests.clear()
    assert sum(piece.lines().count(b"\n") for piece in read_part(part) if isinstance(piece, Chunk)) == 3600
    assert len(counted.requests) == 1


def test_a_bucket_that_does_not_answer_is_asked_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    failures = [Unreachable("away")] * 3
    pauses: list[float] = []

    class Flaky(SharedDirectory):
        def read(self, key: str) -> Found | None:
            if failures:
                raise failures.pop()
            return super().read(key)

    bucket = PatientReads(Flaky(str(tmp_path)), pauses.append)
    assert bucket.read("none") is None
    assert pauses == [0.1, 0.2, 0.4]
    failures += [Unreachable("away")] * 3
    monkeypatch.setattr(patient, "PATIENCE_S", 0.0)
    with pytest.raises(Unreachable):
        bucket.read("none")


# --- errors ---


def test_what_is_no_bucket_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(DataDirIncompatible, match="neither a data directory nor a backup: it has no meta"):
        Scan.open(f"file://{tmp_path}")
    (tmp_path / "log").mkdir()
    with pytest.raises(DataDirIncompatible, match=rf"file://{tmp_path} is not the bucket of a server: it holds no log"):
        Scan.open(f"file://{tmp_path}")
    with pytest.raises(WrongSetting, match="path contains credentials"):
        Scan.open("s3://key:secret@bkt/prefix")


def test_a_bucket_without_the_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name.startswith("obstore"):
            raise ImportError(name)
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(WrongSetting, match=r"path is 's3://bkt/prefix', which needs the extra `bucket`: .*pip install"):
        Scan.open("s3://bkt/prefix")


def test_slots_without_the_snapshot_before_them_are_damage(url: str, opened: Opened, interrupted: Interrupted) -> None:
    rig = opened("a")
    rig.append("t", 1)
    until_shipped(rig)
    rig.append("t", 2)
    until_shipped(rig)
    interrupted.delete([f"{LOG}0000000001/000000000000"])
    with pytest.raises(DamagedData, match="but neither"):
        Scan.open(url)
