"""Group commit: who syncs what and when, what a failed sync does, and how writing passes to the thread and back."""

import errno
import resource
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.faults import FaultyDisk, Gate
from tests.patience import PATIENCE_S
from tests.storage.logs import FILE_BYTES, bodies, log_files, new_log
from topics.model.errors import StorageError, Throttled
from topics.model.variant import VARIANT
from topics.storage.disk import Disk
from topics.storage.wal import sync_mark, wal
from topics.storage.wal.frame import FILE_HEADER_BYTES, FRAME_HEADER_BYTES, FileHeader
from topics.storage.wal.handover import Handover, LogChunk, WriteFailure
from topics.storage.wal.log_file import LogFile, LogTail
from topics.storage.wal.sync_mark import SyncMark
from topics.storage.wal.syncer import Syncer, SyncFailed
from topics.storage.wal.wal import HANDOVER_AFTER_S, HANDOVER_BYTES, Wal

pytestmark = pytest.mark.usefixtures("every_file_closed")

WAIT_S_MAX = PATIENCE_S
NEVER_S = 1000.0
NEVER_BYTES = 1 << 40


class Clock:
    """Time that moves only when the test moves it."""

    def __init__(self) -> None:
        self.now_s = 1.0

    def __call__(self) -> float:
        return self.now_s


class Rig:
    """A log with its commit thread, and a way to wait for what the thread says."""

    def __init__(
        self,
        path: Path,
        interval_s: float = NEVER_S,
        debt_bytes: int = NEVER_BYTES,
        clock: Callable[[], float] | None = None,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self.path = path
        self.disk = FaultyDisk()
        self.clock = Clock()
        self.wal: Wal = new_log(self.disk, path, file_bytes, clock=self.clock)
        self.told = threading.Event()
        self.syncer = Syncer(
            self.wal, self.told.set, clock=clock or self.clock, interval_s=interval_s, debt_bytes=debt_bytes
        )
        self.syncer.start()

    def write(self, *wanted: bytes) -> int:
        for body in wanted:
            self.wal.append(body)
        self.wal.flush()
        self.syncer.nudge()
        return self.wal.buffered_to

    def commit(self, *wanted: bytes) -> int:
        end = self.write(*wanted)
        self.syncer.want_sync(end)
        return end

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        while not is_so():
            assert self.told.wait(WAIT_S_MAX), "the commit thread said nothing"
            self.told.clear()

    def wait_synced(self, position: int) -> None:
        self.wait_until(lambda: self.syncer.poll().synced_to >= position)

    def stall(self) -> Gate:
        """Let a sync hang long enough for writing to pass to the thread; the gate ends it."""
        gate = self.disk.hold("fdatasync")
        self.commit(b"the one that stalls")
        assert gate.reached.wait(WAIT_S_MAX)
        self.clock.now_s += HANDOVER_AFTER_S + 0.01
        return gate


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path / "wal")
    yield rig
    rig.disk.heal()
    rig.syncer.stop()


def test_a_wanted_sync_is_done_at_once(rig: Rig) -> None:
    end = rig.commit(b"one")

    rig.wait_synced(end)

    assert rig.syncer.poll() == (end, end)
    assert rig.syncer.unsynced_bytes == 0
    assert rig.disk.calls["fdatasync"] == 1
    assert rig.wal.stats.fsyncs_total == rig.wal.stats.fsync_us.count == sum(rig.wal.stats.fsync_us.counts) == 1


def test_what_is_not_synced_and_whether_a_change_waits_for_it_is_known(rig: Rig) -> None:
    gate = rig.disk.hold("fdatasync")
    rig.write(b"one")
    assert (rig.syncer.unsynced_bytes, rig.syncer.sync_awaited) == (rig.wal.written_to, False)
    end = rig.commit(b"two")
    rig.wal.append(b"three")
    assert gate.reached.wait(WAIT_S_MAX)
    assert (rig.syncer.unsynced_bytes, rig.syncer.sync_awaited) == (rig.wal.buffered_to, True)
    gate.open()
    rig.wait_synced(end)
    assert (rig.syncer.unsynced_bytes, rig.syncer.sync_awaited) == (rig.wal.buffered_to - end, False)


