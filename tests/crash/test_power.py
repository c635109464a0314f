"""Power failures: `fsync` loses nothing, `disk` loses a suffix and says so, and no seq is ever used twice."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from tests.engine.conftest import COLD
from tests.engine.rig import Rig
from tests.engine.test_checkpoint import MOMENTS, drive, everything
from tests.faults import FaultyDisk, Kind, Mode
from topics.model.errors import StorageError

ROUNDS = max(6, int(os.environ.get("TOPICS_TORTURE", "0")) // 10)
MODES: list[Mode] = ["drop", "torn", "reorder", "keep"]


class Lives:
    """One database over several power failures, and the acknowledgements that its writers got."""

    def __init__(self, root: Path, mode: Mode, seed: int, **settings: Any) -> None:
        self.root = root
        self.mode: Mode = mode
        self.rng = random.Random(seed)
        self.number = 0
        self.disk = FaultyDisk()
        self.rig = Rig(root / "data0", disk=self.disk, wal_file_bytes=8192, **settings)
        # topic → seq → value, of everything acknowledged; and the seqs that acknowledged deletes took.
        self.told: dict[str, dict[int, str]] = {}
        self.deleted: dict[str, set[int]] = {}
        # (topic, seq) → the life that wrote it
        self.written_in: dict[tuple[str, int], int] = {}
        self.values = 0

    def append(self, topic: str, count: int) -> None:
        values = [f"{self.values + index}" + "x" * self.rng.choice((0, 30, 700)) for index in range(count)]
        self.values += count
        staged = self.rig.append(topic, *[{"data": value, "tag": f"t{value[0]}"} for value in values])
        told = self.told.setdefault(topic, {})
        for seq, value in zip(range(staged.first_seq, staged.last_seq + 1), values, strict=True):
            assert seq not in told, f"{topic}: seq {seq} is used twice"
            told[seq] = value
            self.written_in[topic, seq] = self.number

    def delete(self, topic: str, before_seq: int) -> None:
        self.rig.delete(topic, before_seq=before_seq)
        self.deleted.setdefault(topic, set()).update(range(1, before_seq))

    def work(self, steps: int) -> None:
        for _ in range(steps):
            match self.rng.choice(("disk", "disk", "fsync", "memory", "delete", "checkpoint", "ephemeral")):
                case "delete":
                    topic = self.rng.choice(("disk", "fsync"))
                    self.delete(topic, max(1, self.rig.look(topic).head_seq - 10))
                case "checkpoint":
                    self.rig.checkpoint()
                case topic:
                    self.append(topic, self.rng.choice((1, 2, 9)))

    def fail(self) -> None:
        """The power goes now, and comes back."""
        self.number += 1
        into = self.root / f"data{self.number}"
        survivor = self.disk.power_loss(self.rig.path, into, self.mode, self.rng.randrange(1 << 30))
        self.rig.abandon()
        assert isinstance(survivor, FaultyDisk)
        self.disk = self.rig.disk = survivor
        self.rig.path = into
        self.rig.open()

    def check(self) -> None:
        for topic, told in self.told.items():
            state = self.rig.look(topic)
            found = {record["$seq"]: record["data"] for record in self.rig.records(topic)}
            for seq, value in found.items():
                assert told.get(seq) == value, f"{topic}: seq {seq} changed"
            assert state.head_seq >= max(told), f"{topic}: a head that readers saw is gone"
            deleted = self.deleted.get(topic, set())
            if topic == "fsync":
                assert set(found) == set(told) - deleted
            else:
                self.check_suffix(topic, found, set(told) - deleted, deleted)

    def check_suffix(self, topic: str, found: dict[int, str], told: set[int], deleted: set[int]) -> None:
        """Only the end of what a run wrote is missing, and every missing seq is in a reported gap."""
        missing = told - set(found)
        for life in range(self.number + 1):
            seqs = sorted(seq for seq in told if self.written_in[topic, seq] == life)
            kept = [seq for seq in seqs if seq in found]
            assert kept == seqs[: len(kept)], f"{topic}: life {life} lost something else than its end"
        gaps: set[int] = set()
        cursor = 0
        while True:
            diff = self.rig.diff(topic, cursor)
            if diff.tombstone is not None:
                gap_from, gap_to = diff.tombstone.gap_from, diff.tombstone.gap_to
                gaps |= {seq for seq in told | deleted if gap_from <= seq <= gap_to}
            cursor = diff.next_from_seq
            if diff.caught_up:
                break
        assert missing <= gaps, f"{topic}: lost in silence: {sorted(missing - gaps)}"


def configured(lives: Lives) -> Lives:
    for topic in ("disk", "fsync", "memory", "ephemeral"):
        lives.rig.configure(topic, durability=topic)
    return lives


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(6))
def test_what_fsync_acknowledged_survives_and_what_disk_lost_is_reported(tmp_path: Path, mode: Mode, seed: int) -> None:
    lives = configured(Lives(tmp_path, mode, seed, **COLD))
    try:
        for _ in range(4):
            lives.work(12)
            lives.fail()
            lives.check()
            lives.work(3)
            lives.check()
    finally:
        lives.rig.abandon()


@pytest.mark.crash
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(100, 100 + ROUNDS))
def test_many_power_failures_in_a_row(tmp_path: Path, mode: Mode, seed: int) -> None:
    settings = [COLD, {}, {"segment_max_events": 7, "hot_retain_segments": 1}][seed % 3]
    lives = configured(Lives(tmp_path, mode, seed, **settings))
    try:
        for _ in range(8):
            lives.work(lives.rng.randint(1, 25))
            lives.fail()
            lives.check()
    finally:
        lives.rig.abandon()


def test_a_lost_suffix_is_a_tombstone_and_numbering_goes_on_above_what_was_seen(tmp_path: Path) -> None:
    lives = Lives(tmp_path, "drop", 0)
    rig = lives.rig
    rig.configure("a", durability="disk")
    rig.append("a", 1, 2, 3)
    rig.configure("sync", durability="fsync")
    lives.disk.fail("fdatasync", times=0)
    gate = lives.disk.hold("fdatasync", path=".log")
    rig.append("a", 4, 5)
    assert rig.seqs("a") == [1, 2, 3, 4, 5]
    survivor = lives.disk.power_loss(rig.path, tmp_path / "after", "drop")
    gate.open()
    rig.abandon()
    after = Rig(tmp_path / "after", disk=survivor)
    try:
        assert after.seqs("a") == [1, 2, 3]
        head = after.look("a").head_seq
        assert head >= 5
        first = after.diff("a", 0)
        assert (first.tombstone, first.next_from_seq, first.caught_up) == (None, 3, False)
        lost = after.diff("a", first.next_from_seq)
        assert lost.tombstone is not None
        assert (lost.tombstone.gap_from, lost.tombstone.gap_to, lost.tombstone.reason) == (4, head, "lost")
        assert (lost.next_from_seq, lost.caught_up) == (head, True)
        reader = after.diff("a", 5)
        assert reader.tombstone is not None
        assert reader.tombstone.gap_from == 6
        assert after.append("a", "new").first_seq == head + 1
        assert after.seqs("a", 3) == [head + 1]
        whole = after.records("a")
        assert [record["data"] for record in whole] == [1, 2, 3, "new"]
        after.checkpoint()
        after.reopen()
        assert after.records("a") == whole
        again = after.diff("a", 3)
        assert again.tombstone is not None
        assert (again.tombstone.gap_from, again.tombstone.gap_to, again.tombstone.reason) == (4, head, "lost")
    finally:
        after.abandon()


def test_a_start_that_cannot_note_what_was_lost_fails_and_the_next_one_goes_on_above_it(tmp_path: Path) -> None:
    """Seed 23 of the simulation: the write of the note failed, the start went on, and seqs were given twice."""
    disk = FaultyDisk()
    rig = Rig(tmp_path / "data", disk=disk)
    rig.configure("a")
    gate = disk.hold("fdatasync", path=".log")
    rig.append("a", *range(10))
    after = disk.power_loss(rig.path, tmp_path / "after", "drop")
    gate.open()
    rig.abandon()
    after.fail("pwritev", path=".log", error=errno.ENOMEM)
    with pytest.raises(StorageError):
        Rig(tmp_path / "after", disk=after, clock=rig.clock)
    with Rig(tmp_path / "after", disk=after, clock=rig.clock) as again:
        assert again.append("a", 10).first_seq > 10
        tombstone = again.diff("a").tombstone
        assert tombstone is not None
        assert (tombstone.gap_from, tombstone.reason) == (1, "lost")


def test_caps_and_deletes_work_over_a_hole(tmp_path: Path) -> None:
    lives = Lives(tmp_path, "drop", 0)
    rig = lives.rig
    rig.configure("a", durability="disk")
    rig.append("a", *range(5))
    rig.configure("sync")
    lives.fail()
    rig.append("a", "x", "y", "z")
    first = rig.look("a").head_seq - 2
    assert rig.seqs("a") == [1, 2, 3, 4, 5, first, first + 1, first + 2]
    assert rig.delete("a", before_seq=3) == 2
    rig.configure("a", cap_records=4)
    assert rig.seqs("a") == [5, first, first + 1, first + 2]
    rig.append("a", "u", "v")
    assert rig.seqs("a") == [first + 1, first + 2, first + 3, first + 4]
    tombstone = rig.diff("a", 3).tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.gap_to) == (4, first)
    before = everything(rig)
    rig.reopen()
    assert everything(rig) == before
    rig.abandon()


def test_a_clean_stop_is_not_taken_for_a_power_failure_by_the_next_boot(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "data", disk=FaultyDisk("boot-1"))
    rig.configure("e", durability="ephemeral")
    rig.append("a", 1, 2)
    rig.append("e", 1)
    rig.close()
    rig.disk = FaultyDisk("boot-2")
    rig.open()
    assert (rig.look("a").head_seq, rig.look("e").head_seq) == (2, 1)
    assert rig.append("a", 3).first_seq == 3
    rig.abandon()


def test_keys_that_fsync_acknowledged_survive_a_power_failure(tmp_path: Path) -> None:
    lives = Lives(tmp_path, "drop", 0)
    lives.rig.configure("f", durability="fsync")
    lives.rig.append("f", 1, 2, idempotency_key="k")
    lives.fail()
    again = lives.rig.append("f", 1, 2, idempotency_key="k")
    assert (again.deduped, again.first_seq, again.count) == (True, 1, 2)
    lives.rig.abandon()


def test_a_configuration_that_was_answered_survives_a_power_failure(tmp_path: Path) -> None:
    lives = Lives(tmp_path, "drop", 0)
    lives.rig.configure("a", ttl_ms=5)
    lives.rig.configure("a", ttl_ms=7, durability="memory")
    lives.rig.configure("b")
    lives.rig.drop("b")
    lives.fail()
    assert [state.topic for state in lives.rig.engine.list().topics] == ["a"]
    assert lives.rig.look("a").config.ttl_ms == 7
    lives.rig.abandon()


@pytest.mark.crash
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("moment", MOMENTS, ids="-".join)
def test_power_that_fails_in_the_middle_of_a_checkpoint_loses_nothing_more(
    tmp_path: Path, mode: Mode, moment: tuple[Kind, str]
) -> None:
    for seed in range(2):
        lives = configured(Lives(tmp_path / str(seed), mode, seed, **COLD))
        lives.work(20)
        lives.rig.checkpoint()
        lives.work(20)
        for topic in ("disk", "fsync"):
            lives.delete(topic, max(1, lives.rig.look(topic).head_seq - 2))
        gate = lives.disk.hold(moment[0], path=moment[1])
        steps = lives.rig.store._checkpointer.steps()
        ended = drive(lives.rig, steps, until=gate)
        into = tmp_path / f"{seed}-after"
        survivor = lives.disk.power_loss(lives.rig.path, into, mode, seed)
        gate.open()
        if ended is None:
            drive(lives.rig, steps)
        lives.rig.abandon()
        assert isinstance(survivor, FaultyDisk)
        lives.disk = lives.rig.disk = survivor
        lives.rig.path = into
        lives.number += 1
        lives.rig.open()
        lives.check()
        lives.rig.checkpoint()
        lives.rig.crash()
        lives.check()
        lives.rig.abandon()
