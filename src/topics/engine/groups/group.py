"""One group's position in one partition: what it has acked, and which consumer has which records until when.

    committed        acked ahead of it             the head
    ─────────┤  claim A  ├─ acked ─┤  claim B  ├─── free ───┤
             └ an ack of a range above A is kept until A is acked; a cumulative one ends A as well

An expired claim stays in the list but holds nothing: its records are free. So expiry needs no op and no timer.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from topics.engine.groups.ops import GroupAcked, GroupClaimed, GroupPlaced
from topics.engine.log.seq_ranges import SeqRange, add_range, take_from

NOTHING_YET = -1
_to_seq = attrgetter("to_seq")


class GroupClaim(NamedTuple):
    """Records handed to one consumer, which alone has them until the deadline."""

    from_seq: int
    to_seq: int
    deadline: int
    # absent in older snapshots
    member: str = ""


class Group:
    __slots__ = ("acked", "begin_seq", "claims", "committed", "latest_seq")

    def __init__(self, committed: int = NOTHING_YET) -> None:
        # Everything up to this seq is done; NOTHING_YET: a reader's `start` decides where the group starts.
        self.committed = committed
        # Disjoint and ascending.
        self.claims: list[GroupClaim] = []
        self.acked: list[SeqRange] = []
        # While nothing is committed: where the group starts, and what `Latest` means to it.
        self.begin_seq = NOTHING_YET
        self.latest_seq = NOTHING_YET

    # --- looking ---

    @property
    def position(self) -> int:
        """The seq after which the group starts."""
        return self.committed if self.committed >= 0 else max(0, self.begin_seq - 1)

    def next_expiry(self, now_ms: int) -> int | None:
        """When the next open claim expires."""
        return min((claim.deadline for claim in self.claims if claim.deadline > now_ms), default=None)

    def open_claims(self, now_ms: int) -> list[GroupClaim]:
        return [claim for claim in self.claims if claim.deadline > now_ms]

    def stretches(self, start_seq: int, head_seq: int, now_ms: int) -> Iterator[SeqRange]:
        """The ranges that may be handed out next, in order; one claim can cover a range."""
        if self.committed < 0:
            for claim in self.claims:
                # Handed out before and never acked: another reader's `start` must not lose it.
                if claim.from_seq < start_seq and claim.deadline <= now_ms:
                    yield SeqRange(claim.from_seq, claim.to_seq)
        begin = self.committed + 1 if self.committed >= 0 else start_seq
        taken = [SeqRange(claim.from_seq, claim.to_seq) for claim in self.open_claims(now_ms)]
        for seqs in sorted([*taken, *self.acked]):
            if seqs.from_seq > begin:
                yield SeqRange(begin, seqs.from_seq - 1)
            begin = max(begin, seqs.to_seq + 1)
        if begin <= head_seq:
            yield SeqRange(begin, head_seq)

    def claims_within(self, from_seq: int, to_seq: int) -> list[SeqRange]:
        """The parts of claims that lie in this range."""
        overlapping = [claim for claim in self.claims if claim.from_seq <= to_seq and claim.to_seq >= from_seq]
        return [SeqRange(max(claim.from_seq, from_seq), min(claim.to_seq, to_seq)) for claim in overlapping]

    def claims_added(self, from_seq: int, to_seq: int) -> int:
        """By how much a claim of these seqs lengthens the list of claims."""
        start = bisect_left(self.claims, from_seq, key=_to_seq)
        stop = start
        while stop < len(self.claims) and self.claims[stop].from_seq <= to_seq:
            stop += 1
        if start == stop:
            return 1
        split = (self.claims[start].from_seq < from_seq) + (self.claims[stop - 1].to_seq > to_seq)
        return 1 + split - (stop - start)

    def done_before(self, seq: int) -> int:
        """The last seq below this one that is done: acked, or before the group's start."""
        index = bisect_left(self.acked, seq, key=_to_seq)
        return max(self.position, self.acked[index - 1].to_seq) if index else self.position

    def undone(self, to_seq: int) -> Iterator[SeqRange]:
        """What keeps `committed` below this seq."""
        begin = self.position + 1
        for seqs in self.acked:
            if begin > to_seq or seqs.from_seq > to_seq:
                return
            if seqs.from_seq > begin:
                yield SeqRange(begin, seqs.from_seq - 1)
            begin = seqs.to_seq + 1

    # --- folds ---

    def claim(self, op: GroupClaimed) -> None:
        self._end_claims(op.from_seq, op.to_seq)
        insort(self.claims, GroupClaim(op.from_seq, op.to_seq, op.deadline, op.member))
        self._begin_at(op.from_seq)

    def place(self, op: GroupPlaced) -> None:
        self.latest_seq = op.latest_seq
        self._begin_at(op.latest_seq)

    def _begin_at(self, seq: int) -> None:
        if self.committed < 0:
            self.begin_seq = seq if self.begin_seq < 0 else min(self.begin_seq, seq)

    def ack(self, op: GroupAcked) -> None:
        for seqs in op.ranges:
            self._end_claims(*seqs)
            add_range(self.acked, seqs)
        committed = self.committed
        if committed < 0:
            if self.acked and self.acked[0].from_seq == 1:
                committed = 0
            elif self.begin_seq > 0:
                committed = self.begin_seq - 1
            else:
                # A range of a group that has no records yet: it waits until the group starts.
                return
        self.committed = take_from(self.acked, committed)
        self.begin_seq = self.latest_seq = NOTHING_YET

    def _end_claims(self, from_seq: int, to_seq: int) -> None:
        """Remove these seqs from all claims; claims keep their other seqs."""
        claims = self.claims
        start = stop = bisect_left(claims, from_seq, key=_to_seq)
        kept: list[GroupClaim] = []
        while stop < len(claims) and claims[stop].from_seq <= to_seq:
            claim = claims[stop]
            if claim.from_seq < from_seq:
                kept.append(claim._replace(to_seq=from_seq - 1))
            if claim.to_seq > to_seq:
                kept.append(claim._replace(from_seq=to_seq + 1))
            stop += 1
        claims[start:stop] = kept
