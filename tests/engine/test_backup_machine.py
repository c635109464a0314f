"""Whatever happens while a copy is made, the copy shows exactly the state at its start, to the byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from tests.engine.rig import Rig
from tests.engine.test_backup import begin, unpacked
from tests.engine.test_recovery import RecoveryMachine, essentials
from tests.examples import examples
from topics.model.clock import ManualClock
from topics.storage.backup import Backup
from topics.storage.directory import forget_copying
from topics.storage.disk import Disk


class BackupMachine(RecoveryMachine):
    """All that changes a store, and a copy of it that is read a piece at a time in between."""

    backup: Backup | None = None
    pieces: list[bytes]
    expected: dict[str, Any]
    begun_ms: int
    copies = 0

    @precondition(lambda self: self.backup is None)
    @rule()
    def begin_copy(self) -> None:
        self.expected = essentials(self.rig)
        self.begun_ms = self.rig.clock.now_ms()
        self.backup = begin(self.rig)
        self.pieces = []

    @precondition(lambda self: self.backup is not None)
    @rule(count=st.integers(1, 6))
    def read_some(self, count: int) -> None:
        assert self.backup is not None
        for _ in range(count):
            piece = self.backup.read()
            if not piece:
                self.compare()
                return
            self.pieces.append(piece)

    @precondition(lambda self: self.backup is not None)
    @rule()
    def read_the_rest(self) -> None:
        while self.backup is not None:
            self.read_some(6)

    @precondition(lambda self: self.backup is not None)
    @rule()
    def give_up(self) -> None:
        assert self.backup is not None
        self.backup.release()
        self.backup = None

    @rule(way=st.sampled_from(["crash", "reopen"]), events=st.sampled_from([1, 3, 1000]))
    def restart(self, way: str, events: int) -> None:
        if self.backup is not None:
            self.give_up()
        super().restart(way, events)

    def compare(self) -> None:
        self.give_up()
        self.copies += 1
        path = unpacked(b"".join(self.pieces), Path(self.root) / f"copy{self.copies}")
        # As if nothing had come after it, so that numbers can be compared; and at the time of its start.
        forget_copying(Disk(), str(path))
        with Rig(path, clock=ManualClock(self.begun_ms)) as copy:
            copy.reopen()
            assert essentials(copy) == self.expected


TestBackup = BackupMachine.TestCase
TestBackup.settings = settings(settings.default, max_examples=examples(8), stateful_step_count=40, deadline=None)
