"""Power failures: a destination never has more than its source, and `fsync` copies that were shown stay."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from tests.faults import FaultyDisk, Mode
from tests.routers.rig import RoutedRig
from topics.engine.opening.store import Store
from topics.model.errors import DamagedData

MODES: list[Mode] = ["drop", "torn", "reorder", "keep"]


def payloads(rig: RoutedRig, topic: str) -> list[Any]:
    return [record["data"] for record in rig.records(topic)]


@pytest.mark.crash
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(6))
def test_copies_and_cursor_fall_together(tmp_path: Path, mode: Mode, seed: int) -> None:
    chance = random.Random(seed)
    disk = FaultyDisk()
    rig = RoutedRig(tmp_path / "data0", disk=disk, wal_file_bytes=16_384)
    rig.configure("synced", durability="fsync")
    rig.route("a->once", "a", "once", guarantee="exactly_once")
    rig.route("a->synced", "a", "synced")
    rig.route("once->chained", "once", "chained")
    number = 0
    shown: dict[int, Any] = {}
    for life in range(1, 5):
        for _ in range(chance.randrange(5, 25)):
            rig.append("a", *range(number, number + 3))
            number += 3
            if chance.random() < 0.6:
                rig.store.forwarder.step()
                rig.store.settle()
            if chance.random() < 0.1:
                rig.checkpoint()
            if chance.random() < 0.1:
                rig.delete("a", before_seq=max(1, rig.look("a").head_seq - 20))
        shown.update({record["$seq"]: record["data"] for record in rig.records("synced")})
        rig.abandon()
        disk = disk.power_loss(rig.path, tmp_path / f"data{life}", mode, seed)
        rig = RoutedRig(tmp_path / f"data{life}", disk=disk, clock=rig.clock, wal_file_bytes=16_384)
        here = {record["$seq"]: record["data"] for record in rig.records("synced")}
        assert {seq: here.get(seq) for seq in shown} == shown
        rig.forward()
        for name in ("once", "synced", "chained"):
            copies = payloads(rig, name)
            assert copies == sorted(set(copies)), name
            assert set(payloads(rig, "a")) <= set(copies), name
    rig.abandon()


def test_a_mark_whose_source_cannot_be_read_refuses_the_start_and_repair_makes_it_a_gap(tmp_path: Path) -> None:
    rig = RoutedRig(tmp_path / "data", wal_file_bytes=1 << 20)
    rig.append("a", *range(10))
    rig.checkpoint()
    rig.route("a->b", "a", "b", backfill=True)
    assert rig.copies("b") == list(range(10))
    rig.abandon()
    rig.store.directory.close()
    [pack] = (rig.path / "shard-00" / "packs").glob("*.pack")
    data = bytearray(pack.read_bytes())
    data[120] ^= 1
    pack.write_bytes(bytes(data))
    with pytest.raises(DamagedData, match="topics repair"):
        rig.open()
    repaired = Store(str(rig.path), rig.settings, clock=rig.clock, repair=True)
    for _ in repaired.opening():
        pass
    assert any("cannot be read" in line for line in repaired.given_up)
    repaired.close()
    rig.open()
    rig.forward()
    found = rig.diff("b").tombstone
    assert found is not None
    assert rig.append("a", "more").done
    assert rig.copies("b")[-1] == "more"
    rig.abandon()
