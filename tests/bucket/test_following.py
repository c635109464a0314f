"""Following the log: what was removed is not taken for its end, and a closing without an answer is repeated."""

from __future__ import annotations

import time
from pathlib import Path
from threading import Lock

import pytest

from tests.bucket.interrupted import Interrupted
from tests.bucket.standbys import until
from topics.storage.bucket.bucket import Found, Unreachable
from topics.storage.bucket.chain import MANIFEST_FORMAT, SnapshotManifest, StoredFile, encode_manifest
from topics.storage.bucket.following import Advertised, FellBehind, Following
from topics.storage.bucket.lease import Primary, announce, read_primary
from topics.storage.bucket.restoring import NotInBucket
from topics.storage.bucket.slots import LogPiece, TermClosing, encode_slot, slot_key
from topics.storage.bucket.starting import standby_start
from topics.storage.bucket.starting.patience import Patience
from topics.storage.bucket.starting.standby_start import StartingPoint, begin_standby
from topics.storage.bucket.terms import BEGINNING, Place, read_slot, run
from topics.storage.directory import DataDirectory
from topics.storage.disk import Buffer, Disk


class LosesAnswers(Interrupted):
    """The first closing is carried out, and its answer is lost."""

    lost = 0

    def create(self, key: str, data: Buffer) -> None:
        super().create(key, data)
        if not self.lost:
            self.lost = 1
            raise Unreachable("no answer")


def following(bucket: Interrupted, place: Place = BEGINNING, position: int = 0) -> Following:
    start = StartingPoint("standby", place, "", position, 0, time.monotonic())
    mine = Advertised("http://standby", 50)
    found = Following(bucket, start, mine, by_itself=True, notify=lambda: None, now_ms=lambda: int(time.time() * 1000))
    found.start()
    return found


def test_a_closing_without_an_answer_is_repeated_and_its_term_is_used(tmp_path: Path) -> None:
    bucket = LosesAnswers(tmp_path / "bucket")
    found = following(bucket)
    taken = until(lambda: found.taken)
    assert taken.joined.term == 1
    assert bucket.lost == 1
    slot = run(bucket, read_slot(BEGINNING))
    assert slot is not None
    assert isinstance(slot[0], TermClosing)
    assert run(bucket, read_slot(Place(1, 0))) is None


@pytest.mark.parametrize("slot", [1, 5])
def test_a_slot_that_was_removed_is_not_the_end_of_the_log(tmp_path: Path, slot: int) -> None:
    bucket = Interrupted(tmp_path / "bucket")
    bucket.create(slot_key(1, slot), encode_slot(LogPiece(1, slot, "primary", 0, 64, 128, 7), b"x" * 64))
    found = following(bucket, Place(1, 0))
    lost = until(lambda: found.lost)
    assert isinstance(lost, FellBehind)
    assert run(bucket, read_slot(Place(1, 0))) is None


def test_a_piece_that_does_not_follow_is_a_gap(tmp_path: Path) -> None:
    bucket = Interrupted(tmp_path / "bucket")
    bucket.create(slot_key(1, 0), encode_slot(LogPiece(1, 0, "primary", 0, 64, 128, 7), b"x" * 64))
    found = following(bucket, Place(1, 0))
    assert isinstance(until(lambda: found.lost), FellBehind)
    assert found.take() is None


class ByHand:
    """A standby without its thread, by a clock of the test."""

    def __init__(self, bucket: Interrupted, place: Place, position: int) -> None:
        self.now_s = 1000.0
        start = StartingPoint("standby", place, "primary", position, 1, self.now_s)
        mine = Advertised("http://standby", 9_000)
        self.following = Following(
            bucket, start, mine, by_itself=True, notify=lambda: None, now_ms=lambda: 1, clock=lambda: self.now_s
        )
        self.following._wait = self._wait

    def _wait(self, seconds: float) -> None:
        self.now_s += max(0.001, seconds)

    def go_on(self, until_s: float) -> bool:
        """Whether it has taken over by then."""
        while self.now_s < until_s:
            if self.following._go_on():
                return True
        return False


def announced(bucket: Interrupted, primary: Primary) -> Primary:
    found = run(bucket, read_primary())
    return run(bucket, announce(primary, found)).primary


