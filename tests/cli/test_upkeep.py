"""`topics verify` finds damage, `topics repair` turns it into gaps that readers see; run as real processes."""

from __future__ import annotations

import os
import pty
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import topics
from tests import launching
from tests.patience import PATIENCE_S


def run(*args: str) -> subprocess.CompletedProcess[str]:
    done = launching.run(args, os.environ)
    return subprocess.CompletedProcess(args, done.returncode, done.stdout.decode(), done.stderr.decode())


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def contents(path: Path) -> dict[str, tuple[bytes, int]]:
    """Every file below a directory: what is in it, and when it was changed."""
    files = [file for file in path.rglob("*") if file.is_file()]
    return {str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime_ns) for file in files}


def killed(path: Path, code: str) -> None:
    """What a process leaves that runs this with a database `db`, and is killed."""
    program = f"import os, topics\ndb = topics.open({str(path)!r})\n{code}\nos.kill(os.getpid(), 9)\n"
    assert launching.run([], os.environ, code=program).returncode == -signal.SIGKILL


def asked(answer: str, *args: str) -> str:
    """All that the command writes on a terminal where this is typed."""
    leader, follower = pty.openpty()
    os.write(leader, answer.encode())
    with subprocess.Popen(
        [sys.executable, "-c", "from topics.cli import main; main()", *args],
        stdin=follower, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as process:  # fmt: skip
        written, _ = process.communicate(timeout=PATIENCE_S)
    os.close(leader)
    os.close(follower)
    return written


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

    repaired = run("repair", str(directory), "--yes")
    assert repaired.returncode == 0
    assert "would be lost: topic a: seqs " in repaired.stdout
    assert "\ngiven up: topic a: seqs " in repaired.stdout
    assert "may come back" not in repaired.stdout, "the log is whole"
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
    killed(path, "for n in range(50): db.append('a', {'n': n})")
    flip(next((path / "shard-00" / "wal").glob("[0-9]*.log")), 2000)

    with pytest.raises(topics.TopicsError, match="topics repair"):
        topics.open(str(path))
    assert run("verify", str(path)).returncode == 1

    before = contents(path)
    refused = run("repair", str(path))
    assert refused.returncode == 2
    assert "would be lost: " in refused.stdout
    assert "needs --yes" in refused.stderr
    assert contents(path) == before

    repaired = run("repair", str(path), "--yes")
    assert repaired.returncode == 0
    assert "\ngiven up: " in repaired.stdout
    assert run("verify", str(path)).returncode == 0

    with topics.open(str(path)) as db:
        items = list(db.tail("a", 0, idle_s=0))
        gaps = [item for item in items if isinstance(item, topics.Tombstone)]
        assert [gap.reason for gap in gaps] == ["lost"] * len(gaps)
        assert len(gaps) == 2, "one in the middle, one above all that may have been seen"
        assert db.append("a", "next").first_seq > 50


def test_a_verification_changes_nothing(tmp_path: Path) -> None:
    """Of a directory that a killed process left: a start would cut, allocate, rename and write."""
    path = tmp_path / "data"
    killed(path, "for n in range(50): db.append('a', {'n': n})")
    (path / "shard-00" / "packs" / "00000000000000000099.pack.tmp").write_bytes(b"left over")
    before = contents(path)
    found = run("verify", str(path))
    assert (found.returncode, found.stdout[-9:]) == (0, "all fine\n"), found
    assert contents(path) == before

    flip(next((path / "shard-00" / "wal").glob("[0-9]*.log")), 2000)
    before = contents(path)
    assert run("verify", str(path)).returncode == 1
    assert contents(path) == before


@pytest.mark.parametrize("command", [("verify",), ("repair", "--yes")])
def test_a_directory_that_holds_something_else_is_refused_and_left_as_it_is(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    (tmp_path / "hosts").write_text("127.0.0.1 localhost\n")
    found = run(*command, str(tmp_path))
    assert found.returncode == 2
    assert found.stderr == f"topics: {tmp_path} is not a data directory: it has no meta.json\n"
    assert [file.name for file in tmp_path.iterdir()] == ["hosts"]


def test_missing_folders_are_damage_only_if_something_was_in_them(directory: Path, tmp_path: Path) -> None:
    for name in ("wal", "packs", "snapshots"):
        copy = tmp_path / name
        shutil.copytree(directory, copy)
        shutil.rmtree(copy / "shard-00" / name)
        found = run("verify", str(copy))
        # The snapshot has what the log has, and the log here still has what the snapshot has.
        assert found.returncode == (1 if name == "packs" else 0), found
        assert found.stderr.count("Traceback") == 0


def test_data_without_meta_json_is_refused_by_verify(directory: Path) -> None:
    (directory / "meta.json").unlink()
    assert run("verify", str(directory)).returncode == 2


def test_a_damaged_meta_file_is_found_and_written_anew(directory: Path) -> None:
    flip(directory / "meta.json", 40)
    found = run("verify", str(directory))
    assert found.returncode == 1
    assert "meta.json is damaged: it fails its checksum; no record is lost" in found.stdout
    assert "would be written again" in run("repair", str(directory), "--yes").stdout
    assert run("verify", str(directory)).returncode == 0

    flip(directory / "meta.json", 40)
    flip(directory / "meta.copy.json", 40)
    assert run("verify", str(directory)).returncode == 1
    assert run("repair", str(directory), "--yes").returncode == 0
    assert run("verify", str(directory)).returncode == 0


@pytest.mark.parametrize("command", ["verify", "repair"])
def test_a_directory_in_use_is_left_alone(directory: Path, command: str) -> None:
    with topics.open(str(directory)):
        found = run(command, str(directory))
        assert found.returncode == 2
        assert "is in use by process" in found.stderr


@pytest.mark.slow
def test_a_repair_asks_on_a_terminal_and_does_nothing_without_a_yes(directory: Path) -> None:
    flip(next((directory / "shard-00" / "packs").glob("*.pack")), 3000)
    before = contents(directory)
    answered = asked("n\n", "repair", str(directory))
    assert "would be lost: topic a: seqs " in answered
    assert "Lost records cannot be recovered" in answered
    assert "nothing was changed" in answered
    assert contents(directory) == before
    assert "records are usable; 1 gaps" in asked("y\n", "repair", str(directory))


def test_a_flipped_byte_gives_up_the_records_that_it_hit_and_not_their_block(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with topics.open(str(path)) as db:
        db.append_many("a", [{"n": number, "text": "x" * 60} for number in range(3000)])
    (pack,) = (path / "shard-00" / "packs").glob("*.pack")
    content = pack.read_bytes()
    flip(pack, content.index(b'"n":1500'))
    repaired = run("repair", str(path), "--yes")
    assert repaired.returncode == 0
    with topics.open(str(path)) as db:
        items = list(db.tail("a", 0, idle_s=0))
    gaps = [item for item in items if isinstance(item, topics.Tombstone)]
    records = [item for item in items if not isinstance(item, topics.Tombstone)]
    assert [gap.reason for gap in gaps] == ["lost"]
    lost = range(gaps[0].gap_from, gaps[0].gap_to + 1)
    assert 1501 in lost
    assert gaps[0].missed_estimate == len(lost) <= 20
    assert {record.seq: record.data["n"] for record in records} == {
        seq: seq - 1 for seq in range(1, 3001) if seq not in lost
    }


def test_a_repair_says_what_may_come_back(tmp_path: Path) -> None:
    path = tmp_path / "data"
    killed(
        path,
        "db.configure('jobs', type='queue')\n"
        "for n in range(50): db.append('jobs', {'n': n})\n"
        "for n in range(50): db.append('a', {'n': n})\n"
        "db.delete('a', before_seq=40)\n"
        "db.configure('zzz')",
    )
    log = next((path / "shard-00" / "wal").glob("[0-9]*.log"))
    flip(log, log.read_bytes().index(b"zzz") - 68)  # in the frame before the one that makes zzz
    planned = run("repair", str(path))
    assert "may reappear: records that were deleted in the lost part of the log (" in planned.stdout
    assert "may reappear: jobs that were acked in it, and are delivered again: queue jobs\n" in planned.stdout
    assert run("repair", str(path), "--yes").returncode == 0
    with topics.open(str(path)) as db:
        assert next(iter(db.tail("a", 0, idle_s=0))).seq == 1, "it has come back"  # type: ignore[reportAttributeAccessIssue]


def test_records_in_a_cold_directory_are_looked_for_there(tmp_path: Path) -> None:
    path, cold = tmp_path / "data", tmp_path / "cold"
    settings = topics.Settings(
        segment_max_events=10, hot_retain_segments=0, hot_retain_bytes=0, checkpoint_ms=1, cold_dir=str(cold)
    )
    with topics.open(str(path), settings) as db:
        for number in range(100):
            db.append("a", {"n": number})
    with topics.open(str(path), settings) as db:
        db.append("a", "one more")
    assert list(cold.glob("shard-00/packs/*.pack"))
    assert run("verify", str(path)).returncode == 1
    assert run("verify", str(path), "--cold-dir", str(cold)).returncode == 0


def test_a_directory_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    found = run("verify", str(tmp_path / "nowhere"))
    assert found.returncode == 2
    assert found.stderr == f"topics: there is no directory {tmp_path / 'nowhere'}\n"