def not_started(path: Path, disk: Disk | None = None, **options: float) -> Syncer:
    """A commit thread whose steps the test takes itself, one byte after ten that are synced."""
    syncer = Syncer(new_log(disk or Disk(), path), lambda: None, **options)  # type: ignore[reportArgumentType]
    syncer._wal.synced_to, syncer._wal.written_to = 10, 11
    return syncer


def test_a_sync_is_due_if_it_is_wanted_or_much_or_old_or_the_last(tmp_path: Path) -> None:
    syncer = not_started(tmp_path / "wal", debt_bytes=2)
    log = syncer._wal
    assert not syncer._is_due(7.0, None)
    assert [syncer._is_due(now_s, 7.0) for now_s in (6.9, 7.0, 7.1)] == [False, True, True]
    syncer._wanted_to = 10
    assert not syncer._is_due(7.0, None)
    syncer._wanted_to = 11
    assert syncer._is_due(7.0, None)
    syncer._wanted_to = 0
    log.written_to = 12
    assert syncer._is_due(7.0, None)
    log.written_to = 11
    syncer._stopping = True
    assert syncer._is_due(7.0, None)
    syncer._wanted_to = 20
    log.written_to = 10
    assert syncer._is_due(7.0, 6.0) is False, "there is nothing to sync"
    log.synced_to = log.written_to = 0


def rings(syncer: Syncer) -> bool:
    """Whether the owner has rung since the last look."""
    return syncer._bell.acquire(blocking=False)


def test_the_thread_is_woken_for_what_it_does_not_wait_for_already(tmp_path: Path) -> None:
    syncer = not_started(tmp_path / "wal", debt_bytes=2)
    log = syncer._wal
    assert not rings(syncer), "nothing has happened"
    log.ring()
    assert rings(syncer)
    syncer.nudge()
    assert rings(syncer)
    syncer._counting = True
    syncer.nudge()
    assert not rings(syncer), "it has a deadline"
    log.written_to = 12
    syncer.nudge()
    assert rings(syncer), "so much does not wait for it"
    syncer._counting = False
    log.written_to = log.synced_to
    syncer.nudge()
    assert not rings(syncer), "there is nothing to sync"
    for position, rung in ((5, True), (5, False), (4, False), (6, True)):
        syncer.want_sync(position)
        assert rings(syncer) is rung
    syncer._ring()
    syncer._ring()
    assert (rings(syncer), rings(syncer)) == (True, False)
    log.synced_to = log.written_to = 0


def test_a_sync_that_could_open_no_file_pauses_and_does_not_count_as_stalled(tmp_path: Path) -> None:
    disk = FaultyDisk()
    syncer = not_started(tmp_path / "wal", disk)
    log = syncer._wal
    log.synced_to = log.written_to = 0
    log.append(b"one")
    end = log.flush()
    disk.fail("fsync_dir", error=errno.EMFILE)
    syncer._ring()
    syncer._sync_or_try_again()
    assert (log.synced_to, log.sync_started_s, rings(syncer)) == (0, 0.0, False), "it waited for the bell"
    syncer._sync_or_try_again()
    assert (log.synced_to, log.sync_started_s) == (end, 0.0)
    log.append(b"two")
    log.unsynced_files[0].entry_durable = False
    log.flush()
    syncer._stopping = True
    disk.fail("fsync_dir", error=errno.EMFILE)
    with pytest.raises(OSError, match="Too many open files"):
        syncer._sync_or_try_again()


def test_bytes_that_nobody_waits_for_are_not_synced_at_once(rig: Rig) -> None:
    rig.write(b"one")
    rig.commit(b"")
    rig.wait_synced(rig.wal.written_to)
    synced = rig.disk.calls["fdatasync"]
    end = rig.write(b"two")

    assert rig.syncer.poll().synced_to < end
    assert rig.disk.calls["fdatasync"] == synced


def test_ops_that_come_during_a_sync_share_the_next(rig: Rig) -> None:
    gate = rig.disk.hold("fdatasync")
    first = rig.commit(b"first")
    assert gate.reached.wait(WAIT_S_MAX)
    last = max(rig.commit(b"%d" % number) for number in range(20))
    assert rig.syncer.poll().synced_to == 0
    rig.clock.now_s += 0.125
    gate.open()

    rig.wait_synced(last)
    assert (rig.wal.stats.fsyncs_total, rig.wal.stats.fsync_us.sum_us) == (2, 125_000)

    assert first < last
    assert rig.disk.calls["fdatasync"] == 2


