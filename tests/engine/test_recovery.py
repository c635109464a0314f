"""Whatever happened before a kill, the next process shows exactly what the last one did, to the byte."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.engine.rig import Rig
from tests.engine.test_checkpoint import everything
from tests.examples import examples

NAMES = st.sampled_from(("a", "b"))
SIZES = st.sampled_from((1, 5, 40, 300, 1500))
TAGS = st.sampled_from((None, "t1", "t2", "t2:x"))


class RecoveryMachine(RuleBasedStateMachine):
    """Not against a model: against itself, a moment ago. Caps by bytes, expiry, cold blocks, changing classes."""

    @initialize(
        events=st.sampled_from([1, 3, 1000]),
        hot=st.sampled_from([0, 1, 4]),
        hot_bytes=st.sampled_from([0, 2000, 1 << 20]),
    )
    def start(self, events: int, hot: int, hot_bytes: int) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="topics-recovery-"))
        self.rig = Rig(
            self.root / "data",
            segment_max_events=events,
            hot_retain_segments=hot,
            hot_retain_bytes=hot_bytes,
            wal_file_bytes=16384,
        )

    def teardown(self) -> None:
        if hasattr(self, "rig"):
            self.rig.abandon()
            shutil.rmtree(self.root)

    @rule(
        name=NAMES,
        cap_records=st.sampled_from([0, 0, 3]),
        cap_bytes=st.sampled_from([0, 0, 900, 2500]),
        ttl_ms=st.sampled_from([0, 0, 50]),
        durability=st.sampled_from(["disk", "fsync", "memory"]),
    )
    def configure(self, name: str, **config: Any) -> None:
        self.load(name)
        self.rig.configure(name, **config)

    @rule(name=NAMES, records=st.lists(st.tuples(SIZES, TAGS), min_size=1, max_size=6))
    def append(self, name: str, records: list[tuple[int, str | None]]) -> None:
        wanted: list[dict[str, Any]] = []
        for size, tag in records:
            wanted.append({"data": "x" * size} if tag is None else {"data": "x" * size, "tag": tag})
        self.load(name)
        self.rig.append(name, *wanted)

    def load(self, name: str) -> None:
        """A byte cap may cut through a block: where, is estimated unless its body is in memory (docs/GUARANTEES.md)."""
        if name in self.rig.store.state.by_name:
            self.rig.records(name)

    @precondition(lambda self: self.rig.engine.list().topics)
    @rule(
        data=st.data(),
        match=st.sampled_from((None, "t1", ["tag", "Glob", "t2*"])),
        share=st.sampled_from((0.0, 0.3, 0.5, 0.9, 1.0)),
    )
    def delete(self, data: st.DataObject, match: Any, share: float) -> None:
        name = data.draw(st.sampled_from([state.topic for state in self.rig.engine.list().topics]))
        request = {} if match is None else {"match": match}
        self.rig.delete(name, before_seq=int(self.rig.look(name).head_seq * share) + 1, **request)

    @rule(name=NAMES)
    def drop(self, name: str) -> None:
        self.rig.drop(name)

    @rule(ms=st.sampled_from([1, 20, 60]))
    def wait(self, ms: int) -> None:
        self.rig.clock.advance(ms)

    @rule()
    def checkpoint(self) -> None:
        self.rig.checkpoint()

    @rule(way=st.sampled_from(["crash", "reopen"]), events=st.sampled_from([1, 3, 1000]))
    def restart(self, way: str, events: int) -> None:
        before = essentials(self.rig)
        self.rig.settings = replace(self.rig.settings, segment_max_events=events, wal_file_bytes=4096 * events)
        getattr(self.rig, way)()
        assert essentials(self.rig) == before


def essentials(rig: Rig) -> dict[str, Any]:
    """Records, heads and gaps. Why something was lost, and the bytes of a part of a cold block, are estimates."""
    return {
        name: (records, look[:3] + look[4:], tombstone and tombstone[:2])
        for name, (records, look, tombstone) in everything(rig).items()
    }


TestRecovery = RecoveryMachine.TestCase
TestRecovery.settings = settings(settings.default, max_examples=examples(20), stateful_step_count=40, deadline=None)
