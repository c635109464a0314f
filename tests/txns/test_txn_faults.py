"""Transactions over several topics when the power fails, the process is killed, or the disk refuses: all or nothing."""

from __future__ import annotations

import errno
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.rig import WAIT_S_MAX
from tests.faults import FaultyDisk
from tests.txns.rig import TxnRig
from topics.engine.core.pending import PendingChange
from topics.engine.core.state import NEVER
from topics.engine.transactions import commit as committing
from topics.engine.transactions.ledger import Ledger
from topics.model.errors import ReadOnly, StageNotFound, StorageFull

# Records of one version in each of the topics.
RECORDS = {"x": 7, "y": 5, "z": 1}
WAL_FILE_BYTES = 64 * 1024


@pytest.fixture(autouse=True)
def little_is_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few records are prepared in slices, as a million would be."""
    monkeypatch.setattr(committing, "INLINE_RECORDS_MAX", 2)
    monkeypatch.setattr(committing, "SLICE_RECORDS_MAX", 2)


def stage_version(rig: TxnRig, version: int) -> None:
    records = [{"data": version, "topic": topic} for topic, count in RECORDS.items() for _ in range(count)]
    rig.stage("app", version, "s", *records[:6])
    rig.stage("app", version, "s", *records[6:], part=1)


def driven(rig: TxnRig, outcome: PendingChange) -> Iterator[None]:
    """The commit, in the smallest steps there are."""
    give_up_s = time.monotonic() + WAIT_S_MAX
    while not outcome.done:
        assert time.monotonic() < give_up_s, "the commit does not end"
        if not rig.work():
            time.sleep(0.0005)
        yield
        rig.store.settle()
        yield


def check_all_or_nothing(rig: TxnRig, acknowledged: int, begun: int) -> int:
    """Every version is in all topics or in none, none twice; the highest that is there."""
    found = {
        topic: Counter(rig.payloads(topic)) if topic in rig.store.state.by_name else Counter() for topic in RECORDS
    }
    there = 0
    for version in range(1, begun + 1):
        counts = {topic: found[topic][version] for topic in RECORDS}
        assert counts in (RECORDS, dict.fromkeys(RECORDS, 0)), f"version {version} is torn: {counts}"
        if counts == RECORDS:
            assert there == version - 1
            there = version
    assert there >= acknowledged
    assert (rig.version("app") or 0) == there
    return there


def check_aftermath(path: Path, disk: FaultyDisk, acknowledged: int, begun: int, *, stages_last: bool) -> None:
    with TxnRig(path, disk=disk, wal_file_bytes=WAL_FILE_BYTES) as rig:
        there = check_all_or_nothing(rig, acknowledged, begun)
        assert rig.hidden() == sum(
            len(stage.shelves)
            for app in rig.store.state.feature(Ledger).by_id.values()
            for stage in app.stages.values()
        )
        if there < begun:
            if not stages_last:
                with pytest.raises(StageNotFound):
                    rig.commit("app", begun, "s")
                stage_version(rig, begun)
            rig.commit("app", begun, "s")
        assert rig.commit("app", begun, "s").deduped
        assert check_all_or_nothing(rig, begun, begun) == begun


@pytest.mark.parametrize("mode", ["drop", "torn", "reorder"])
@pytest.mark.parametrize("durability", ["disk", "fsync"])
def test_a_power_failure_at_any_step_leaves_a_transaction_whole_or_absent(
    tmp_path: Path, mode: str, durability: str
) -> None:
    disk = FaultyDisk()
    tried = 0
    with TxnRig(tmp_path / "data", disk=disk, wal_file_bytes=WAL_FILE_BYTES) as rig:
        rig.configure("y", durability=durability)
        for version in (1, 2):
            stage_version(rig, version)
            if version == 2:
                rig.checkpoint()
            outcome = rig.begin_commit("app", version, "s")
            for _ in driven(rig, outcome):
                tried += 1
                if tried % 5 == 0:
                    into = tmp_path / f"after-{tried}"
                    after = disk.power_loss(rig.path, into, mode, seed=tried)  # pyright: ignore[reportArgumentType]
                    acknowledged = version if outcome.done else version - 1
                    check_aftermath(into, after, acknowledged, version, stages_last=False)
    assert tried > 20


def test_a_kill_at_any_step_leaves_a_transaction_whole_or_to_be_committed_again(tmp_path: Path) -> None:
    disk = FaultyDisk()
    tried = 0
    with TxnRig(tmp_path / "data", disk=disk, wal_file_bytes=WAL_FILE_BYTES) as rig:
        for version in (1, 2):
            stage_version(rig, version)
            if version == 2:
                rig.checkpoint()
            outcome = rig.begin_commit("app", version, "s")
            for _ in driven(rig, outcome):
                tried += 1
                if tried % 3 == 0:
                    into = tmp_path / f"after-{tried}"
                    after = disk.kill(rig.path, into)
                    check_aftermath(into, after, version if outcome.done else version - 1, version, stages_last=True)
    assert tried > 20


def test_an_acknowledged_commit_outlives_a_power_failure_whatever_the_class(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with TxnRig(tmp_path / "data", disk=disk, wal_file_bytes=WAL_FILE_BYTES) as rig:
        stage_version(rig, 1)
        rig.commit("app", 1, "s")
        token = rig.take_fence("app")
        after = disk.power_loss(rig.path, tmp_path / "after", "drop")
    with TxnRig(tmp_path / "after", disk=after, wal_file_bytes=WAL_FILE_BYTES) as rig:
        assert check_all_or_nothing(rig, 1, 1) == 1
        assert rig.take_fence("app") == token + 1
        # What follows is numbered above everything that a reader may have seen.
        assert rig.append("x", "next").first_seq > RECORDS["x"]


@pytest.mark.parametrize("nth", range(1, 12, 2))
def test_a_full_disk_refuses_the_commit_whole_and_it_can_be_tried_again(tmp_path: Path, nth: int) -> None:
    disk = FaultyDisk()
    with TxnRig(tmp_path / "data", disk=disk, wal_file_bytes=WAL_FILE_BYTES) as rig:
        rig.append("x", "before")
        stage_version(rig, 1)
        outcome = rig.begin_commit("app", 1, "s")
        disk.fail("pwritev", nth=nth, path=".log", error=errno.ENOSPC)
        for _ in driven(rig, outcome):
            pass
        if isinstance(outcome.error, StorageFull):
            assert rig.payloads("x") == ["before"]
            disk.heal()
            rig.store.step()
            rig.store.commit_log.flush()
            assert rig.hidden() == len(RECORDS)
            assert rig.append("x", "between").error is None
            rig.commit("app", 1, "s")
        else:
            assert outcome.error is None
            disk.heal()
        assert check_all_or_nothing(rig, 1, 1) == 1
        rig.crash()
        assert check_all_or_nothing(rig, 1, 1) == 1


def test_a_failed_sync_acknowledges_nothing_and_shows_nothing(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with TxnRig(tmp_path / "data", disk=disk, wal_file_bytes=WAL_FILE_BYTES) as rig:
        stage_version(rig, 1)
        disk.fail("fdatasync", times=-1)
        with pytest.raises(ReadOnly):
            rig.commit("app", 1, "s")
        assert all(rig.payloads(topic) == [] for topic in RECORDS if topic in rig.store.state.by_name)
        after = disk.power_loss(rig.path, tmp_path / "after", "drop")
    check_aftermath(tmp_path / "after", after, 0, 1, stages_last=False)


@pytest.mark.parametrize("late", range(1, 40, 4))
def test_a_checkpoint_at_any_moment_of_a_commit_agrees_with_the_log(tmp_path: Path, late: int) -> None:
    with TxnRig(tmp_path / "data", wal_file_bytes=WAL_FILE_BYTES) as rig:
        for version in (1, 2):
            stage_version(rig, version)
            outcome = rig.begin_commit("app", version, "s")
            checkpoint = rig.store._checkpointer.steps()
            running = True
            for number, _ in enumerate(driven(rig, outcome)):
                if running and number >= late // 4:
                    running = next(checkpoint, None) is not None
            for _ in checkpoint:
                rig.store.settle()
            rig.append("x", "more")
        rig.crash()
        assert check_all_or_nothing(rig, 2, 2) == 2
        assert rig.hidden() == 0
        rig.reopen()
        assert check_all_or_nothing(rig, 2, 2) == 2


def test_a_commit_between_the_mark_of_a_checkpoint_and_its_captures_is_in_the_log_alone(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with TxnRig(tmp_path / "data", disk=disk, wal_file_bytes=WAL_FILE_BYTES) as rig:
        stage_version(rig, 1)
        rig.commit("app", 1, "s")
        stage_version(rig, 2)
        rig.stage("app", 3, "next", 3, topic="x")
        outcome = rig.begin_commit("app", 2, "s")
        rig.work()
        gate = disk.hold("fdatasync", path=".log")
        checkpoint = rig.store._checkpointer.steps()
        while rig.store.state.capture_from == NEVER:
            next(checkpoint)
            rig.store.worker.poll()
        while rig.work():
            pass
        assert not outcome.done
        gate.open()
        rig.finish(outcome)
        for _ in checkpoint:
            rig.store.settle()
        rig.crash()
        assert check_all_or_nothing(rig, 2, 2) == 2
        assert rig.stages("app") == [(3, "next", 1, 1)]
        rig.commit("app", 3, "next")
        assert rig.payloads("x")[-1] == 3