def test_a_piece_after_the_last_renewal_does_not_delay_the_take_over_by_another_lease(tmp_path: Path) -> None:
    bucket = Interrupted(tmp_path / "bucket")
    announced(bucket, Primary(1, "primary", "token", "http://primary", 9_000, slot=0))
    standby = ByHand(bucket, Place(1, 0), 64)
    assert not standby.go_on(1002.0)
    bucket.create(slot_key(1, 0), encode_slot(LogPiece(1, 0, "token", 2, 64, 128, 7), b"x" * 64))
    assert standby.go_on(1011.0)
    assert standby.following.take() is not None
    taken = standby.following.taken
    assert taken is not None
    assert (taken.joined.position, taken.lost_since_ms) == (128, 2)


def test_a_standby_whose_next_slot_was_removed_does_not_say_that_it_is_up_to_date(tmp_path: Path) -> None:
    bucket = Interrupted(tmp_path / "bucket")
    announced(bucket, Primary(1, "primary", "token", "http://primary", 9_000, slot=3))
    standby = ByHand(bucket, Place(1, 0), 64)
    began_s = standby.now_s
    with pytest.raises(FellBehind):
        standby.go_on(1100.0)
    assert standby.now_s > began_s
    assert standby.following.known_s() == began_s


@pytest.mark.parametrize("released", [False, True])
def test_whoever_has_closed_the_term_gets_the_time_to_say_so(tmp_path: Path, released: bool) -> None:
    bucket = Interrupted(tmp_path / "bucket")
    before = announced(bucket, Primary(1, "primary", "token", "http://primary", 9_000, slot=0))
    standby = ByHand(bucket, Place(1, 0), 64)
    assert not standby.go_on(1002.0)
    bucket.create(slot_key(1, 0), encode_slot(TermClosing(1, 0, "other", 2, "other")))
    if released:
        announced(bucket, before.last(64))
    assert not standby.go_on(1010.5)
    announced(bucket, Primary(2, "other", "other", "http://other", 9_000))
    assert not standby.go_on(1015.0)
    assert standby.following.term == 2
    assert standby.go_on(1030.0)


class WakesUp(Interrupted):
    """When the standby has seen the end of the lease, and reads the next slot, the primary renews and fills it."""

    standby: ByHand
    woken = False

    def read(self, key: str) -> Found | None:
        if key == slot_key(1, 0) and not self.standby.following._lease_left_s and not self.woken:
            self.woken = True
            found = run(self, read_primary())
            assert found is not None
            run(self, announce(found.primary.later(), found))
            self.create(key, encode_slot(LogPiece(1, 0, "token", 1, 64, 64, 0)))
        return super().read(key)


def test_the_end_of_a_lease_counts_only_if_it_is_seen_after_the_last_slot(tmp_path: Path) -> None:
    bucket = WakesUp(tmp_path / "bucket")
    announced(bucket, Primary(1, "primary", "token", "http://primary", 9_000, slot=0))
    bucket.standby = standby = ByHand(bucket, Place(1, 0), 64)
    assert not standby.go_on(1017.0)
    assert bucket.woken
    assert standby.go_on(1021.0)
    assert standby.following.term == 1
    assert run(bucket, read_slot(Place(1, 1))) is not None


class Gap:
    """A bucket with a snapshot whose file cannot be fetched, or none, and a gap after it; `looks` of a standby."""

    def __init__(self, tmp_path: Path, *, has_snapshot: bool) -> None:
        self.bucket = Interrupted(tmp_path / "bucket")
        self.bucket.create(slot_key(*BEGINNING), encode_slot(TermClosing(*BEGINNING, "token", 1, "primary")))
        self.bucket.create(slot_key(1, 0), encode_slot(LogPiece(1, 0, "token", 3, 128, 128, 0), b""))
        self.beat()
        if has_snapshot:
            file = StoredFile("shard-00/snapshots/00000000000000000064.snap", "files/gone", 8)
            old = SnapshotManifest(MANIFEST_FORMAT, 1, 0, "primary", 64, 2, "test", [file])
            self.bucket.create(old.key, encode_manifest(old))
        self.directory = DataDirectory(Disk(), str(tmp_path / "data"))
        self.directory.open(may_be_filled=True)
        self.url = f"file://{tmp_path}/bucket"
        self.renews = True
        self.now_s, self.looks = 0.0, 0

    def beat(self) -> None:
        found = run(self.bucket, read_primary())
        mine = Primary(1, "primary", "token", "", 9_000) if found is None else found.primary.later()
        run(self.bucket, announce(mine, found))

    def pause(self, seconds: float) -> None:
        self.now_s += seconds
        self.looks += 1
        if self.renews:
            self.beat()
        if self.looks == 20:
            raise TimeoutError

    def begin(self) -> StartingPoint:
        try:
            _, found = begin_standby(
                self.url,
                {},
                Disk(),
                self.directory,
                now_ms=lambda: 1,
                patience=Patience(self.pause, lambda: self.now_s),
            )
        finally:
            self.directory.close()
        return found


