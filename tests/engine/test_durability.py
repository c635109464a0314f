"""The classes: what each promises over a restart, when it is visible, and what it costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.decoders import config_decoder
from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig
from tests.engine.test_append import request
from tests.faults import FaultyDisk
from topics.engine.opening.store import Store
from topics.model.clock import SystemClock
from topics.model.errors import DataDirIncompatible
from topics.model.requests.records import decode_body

LASTING = ["memory", "disk", "fsync"]


@pytest.mark.parametrize("durability", LASTING)
@pytest.mark.parametrize("way", ["reopen", "crash"])
def test_what_was_acknowledged_is_there_after_a_kill_or_a_stop(rig: Rig, durability: str, way: str) -> None:
    rig.append("a", 1, 2, config={"durability": durability})
    rig.append("a", 3)
    before = rig.records("a")
    getattr(rig, way)()
    assert rig.records("a") == before
    assert rig.append("a", 4).first_seq == 4


@pytest.mark.parametrize("way", ["reopen", "crash", "checkpoint and crash"])
def test_an_ephemeral_topic_keeps_its_head_and_tells_what_is_lost(rig: Rig, way: str) -> None:
    rig.append("a", *range(5), config={"durability": "ephemeral", "ttl_ms": 99_000})
    epoch = rig.look("a").epoch
    if way.startswith("checkpoint"):
        rig.checkpoint()
        rig.append("a", 6)
    seen = rig.look("a").head_seq
    getattr(rig, way.rsplit(maxsplit=1)[-1])()
    state = rig.look("a")
    assert (state.count, state.bytes, state.config.ttl_ms, state.epoch) == (0, 0, 99_000, epoch)
    assert state.head_seq >= seen, "no seq that a reader saw is handed out again"
    if way == "reopen":
        assert state.head_seq == seen
    diff = rig.diff("a", 2)
    assert diff.tombstone is not None
    assert (diff.tombstone.gap_from, diff.tombstone.gap_to) == (3, state.head_seq)
    assert diff.tombstone.reason == "lost"
    assert diff.caught_up
    change = rig.append("a", "new")
    assert change.first_seq == state.head_seq + 1
    assert rig.seqs("a") == [change.first_seq]


def test_an_ephemeral_topic_is_fully_usable_while_it_lives(rig: Rig) -> None:
    rig.configure("a", durability="ephemeral", cap_records=4)
    for number in range(6):
        rig.append("a", {"data": number, "tag": f"t{number}"})
    assert rig.seqs("a") == [3, 4, 5, 6]
    assert rig.delete("a", match="t4") == 1
    rig.checkpoint()
    assert rig.seqs("a") == [3, 4, 6]


def test_an_ephemeral_payload_never_reaches_the_disk(rig: Rig) -> None:
    rig.configure("a", durability="ephemeral")
    rig.append("a", "SECRET-PAYLOAD")
    rig.delete("a", before_seq=1)
    rig.checkpoint()
    rig.close()
    assert not any(b"SECRET-PAYLOAD" in path.read_bytes() for path in rig.path.rglob("*") if path.is_file())


def test_an_ephemeral_head_survives_one_crash_after_the_other_without_reuse(rig: Rig) -> None:
    rig.configure("a", durability="ephemeral")
    seen: set[int] = set()
    for _ in range(5):
        change = rig.append("a", 1, 2)
        fresh = {change.first_seq, change.last_seq}
        assert not fresh & seen
        seen |= fresh
        rig.crash()


@pytest.mark.parametrize("first", ["ephemeral", *LASTING])
@pytest.mark.parametrize("second", ["ephemeral", *LASTING])
def test_a_class_changes_in_place_and_holds_for_what_comes_after(rig: Rig, first: str, second: str) -> None:
    rig.append("a", 1, 2, config={"durability": first})
    rig.configure("a", durability=second)
    assert rig.look("a").config.durability == second
    assert rig.look("a").config.durable == (second == "fsync")
    assert rig.append("a", 3).first_seq == 3
    assert rig.seqs("a") == [1, 2, 3]
    rig.crash()
    head = rig.look("a").head_seq
    assert head >= 3
    if second != "ephemeral":
        assert rig.seqs("a")[-1] == head == 3
    if "ephemeral" not in (first, second):
        assert rig.seqs("a") == [1, 2, 3]
    assert rig.append("a", 4).first_seq == head + 1


def test_records_made_lasting_by_a_checkpoint_stay_after_the_class_changed(rig: Rig) -> None:
    rig.append("a", 1, 2, config={"durability": "ephemeral"})
    rig.configure("a", durability="disk")
    rig.append("a", 3)
    rig.checkpoint()
    rig.crash()
    assert rig.seqs("a") == [1, 2, 3]


def test_ephemeral_records_before_a_change_of_class_are_a_hole_with_a_tombstone_after_a_crash(rig: Rig) -> None:
    rig.append("a", 1, 2, config={"durability": "ephemeral"})
    rig.configure("a", durability="disk")
    rig.append("a", 3)
    rig.crash()
    diff = rig.diff("a", 0)
    assert diff.tombstone is not None
    assert (diff.tombstone.gap_from, diff.tombstone.gap_to, diff.tombstone.reason) == (1, 2, "lost")
    assert rig.seqs("a") == [3]


# --- visibility ---


def test_an_fsync_record_is_never_visible_before_it_is_durable(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("a", durability="fsync")
    gate = disk.hold("fdatasync", path=".log")
    change = rig.engine.append("a", request(1))
    for _ in range(3):
        rig.store.commit_log.flush()
        rig.store.settle()
        assert not change.done
        assert rig.look("a").head_seq == 0
        assert rig.diff("a").count == 0
    gate.open()
    rig.finish(change)
    assert rig.store.wal.synced_to >= change.position
    assert rig.seqs("a") == [1]


def test_later_records_of_a_topic_wait_for_earlier_ones_whatever_their_class(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("a", durability="disk")
    rig.append("b", 0)
    gate = disk.hold("fdatasync", path=".log")
    configured = rig.engine.configure("a", decode_body(config_decoder, b'{"ttl_ms":5}'))
    rig.store.commit_log.flush()
    other = rig.engine.append("b", request(1))
    rig.store.commit_log.flush()
    assert other.done, "another topic does not wait"
    assert not configured.done
    gate.open()
    rig.finish(configured)


def test_a_disk_record_is_acknowledged_after_the_write_without_a_sync(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("a")
    gate = disk.hold("fdatasync")
    change = rig.engine.append("a", request(1))
    written = disk.calls["pwritev.log"]
    rig.store.commit_log.flush()
    assert change.done
    assert disk.calls["pwritev.log"] == written + 1
    gate.open()


def test_one_tick_is_one_write(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    for topic in "abc":
        rig.configure(topic)
    written = disk.calls["pwritev.log"]
    change = [rig.engine.append(topic, request(*range(5))) for topic in "abcabc"]
    rig.store.commit_log.flush()
    assert all(one.done for one in change)
    assert disk.calls["pwritev.log"] == written + 1


def test_many_fsync_appends_share_one_sync(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("a", durability="fsync")
    before = disk.calls["fdatasync"]
    change = [rig.engine.append("a", request(number)) for number in range(100)]
    for one in change:
        rig.finish(one)
    assert disk.calls["fdatasync"] - before <= 3


# --- what it costs ---


@pytest.mark.parametrize("durability", ["ephemeral", *LASTING])
def test_the_time_of_a_sync_is_reported_by_fsync_topics_alone(open_rig: OpenRig, durability: str) -> None:
    rig = open_rig(clock=SystemClock())
    rig.configure("a", durability=durability)
    change = rig.append("a", 1)
    assert (change.fsync_ms > 0.0) == (durability == "fsync")
    if durability != "ephemeral":
        assert change.wal_append_ms > 0.0


def test_the_time_of_a_sync_is_the_time_the_answer_was_held(open_rig: OpenRig) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.configure("a", durability="fsync")
    gate = disk.hold("fdatasync", path=".log")
    change = rig.engine.append("a", request(1))
    rig.store.commit_log.flush()
    rig.clock.advance(40)
    gate.open()
    assert rig.finish(change).fsync_ms == 40


@pytest.mark.parametrize("way", ["reopen", "crash", "checkpoint and crash"])
def test_what_was_written_before_a_topic_became_ephemeral_stays(rig: Rig, way: str) -> None:
    rig.append("a", 1, 2, config={"durability": "fsync"})
    rig.configure("a", durability="ephemeral")
    rig.append("a", 3)
    if way.startswith("checkpoint"):
        rig.checkpoint()
    getattr(rig, way.rsplit(maxsplit=1)[-1])()
    assert rig.seqs("a") == [1, 2]
    tombstone = rig.diff("a", 2).tombstone
    assert tombstone is not None
    assert (tombstone.gap_from, tombstone.reason) == (3, "lost")


@pytest.mark.parametrize("content", [None, b"", b'{"format": 1, "boot', b"\xff\xfe", b'{"format": 1}'])
def test_a_repair_does_without_meta_json_and_supposes_a_power_failure(tmp_path: Path, content: bytes | None) -> None:
    rig = Rig(tmp_path / "data")
    rig.append("a", 1, 2)
    rig.close()
    for name in ("meta.json", "meta.copy.json"):
        meta = tmp_path / "data" / name
        if content is None:
            meta.unlink()
        else:
            meta.write_bytes(content)
    with pytest.raises(DataDirIncompatible, match="topics repair"):
        rig.open()
    store = Store(str(tmp_path / "data"), clock=rig.clock, repair=True)
    for _ in store.opening():
        pass
    store.close()
    with Rig(tmp_path / "data", clock=rig.clock) as again:
        assert again.seqs("a") == [1, 2]
        assert again.append("a", 3).first_seq > 1000, "seqs that may have been lost are not used again"
