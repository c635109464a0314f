"""A flipped byte anywhere in a small data directory: a refusal, an error that names it, or everything as it was."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.crash.test_repair import check, damage_found, put_away, repair, written
from tests.engine.rig import Rig

STEP = 211
# `make flips`: every byte.
WANTED = [int(step) for step in (os.environ.get("FLIP_STEP"),) if step]
SPARED = ("lock",)


@pytest.fixture
def whole(tmp_path: Path) -> tuple[Rig, dict[str, dict[int, str]]]:
    rig = Rig(tmp_path / "data", segment_max_events=10, hot_retain_segments=0, hot_retain_bytes=0, wal_file_bytes=8192)
    told = written(rig)
    put_away(rig)
    rig.path.rename(tmp_path / "whole")
    return rig, told


def places(path: Path, step: int) -> list[tuple[str, int]]:
    """Files that hold something, and offsets in them."""
    found: list[tuple[str, int]] = []
    for file in sorted(path.rglob("*")):
        if file.is_file() and file.name not in SPARED and "spare" not in file.name:
            used = len(file.read_bytes().rstrip(b"\0"))
            found += [(str(file.relative_to(path)), offset) for offset in range(len(found) % step, used, step)]
    return found


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(STEP, marks=pytest.mark.timeout(1200)),
        pytest.param(37, marks=[pytest.mark.crash, pytest.mark.timeout(3600)]),
        *(pytest.param(step, marks=[pytest.mark.crash, pytest.mark.timeout(36_000)], id="wanted") for step in WANTED),
    ],
)
def test_a_flipped_byte_is_never_served_nor_passed_over(
    whole: tuple[Rig, dict[str, dict[int, str]]], tmp_path: Path, step: int
) -> None:
    rig, told = whole
    refusals = 0
    chosen = places(tmp_path / "whole", step)
    for name, offset in chosen:
        shutil.rmtree(rig.path, ignore_errors=True)
        shutil.copytree(tmp_path / "whole", rig.path)
        content = bytearray((rig.path / name).read_bytes())
        content[offset] ^= 0x04
        (rig.path / name).write_bytes(content)
        refusal = damage_found(rig, told)
        if refusal is None:
            continue
        refusals += 1
        assert "topics repair" in refusal.message, (name, offset)
        repair(rig)
        rig.open()
        check(rig, told)
        put_away(rig)
    print(f"{len(chosen)} bytes flipped, each in a directory of its own; {refusals} were refused and repaired")
    assert refusals > 10