def test_a_sync_covers_only_what_was_written_before_it_began(rig: Rig) -> None:
    gate = rig.disk.hold("fdatasync")
    first = rig.commit(b"first")
    assert gate.reached.wait(WAIT_S_MAX)
    rig.write(b"second, that nobody waits for")
    gate.open()

    rig.wait_synced(first)

    assert rig.syncer.poll().synced_to == first


def test_a_power_failure_loses_no_more_than_is_promised(tmp_path: Path) -> None:
    syncer = Syncer(new_log(Disk(), tmp_path / "wal"), lambda: None)
    assert (syncer._interval_s, syncer._debt_bytes) == (0.1, 8 << 20)


def test_many_unsynced_bytes_are_synced_without_being_asked_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "wal", debt_bytes=1000)
    rig.write(bytes(500))
    assert rig.disk.calls["fdatasync"] == 0

    end = rig.write(bytes(600))

    rig.wait_synced(end)
    rig.syncer.stop()


def test_old_unsynced_bytes_are_synced_without_being_asked_for(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "wal", interval_s=0.02, clock=time.monotonic)
    for number in range(3):
        rig.wait_synced(rig.write(b"%d" % number))
    rig.syncer.stop()

    assert rig.disk.calls["fdatasync"] == 3


def test_stopping_syncs_everything_and_ends_the_thread(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "wal")
    end = rig.write(b"one", b"two")

    rig.syncer.stop()
    rig.syncer.stop()

    assert rig.syncer.poll() == (end, end)
    assert not rig.syncer._commit_thread.is_alive()
    rig.wal.close()
    rig.disk.power_loss(tmp_path / "wal", tmp_path / "after", "drop")
    assert bodies(tmp_path / "after") == [b"one", b"two"]


# --- rotation ---


def test_files_are_synced_in_order_and_closed_after_their_last_sync(rig: Rig) -> None:
    gate = rig.disk.hold("fdatasync")
    rig.commit(b"first")
    assert gate.reached.wait(WAIT_S_MAX)
    # Three files fill while the sync of the first one is out.
    end = rig.commit(*[bytes(1000)] * 10)
    open_before = len(rig.wal.unsynced_files)
    gate.open()

    rig.wait_synced(end)

    assert open_before == 4
    assert len(rig.wal.unsynced_files) == 1
    assert [file.fd >= 0 for file in rig.wal._files.sealed] == [False, False, False]
    rig.disk.power_loss(rig.path, rig.path.with_name("after"), "drop")
    assert len(bodies(rig.path.with_name("after"), same_boot=False)) == 11


def test_a_file_that_ends_where_a_sync_does_is_closed_by_it(rig: Rig) -> None:
    rig.wal.append(bytes(FILE_BYTES - FILE_HEADER_BYTES - FRAME_HEADER_BYTES))
    rig.wal.append(b"buffered, for the next file")
    end = rig.wal.written_to
    rig.syncer.want_sync(end)
    rig.wait_synced(end)
    assert rig.syncer.poll() == (end, end)
    assert [file.fd for file in rig.wal._files.sealed] == [-1]


def test_the_name_of_a_file_is_made_durable_once(rig: Rig) -> None:
    for number in range(3):
        rig.wait_synced(rig.commit(b"%d" % number))
    assert (rig.disk.calls["fdatasync.log"], rig.disk.calls["fsync_dir"]) == (3, 1)


def test_the_thread_sleeps_while_there_is_nothing_to_do(tmp_path: Path) -> None:
    looks = 0

    def clock() -> float:
        nonlocal looks
        looks += 1
        return 1.0

    rig = Rig(tmp_path / "wal", clock=clock)
    for number in range(20):
        rig.wait_synced(rig.commit(b"%d" % number))
        rig.write(b"not wanted")
    for _ in range(1_000_000):
        # Time in which the thread could look again and again.
        pass
    rig.syncer.stop()
    # Some for each sync, and some for each time that the thread is woken.
    assert looks < 400


def test_the_mark_is_synced_a_while_later_even_if_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sync_mark, "SYNC_EVERY_S", 0.02)
    disk = FaultyDisk()
    log = new_log(disk, tmp_path / "wal")
    told = threading.Event()
    syncer = Syncer(log, told.set, mark=SyncMark(disk, str(tmp_path / "wal")))
    later = disk.hold("fdatasync", nth=2, path="synced")
    syncer.start()
    for number in range(2):
        log.append(b"%d" % number)
        syncer.want_sync(log.flush())
        while log.synced_to < log.written_to:
            assert told.wait(WAIT_S_MAX)
            told.clear()
    assert later.reached.wait(WAIT_S_MAX)
    later.open()
    syncer.stop()


