"""Shipping driven by hand: whatever fails on the way, the copy in the bucket has no hole that is not announced."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.bucket.interrupted import Interrupted, die, nothing, refuse, shipping_of, until_shipped
from tests.engine.rig import Rig
from tests.faults import QuickDisk
from tests.patience import PATIENCE_S
from topics.engine.core.pending import PendingChange
from topics.model.requests.records import append_decoder, decode_body
from topics.storage.bucket import shipping
from topics.storage.bucket.chain import SnapshotManifest, read_manifest, snapshots_in
from topics.storage.bucket.piece_queue import WANTED_SHARES, PieceQueue
from topics.storage.bucket.shipping import Shipping
from topics.storage.disk import Buffer

THREAD = "topics-bucket"


def payloads(rig: Rig, topic: str = "t") -> list[Any]:
    return [record["data"] for record in rig.records(topic)]


def close_without_last_snapshot(rig: Rig, interrupted: Interrupted) -> None:
    """The checkpoint of a stop may just reach the bucket; here it does not, and the log must do."""
    interrupted.before = lambda key: refuse(key) if key.startswith("files/") else None
    rig.close()
    interrupted.before = nothing


class Stumbling(QuickDisk):
    """The shipping thread fails once to open a file, or reads less than there is."""

    fails_at = ""

    def _fails(self, call: str) -> bool:
        fails = self.fails_at == call and threading.current_thread().name == THREAD
        if fails:
            self.fails_at = ""
        return fails

    def open(self, path: str, flags: int, mode: int = 0o600) -> int:
        if self._fails("open"):
            raise OSError(errno.EMFILE, "too many open files")
        return super().open(path, flags, mode)

    def pread(self, fd: int, length: int, offset: int) -> bytes:
        data = super().pread(fd, length, offset)
        return data[:-1] if self._fails("pread") else data


@pytest.mark.parametrize("call", ["open", "pread"])
def test_a_piece_that_could_not_be_read_is_shipped_later(
    call: str, interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    disk = Stumbling()
    rig = opened("a", disk=disk)
    rig.append("t", 1)
    until_shipped(rig)
    disk.fails_at = call
    rig.append("t", 2)
    rig.wait_until(lambda: not disk.fails_at)
    rig.append("t", 3)
    until_shipped(rig)
    close_without_last_snapshot(rig, interrupted)
    assert payloads(opened("b")) == [1, 2, 3]


def test_an_ephemeral_topic_that_goes_on_elsewhere_uses_no_seq_twice(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    rig = opened("a")
    rig.configure("e", durability="ephemeral")
    rig.append("e", *range(1_000))
    # So small a step is not noted in the log.
    rig.append("e", "last")
    rig.append("t", 1)
    head = rig.look("e").head_seq
    close_without_last_snapshot(rig, interrupted)
    rig = opened("b")
    rig.append("e", "after")
    assert rig.seqs("e")[-1] > head
    assert payloads(rig) == [1]
    rig.append("t", 2)
    assert rig.seqs("t") == [1, 2], "what is in the log continues without a gap"


def test_a_snapshot_that_waits_for_the_bucket_does_not_keep_the_log_for_ever(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    rig = opened("a", bucket_backlog_bytes=1 << 20, wal_file_bytes=1 << 16)
    rig.append("t", "first")
    until_shipped(rig)
    tried = threading.Event()

    def refuse_files(key: str) -> None:
        if key.startswith("files/"):
            tried.set()
            refuse(key)

    interrupted.before = refuse_files
    rig.checkpoint()
    rig.wait_until(tried.is_set)
    pinned = rig.store.snapshots.newest_position
    interrupted.before = refuse
    for _ in range(60):
        rig.append("t", "x" * 50_000)
    rig.wait_until(lambda: shipping_of(rig).status.state == "gap")
    for _ in range(3):
        rig.append("t", "more")
        rig.checkpoint()
    assert rig.store.snapshots.trim_position > pinned
    interrupted.before = nothing
    until_shipped(rig)
    rig.append("t", "last")
    until_shipped(rig)
    rig.close()
    assert len(payloads(opened("b"))) == 65


def test_a_gap_that_begins_while_a_snapshot_is_shipped_needs_the_next_one(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    rig = opened("a")
    rig.append("t", 1)
    until_shipped(rig)
    waits, gives_up, given_up = threading.Event(), threading.Event(), threading.Event()

    def give_up_meanwhile(key: str) -> None:
        if not key.startswith("snapshots/") or given_up.is_set():
            return
        if not gives_up.is_set():
            waits.set()
            refuse(key)
        shipping_of(rig)._give_up()
        # A second manifest of the same snapshot has another time.
        rig.clock.advance(1)
        given_up.set()

    interrupted.before = give_up_meanwhile
    rig.checkpoint()
    rig.wait_until(waits.is_set)
    # The log in the bucket goes on beyond the snapshot.
    rig.append("t", 2)
    rig.wait_until(lambda: not shipping_of(rig).status.lag_bytes)
    rig.checkpoint()
    gives_up.set()
    rig.wait_until(given_up.is_set)
    assert shipping_of(rig).gaps_total == 1
    rig.append("t", 3)
    until_shipped(rig)
    close_without_last_snapshot(rig, interrupted)
    assert payloads(opened("b")) == [1, 2, 3]


def test_a_gap_never_takes_the_copy_back(interrupted: Interrupted, opened: Callable[..., Rig]) -> None:
    """The newest snapshot is older than what is shipped: with it alone the copy would lose what was acknowledged."""
    rig = opened("a", bucket_backlog_bytes=1 << 20, checkpoint_ms=86_400_000)
    rig.configure("t", durability="replicated")
    rig.append("d", "first")
    rig.checkpoint()
    until_shipped(rig)
    rig.append("t", "acknowledged")
    until_shipped(rig)
    copy = shipping_of(rig)
    interrupted.before = refuse
    rig.append("d", "away")
    rig.wait_until(lambda: copy.away_since_s is not None)
    for _ in range(60):
        rig.append("d", "x" * 50_000)
    refused = threading.Event()

    def refuse_log_after_snapshot(key: str) -> None:
        if copy._manifest_position >= 0 and key.startswith("log/"):
            refused.set()
            refuse(key)

    interrupted.before = refuse_log_after_snapshot
    rig.wait_until(lambda: refused.is_set() or not copy.status.lag_bytes)
    die(rig, interrupted)
    assert payloads(opened("b")) == ["acknowledged"]


def test_the_log_waits_for_the_next_snapshot_and_no_longer(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    """Nothing but the size of the log starts the checkpoint that lets it go."""
    size = 1 << 18
    rig = opened(
        "a", bucket_backlog_bytes=1 << 20, wal_file_bytes=1 << 16, checkpoint_bytes=size, checkpoint_ms=86_400_000
    )
    rig.append("t", "first")
    until_shipped(rig)
    interrupted.before = refuse
    wal = rig.store.wal
    for _ in range(100):
        rig.append("t", "x" * 30_000)
        if rig.store._checkpointer.due():
            rig.checkpoint()
    rig.wait_until(lambda: shipping_of(rig).status.state == "gap")
    rig.checkpoint()
    assert wal.written_to - wal.oldest_position < 1 << 21
    interrupted.before = nothing
    until_shipped(rig)
    close_without_last_snapshot(rig, interrupted)
    assert len(payloads(opened("b"))) == 101


def test_a_snapshot_from_before_the_gap_does_not_end_it(interrupted: Interrupted, opened: Callable[..., Rig]) -> None:
    rig = opened("a")
    rig.append("t", 1)
    until_shipped(rig)
    copy = shipping_of(rig)
    waits, gives_up, given_up = threading.Event(), threading.Event(), threading.Event()

    def give_up_meanwhile(key: str) -> None:
        if not key.startswith("snapshots/") or given_up.is_set():
            return
        if gives_up.is_set():
            copy._give_up()
            given_up.set()
        waits.set()
        refuse(key)

    interrupted.before = give_up_meanwhile
    rig.checkpoint()
    rig.wait_until(waits.is_set)
    old = rig.store.snapshots.newest_position
    rig.append("t", 2)
    rig.wait_until(lambda: not copy.status.lag_bytes)
    rig.checkpoint()
    gives_up.set()
    rig.wait_until(given_up.is_set)
    rig.append("t", 3)
    until_shipped(rig)
    assert copy.gaps_total == 1
    assert all(manifest.position > old for manifest in manifests(interrupted))


def manifests(bucket: Interrupted) -> list[SnapshotManifest]:
    return [read_manifest(bucket, moment.key) for moment in snapshots_in(bucket)]


def ship_snapshot(rig: Rig, bucket: Interrupted) -> SnapshotManifest:
    """Make a checkpoint; its manifest."""
    rig.checkpoint()
    position = rig.store.snapshots.newest_position
    rig.wait_until(lambda: manifests(bucket)[-1:] != [] and manifests(bucket)[-1].position == position)
    return manifests(bucket)[-1]


def test_a_manifest_without_an_answer_is_written_again_in_the_same_millisecond(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    """The first attempt is in the bucket, but the server does not know."""
    rig = opened("a")
    rig.append("t", "x")
    until_shipped(rig)
    create = interrupted.create

    def create_without_answer(key: str, data: Buffer) -> None:
        create(key, data)
        if key.startswith("snapshots/"):
            del interrupted.create
            refuse(key)

    interrupted.create = create_without_answer
    rig.checkpoint()
    rig.append("t", "y")
    rig.wait_until(lambda: len(manifests(interrupted)) == 2)
    until_shipped(rig)
    first, second = manifests(interrupted)
    assert (first.position, first.term, first.time_ms + 1) == (second.position, second.term, second.time_ms)


def test_a_restart_uploads_only_the_files_that_the_bucket_lacks(
    tmp_path: Path, interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    rig = opened("a")
    rig.append("t", "x" * 1_000)
    before = ship_snapshot(rig, interrupted)
    close_without_last_snapshot(rig, interrupted)
    packs = {file.key for file in before.files if file.name.endswith(".pack")}
    assert packs

    interrupted.uploaded.clear()
    rig = opened("a")
    rig.append("t", 2)
    again = ship_snapshot(rig, interrupted)
    assert packs <= {file.key for file in again.files}
    assert packs.isdisjoint(interrupted.uploaded)
    close_without_last_snapshot(rig, interrupted)

    lost, shortened = (file for file in again.files if file.name.endswith(".pack"))
    (tmp_path / "bucket" / lost.key).unlink()
    (tmp_path / "bucket" / shortened.key).write_bytes(b"")
    interrupted.uploaded.clear()
    rig = opened("a")
    rig.append("t", 3)
    ship_snapshot(rig, interrupted)
    assert {lost.key, shortened.key} <= set(interrupted.uploaded)
    close_without_last_snapshot(rig, interrupted)
    assert payloads(opened("b")) == ["x" * 1_000, 2, 3]


def test_a_stop_does_not_wait_for_an_upload_that_hangs(
    interrupted: Interrupted, opened: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "STOP_S", 0.0)
    monkeypatch.setattr(shipping, "LAST_REQUEST_S", 0.01)
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(key: str) -> None:
        if key.startswith("files/"):
            hangs.set()
            goes_on.wait(PATIENCE_S)

    rig = opened("a")
    rig.append("t", 1)
    until_shipped(rig)
    interrupted.before = hang
    rig.checkpoint()
    rig.wait_until(hangs.is_set)
    rig.close()
    assert not goes_on.is_set()
    uploads = [thread for thread in threading.enumerate() if thread.name == f"{THREAD}-upload"]
    assert uploads
    goes_on.set()
    for thread in (*uploads, shipping_of(rig)._thread):
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_while_a_snapshot_is_uploaded_the_lease_is_renewed_and_the_log_is_shipped(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(key: str) -> None:
        if key.startswith("files/"):
            hangs.set()
            goes_on.wait(PATIENCE_S)

    rig = opened("a")
    rig.append("t", 1)
    until_shipped(rig)
    interrupted.before = hang
    rig.checkpoint()
    rig.wait_until(hangs.is_set)
    renewals = shipping_of(rig)._seen
    rig.append("t", 2)
    try:
        rig.wait_until(lambda: not shipping_of(rig).status.lag_bytes and shipping_of(rig)._seen is not renewals)
    finally:
        goes_on.set()
    close_without_last_snapshot(rig, interrupted)
    assert payloads(opened("b")) == [1, 2]


def test_a_stop_ships_the_rest_of_the_log_before_the_rest_of_a_snapshot(
    interrupted: Interrupted, opened: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    # However slow this machine is.
    monkeypatch.setattr(shipping, "STOP_S", PATIENCE_S)
    hangs, stopping = threading.Event(), threading.Event()

    def hang(key: str) -> None:
        if key.startswith("files/"):
            hangs.set()
            stopping.wait(PATIENCE_S)

    rig = opened("a")
    rig.append("t", 1)
    until_shipped(rig)
    interrupted.before = hang
    rig.checkpoint()
    rig.wait_until(hangs.is_set)
    assert rig.store.snapshots.kept_packs, "there is more than one file to upload"
    rig.append("t", 2)
    stop = shipping_of(rig)._thread.join

    def join(timeout: float | None = None) -> None:
        stopping.set()
        stop(timeout)

    monkeypatch.setattr(shipping_of(rig)._thread, "join", join)
    rig.close()
    assert len(interrupted.uploaded) == 1
    assert payloads(opened("b")) == [1, 2]


def test_the_lease_is_renewed_as_soon_as_the_log_is_read(tmp_path: Path) -> None:
    bucket = tmp_path / "bucket"
    bucket.mkdir()
    with Rig(tmp_path / "data", bucket=f"file://{bucket}", bucket_lease_ms=600_000) as rig:
        shipping = shipping_of(rig)
        rig.wait_until(lambda: shipping._seen.primary.beat == 1)
        rig.close()


LONG_MS, LEASE_MS = 60_000, 600_000


class HeldClock:
    """The clock of a shipping thread, which stands still until a test moves it on."""

    def __init__(self, copy: Shipping) -> None:
        self.now_s = copy._clock()
        self._copy = copy
        copy._clock = lambda: self.now_s

    def advance(self, seconds: float) -> None:
        with self._copy._changed:
            self.now_s += seconds
            self._copy._changed.notify()


def submitted(rig: Rig, topic: str, payload: Any) -> PendingChange:
    """An append that is synced and handed over to the shipping thread, and not waited for."""
    request = decode_body(append_decoder, msgspec.json.encode({"records": [{"data": payload}]}))
    change = rig.engine.append(topic, request)
    rig.store.flush()
    rig.store.syncer.want_sync(change.position)
    rig.wait_until(lambda: shipping_of(rig)._offered_to >= change.position)
    return change


def piece_due_in_s(rig: Rig, clock: HeldClock) -> float:
    with shipping_of(rig)._changed:
        return shipping_of(rig)._queue.due_s() - clock.now_s


def held(opened: Callable[..., Rig], **more: Any) -> tuple[Rig, HeldClock]:
    """A store whose pieces are far apart, just after one that a write had waited for."""
    rig = opened("a", bucket_piece_ms=LONG_MS, bucket_lease_ms=LEASE_MS, **more)
    rig.wait_until(lambda: shipping_of(rig)._seen.primary.beat == 1)
    clock = HeldClock(shipping_of(rig))
    # The first write after a pause is not kept waiting.
    rig.configure("r", durability="replicated")
    return rig, clock


def test_while_a_write_waits_the_next_piece_leaves_after_a_tenth_of_the_interval(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    rig, clock = held(opened)
    pieces = shipping_of(rig).pieces_total
    changes = [submitted(rig, "r", number) for number in range(3)]
    assert piece_due_in_s(rig, clock) == pytest.approx(LONG_MS / 1000 / WANTED_SHARES)
    assert not any(change.done for change in changes)
    clock.advance(LONG_MS / 1000 / WANTED_SHARES)
    rig.wait_until(lambda: all(change.done for change in changes))
    assert shipping_of(rig).pieces_total == pieces + 1


def test_what_is_written_while_a_piece_is_on_its_way_leaves_when_that_is_answered(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    rig, clock = held(opened)
    on_its_way, goes_on = threading.Event(), threading.Event()

    def hold_up(key: str) -> None:
        on_its_way.set()
        assert goes_on.wait(PATIENCE_S)

    interrupted.before = hold_up
    clock.advance(LONG_MS / 1000)
    first = submitted(rig, "r", "first")
    assert on_its_way.wait(PATIENCE_S)
    pieces = shipping_of(rig).pieces_total
    # The bucket takes longer for a piece than they are apart.
    clock.advance(LONG_MS / 1000 / WANTED_SHARES)
    rest = [submitted(rig, "r", number) for number in range(3)]
    assert piece_due_in_s(rig, clock) <= 0
    goes_on.set()
    rig.wait_until(lambda: first.done and all(change.done for change in rest))
    assert shipping_of(rig).pieces_total == pieces + 2


def test_what_nobody_waits_for_leaves_after_the_interval_counted_from_before_its_sync(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    rig, clock = held(opened)
    rig.append("d", 1)
    shipping_of(rig).poll()
    clock.advance(LONG_MS / 3000)
    rig.append("d", 2)
    submitted(rig, "d", 3)
    assert piece_due_in_s(rig, clock) == pytest.approx(LONG_MS / 1000 - LONG_MS / 3000)
    pieces = shipping_of(rig).pieces_total
    clock.advance(LONG_MS / 1000 - LONG_MS / 3000)
    until_shipped(rig)
    assert shipping_of(rig).pieces_total == pieces + 1


def test_the_lease_is_renewed_while_a_piece_is_not_due(interrupted: Interrupted, opened: Callable[..., Rig]) -> None:
    rig, clock = held(opened)
    rig.append("d", "waits for its piece")
    submitted(rig, "d", "so does this")
    clock.advance(1.0)
    copy = shipping_of(rig)
    before = copy._seen.primary.beat
    assert piece_due_in_s(rig, clock) > 1
    with copy._changed:
        copy._renew_at_s = clock.now_s
        copy._changed.notify()
    rig.wait_until(lambda: copy._seen.primary.beat > before)
    assert copy.status.lag_bytes, "the piece still waits"


def test_while_a_snapshot_is_uploaded_a_write_waits_no_longer_than_else(
    interrupted: Interrupted, opened: Callable[..., Rig]
) -> None:
    rig, clock = held(opened)
    hangs, goes_on = threading.Event(), threading.Event()

    def hang(key: str) -> None:
        if key.startswith("files/"):
            hangs.set()
            assert goes_on.wait(PATIENCE_S)

    interrupted.before = hang
    clock.advance(LONG_MS / 1000)
    rig.finish(submitted(rig, "r", "so that a snapshot has something new"))
    rig.checkpoint()
    rig.wait_until(hangs.is_set)
    clock.advance(LONG_MS / 1000)
    try:
        rig.finish(submitted(rig, "r", "the interval has passed since the last piece"))
    finally:
        goes_on.set()


def test_a_bucket_that_is_away_is_not_asked_more_often_while_there_are_writes(
    interrupted: Interrupted, opened: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = opened("a", bucket_lease_ms=LEASE_MS)
    rig.append("d", 1)
    until_shipped(rig)
    monkeypatch.setattr(shipping, "RETRY_S_MIN", PATIENCE_S)
    monkeypatch.setattr(shipping, "RETRY_S_MAX", PATIENCE_S)
    copy = shipping_of(rig)
    # The thread takes up the new pause after a request that succeeds.
    rig.append("d", 2)
    until_shipped(rig)
    asked: list[str] = []

    def refuse_and_note(key: str) -> None:
        asked.append(key)
        refuse(key)

    interrupted.before = refuse_and_note
    rig.append("d", 3)
    rig.wait_until(lambda: copy.away_since_s is not None)
    for number in range(20):
        submitted(rig, "d", number)
    assert len(asked) == 1
    interrupted.before = nothing
    with copy._changed:
        copy._changed.notify()
    until_shipped(rig)


def test_a_start_that_waits_for_the_bucket_does_not_wait_for_the_interval(
    interrupted: Interrupted, opened: Callable[..., Rig], monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = opened("a")
    rig.append("d", 1)
    until_shipped(rig)
    die(rig, interrupted)
    monkeypatch.setattr(shipping, "PieceQueue", lambda _interval_s, piece_bytes: PieceQueue(1e9, piece_bytes))
    elsewhere = opened("b")
    assert shipping_of(elsewhere).is_complete, "which seqs are skipped is in the bucket"
    assert payloads(elsewhere, "d") == [1]
