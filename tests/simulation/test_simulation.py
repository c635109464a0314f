"""The simulation finds nothing in a hundred worlds, finds a disk that lies, and gives the same world for the same seed.

Worlds run in processes of their own: their time, threads and randomness are put in place before the server is imported.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
WORLDS = 25
TWICE = 5 * int(os.environ.get("TOPICS_TORTURE", "1"))


def simulate(*options: str, hash_seed: str = "0", cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *options],
        cwd=cwd,
        env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("seeds", ["0-2"])
def test_a_few_worlds_break_no_promise(seeds: str) -> None:
    ended = simulate("--seeds", seeds)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert not ended.stderr


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 4 * WORLDS, WORLDS))
def test_a_hundred_worlds_break_no_promise(first: int) -> None:
    ended = simulate("--seeds", f"{first}-{first + WORLDS - 1}")
    assert ended.returncode == 0, ended.stdout + ended.stderr


def test_a_disk_that_forgets_what_it_synced_is_found() -> None:
    ended = simulate("--seeds", "9-10", "--lying-disk")
    assert ended.returncode == 1, ended.stdout + ended.stderr
    assert "`make simulate SEED=" in ended.stdout


def test_the_same_seed_is_the_same_world_to_the_byte(tmp_path: Path) -> None:
    one = simulate("--seeds", "3-4", "--digests", hash_seed="1")
    other = simulate("--seeds", "3-4", "--digests", "--data-dir", "/elsewhere", hash_seed="2", cwd=tmp_path)
    assert one.returncode == other.returncode == 0, one.stdout + one.stderr + other.stdout + other.stderr
    assert digests(one) == digests(other)


@pytest.mark.slow
def test_many_seeds_are_the_same_worlds_to_the_byte(tmp_path: Path) -> None:
    seeds = f"0-{TWICE - 1}"
    one = simulate("--seeds", seeds, "--digests", hash_seed="1")
    other = simulate("--seeds", seeds, "--digests", "--data-dir", "/elsewhere", hash_seed="2", cwd=tmp_path)
    assert digests(one) == digests(other)
    assert len(digests(one)) == TWICE


def digests(ended: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines with a seed and two digests; the others tell of the time it took."""
    return [line for line in ended.stdout.splitlines() if len(line.split()) == 3 and len(line.split()[1]) == 64]
