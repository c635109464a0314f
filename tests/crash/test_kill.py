"""A writer killed with SIGKILL, again and again over the same directory, loses and changes nothing acknowledged."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

KILLS = int(os.environ.get("TOPICS_TORTURE", "50"))
ROOT = Path(__file__).parent.parent.parent
CAP = 30
# In each life that is not cut short while it starts.
ACKNOWLEDGED_MIN = 40


@dataclass
class Known:
    """What the killed processes promised about one topic."""

    name: str
    # What must be there: seq → (value, tag).
    live: dict[int, tuple[str, str | None]] = field(default_factory=dict)
    head: int = 0
    # What was begun and not acknowledged.
    append: dict[str, Any] | None = None
    delete: dict[str, Any] | None = None
    # Every seq that was ever shown or acknowledged, and what it was.
    seen: dict[int, str] = field(default_factory=dict)
    # The appends that keys stand for, newest last, and where they are.
    keys: dict[str, tuple[int, dict[str, Any]]] = field(default_factory=dict)
    deduped: int = 0

    def hear(self, line: dict[str, Any]) -> None:
        match line["kind"]:
            case "append":
                self.append = line
            case "appended":
                assert self.append is not None
                batch = self.append["batch"]
                assert line["last"] - line["first"] + 1 == len(batch), line
                earlier = self.keys.get(self.append["key"])
                assert line["deduped"] == (earlier is not None), f"{self.name}: {line} after {earlier}"
                if earlier is None:
                    self.take(line["first"])
                else:
                    assert line["first"] == earlier[0], f"{self.name}: a key answers for its own batch"
                    self.deduped += 1
                self.append = None
            case "delete":
                self.delete = line
            case "deleted":
                assert self.delete is not None
                victims = self.victims()
                assert line["died"] == len(victims), f"{self.name}: {line} but {len(victims)} were to die"
                self.drop(victims)
            case kind:
                raise AssertionError(kind)

    def take(self, first: int) -> None:
        """The append under way is there, from this seq on."""
        assert self.append is not None
        batch = self.append["batch"]
        self.keys[self.append["key"]] = first, self.append
        if self.name != "ephemeral":
            assert first == self.head + 1, f"{self.name}: {first} follows {self.head}"
        for seq, (value, tag) in enumerate(batch, first):
            assert seq not in self.seen, f"{self.name}: seq {seq} is used twice"
            self.seen[seq] = value
            self.live[seq] = (value, tag)
        self.head = max(self.head, first + len(batch) - 1)
        if self.name == "capped":
            self.live = {seq: self.live[seq] for seq in sorted(self.live)[-CAP:]}

    def to_repeat(self, rng: random.Random) -> list[dict[str, Any]]:
        """What a new process shall send again: a recent append, and the one that may or may not have been written."""
        recent = [append for _, append in list(self.keys.values())[-100:]]
        again = rng.sample(recent, min(2, len(recent)))
        return again if self.append is None else [*again, self.append]

    def victims(self) -> list[int]:
        assert self.delete is not None
        before, match = self.delete["before"], self.delete["match"]
        return [seq for seq, (_, tag) in self.live.items() if seq < before and matches(tag, match)]

    def drop(self, victims: list[int]) -> None:
        for seq in victims:
            del self.live[seq]
        self.delete = None

    def compare(self, found: dict[str, Any]) -> None:
        """Hold what a new process found against what the old ones promised."""
        records = {seq: (value, tag) for seq, value, tag in found["records"]}
        assert found["count"] == len(records)
        if self.name == "ephemeral":
            assert records == {}
            assert found["head"] >= self.head
            self.live, self.keys, self.head, self.append = {}, {}, found["head"], None
            return
        if found["head"] != self.head:
            # The batch that was under way: all of it or nothing.
            assert self.append is not None, f"{self.name}: head {found['head']}, acknowledged {self.head}"
            assert found["head"] == self.head + len(self.append["batch"])
            self.take(self.head + 1)
        if self.delete is not None:
            victims = self.victims()
            gone = [seq for seq in victims if seq not in records]
            assert not gone or gone == victims, f"{self.name}: half a delete"
            self.drop(gone)
        lost = sorted(set(self.live) - set(records))
        extra = sorted(set(records) - set(self.live))
        assert not lost, f"{self.name}: acknowledged and gone: {lost}"
        assert not extra, f"{self.name}: deleted, evicted or never written, and there: {extra}"
        assert records == self.live


def matches(tag: str | None, match: Any) -> bool:
    if match is None:
        return True
    if tag is None:
        return False
    return tag == match if isinstance(match, str) else tag.startswith(match[2].removesuffix("*"))


def run_until_killed(path: Path, generation: int, known: dict[str, Known], rng: random.Random) -> int:
    """One life of a writer; the number of acknowledgements heard."""
    repeated = {name: topic.to_repeat(rng) for name, topic in known.items() if name != "ephemeral"}
    command = [sys.executable, "-m", "tests.crash.writer", str(path), str(generation), json.dumps(repeated)]
    acknowledged = 0
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        # Now and then while it starts, so while it recovers.
        at_start = rng.random() < 0.2
        killer = threading.Timer(rng.uniform(0.1, 0.5) if at_start else rng.uniform(0.02, 0.35), process.kill)
        doomed = at_start
        if doomed:
            killer.start()
        try:
            for line in process.stdout:
                if not line.endswith(b"\n"):
                    break
                said = json.loads(line)
                if said["kind"] == "found":
                    for name, found in said["topics"].items():
                        known.setdefault(name, Known(name)).compare(found)
                    assert set(said["topics"]) == set(known)
                    continue
                acknowledged += said["kind"] in ("appended", "deleted")
                known[said["topic"]].hear(said)
                if not doomed and acknowledged >= ACKNOWLEDGED_MIN:
                    doomed = True
                    killer.start()
        finally:
            killer.cancel()
            process.kill()
        errors = process.stderr.read().decode()
    assert "Traceback" not in errors, errors
    return acknowledged


@pytest.mark.crash
@pytest.mark.timeout(600 + 12 * KILLS)
def test_a_writer_killed_many_times_over_the_same_directory_loses_and_changes_nothing(tmp_path: Path) -> None:
    rng = random.Random(3)
    known: dict[str, Known] = {}
    acknowledged = 0
    for generation in range(KILLS):
        acknowledged += run_until_killed(tmp_path / "data", generation, known, rng)
    run_until_killed(tmp_path / "data", KILLS, known, rng)
    print(f"{KILLS + 1} kills, {acknowledged} appends and deletes acknowledged")
    assert acknowledged > 20 * KILLS, "the writers did write"
    assert all(topic.head > 100 for topic in known.values())
    assert sum(topic.deduped for topic in known.values()) > KILLS, "keys were remembered"
    snapshots = list((tmp_path / "data").rglob("snapshots/*"))
    assert snapshots, "checkpoints went on"
