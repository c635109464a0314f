"""Power failures: what was reported durable is there, what comes after it is a prefix, whatever the disk did."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults import WAIT_S_MAX, FaultyDisk, Mode
from tests.storage.logs import new_log, replay, salts, sync_by_hand
from topics.storage.wal.syncer import Syncer
from topics.storage.wal.wal import Wal

FILE_BYTES = 2048
MODES: tuple[Mode, ...] = ("keep", "drop", "torn", "reorder")


class Machine:
    """A log on a machine whose power fails now and then, beside a list of what must be in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.boots = 0
        self.path = root / "boot-0"
        self.disk = FaultyDisk()
        self.wal = new_log(self.disk, self.path, FILE_BYTES)
        self.start = 0
        self.written: list[tuple[int, bytes]] = []  # (end position, body) of what was written and not failed
        self.buffered: list[tuple[int, bytes]] = []
        self.serial = 0

    def append(self, size: int) -> None:
        self.serial += 1
        body = f"{self.serial}:".encode().ljust(size, b"*")
        end = self.wal.append(body)
        self.note_written()  # a rotation may have written what was buffered
        self.buffered.append((end, body))

    def flush(self) -> None:
        self.wal.flush()
        self.note_written()

    def note_written(self) -> None:
        self.written += [frame for frame in self.buffered if frame[0] <= self.wal.written_to]
        self.buffered = [frame for frame in self.buffered if frame[0] > self.wal.written_to]

    def fail_flush(self, keep_bytes: int) -> None:
        """A write that fails after `keep_bytes`; one that writes nothing cannot fail."""
        if not self.buffered:
            return
        self.disk.fail("pwritev", keep_bytes=keep_bytes)
        with pytest.raises(OSError, match="Input/output"):
            self.wal.flush()
        self.buffered = []

    def sync(self) -> None:
        sync_by_hand(self.wal)

    def trim(self) -> None:
        """As after a snapshot of everything that is durable."""
        self.start = self.wal.synced_to
        self.wal.trim(self.start)
        self.wal.unlink_one_trimmed()

    def kill(self) -> None:
        """The process dies and the machine runs on: what was written is there, all of it."""
        left = self.next_path()
        self.start_again(self.disk.kill(self.path, left), left, same_boot=True, survives_to=self.wal.written_to)

    def lose_power(self, mode: Mode, seed: int) -> None:
        left = self.next_path()
        disk = self.disk.power_loss(self.path, left, mode, seed)
        self.start_again(disk, left, same_boot=False, survives_to=self.wal.synced_to)

    def next_path(self) -> Path:
        self.boots += 1
        return self.root / f"boot-{self.boots}"

    def start_again(self, disk: FaultyDisk, path: Path, same_boot: bool, survives_to: int) -> None:
        expected = [frame for frame in self.written if frame[0] > self.start]
        self.disk, self.path = disk, path
        reading = replay(self.disk, self.path, self.start, same_boot=same_boot)
        found = list(reading)
        assert found == expected[: len(found)], "not a prefix of what was written"
        assert reading.tail.position >= survives_to, "something that was durable is gone"
        again = list(replay(self.disk, self.path, self.start, same_boot=True))
        assert again == found, "a second start finds something else"
        self.wal = Wal(self.disk, str(self.path), reading.tail, file_bytes=FILE_BYTES, random_u64=salts(self.boots))
        self.written = found
        self.buffered = []


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 900)),
        st.tuples(st.just("append"), st.integers(60, 70)),
        st.tuples(st.just("flush")),
        st.tuples(st.just("flush")),
        st.tuples(st.just("fail_flush"), st.integers(0, 400)),
        st.tuples(st.just("sync")),
        st.tuples(st.just("trim")),
        st.tuples(st.just("kill")),
        st.tuples(st.just("lose_power"), st.sampled_from(MODES), st.integers(0, 2**32)),
    ),
    max_size=60,
)


@given(steps=steps, mode=st.sampled_from(MODES), seed=st.integers(0, 2**32))
def test_what_was_durable_survives_and_the_rest_is_a_prefix(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]], mode: Mode, seed: int
) -> None:
    machine = Machine(tmp_path_factory.mktemp("machine"))
    for name, *arguments in steps:
        getattr(machine, name)(*arguments)
    machine.lose_power(mode, seed)


@pytest.mark.parametrize("mode", MODES)
def test_what_the_committer_reported_survives_at_every_moment(tmp_path: Path, mode: Mode) -> None:
    disk = FaultyDisk()
    path = tmp_path / "wal"
    wal = new_log(disk, path, FILE_BYTES)
    told = threading.Event()
    syncer = Syncer(wal, told.set, interval_s=0.001, debt_bytes=4096)
    syncer.start()
    written: list[tuple[int, bytes]] = []
    for number in range(400):
        body = b"%d" % number * 20
        end = wal.append(body)
        written.append((end, body))
        if number % 3 == 0:
            wal.flush()
            syncer.nudge()
        if number % 50 == 0:
            syncer.want_sync(end)
            assert told.wait(WAIT_S_MAX)
            told.clear()
        if number % 20 == 0:
            # Reported before the power fails, so it must be there after.
            reported = syncer.poll().synced_to
            after = tmp_path / f"after-{number}"
            reading = replay(disk.power_loss(path, after, mode, seed=number), after, same_boot=False)
            found = list(reading)
            assert found == written[: len(found)]
            assert reading.tail.position >= reported
    wal.flush()
    syncer.stop()
    assert syncer.poll().synced_to == written[-1][0]


def test_a_disk_that_forgets_unsynced_bytes_is_noticed_by_these_tests(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.append(100)
    machine.flush()
    machine.wal.synced_to = machine.wal.written_to  # claimed, never done

    with pytest.raises(AssertionError, match="durable is gone"):
        machine.lose_power("drop", seed=1)
