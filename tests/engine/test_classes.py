"""A topic that changes its class again and again keeps, over every kill, what each class promised at the time."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from tests.engine.rig import Rig
from tests.examples import examples

CLASSES = ("ephemeral", "memory", "disk", "fsync")


class ClassesMachine(RuleBasedStateMachine):
    @initialize(events=st.sampled_from([1, 3, 1000]), hot=st.sampled_from([0, 4]))
    def start(self, events: int, hot: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="topics-classes-"))
        self.rig = Rig(self.root / "data", segment_max_events=events, hot_retain_segments=hot, wal_file_bytes=16384)
        self.rig.configure("a", durability="disk")
        self.durability = "disk"
        self.values = itertools.count()
        # All that was acknowledged and not deleted, and those of it that a kill may take.
        self.told: dict[int, int] = {}
        self.volatile: set[int] = set()
        self.used: set[int] = set()

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.abandon()
            shutil.rmtree(self.root)

    @rule(durability=st.sampled_from(CLASSES))
    def change(self, durability: str) -> None:
        self.rig.configure("a", durability=durability)
        self.durability = durability

    @rule(count=st.integers(1, 4))
    def append(self, count: int) -> None:
        values = [next(self.values) for _ in range(count)]
        staged = self.rig.append("a", *[{"data": value, "tag": f"t{value % 3}"} for value in values])
        for seq, value in zip(range(staged.first_seq, staged.last_seq + 1), values, strict=True):
            assert seq not in self.used, f"seq {seq} is used twice"
            self.used.add(seq)
            self.told[seq] = value
            if self.durability == "ephemeral":
                self.volatile.add(seq)

    @rule(remainder=st.integers(0, 2))
    def delete(self, remainder: int) -> None:
        self.rig.delete("a", match=f"t{remainder}")
        self.told = {seq: value for seq, value in self.told.items() if value % 3 != remainder}

    @rule()
    def checkpoint(self) -> None:
        self.rig.checkpoint()
        assert self.found() == self.told

    @rule(way=st.sampled_from(["crash", "reopen"]))
    def restart(self, way: str) -> None:
        getattr(self.rig, way)()
        found = self.found()
        lost = set(self.told) - set(found)
        assert lost <= self.volatile, f"acknowledged by a lasting class and gone: {sorted(lost - self.volatile)}"
        assert not set(found) - set(self.told) - self.volatile, "deleted and back"
        assert all(self.told.get(seq, value) == value for seq, value in found.items())
        assert lost <= self.gaps(), f"lost in silence: {sorted(lost - self.gaps())}"
        assert self.rig.look("a").head_seq >= max(self.used, default=0)
        self.told = found

    def found(self) -> dict[int, int]:
        return {record["$seq"]: record["data"] for record in self.rig.records("a")}

    def gaps(self) -> set[int]:
        gaps: set[int] = set()
        cursor = 0
        while True:
            diff = self.rig.diff("a", cursor)
            if diff.tombstone is not None:
                gaps |= {seq for seq in self.used if diff.tombstone.gap_from <= seq <= diff.tombstone.gap_to}
            cursor = diff.next_from_seq
            if diff.caught_up:
                return gaps


TestClasses = ClassesMachine.TestCase
TestClasses.settings = settings(settings.default, max_examples=examples(25), stateful_step_count=30, deadline=None)
