"""What tombstones say was missed after a restart or restore: what can have been lost, not the seqs that are skipped."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.terminal import run
from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig
from tests.faults import FaultyDisk
from tests.serving import serving
from topics.engine.log.retention import Tombstone
from topics.storage.steps import at_once


def told(rig: Rig, topic: str, from_seq: int = 0) -> list[Tombstone]:
    """All tombstones on the way from a cursor to the head."""
    found: list[Tombstone] = []
    while True:
        diff = rig.diff(topic, from_seq)
        if diff.tombstone is not None:
            found.append(diff.tombstone)
        if diff.caught_up:
            return found
        from_seq = diff.next_from_seq


def after_power_loss(rig: Rig, disk: FaultyDisk, into: Path) -> Rig:
    return Rig(into, disk=disk.power_loss(rig.path, into, "drop"), clock=rig.clock)


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_killed_process_loses_nothing_and_says_nothing(open_rig: OpenRig, durability: str) -> None:
    rig = open_rig()
    rig.append("a", *range(10), config={"durability": durability})
    rig.crash()
    assert told(rig, "a") == []
    assert rig.append("a", 10).first_seq == 11


@pytest.mark.parametrize("durability", ["memory", "disk", "fsync"])
def test_a_power_failure_after_everything_was_synced_says_that_nothing_is_missed(
    open_rig: OpenRig, tmp_path: Path, durability: str
) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("a", durability=durability)
    rig.append("a", *range(10))
    rig.abandon()  # synced, and noted
    disk._open_files.clear()
    again = after_power_loss(rig, disk, tmp_path / "after")
    assert again.seqs("a") == list(range(1, 11))
    assert sum(tombstone.missed_estimate for tombstone in told(again, "a")) <= 10
    assert (told(again, "a") == []) == (durability == "fsync")
    again.abandon()


def test_a_power_failure_that_takes_records_counts_about_as_many_as_came_since_the_last_sync(
    open_rig: OpenRig, tmp_path: Path
) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("a")
    rig.append("a", *range(10))
    at_once(rig.store.wait_synced())
    gate = disk.hold("fdatasync", path=".log")
    rig.append("a", *range(10, 30))
    again = Rig(tmp_path / "after", disk=disk.power_loss(rig.path, tmp_path / "after", "keep"), clock=rig.clock)
    gate.open()
    (tombstone,) = told(again, "a")
    assert again.seqs("a") == list(range(1, 31)), "these were lucky"
    assert (tombstone.gap_from, tombstone.reason) == (31, "lost")
    assert tombstone.gap_to > 60_000
    assert tombstone.missed_estimate <= 30, "as many may not have been"
    again.abandon()


@pytest.mark.parametrize("way", ["crash", "reopen"])
def test_records_of_an_ephemeral_topic_are_counted_when_they_are_gone(open_rig: OpenRig, way: str) -> None:
    rig = open_rig()
    rig.append("a", 1, config={"durability": "ephemeral"})
    for number in range(2, 8):
        rig.append("a", number)
    rig.append("a", *range(3))
    getattr(rig, way)()
    assert sum(tombstone.missed_estimate for tombstone in told(rig, "a")) == 10
    assert sum(tombstone.missed_estimate for tombstone in told(rig, "a", 4)) == 6
    head = rig.look("a").head_seq
    assert rig.append("a", "next").first_seq == head + 1 > 10


def test_many_records_of_an_ephemeral_topic_are_counted_almost_exactly_and_cost_the_log_little(
    open_rig: OpenRig,
) -> None:
    rig = open_rig()
    rig.configure("a", durability="ephemeral")
    before = rig.store.wal.stats.frames_total
    for number in range(3000):
        rig.append("a", number)
    assert rig.store.wal.stats.frames_total - before < 500
    rig.crash()
    missed = sum(tombstone.missed_estimate for tombstone in told(rig, "a"))
    assert 0.97 * 3000 <= missed <= 3000


def test_records_that_were_lasting_before_are_not_counted(open_rig: OpenRig) -> None:
    rig = open_rig()
    rig.append("a", *range(5))
    rig.configure("a", durability="ephemeral")
    for number in range(20):
        rig.append("a", number)
    rig.crash()
    assert rig.seqs("a") == [1, 2, 3, 4, 5]
    assert sum(tombstone.missed_estimate for tombstone in told(rig, "a")) == 20
    rig.checkpoint()
    rig.reopen()
    assert sum(tombstone.missed_estimate for tombstone in told(rig, "a")) == 20, "the snapshot knows it as well"


def test_a_restored_server_says_about_as_many_as_came_in_the_same_time_before(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        client = server.client()
        client.append("idle", *range(10))
        client.put("/v0/topics/busy", {"durability": "fsync"})
        for number in range(30):
            client.append("busy", number)
        assert run(server, "backup", tmp_path / "copy.tar").code == 0
    assert run(None, "restore", tmp_path / "copy.tar", tmp_path / "copy").code == 0
    with serving(tmp_path / "copy") as server:
        client = server.client()
        for topic, records in (("idle", 10), ("busy", 30)):
            found = client.diff(topic, from_seq=records)
            assert found["tombstone"]["reason"] == "lost"
            assert found["tombstone"]["gap_to"] > 100_000_000
            assert found["tombstone"]["missed_estimate"] <= records
            assert client.payloads(topic, limit=1000) == list(range(records))


def test_a_copy_of_a_topic_that_was_idle_says_that_nothing_is_missed(tmp_path: Path) -> None:
    from tests.engine.test_backup import begin, read_all, restored

    with Rig(tmp_path / "data") as rig:
        rig.append("a", *range(10))
        rig.clock.advance(3_600_000)
        copied = read_all(begin(rig))
        rig.clock.advance(1_410_000)
        copy = restored(copied, tmp_path / "copy", rig)
        (tombstone,) = told(copy, "a")
        assert tombstone.gap_to > 1_000_000_000
        assert tombstone.missed_estimate == 0
        copy.abandon()


def test_a_repaired_log_says_how_many_records_the_lost_bytes_can_hold(open_rig: OpenRig) -> None:
    from tests.crash.test_repair import put_away, repair

    rig = open_rig()
    for number in range(100):
        rig.append("a", number)
    put_away(rig)
    (log,) = [file for file in rig.path.glob("shard-00/wal/*.log") if file.read_bytes().strip(b"\0")]
    content = bytearray(log.read_bytes())
    content[content.index(b'"data":50')] ^= 1
    log.write_bytes(content)
    repair(rig)
    rig.open()
    middle, end = told(rig, "a")
    assert (middle.gap_from, middle.gap_to, middle.missed_estimate) == (51, 51, 1)
    assert end.gap_from == 101
    assert end.missed_estimate <= 3