def test_a_new_file_is_not_durable_before_its_name_is(rig: Rig) -> None:
    gate = rig.disk.hold("fsync_dir")
    end = rig.commit(b"first")
    assert gate.reached.wait(WAIT_S_MAX)
    assert rig.syncer.poll().synced_to == 0
    gate.open()

    rig.wait_synced(end)


def test_trimmed_files_are_unlinked_by_the_thread(rig: Rig) -> None:
    rig.wait_synced(rig.commit(*[bytes(1000)] * 40))
    gone = threading.Event()
    unlink = rig.disk.unlink

    def unlink_and_tell(path: str) -> None:
        unlink(path)
        if len(log_files(rig.path)) == 1:
            gone.set()

    rig.disk.unlink = unlink_and_tell
    rig.wal.trim(rig.wal.synced_to)

    assert gone.wait(WAIT_S_MAX)


def test_the_file_for_the_next_rotation_is_made_by_the_thread(rig: Rig) -> None:
    rig.wait_synced(rig.commit(bytes(1000)))
    rig.syncer.stop()
    made = rig.disk.calls["allocate"]

    rig.write(*[bytes(1000)] * 4)

    assert rig.wal.stats.rotations_total == 1
    assert rig.disk.calls["allocate"] == made


# --- a failed sync ---


def test_after_a_failed_sync_nothing_is_acknowledged_ever_again(rig: Rig) -> None:
    synced = rig.commit(b"durable")
    rig.wait_synced(synced)
    rig.disk.fail("fdatasync")
    rig.commit(b"lost")
    rig.wait_until(lambda: rig.syncer.failed is not None)
    calls = rig.disk.calls["fdatasync"]

    for _ in range(3):
        with pytest.raises(SyncFailed) as failure:
            rig.syncer.poll()
        assert isinstance(failure.value.__cause__, OSError)
        assert failure.value.message == "a sync of the log failed: Input/output error", "no path"
    with pytest.raises(StorageError):
        rig.wal.append(b"refused")
    with pytest.raises(StorageError):
        rig.wal.flush()
    rig.syncer.want_sync(1 << 40)
    rig.syncer.nudge()
    rig.syncer.stop()
    rig.wal.close()

    assert rig.wal.synced_to == synced
    assert rig.disk.calls["fdatasync"] == calls
    assert not rig.syncer._commit_thread.is_alive()


def test_whatever_ends_the_thread_is_named(rig: Rig) -> None:
    def broken(fd: int) -> None:
        raise ValueError("a bug")

    rig.disk.fdatasync = broken
    rig.commit(b"lost")
    rig.wait_until(lambda: rig.syncer.failed is not None)
    with pytest.raises(SyncFailed, match="a sync of the log failed: a bug"):
        rig.syncer.poll()
    assert (rig.wal.broken, rig.wal.sync_started_s) == (True, 0.0)
    del rig.disk.fdatasync


def test_a_failed_sync_of_an_older_file_holds_back_the_newer_one(rig: Rig) -> None:
    rig.wait_synced(rig.commit(b"durable"))
    synced = rig.wal.synced_to
    rig.disk.fail("fdatasync", path="0001.log")
    rig.commit(*[bytes(1000)] * 10)

    rig.wait_until(lambda: rig.syncer.failed is not None)

    assert rig.wal.synced_to == synced


def test_a_failed_sync_of_the_directory_counts_as_a_failed_sync(rig: Rig) -> None:
    rig.disk.fail("fsync_dir")
    rig.commit(b"lost")

    rig.wait_until(lambda: rig.syncer.failed is not None)

    assert rig.wal.synced_to == 0


# --- hand-over ---


