"""A model of groups: whatever consumers, clock, crashes and deletes do, no record is lost and none acked comes back."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from tests.engine.rig import Rig
from tests.examples import examples
from tests.groups.consumers import Partition
from topics.engine.groups.part import groups_of

VISIBLE_MS = 1_000
GROUPS = ("a", "b")


class GroupMachine(RuleBasedStateMachine):
    """Offsets by group: what was acked, and what is with whom until when."""

    batches = Bundle("batches")

    def __init__(self) -> None:
        super().__init__()
        self.path = Path(tempfile.mkdtemp(prefix="groups-"))
        self.rig = Rig(self.path / "data", wal_file_bytes=1 << 16)
        self.partition = Partition(self.rig, "t", VISIBLE_MS)
        self.head = 0
        self.dead: set[int] = set()
        self.acked: dict[str, set[int]] = {group: set() for group in GROUPS}
        # The consumer that was given an offset last, and until when; the number distinguishes deliveries.
        self.held: dict[str, dict[int, tuple[int, int]]] = {group: {} for group in GROUPS}
        self.deliveries = 0
        # Before the first commit: where the group's work begins, and what `Latest` means to it.
        self.begun: dict[str, int] = {}
        self.latest: dict[str, int] = {}

    def teardown(self) -> None:
        self.rig.abandon()
        shutil.rmtree(self.path)

    @initialize(count=st.integers(1, 8))
    def first(self, count: int) -> None:
        self.append(count)

    @rule(count=st.integers(1, 8))
    def append(self, count: int) -> None:
        self.rig.append("t", *range(count))
        self.head += count

    @rule(target=batches, group=st.sampled_from(GROUPS), limit=st.integers(1, 6), at_the_end=st.booleans())
    def consume(self, group: str, limit: int, at_the_end: bool) -> tuple[str, list[int]]:
        if not self.settled(group) and at_the_end:
            self.latest.setdefault(group, self.head)
            self.begin(group, self.latest[group])
        free = self.free(group, at_the_end)
        expected = self.expected(group, free, limit)
        offsets = self.partition.consume(group, limit, "Latest" if at_the_end else "Earliest")
        assert set(offsets) <= free, "neither acked, nor dead, nor with another consumer"
        assert bool(offsets) == bool(free), "something if there is something"
        if not at_the_end:
            # Where records died, and where a disk is waited for, a batch may end sooner.
            assert offsets == (expected[: len(offsets)] if self.dead or self.partition.cut else expected)
        self.deliveries += 1
        for offset in offsets:
            self.held[group][offset] = self.deliveries, self.rig.clock.now_ms() + VISIBLE_MS
        if offsets:
            self.begin(group, offsets[0])
        return group, offsets

    def begin(self, group: str, offset: int) -> None:
        self.begun[group] = min(offset, self.begun.get(group, offset))

    def settled(self, group: str) -> bool:
        """Whether the group ignores `start`. What lies before its work is then nothing that it has to do."""
        known = groups_of(self.partition.consuming.topic("t")).get(group)
        if known is None or known.committed < 0:
            return False
        self.acked[group] |= set(range(self.begun.get(group, 0)))
        return True

    def expected(self, group: str, free: set[int], limit: int) -> list[int]:
        """From the oldest on, up to what another consumer holds or what is acked."""
        found: list[int] = []
        for offset in range(min(free, default=self.head), self.head):
            if len(found) == limit or (offset not in free and offset not in self.dead):
                break
            if offset in free:
                found.append(offset)
        return found

    def free(self, group: str, at_the_end: bool = False) -> set[int]:
        now_ms = self.rig.clock.now_ms()
        held = {offset for offset, (_, deadline) in self.held[group].items() if deadline > now_ms}
        free = set(range(self.head)) - self.acked[group] - held - self.dead
        if at_the_end and not self.settled(group):
            return {offset for offset in free if offset >= self.latest[group] or offset in self.held[group]}
        return free

    @rule(batch=consumes(batches), part=st.floats(0, 1), as_range=st.booleans())
    def ack(self, batch: tuple[str, list[int]], part: float, as_range: bool) -> None:
        """A consumer acks all or the first part of what it was handed: in time, late, or after a reset."""
        group, offsets = batch
        if not offsets:
            return
        upto = offsets[max(1, round(len(offsets) * part)) - 1]
        before = self.partition.committed(group)
        answer = self.partition.ack(upto, group, since=offsets[0] if as_range else None).committed - 1
        after = self.partition.committed(group)
        assert answer == (-1 if after is None else after), "what is committed now"
        assert before is None or (after is not None and after >= before), "progress is never taken back"
        assert as_range or answer >= upto, "what is acked without a range is committed"
        done = set(range(offsets[0] if as_range else 0, upto + 1))
        self.acked[group] |= done
        self.held[group] = {offset: whose for offset, whose in self.held[group].items() if offset not in done}
        self.settled(group)

    @rule(ms=st.sampled_from((1, VISIBLE_MS // 2, VISIBLE_MS)))
    def wait(self, ms: int) -> None:
        self.rig.clock.advance(ms)

    @rule(group=st.sampled_from(GROUPS), data=st.data())
    def reset(self, group: str, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.head))
        assert self.partition.reset({"Offset": offset}, group) == offset
        self.acked[group] = set(range(offset))
        self.held[group] = {}
        self.begun.pop(group, None)

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        before = data.draw(st.integers(0, self.head))
        self.rig.delete("t", before_seq=before + 1)
        self.dead |= set(range(before))

    @rule(crash=st.booleans(), checkpoint=st.booleans())
    def restart(self, crash: bool, checkpoint: bool) -> None:
        if checkpoint:
            self.rig.checkpoint()
        if crash:
            self.rig.crash()
        else:
            self.rig.reopen()
        self.partition.opened()

    @invariant()
    def committed_is_all_acked(self) -> None:
        for group in GROUPS:
            committed = self.partition.committed(group)
            if self.settled(group) and committed is not None:
                assert set(range(committed + 1)) <= self.acked[group] | self.dead

    @precondition(lambda self: self.head)
    @rule(group=st.sampled_from(GROUPS))
    def everything_unacked_arrives_in_the_end(self, group: str) -> None:
        self.rig.clock.advance(VISIBLE_MS)
        wanted = self.free(group)
        seen: set[int] = set()
        while offsets := self.partition.consume(group, 1_000):
            seen |= set(offsets)
            self.partition.ack(offsets[-1], group, since=offsets[0])
        assert seen == wanted
        self.acked[group] = set(range(self.head))
        self.held[group] = {}


GroupMachine.TestCase.settings = settings(max_examples=examples(40), stateful_step_count=25, deadline=None)
TestGroups = GroupMachine.TestCase
