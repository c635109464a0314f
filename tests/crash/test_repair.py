"""Damage anywhere, then a repair: remaining records are right, losses are reported, and seqs continue above them."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.engine.conftest import COLD, OpenRig
from tests.engine.rig import Rig
from topics.engine.opening.store import Store
from topics.model.errors import DamagedData, TopicsError


def written(rig: Rig) -> dict[str, dict[int, str]]:
    """A database with snapshots, packs and a log; what was acknowledged, by topic and seq."""
    told: dict[str, dict[int, str]] = {}
    for number in range(60):
        for topic in ("a", "b"):
            value = f"{topic}{number}" + "x" * (number * 37 % 200)
            change = rig.append(topic, {"data": value, "tag": f"t{number % 7}"})
            told.setdefault(topic, {})[change.first_seq] = value
        if number in (20, 40):
            rig.checkpoint()
    return told


def damage(path: Path, rng: random.Random, clean: bool) -> None:
    """Flip a few bits, cut or remove one of the files that hold data.

    The newest log file of a killed process is spared: damage to its end looks like the torn end that a kill leaves.
    """
    files = sorted(file for file in path.glob("shard-00/*/*") if file.is_file() and "spare" not in file.name)
    logs = [file for file in files if file.suffix == ".log"]
    file = rng.choice([file for file in files if clean or file != logs[-1]])
    content = bytearray(file.read_bytes())
    used = len(content.rstrip(b"\0"))
    match rng.choice(("flip", "flip", "zero", "cut", "remove")):
        case "flip":
            for _ in range(rng.randint(1, 3)):
                content[rng.randrange(max(1, used))] ^= 1 << rng.randrange(8)
        case "zero":
            start = rng.randrange(max(1, used))
            content[start : start + 512] = bytes(len(content[start : start + 512]))
        case "cut":
            del content[rng.randrange(max(1, used)) :]
        case _:
            file.unlink()
            return
    file.write_bytes(content)


def damage_found(rig: Rig, told: dict[str, dict[int, str]]) -> DamagedData | None:
    """The refusal to start or to read; None if everything is there after all."""
    try:
        rig.open()
    except DamagedData as refusal:
        return refusal
    try:
        check(rig, told)
    except DamagedData as refusal:
        return refusal
    finally:
        put_away(rig)
    return None


def put_away(rig: Rig) -> None:
    rig.abandon()
    rig.store.packs.close()
    rig.store.directory.close()


def repair(rig: Rig) -> None:
    """What `topics repair` does."""
    store = Store(str(rig.path), rig.settings, clock=rig.clock, repair=True)
    for _ in store.opening():
        pass
    store.close()


def check(rig: Rig, told: dict[str, dict[int, str]]) -> None:
    for topic, records in told.items():
        if topic not in rig.store.state.by_name:
            continue  # its creation was lost: readers get "not found", and a new one has a new epoch
        found: dict[int, str] = {}
        gaps: set[int] = set()
        cursor = 0
        while True:
            diff = rig.diff(topic, cursor)
            if diff.tombstone is not None:
                gaps |= set(range(diff.tombstone.gap_from, diff.tombstone.gap_to + 1)) & set(records)
            for record in rig.records(topic, cursor) if cursor == 0 and not found else ():
                found[record["$seq"]] = record["data"]
            cursor = diff.next_from_seq
            if diff.caught_up:
                break
        assert all(records[seq] == value for seq, value in found.items()), "what is left is true"
        missing = set(records) - set(found)
        assert missing <= gaps, f"{topic}: lost in silence: {sorted(missing - gaps)}"
        assert not set(found) & gaps or missing, "a gap is reported only where something is missing"
        assert rig.look(topic).head_seq >= max(records), "no seq is used twice"


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_after_any_damage_a_repair_leaves_truth_and_gaps(open_rig: OpenRig, seed: int, clean: bool) -> None:
    rng = random.Random(seed)
    rig = open_rig(**COLD) if seed % 2 else open_rig(segment_max_events=10, wal_file_bytes=8192)
    told = written(rig)
    if clean:
        rig.close()
    else:
        put_away(rig)
    damage(rig.path, rng, clean)
    refusal = damage_found(rig, told)
    if refusal is None:
        return  # a file that was not needed, or the newer of two snapshots
    assert "topics repair" in refusal.message
    repair(rig)
    rig.open()
    check(rig, told)
    heads = {topic: rig.look(topic).head_seq for topic in told if topic in rig.store.state.by_name}
    for topic, head in heads.items():
        assert rig.append(topic, "goes on").first_seq == head + 1
    rig.reopen()
    for topic in heads:
        assert rig.records(topic)[-1]["data"] == "goes on"


def test_nothing_but_refusals_come_from_a_directory_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "meta.json").write_text('{"format": 99}')
    with pytest.raises(TopicsError):
        Rig(tmp_path / "data")