def test_writing_passes_to_the_thread_while_a_sync_stalls_and_comes_back(rig: Rig) -> None:
    gate = rig.stall()
    written = rig.wal.written_to
    writes = rig.disk.calls["pwritev"]

    end = rig.commit(b"handed over 1")
    end = rig.commit(b"handed over 2")

    assert rig.wal.handover.active
    assert rig.wal.written_to == written
    assert rig.disk.calls["pwritev"] == writes, "the owner must not write while the disk stalls"
    gate.open()
    rig.wait_synced(end)
    rig.wait_until(lambda: not rig.wal.handover.active)
    assert rig.write(b"written by the owner") == rig.wal.written_to
    assert bodies(rig.path) == [
        b"the one that stalls",
        b"handed over 1",
        b"handed over 2",
        b"written by the owner",
    ]
    assert rig.wal.stats.handovers_total == 1


def chunk(position: int) -> LogChunk:
    return LogChunk(LogFile("", FileHeader(0, 1, 0, 0), FILE_BYTES), [], position, position, 0)


def test_a_chunk_is_queued_while_the_thread_writes_or_to_make_it_write() -> None:
    handover = Handover()
    first, second, third = (chunk(position) for position in range(3))
    assert handover.put(first, begin=False) is False
    assert handover.take() is None
    assert handover.put(first, begin=True)
    assert handover.put(second, begin=False)
    assert [handover.take(), handover.take()] == [first, second]
    assert handover.active, "until it finds nothing more"
    assert handover.take() is None
    assert handover.put(third, begin=False) is False


def test_after_a_failure_nothing_is_taken_and_once_it_is_settled_only_what_is_new() -> None:
    handover = Handover()
    first, second, third = (chunk(position) for position in range(3))
    handover.put(first, begin=True)
    handover.fail(WriteFailure(first.file, OSError()))
    assert handover.put(second, begin=False), "the owner does not know yet"
    assert handover.take() is None
    assert handover.active
    handover.settle()
    assert not handover.active
    handover.put(third, begin=True)
    assert handover.take() is third


@pytest.mark.skipif(VARIANT == "compiled", reason="a compiled class takes no stand-in for another")
def test_the_owner_writes_if_the_thread_has_just_ended_its_part(rig: Rig) -> None:
    class JustEnded(Handover):
        def put(self, chunk: LogChunk, begin: bool) -> bool:
            self.active = False
            return super().put(chunk, begin)

    rig.wal.append(b"one")
    rig.wal.handover = JustEnded()
    rig.wal.handover.active = True
    assert rig.wal.flush() == rig.wal.buffered_to
    assert rig.wal.stats.handovers_total == 0
    assert bodies(rig.path) == [b"one"]


@pytest.mark.skipif(VARIANT == "compiled", reason="a compiled class takes no stand-in for another")
def test_bytes_written_while_the_thread_lies_down_have_a_deadline(tmp_path: Path) -> None:
    class Growing(Wal):
        """As if the owner wrote between the thread's two looks."""

        looks = 0

        @property
        def written_to(self) -> int:
            self.looks += 1
            return 0 if self.looks == 1 else 100

        @written_to.setter
        def written_to(self, position: int) -> None: ...

    (tmp_path / "wal").mkdir()
    log = Growing(Disk(), str(tmp_path / "wal"), LogTail(1, 0, []), file_bytes=FILE_BYTES)
    syncer = Syncer(log, lambda: None, interval_s=0.25)
    log.looks = 0
    assert syncer._wait(0.0, -5.0) == -5.0
    assert syncer._counting
    log.looks = 0
    syncer._ring()
    assert syncer._wait(7.0, None) == 7.25
    log.close()


def test_a_short_sync_does_not_take_writing_from_the_owner(rig: Rig) -> None:
    gate = rig.disk.hold("fdatasync")
    rig.commit(b"one")
    assert gate.reached.wait(WAIT_S_MAX)
    rig.clock.now_s += HANDOVER_AFTER_S

    assert rig.write(b"two") == rig.wal.written_to

    assert not rig.wal.handover.active
    gate.open()


def test_files_can_be_rotated_while_the_thread_writes(rig: Rig) -> None:
    gate = rig.stall()
    wanted = [bytes([number]) * 1000 for number in range(12)]
    end = max(rig.commit(body) for body in wanted)
    gate.open()

    rig.wait_synced(end)

    assert bodies(rig.path)[1:] == wanted
    assert len(log_files(rig.path)) == 4


