"""`topics verify` finds damage, `topics repair` turns it into gaps that readers are told of; run as real processes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import topics


def run(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from topics.cli import main; main()", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A hundred records in ten segments, cleanly closed."""
    path = tmp_path / "data"
    with topics.open(str(path), topics.Settings(segment_max_events=10)) as db:
        for number in range(100):
            db.append("a", {"n": number})
    return path


def test_a_directory_in_order_is_found_fine(directory: Path) -> None:
    found = run("verify", str(directory))
    assert (found.returncode, found.stdout) == (0, "1 topics, 100 records, 4782 bytes: all fine\n")
    assert run("repair", str(directory)).stdout == "1 topics, 100 records are usable; nothing was damaged\n"


def test_damage_in_a_pack_is_found_named_and_repaired_into_a_tombstone(directory: Path) -> None:
    flip(next((directory / "shard-00" / "packs").glob("*.pack")), 3000)
    found = run("verify", str(directory))
    assert found.returncode == 1
    assert "topic a: seqs " in found.stdout

    repaired = run("repair", str(directory))
    assert repaired.returncode == 0
    assert "given up: topic a: seqs " in repaired.stdout
    assert run("verify", str(directory)).returncode == 0

    with topics.open(str(directory)) as db:
        seqs: list[int] = []
        lost: list[int] = []
        for item in db.tail("a", 0, idle_s=0):
            if isinstance(item, topics.Tombstone):
                assert item.reason == "lost"
                lost += range(item.gap_from, item.gap_to + 1)
            else:
                seqs.append(item.seq)
        assert lost
        assert sorted(seqs + lost) == list(range(1, 101))


def test_damage_in_the_log_refuses_to_open_and_is_repaired_into_a_tombstone(tmp_path: Path) -> None:
    path = tmp_path / "data"
    code = (
        "import os, topics, sys\n"
        f"db = topics.open({str(path)!r})\n"
        "for n in range(50): db.append('a', {'n': n})\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    flip(next((path / "shard-00" / "wal").glob("[0-9]*.log")), 2000)

    with pytest.raises(topics.TopicsError, match="topics repair"):
        topics.open(str(path))
    assert run("verify", str(path)).returncode == 1

    repaired = run("repair", str(path))
    assert repaired.returncode == 0
    assert "given up: " in repaired.stdout

    with topics.open(str(path)) as db:
        items = list(db.tail("a", 0, idle_s=0))
        gaps = [item for item in items if isinstance(item, topics.Tombstone)]
        assert [gap.reason for gap in gaps] == ["lost"] * len(gaps)
        assert len(gaps) == 2, "one in the middle, one above all that may have been seen"
        assert db.append("a", "next").first_seq > 50


def test_a_directory_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    found = run("verify", str(tmp_path / "nowhere"))
    assert found.returncode == 2
    assert found.stderr == f"topics: there is no directory {tmp_path / 'nowhere'}\n"
