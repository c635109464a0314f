"""A small database whose log is cut or damaged at every byte: a prefix, a refusal, never something else."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.conftest import OpenRig
from tests.engine.rig import Rig
from tests.engine.test_checkpoint import everything
from tests.faults import FaultyDisk
from tests.serving import ServerProcess, serving
from topics.engine.opening.store import Store
from topics.model.errors import DamagedData


def written(rig: Rig) -> Iterator[None]:
    """Steps of a small history, each an acknowledged change."""
    rig.append("a", 1)
    yield
    rig.append("a", {"data": 2, "tag": "t", "node": "n"}, {"data": 3, "meta": {"m": 1}}, idempotency_key="k")
    yield
    rig.configure("b", cap_records=2, durability="fsync")
    yield
    rig.append("b", 1, 2, 3)
    yield
    rig.delete("a", match="t")
    yield
    rig.configure("a", ttl_ms=1000)
    yield
    rig.drop("b")
    yield
    rig.append("a", "end")
    yield


def history(rig: Rig) -> list[str]:
    """What a reader could see after each step, the empty database first; comparable."""
    states = [shown(rig)]
    states += [shown(rig) for _ in written(rig)]
    return states


def shown(rig: Rig) -> str:
    """Topics that never had a record are left out: a first write cut in the middle may leave its topic, empty."""
    found = {name: facts for name, facts in everything(rig).items() if facts[1][0]}
    return json.dumps(found, default=str, sort_keys=True)


def log_of(path: Path) -> Path:
    """The log file that holds frames, the spare ones aside."""
    logs = sorted(path.glob("shard-00/wal/*.log"))
    return max(logs, key=lambda log: len(log.read_bytes().rstrip(b"\0")))


@pytest.fixture
def small(open_rig: OpenRig) -> tuple[Rig, list[str], bytes]:
    """A killed database: its rig, its history, and the bytes of its log."""
    rig = open_rig(disk=FaultyDisk(), wal_file_bytes=4096)
    states = history(rig)
    rig.abandon()
    rig.store.directory.close()
    return rig, states, log_of(rig.path).read_bytes()


def reopened(rig: Rig, content: bytes | None, boot_id: str, *, synced: bool = False) -> Rig:
    """The database with this log (None: without it), in a directory of its own; as if it had not been `synced` yet."""
    copy = rig.path.with_name("copy")
    for old in rig.path.parent.glob("copy*"):
        shutil.rmtree(old)
    shutil.copytree(rig.path, copy)
    if not synced:
        (copy / "shard-00/wal/synced").unlink()
    if content is None:
        log_of(copy).unlink()
    else:
        log_of(copy).write_bytes(content)
    return Rig(copy, disk=FaultyDisk(boot_id), clock=rig.clock, wal_file_bytes=4096)


def put_away(rig: Rig) -> None:
    rig.abandon()
    rig.store.directory.close()


@pytest.mark.parametrize("step", [23, pytest.param(1, marks=[pytest.mark.crash, pytest.mark.timeout(1800)])])
def test_a_log_cut_at_every_byte_recovers_a_prefix(small: tuple[Rig, list[str], bytes], step: int) -> None:
    rig, states, content = small
    end = len(content.rstrip(b"\0"))
    seen: list[int] = []
    for length in (*range(64, end, step), end):
        found = reopened(rig, content[:length], "boot-1")
        seen.append(states.index(shown(found)))
        put_away(found)
    assert seen == sorted(seen), "a longer log never shows less"
    assert seen[0] == 0
    assert {states[number] for number in seen} == set(states), "every step is met"


@pytest.mark.parametrize("boot_id", ["boot-1", "boot-2"], ids=["killed", "power failure"])
@pytest.mark.parametrize("way", ["cut", "zeroed", "overwritten"])
def test_a_log_cut_below_what_was_synced_is_refused(
    small: tuple[Rig, list[str], bytes], way: str, boot_id: str
) -> None:
    rig, _, content = small
    end = len(content.rstrip(b"\0"))
    rng = random.Random(1)
    for length in (0, *range(64, end, 59), end - 1):
        rest = len(content) - length
        tail = {"cut": b"", "zeroed": bytes(rest), "overwritten": rng.randbytes(rest)}[way]
        with pytest.raises(DamagedData, match="topics repair"):
            reopened(rig, content[:length] + tail, boot_id, synced=True)
    put_away(reopened(rig, content[:end], boot_id, synced=True))


@pytest.mark.parametrize("boot_id", ["boot-1", "boot-2"], ids=["killed", "power failure"])
def test_a_log_file_that_was_removed_is_refused_if_it_had_been_synced(
    small: tuple[Rig, list[str], bytes], boot_id: str
) -> None:
    with pytest.raises(DamagedData, match="topics repair"):
        reopened(small[0], None, boot_id, synced=True)


def test_a_log_cut_below_what_was_synced_is_repaired_into_a_tombstone_and_no_head_goes_back(
    small: tuple[Rig, list[str], bytes],
) -> None:
    rig, _, content = small
    head = rig.look("a").head_seq
    at = content.index(b'"data":2')
    with pytest.raises(DamagedData):
        reopened(rig, content[:at], "boot-1", synced=True)
    path = rig.path.with_name("copy")
    store = Store(str(path), rig.settings, clock=rig.clock, repair=True)
    for _ in store.opening():
        pass
    store.close()
    with Rig(path, clock=rig.clock) as again:
        assert again.seqs("a") == [1]
        told = again.diff("a", 1).tombstone
        assert told is not None
        assert (told.gap_from, told.reason) == (2, "lost")
        assert again.append("a", "goes on").first_seq > head


def test_a_log_that_ends_before_the_last_synced_position_is_refused_by_a_real_server(tmp_path: Path) -> None:
    with serving(tmp_path / "data") as server:
        client = server.client()
        client.put("/v0/topics/a", {"durability": "fsync"})
        for number in range(20):
            assert client.append("a", number).status == 200
        server.kill()
        log = log_of(tmp_path / "data")
        content = log.read_bytes()
        log.write_bytes(content[: content.index(b'"data":15')])
        second = ServerProcess(tmp_path / "data")
        assert second.exit_code() != 0
        assert "had been synced up to position" in second.log
        assert "topics repair" in second.log


def test_a_log_cut_anywhere_writes_on(small: tuple[Rig, list[str], bytes]) -> None:
    rig, _, content = small
    end = len(content.rstrip(b"\0"))
    for length in range(64, end + 1, 97):
        found = reopened(rig, content[:length], "boot-1")
        head = found.look("a").head_seq if "a" in found.store.state.by_name else 0
        assert found.append("a", "goes on").first_seq == head + 1
        before = shown(found)
        found.crash()
        assert shown(found) == before
        put_away(found)


def test_a_flipped_bit_anywhere_before_the_last_frame_refuses_the_start(
    small: tuple[Rig, list[str], bytes],
) -> None:
    rig, states, content = small
    end = len(content.rstrip(b"\0"))
    last = content.rindex(content[64:68], 0, end)
    refusals: list[tuple[int, DamagedData]] = []
    for offset in range(64, end, 13):
        broken = bytearray(content)
        broken[offset] ^= 0x10
        try:
            found = reopened(rig, bytes(broken), "boot-1")
        except DamagedData as error:
            refusals.append((offset, error))
        else:
            assert offset >= last, f"damage at {offset} was accepted in silence"
            assert shown(found) in states
            put_away(found)
    assert len(refusals) > 20
    for offset, error in refusals:
        assert "topics repair" in error.message
        assert Path(error.detail["file"]).name == log_of(rig.path).name
        assert error.detail["offset"] <= offset


def test_a_torn_end_that_was_never_synced_does_not_refuse_the_start(open_rig: OpenRig, tmp_path: Path) -> None:
    disk = FaultyDisk()
    rig = open_rig(disk=disk)
    rig.append("a", 1)
    rig.configure("sync")
    gate = disk.hold("fdatasync", path=".log")
    rig.append("a", 2)
    rig.append("a", 3)
    for seed in range(20):
        into = tmp_path / f"torn{seed}"
        survivor = disk.power_loss(rig.path, into, "reorder", seed)
        found = Rig(into, disk=survivor)
        assert found.seqs("a") in ([1], [1, 2], [1, 2, 3])
        put_away(found)
    gate.open()


def test_recovering_twice_leaves_the_same_bytes(small: tuple[Rig, list[str], bytes]) -> None:
    rig, states, content = small
    found = reopened(rig, content[: len(content.rstrip(b"\0")) - 5], "boot-1")
    put_away(found)

    def files() -> dict[str, bytes]:
        return {
            path.name: path.read_bytes().rstrip(b"\0")
            for path in sorted(found.path.glob("shard-00/wal/*.log"))
            if path.read_bytes().rstrip(b"\0")
        }

    once, state = files(), shown(found)
    for _ in range(3):
        found.open()
        assert shown(found) == state
        put_away(found)
        assert files() == once
    assert state in states


def test_a_database_without_its_snapshots_refuses_to_start_on_a_trimmed_log(open_rig: OpenRig) -> None:
    rig = open_rig(wal_file_bytes=4096)
    for _ in range(4):
        for _ in range(10):
            rig.append("a", "x" * 1000)
        rig.checkpoint()
    rig.close()
    for path in rig.path.glob("shard-00/snapshots/*"):
        path.unlink()
    with pytest.raises(DamagedData):
        rig.open()
    rig.path = rig.path.with_name("other")
    rig.open()


def test_a_damaged_newest_snapshot_falls_back_to_the_one_before_and_loses_nothing(open_rig: OpenRig) -> None:
    rig = open_rig(wal_file_bytes=4096, segment_max_events=5, hot_retain_segments=0, hot_retain_bytes=0)
    for number in range(4):
        for _ in range(6):
            rig.append("a", {"data": "x" * 300, "tag": f"t{number}"})
        rig.delete("a", match=f"t{number - 2}")
        rig.checkpoint()
    rig.append("a", "end")
    before = everything(rig)
    put_away(rig)
    damage_newest_snapshot(rig)
    rig.open()
    assert everything(rig) == before
    rig.checkpoint()
    rig.reopen()
    assert everything(rig) == before


def damage_newest_snapshot(rig: Rig) -> None:
    newest = max(rig.path.glob("shard-00/snapshots/*"))
    content = bytearray(newest.read_bytes())
    content[len(content) // 2] ^= 1
    newest.write_bytes(content)


@pytest.mark.parametrize("record_bytes", [10, 1500])
def test_the_snapshot_before_finds_its_log_and_its_packs(open_rig: OpenRig, record_bytes: int) -> None:
    """A growing tail is packed again each time, so that the newest snapshot needs none of the older packs."""
    rig = open_rig(wal_file_bytes=4096, hot_retain_segments=0, hot_retain_bytes=0)
    for _ in range(4):
        for _ in range(12):
            rig.append("a", "x" * record_bytes)
        rig.checkpoint()
    before = everything(rig)
    put_away(rig)
    damage_newest_snapshot(rig)
    rig.open()
    assert everything(rig) == before


def test_the_snapshot_before_finds_what_was_copied_out_of_a_sparse_pack(open_rig: OpenRig) -> None:
    rig = open_rig(segment_max_events=1, hot_retain_segments=0, hot_retain_bytes=0)
    for number in range(10):
        rig.append("a", {"data": "x" * 300, "tag": f"t{number}"})
    rig.checkpoint()
    for number in range(1, 10):
        rig.delete("a", match=f"t{number}")
    before = everything(rig)
    for _ in range(2):
        rig.checkpoint()
    put_away(rig)
    damage_newest_snapshot(rig)
    rig.open()
    assert everything(rig) == before