def test_a_file_that_is_full_but_not_yet_written_stays_open_through_a_sync(tmp_path: Path) -> None:
    # The thread syncs between the chunks it was handed, while later ones of the same, sealed file still wait.
    rig = Rig(tmp_path / "wal", debt_bytes=1500)
    gate = rig.stall()
    wanted = [bytes([number]) * 1000 for number in range(12)]
    for body in wanted:
        rig.write(body)
    gate.open()

    rig.syncer.stop()

    assert rig.syncer.failed is None
    assert rig.wal.synced_to == rig.wal.buffered_to
    assert bodies(rig.path)[1:] == wanted


def test_a_large_write_is_the_commit_thread_s_and_the_next_small_one_is_not(rig: Rig) -> None:
    large = bytes(HANDOVER_BYTES + 1)
    gate = rig.disk.hold("pwritev")
    position = rig.write(large)
    assert rig.wal.written_to < position, "the owner does not wait for it"
    gate.open()
    rig.wait_until(lambda: rig.wal.written_to == position and not rig.wal.handover.active)
    assert rig.write(b"small") == rig.wal.written_to
    largest = bytes(HANDOVER_BYTES - FRAME_HEADER_BYTES)
    assert rig.write(largest) == rig.wal.written_to
    assert rig.wal.stats.handovers_total == 1


class DeferredBody:
    """A large body that notes which thread makes it."""

    def __init__(self, body: bytes, error: Exception | None = None) -> None:
        self.body = body
        self.error = error
        self.made_by: list[str] = []

    def __len__(self) -> int:
        return len(self.body)

    def buffers(self) -> list[bytes]:
        self.made_by.append(threading.current_thread().name)
        if self.error is not None:
            raise self.error
        return [self.body[:100], self.body[100:]]


