"""A model of groups: whatever consumers, clock, crashes and deletes do, no record is lost and none acked comes back."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, precondition, rule

from tests.engine.rig import Rig
from tests.groups.consumers import Partition

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
        # Who was handed an offset last, and until when; the number tells deliveries apart.
        self.held: dict[str, dict[int, tuple[int, int]]] = {group: {} for group in GROUPS}
        self.deliveries = 0

    def teardown(self) -> None:
        self.rig.abandon()
        shutil.rmtree(self.path)

    @initialize(count=st.integers(1, 8))
    def begin(self, count: int) -> None:
        self.append(count)

    @rule(count=st.integers(1, 8))
    def append(self, count: int) -> None:
        self.rig.append("t", *range(count))
        self.head += count

    @rule(target=batches, group=st.sampled_from(GROUPS), limit=st.integers(1, 6))
    def consume(self, group: str, limit: int) -> tuple[str, list[int]]:
        free = self.free(group)
        expected = self.expected(group, free, limit)
        offsets = self.partition.consume(group, limit)
        assert set(offsets) <= free, "neither acked, nor dead, nor with another consumer"
        assert bool(offsets) == bool(free), "something if there is something"
        # Where records died, what was handed out before may end a batch sooner; and so may a disk that is waited for.
        assert offsets == (expected[: len(offsets)] if self.dead or self.partition.cut else expected)
        self.deliveries += 1
        for offset in offsets:
            self.held[group][offset] = self.deliveries, self.rig.clock.now_ms() + VISIBLE_MS
        return group, offsets

    def expected(self, group: str, free: set[int], limit: int) -> list[int]:
        """From the oldest on, up to what somebody else holds or held, or what is acked."""
        found: list[int] = []
        held = self.held[group]
        own = held.get(min(free), (0, 0))[0] if free else 0
        for offset in range(min(free, default=self.head), self.head):
            delivery = held.get(offset, (0, 0))[0]
            if len(found) == limit or offset in self.acked[group] or delivery not in (0, own):
                break
            if offset in free:
                found.append(offset)
                # Once among new records, an older delivery ends the batch.
                own = own if delivery else -1
        return found

    def free(self, group: str) -> set[int]:
        now_ms = self.rig.clock.now_ms()
        held = {offset for offset, (_, deadline) in self.held[group].items() if deadline > now_ms}
        return set(range(self.head)) - self.acked[group] - held - self.dead

    @rule(batch=consumes(batches), part=st.floats(0, 1))
    def ack(self, batch: tuple[str, list[int]], part: float) -> None:
        """A consumer acks all or the first part of what it was handed: in time, late, or after a reset."""
        group, offsets = batch
        if not offsets:
            return
        upto = offsets[max(1, round(len(offsets) * part)) - 1]
        before = self.partition.committed(group)
        assert self.partition.ack(upto, group).seq - 1 == upto
        after = self.partition.committed(group)
        assert before is None or (after is not None and after >= before), "progress is never taken back"
        held = self.held[group]
        own = held[upto][0] if upto in held else None
        done = {offset for offset in range(upto + 1) if offset not in held or held[offset][0] == own}
        self.acked[group] |= done
        self.held[group] = {offset: whose for offset, whose in held.items() if offset not in done}

    @rule(ms=st.sampled_from((1, VISIBLE_MS // 2, VISIBLE_MS)))
    def wait(self, ms: int) -> None:
        self.rig.clock.advance(ms)

    @rule(group=st.sampled_from(GROUPS), data=st.data())
    def reset(self, group: str, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.head))
        assert self.partition.reset({"Offset": offset}, group) == offset
        self.acked[group] = set(range(offset))
        self.held[group] = {}

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
            if committed is not None:
                assert set(range(committed + 1)) <= self.acked[group] | self.dead

    @precondition(lambda self: self.head)
    @rule(group=st.sampled_from(GROUPS))
    def everything_unacked_arrives_in_the_end(self, group: str) -> None:
        self.rig.clock.advance(VISIBLE_MS)
        wanted = self.free(group)
        seen: set[int] = set()
        while offsets := self.partition.consume(group, 1_000):
            seen |= set(offsets)
            self.partition.ack(offsets[-1], group)
        assert seen == wanted
        self.acked[group] = set(range(self.head))
        self.held[group] = {}


GroupMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestGroups = GroupMachine.TestCase