def test_a_standby_that_waits_for_the_end_of_a_gap_fetches_no_files(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        Gap(tmp_path, has_snapshot=True).begin()


def test_a_gap_without_a_primary_that_may_end_it_is_the_end_of_the_log(tmp_path: Path) -> None:
    gap = Gap(tmp_path, has_snapshot=True)
    gap.renews = False
    with pytest.raises(NotInBucket, match="lost files/gone"):
        gap.begin()
    assert gap.looks >= 9, "a whole lease"


def test_a_standby_does_not_begin_with_nothing_by_itself(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    gap = Gap(tmp_path, has_snapshot=False)
    gap.renews = False
    with pytest.raises(TimeoutError):
        gap.begin()
    said = [record.message for record in caplog.records if "start a server without --standby" in record.message]
    assert len(said) == 1


class Running(Interrupted):
    """Its primary fills the next slot whenever somebody has read one, which takes a second."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.next, self.position = Place(1, 0), 64
        self.now_s = 0.0
        # Slots are read ahead by threads.
        self._lock = Lock()

    def fill(self) -> None:
        piece = LogPiece(*self.next, "token", 3, self.position, self.position, 0)
        self.create(slot_key(*self.next), encode_slot(piece, b""))
        self.next = self.next.next

    def read(self, key: str) -> Found | None:
        with self._lock:
            self.now_s += 1
            found = super().read(key)
            if key.startswith("log/0000000001/") and self.next.slot < 200:
                self.fill()
            return found


class Beside:
    """A standby that starts beside a primary that runs."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bucket = Running(tmp_path / "bucket")
        self.bucket.create(slot_key(*BEGINNING), encode_slot(TermClosing(*BEGINNING, "token", 1, "primary")))
        run(self.bucket, announce(Primary(1, "primary", "token", "", 9_000), None))
        self.snapshot(64)
        self.pauses: list[Place] = []
        monkeypatch.setattr(standby_start, "connect", lambda url, environ: self.bucket)
        self.directory = DataDirectory(Disk(), str(tmp_path / "data"))
        self.directory.open(may_be_filled=True)

    def snapshot(self, position: int) -> None:
        next_slot = self.bucket.next.slot
        made = SnapshotManifest(MANIFEST_FORMAT, 1, next_slot, "primary", position, 2, "test", [])
        self.bucket.create(made.key, encode_manifest(made))

    def pause(self, seconds: float) -> None:
        """The primary ends the gap."""
        self.pauses.append(self.bucket.next)
        self.snapshot(self.bucket.position)
        self.bucket.fill()

    def start(self) -> StartingPoint:
        patience = Patience(self.pause, lambda: self.bucket.now_s)
        try:
            return begin_standby("file:///x", {}, Disk(), self.directory, now_ms=lambda: 1, patience=patience)[1]
        finally:
            self.directory.close()


def test_a_standby_does_not_wait_for_the_end_of_a_log_that_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(tmp_path, monkeypatch)
    for _ in range(5):
        beside.bucket.fill()
    start = beside.start()
    assert start.place == Place(1, 5), "what was there when it began; the rest is followed"
    assert beside.bucket.now_s - start.known_s > 5, "the log was read since"


def test_a_standby_does_not_wait_for_the_end_of_a_log_that_goes_on_after_a_gap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = Beside(tmp_path, monkeypatch)
    beside.bucket.position = 128
    for _ in range(5):
        beside.bucket.fill()
    start = beside.start()
    (seen,) = beside.pauses
    assert seen.slot < 50, "what was listed"
    assert (start.place, start.position) == (Place(1, seen.slot + 1), 128)