@pytest.mark.parametrize("small_ones", [0, 1, 40])
def test_a_deferred_frame_is_made_by_the_commit_thread_and_lies_where_it_was_appended(
    tmp_path: Path, small_ones: int
) -> None:
    rig = Rig(tmp_path / "wal", file_bytes=4 * HANDOVER_BYTES)
    small = [b"small %d" % number for number in range(small_ones)]
    large = DeferredBody(bytes(range(256)) * (HANDOVER_BYTES // 256 + 1))
    for body in (*small, large, *small):
        rig.wal.append(body)
    assert not large.made_by
    rig.wal.flush()
    end = rig.wal.buffered_to
    rig.syncer.want_sync(end)
    rig.wait_synced(end)
    assert large.made_by == ["topics-commit"]
    assert bodies(rig.path) == [*small, large.body, *small]
    rig.syncer.stop()


def test_a_deferred_frame_that_memory_does_not_suffice_for_is_a_write_that_failed(rig: Rig) -> None:
    kept = rig.commit(b"kept")
    rig.wait_synced(kept)
    rig.wal.append(DeferredBody(bytes(HANDOVER_BYTES + 1), MemoryError()))
    rig.wal.flush()
    rig.wait_until(lambda: rig.wal.handover.failure is not None)
    with pytest.raises(OSError, match="Cannot allocate memory"):
        rig.wal.flush()
    assert rig.wal.buffered_to == rig.wal.written_to == kept
    rig.wait_synced(rig.commit(b"after"))
    assert bodies(rig.path) == [b"kept", b"after"]


def test_the_queue_of_handed_over_writes_is_bounded(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wal, "QUEUE_BYTES_MAX", 64 << 20)
    gate = rig.stall()
    large = bytes(8 << 20)
    for _ in range(8):
        rig.write(large)

    with pytest.raises(Throttled):
        rig.write(large)

    assert rig.wal.overloaded
    assert rig.wal.buffered_to - rig.wal.written_to <= 80 << 20
    gate.open()
    rig.syncer.want_sync(rig.wal.buffered_to)
    rig.wait_synced(rig.wal.buffered_to)
    assert not rig.wal.overloaded


def test_a_frame_is_refused_once_more_than_a_limit_waits_to_be_written(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert wal.QUEUE_BYTES_MAX == 256 << 20
    gate = rig.stall()
    written = rig.wal.written_to
    rig.wal.append(b"waits")
    assert rig.wal.flush() == written
    waiting = rig.wal.buffered_to - rig.wal.written_to
    monkeypatch.setattr(wal, "QUEUE_BYTES_MAX", waiting)
    rig.write(b"fits")
    with pytest.raises(Throttled) as refusal:
        rig.write(b"does not")
    assert refusal.value.detail["retry_after_ms"] == 1000
    gate.open()
    rig.syncer.want_sync(rig.wal.buffered_to)
    rig.wait_synced(rig.wal.buffered_to)
    assert bodies(rig.path)[1:] == [b"waits", b"fits"]


def test_a_frame_that_just_fits_stays_in_the_file_while_the_thread_writes(rig: Rig) -> None:
    gate = rig.stall()
    rig.commit(b"handed over")
    room = FILE_BYTES - FILE_HEADER_BYTES - rig.wal.buffered_to
    end = rig.commit(bytes(room - FRAME_HEADER_BYTES))
    assert len(rig.wal.file_starts()) == 1
    end = rig.commit(b"")
    assert len(rig.wal.file_starts()) == 2
    gate.open()
    rig.wait_synced(end)


@pytest.mark.parametrize("bodies_lost", [1, 3, 12])
def test_a_write_that_fails_in_the_thread_loses_everything_after_it(rig: Rig, bodies_lost: int) -> None:
    gate = rig.stall()
    kept = rig.commit(b"kept")
    rig.disk.fail("pwritev", nth=2, keep_bytes=500, error=errno.EIO)
    for number in range(bodies_lost):
        rig.commit(bytes([number]) * 1000)
    gate.open()
    rig.wait_until(lambda: rig.wal.handover.failure is not None)

    with pytest.raises(OSError, match="Input/output"):
        rig.wal.flush()

    assert rig.wal.buffered_to == rig.wal.written_to == kept
    assert not rig.wal.handover.active
    rig.wait_synced(rig.commit(b"after"))
    assert bodies(rig.path) == [b"the one that stalls", b"kept", b"after"]
    numbers = [int(file.stem) for file in log_files(rig.path)]
    assert numbers == list(range(1, len(numbers) + 1))


def test_a_write_of_the_thread_that_cannot_be_cut_back_is_the_last(rig: Rig) -> None:
    gate = rig.stall()
    kept = rig.commit(b"kept")
    rig.disk.fail("pwritev", nth=2, keep_bytes=500, path=".log")
    rig.disk.fail("truncate", path=".log")
    for number in range(3):
        rig.commit(bytes([number]) * 1000)
    gate.open()
    rig.wait_until(lambda: rig.wal.handover.failure is not None)
    for _ in range(2):
        with pytest.raises(StorageError, match="accepts no writes"):
            rig.wal.flush()
        assert rig.wal.buffered_to == rig.wal.written_to == kept
        assert not rig.wal.handover.active


def test_stopping_with_an_unsettled_failure_ends(rig: Rig) -> None:
    gate = rig.stall()
    rig.commit(b"lost")
    rig.disk.fail("pwritev")
    gate.open()
    rig.wait_until(lambda: rig.wal.handover.failure is not None)

    rig.syncer.stop()

    assert not rig.syncer._commit_thread.is_alive()
    assert bodies(rig.path) == [b"the one that stalls"]


def test_a_stop_during_a_stall_writes_and_syncs_the_queue(rig: Rig) -> None:
    gate = rig.stall()
    end = rig.write(b"handed over")
    opener = threading.Thread(target=gate.open)
    opener.start()

    rig.syncer.stop()
    opener.join()

    assert rig.syncer.poll() == (end, end)
    assert bodies(rig.path) == [b"the one that stalls", b"handed over"]


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
def test_a_sync_for_which_no_file_could_be_opened_is_tried_again(rig: Rig, error: int) -> None:
    rig.disk.fail("fsync_dir", error=error, times=2)
    end = rig.commit(b"a")
    rig.wait_synced(end)
    assert rig.syncer.failed is None
    assert bodies(rig.path) == [b"a"]


def test_a_directory_that_cannot_be_synced_is_a_failed_sync(rig: Rig) -> None:
    rig.disk.fail("fsync_dir", error=errno.EIO)
    rig.commit(b"a")
    rig.wait_until(lambda: rig.syncer.failed is not None)
    with pytest.raises(SyncFailed):
        rig.syncer.poll()


def test_the_log_needs_no_descriptor_to_sync_its_directory(tmp_path: Path) -> None:
    disk = Disk()
    wal = new_log(disk, tmp_path / "wal")
    syncer = Syncer(wal, lambda: None)
    syncer.start()
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        wal.append(b"a")
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
        wal.flush()
        syncer.want_sync(wal.written_to)
        syncer.stop()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert syncer.failed is None
    assert wal.synced_to == wal.written_to
