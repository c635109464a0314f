"""The verbs of consumer groups: hand out records to one consumer at a time, accept acks, report how far groups are.

A group decides on published state: while a change of the group is pending, the next request is Busy until it is done,
so two consumers that ask in the same tick never get the same records. A look takes nothing; a claim follows at once or
not at all.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import NamedTuple

from topics.engine.core.engine import Engine
from topics.engine.core.pending import PendingChange, settled
from topics.engine.core.waiting.runner import Steps, attempt, published
from topics.engine.groups.group import Group, GroupClaim
from topics.engine.groups.ops import FORGOTTEN, GroupAcked, GroupClaimed, GroupOp, GroupPlaced, GroupReset
from topics.engine.groups.part import groups_of
from topics.engine.log.block import Block
from topics.engine.log.body import Body
from topics.engine.log.on_disk.cold import ColdMiss
from topics.engine.log.seq_ranges import SeqRange
from topics.engine.log.topic import Topic
from topics.model.clock import Clock
from topics.model.errors import DamagedData, InvalidRequest, Throttled, TopicNotFound
from topics.model.requests.config import GATED
from topics.model.requests.groups import (
    LATEST,
    ConsumeStart,
    ResetRequest,
    check_reset,
    parse_start,
    partition_name,
    split_partition,
)

GROUPS_PER_TOPIC_MAX = 10_000
CLAIMS_PER_GROUP_MAX = 10_000
ACKED_AHEAD_MAX = 10_000
HELD_BACK_SHOWN_MAX = 100
CLAIMS_SHOWN_MAX = 100
NAMES_PER_STEP = 2_000
# Groups of a topic whose lag is counted at once; each may have to look at every block of it.
GROUPS_PER_STEP = 16
PARTITIONS_MAX = 1_024
_UNTOUCHED = Group()


class RecordRun(NamedTuple):
    """Live records first … stop − 1 of a block. The body is kept here, because the block may release it."""

    block: Block
    body: Body
    first: int
    stop: int


class Portion:
    """The records for one consumer in one partition: live records of one range, and the position after them."""

    __slots__ = ("count", "cut", "from_seq", "gone", "runs", "size", "to_seq", "topic")

    def __init__(self, topic: Topic, from_seq: int) -> None:
        self.topic = topic
        self.runs: list[RecordRun] = []
        self.count = 0
        self.size = 0
        # The range that a claim would cover; without records, the seq at which reading would continue.
        self.from_seq = from_seq
        self.to_seq = from_seq - 1
        # There are more records after it that would have fitted the range.
        self.cut = False
        # Handed out once, and dead since: no consumer will ever ack these.
        self.gone: list[SeqRange] = []

    @property
    def next_seq(self) -> int:
        return self.to_seq + 1

    def keep(self, count: int) -> None:
        """Drop all but the first `count` records."""
        if count >= self.count:
            return
        kept: list[RecordRun] = []
        left = count
        for run in self.runs:
            taken = min(left, run.stop - run.first)
            if taken:
                kept.append(run._replace(stop=run.first + taken))
                left -= taken
        self.runs, self.count, self.cut = kept, count, True
        self.to_seq = _last_seq(kept) if kept else self.from_seq - 1


class Acked(NamedTuple):
    """The position of the group; after an ack that did not move it, the first ranges that hold it back."""

    committed: int
    held_back: list[SeqRange]


class Standing(NamedTuple):
    """How far one group is in one partition. `committed` is negative while nothing is committed."""

    topic: str
    group: str
    committed: int
    position: int
    head_seq: int
    lag: int
    open_claims: int
    expired_claims: int
    acked_ahead: int


class ResetPlace(NamedTuple):
    """Where a reset takes a group in one partition, and how many records that leaves to read."""

    partition: int
    seq_before: int
    next_seq: int
    lag_before: int
    lag: int


class GroupState(NamedTuple):
    """How far one group is in one partition, and which of its records are claimed until when (by the wall clock)."""

    standing: Standing
    claims: list[GroupClaim]


class Consuming:
    def __init__(self, engine: Engine, clock: Clock, visibility_ms: int) -> None:
        self._engine = engine
        self._state = engine.state
        self._commit_log = engine.commit_log
        self._clock = clock
        # The clock of claims.
        self._steady = engine.steady
        self._visibility_ms = visibility_ms
        self._in_flight = engine.in_flight
        self._turn = 0

    # --- partitions ---

    def topic(self, name: str) -> Topic:
        topic = self._state.by_name.get(name)
        if topic is None:
            raise TopicNotFound(name)
        return topic

    def partitions(self, name: str) -> list[tuple[int, Topic]]:
        """All existing partitions, ascending."""
        by_name, names = self._state.by_name, self._state.names
        found = [(0, by_name[name])] if name in by_name else []
        for other in _starting_with(names, f"{name}:p"):
            base, number = split_partition(other)
            if number and base == name:
                found.append((number, by_name[other]))
            if len(found) > PARTITIONS_MAX:
                raise Throttled(f"at most {PARTITIONS_MAX} partitions can be read at once", max=PARTITIONS_MAX)
        if not found:
            raise TopicNotFound(name)
        return sorted(found, key=_number)

    def partition(self, name: str, number: int) -> Topic:
        return self.topic(partition_name(name, number))

    def next_turn(self) -> int:
        """A number for each reader of all partitions, so that readers start at different ones."""
        self._turn += 1
        return self._turn

    # --- reading ---

    def start_seq(self, topic: Topic, group_id: str | None, start: ConsumeStart) -> int:
        """The first seq to read. For a group, `Latest` keeps its first meaning. May raise Busy."""
        if group_id is not None and start == LATEST:
            fixed = self._group(topic, group_id).latest_seq
            if fixed > 0:
                return fixed
        return start.seq(topic.head_seq)

    def fix_latest(self, topic: Topic, group_id: str, start: ConsumeStart) -> PendingChange | None:
        """Record what `Latest` means to a group that has neither committed nor used it before; else None."""
        if start != LATEST:
            return None
        group = self._group(topic, group_id)
        if group.committed >= 0 or group.latest_seq > 0:
            return None
        self._commit_log.check_writable()
        self._refuse_another_group(topic, group_id)
        op = GroupPlaced(topic.id, group_id, topic.head_seq + 1)
        return self._stage(topic, op, gated=topic.config.durability in GATED)

    def look(self, topic: Topic, group_id: str | None, start_seq: int, limit: int, bytes_max: int) -> Portion:
        """The next records for a consumer of this group, or, without a group, those from `start_seq` on.

        May raise Busy and ColdMiss; claims nothing yet.
        """
        topic.last_read_ts = self._clock.now_ms()
        self._state.expire(topic, topic.last_read_ts, self._state.cold.load)
        nothing_from = max(start_seq, topic.head_seq + 1)
        if group_id is None:
            portion = Portion(topic, start_seq)
            self._fill(portion, topic.head_seq, limit, bytes_max)
            return portion if portion.count else Portion(topic, nothing_from)
        group = self._group(topic, group_id)
        gone: list[SeqRange] = []
        for stretch in group.stretches(start_seq, topic.head_seq, self._steady.now_ms()):
            portion = Portion(topic, stretch.from_seq)
            whole = self._fill(portion, stretch.to_seq, limit, bytes_max)
            if whole:
                gone += group.claims_within(portion.next_seq, stretch.to_seq)
            if portion.count or not whole:
                portion.gone = gone
                return portion
        portion = Portion(topic, group.committed + 1 if group.committed >= 0 else nothing_from)
        portion.gone = gone
        return portion

    def _fill(self, portion: Portion, to_seq: int, limit: int, bytes_max: int) -> bool:
        """Add live records up to `to_seq`; returns whether there are no others."""
        blocks = portion.topic.blocks
        before = portion.from_seq - 1
        index = portion.topic.block_after(before)
        while index < len(blocks) and blocks[index].first_seq <= to_seq:
            block = blocks[index]
            first, stop = block.number_after(before), block.number_after(to_seq)
            if first < stop and not _take(portion, block, first, stop, limit, bytes_max, self._state.cold.load):
                return False
            index += 1
        return True

    # --- claims, acks, resets ---

    def claim(self, portion: Portion, group_id: str, member: str = "") -> PendingChange | None:
        """Claim the portion for its consumer; None if there is nothing to wait for."""
        topic = portion.topic
        if not portion.count and not portion.gone:
            return None
        group = self._group(topic, group_id)
        self._commit_log.check_writable()
        if portion.count:
            self._refuse_another_group(topic, group_id)
            # A record that is handed out again replaces the expired claim.
            added = group.claims_added(portion.from_seq, portion.to_seq)
            if added > 0 and len(group.claims) + added > CLAIMS_PER_GROUP_MAX:
                raise Throttled(
                    f"{CLAIMS_PER_GROUP_MAX} claims of this group are open; ack some", max=CLAIMS_PER_GROUP_MAX
                )
        if portion.gone:
            self._stage(topic, GroupAcked(topic.id, group_id, portion.gone), gated=False)
        if not portion.count:
            return None
        deadline = self._steady.now_ms() + self._visibility_ms
        op = GroupClaimed(topic.id, group_id, portion.from_seq, portion.to_seq, deadline, member)
        return self._stage(topic, op, gated=False)

    def ack(self, topic: Topic, group_id: str, upto_seq: int, from_seq: int | None = None) -> PendingChange:
        """The group has processed everything up to here, or only the given range. `result` is Acked."""
        group = self._group(topic, group_id)
        if not topic.head_seq:
            raise InvalidRequest("upto_offset: the partition is empty, so there is nothing to ack", field="upto_offset")
        seqs = SeqRange(max(group.committed, 0) + 1, min(upto_seq, topic.head_seq))
        if from_seq is not None and from_seq > seqs.from_seq:
            seqs = seqs._replace(from_seq=self._over_dead(topic, group, from_seq))
        if seqs.to_seq < seqs.from_seq:
            return settled(topic.id, Acked(group.committed, []))
        self._commit_log.check_writable()
        self._refuse_another_group(topic, group_id)
        if len(group.acked) >= ACKED_AHEAD_MAX and seqs.from_seq > group.position + 1:
            raise Throttled(
                f"{ACKED_AHEAD_MAX} ranges are acked above unacked records; ack the records below them first",
                max=ACKED_AHEAD_MAX,
            )
        op = GroupAcked(topic.id, group_id, [seqs])
        change = self._stage(topic, op, gated=topic.config.durability in GATED)
        change.then(lambda done: setattr(done, "result", self._acked(topic, group_id, seqs.to_seq)))
        return change

    def _over_dead(self, topic: Topic, group: Group, from_seq: int) -> int:
        """The start of a range extended over the dead records right below it: no consumer will ever ack those."""
        self._state.expire(topic, self._clock.now_ms(), None)
        done = group.done_before(from_seq)
        return 1 + (topic.last_live_within(done + 1, from_seq - 1) or done)

    def _acked(self, topic: Topic, group_id: str, seq: int) -> Acked:
        group = groups_of(topic).get(group_id, _UNTOUCHED)
        return Acked(group.committed, list(islice(group.undone(seq), HELD_BACK_SHOWN_MAX)))

    def reset_all(self, request: ResetRequest, find: Callable[[], list[tuple[int, Topic]]]) -> Steps[list[ResetPlace]]:
        """Put the group elsewhere in the partitions that `find` finds, or forget it; what that does, or would do."""
        check_reset(request)
        group_id, start = request.group_id, parse_start(request.start)
        partitions = yield from attempt(partial(self._all_idle, group_id, find))
        places = [self._place_after(number, topic, request, start) for number, topic in partitions]
        if request.dry_run:
            return places
        reset = self.forget if request.forget else partial(self.reset, start=start)
        for change in [reset(topic, group_id) for _, topic in partitions]:
            yield from published(change)
        return places

    def _all_idle(self, group_id: str, find: Callable[[], list[tuple[int, Topic]]]) -> list[tuple[int, Topic]]:
        partitions = find()
        for _, topic in partitions:
            self.check_idle(topic, group_id)
        return partitions

    def _place_after(self, number: int, topic: Topic, request: ResetRequest, start: ConsumeStart) -> ResetPlace:
        group = groups_of(topic).get(request.group_id, _UNTOUCHED)
        next_seq = 1 if request.forget else min(start.seq(topic.head_seq), topic.head_seq + 1)
        lag = 0 if request.forget else topic.live_within(next_seq, topic.head_seq)
        return ResetPlace(number, group.position + 1, next_seq, lag_of(topic, group), lag)

    def reset(self, topic: Topic, group_id: str, start: ConsumeStart) -> PendingChange:
        """Move the group; its claims become void. `result` is the seq at which it continues."""
        self._group(topic, group_id)
        self._commit_log.check_writable()
        self._refuse_another_group(topic, group_id)
        committed = min(start.seq(topic.head_seq) - 1, topic.head_seq)
        change = self._stage(topic, GroupReset(topic.id, group_id, committed), gated=True)
        change.result = committed + 1
        change.then(lambda _: self._engine.waiters.moved(topic))
        return change

    def forget(self, topic: Topic, group_id: str) -> PendingChange:
        """Remove the group from this partition. `result`: whether it existed."""
        self._group(topic, group_id)
        self._commit_log.check_writable()
        known = group_id in groups_of(topic)
        change = self._stage(topic, GroupReset(topic.id, group_id, FORGOTTEN), gated=True)
        change.result = known
        return change

    def count_read(self, records: int) -> None:
        self._state.read_total += records

    def next_expiry_ms(self, topic: Topic, group_id: str) -> int | None:
        """In how many milliseconds the next claim expires; None if none is open."""
        group = groups_of(topic).get(group_id, _UNTOUCHED)
        now_ms = self._steady.now_ms()
        deadline = group.next_expiry(now_ms)
        return None if deadline is None else deadline - now_ms

    def standings(self, limit: int, wanted: Callable[[str, str], bool]) -> Steps[list[Standing]]:
        """Groups by topic name and group name; `wanted` filters by both."""
        found = yield from self.groups_after(("", ""), limit, wanted, 0)
        return [state.standing for state in found]

    def groups_after(
        self, after: tuple[str, str], limit: int, wanted: Callable[[str, str], bool], lag_min: int
    ) -> Steps[list[GroupState]]:
        """Groups by topic name and group after this one, in steps: most topics have none."""
        found: list[GroupState] = []
        name = after[0]
        while True:
            names = self._state.names
            index = bisect_left(names, name)
            for name in names[index : index + NAMES_PER_STEP]:
                topic = self._state.by_name.get(name)
                if topic is not None and topic.groups is not None:
                    self._state.expire(topic, self._clock.now_ms(), None)
                    for number, group_id in enumerate(sorted(groups_of(topic)), 1):
                        if (name, group_id) > after and group_id in groups_of(topic) and wanted(name, group_id):
                            state = self._group_state(topic, group_id)
                            if state.standing.lag >= lag_min:
                                found.append(state)
                        if len(found) == limit:
                            return found
                        if number % GROUPS_PER_STEP == 0:
                            yield None
            if index + NAMES_PER_STEP >= len(names):
                return found
            name += "\0"
            yield None

    def _group_state(self, topic: Topic, group_id: str) -> GroupState:
        group, now_ms, wall_ms = groups_of(topic)[group_id], self._steady.now_ms(), self._steady.wall_ms
        claims = [
            claim._replace(deadline=wall_ms(claim.deadline)) for claim in group.open_claims(now_ms)[:CLAIMS_SHOWN_MAX]
        ]
        return GroupState(_standing(topic, group_id, group, now_ms), claims)

    # --- one change of a group at a time ---

    def check_idle(self, topic: Topic, group_id: str) -> None:
        """Raises Busy while a change of the group or its topic is pending."""
        self._in_flight.check(("group", topic.id, group_id), ("topic", topic.name))

    def _group(self, topic: Topic, group_id: str) -> Group:
        self.check_idle(topic, group_id)
        return groups_of(topic).get(group_id, _UNTOUCHED)

    def _stage(self, topic: Topic, op: GroupOp, *, gated: bool) -> PendingChange:
        return self._in_flight.hold(
            self._commit_log.submit(op, op.encode(), gated=gated), ("group", topic.id, op.group)
        )

    def _refuse_another_group(self, topic: Topic, group_id: str) -> None:
        groups = groups_of(topic)
        if group_id not in groups and len(groups) >= GROUPS_PER_TOPIC_MAX:
            raise Throttled(f"{GROUPS_PER_TOPIC_MAX} groups read this partition; forget some", max=GROUPS_PER_TOPIC_MAX)


def _take(
    portion: Portion, block: Block, first: int, stop: int, limit: int, bytes_max: int, load: Callable[[Block], None]
) -> bool:
    """Add those records of a block that fit; returns whether all of them did."""
    for begin, end in block.alive_runs(first, stop):
        if portion.count >= limit:
            portion.cut = True
            return False
        try:
            load(block)
        except (ColdMiss, DamagedData):
            # What was found so far is enough for a reply.
            if not portion.count:
                raise
            portion.cut = True
            return False
        body = block.body
        assert body is not None
        fitting = body.first_ending_after(body.start_of(begin) + max(0, bytes_max - portion.size))
        if not portion.count:
            fitting = max(fitting, begin + 1)
        taken = min(end, begin + limit - portion.count, fitting)
        if taken > begin:
            portion.runs.append(RecordRun(block, body, begin, taken))
            portion.count += taken - begin
            portion.size += body.size(begin, taken)
            portion.to_seq = block.seq_at(taken - 1)
        if taken < end:
            portion.cut = True
            return False
    return True


def _last_seq(runs: list[RecordRun]) -> int:
    return runs[-1].block.seq_at(runs[-1].stop - 1)


def _standing(topic: Topic, group_id: str, group: Group, now_ms: int) -> Standing:
    still_open = len(group.open_claims(now_ms))
    return Standing(
        topic=topic.name,
        group=group_id,
        committed=group.committed,
        position=group.position,
        head_seq=topic.head_seq,
        lag=lag_of(topic, group),
        open_claims=still_open,
        expired_claims=len(group.claims) - still_open,
        acked_ahead=sum(seqs.to_seq - seqs.from_seq + 1 for seqs in group.acked),
    )


def lag_of(topic: Topic, group: Group) -> int:
    """Records that the group has not acked; deleted records do not count."""
    behind = topic.live_within(group.position + 1, topic.head_seq)
    return behind - sum(topic.live_within(*seqs) for seqs in group.acked)


def _starting_with(names: list[str], prefix: str) -> list[str]:
    start = bisect_left(names, prefix)
    stop = start
    while stop < len(names) and names[stop].startswith(prefix):
        stop += 1
    return names[start:stop]


def _number(partition: tuple[int, Topic]) -> int:
    return partition[0]
