"""One group's place in one partition: what it has acked, and who was handed what and until when.

    committed        acked ahead of it             the head
    ─────────┤  claim A  ├─ acked ─┤  claim B  ├─── free ───┤
             └ nothing below A moves `committed` past it: an ack behind A is kept aside until A is acked, too

A claim whose time is up stays in place: it is free for the next consumer, and keeps holding `committed` back. So time
needs no op and no timer, and a range that was handed out is either acked by who had it or handed out again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

import msgspec

from topics.model.grouping import FORGOTTEN, GroupAcked, GroupClaimed, GroupOp, GroupReset, SeqRange

NOTHING_YET = -1
_to_seq = attrgetter("to_seq")


class Claim(NamedTuple):
    """Records handed to one consumer, nobody else's while the clock is before the deadline."""

    from_seq: int
    to_seq: int
    deadline: int


class GroupImage(msgspec.Struct, array_like=True):
    """A group as a snapshot stores it."""

    name: str
    committed: int
    claims: list[Claim]
    acked: list[SeqRange]


class Group:
    __slots__ = ("acked", "claims", "committed")

    def __init__(self, committed: int = NOTHING_YET) -> None:
        # Everything up to this seq is acked; NOTHING_YET: the first reader's `start` decides where the group begins.
        self.committed = committed
        # Disjoint and ascending.
        self.claims: list[Claim] = []
        self.acked: list[SeqRange] = []

    # --- looking ---

    @property
    def position(self) -> int:
        """The seq behind which the group's work begins."""
        if self.committed >= 0:
            return self.committed
        return self.claims[0].from_seq - 1 if self.claims else 0

    def next_expiry(self, now_ms: int) -> int | None:
        """When the next claim that is open now runs out."""
        return min((claim.deadline for claim in self.claims if claim.deadline > now_ms), default=None)

    def open_claims(self, now_ms: int) -> list[Claim]:
        return [claim for claim in self.claims if claim.deadline > now_ms]

    def stretches(self, start_seq: int, head_seq: int, now_ms: int) -> Iterator[SeqRange]:
        """What may be handed out next, in order; one claim can cover a stretch.

        A stretch may begin with a claim that ran out and go on with new records, but never joins two claims: a consumer
        that was slow, not dead, may still ack the upper one, and that must not cover the lower one.
        """
        if self.committed < 0:
            for claim in self.claims:
                # Handed out before, never acked: it is not for another reader's `start` to lose that.
                if claim.from_seq < start_seq and claim.deadline <= now_ms:
                    yield SeqRange(claim.from_seq, claim.to_seq)
        begin = self.committed + 1 if self.committed >= 0 else start_seq
        for seqs in sorted([*self.claims, *self.acked]):
            if seqs.to_seq < begin:
                continue
            if seqs.from_seq < begin:
                begin = seqs.to_seq + 1
                continue
            if seqs.from_seq > begin:
                yield SeqRange(begin, seqs.from_seq - 1)
            ran_out = isinstance(seqs, Claim) and seqs.deadline <= now_ms
            begin = seqs.from_seq if ran_out else seqs.to_seq + 1
        if begin <= head_seq:
            yield SeqRange(begin, head_seq)

    def claims_within(self, from_seq: int, to_seq: int) -> list[SeqRange]:
        """The parts of claims that lie here."""
        overlapping = [claim for claim in self.claims if claim.from_seq <= to_seq and claim.to_seq >= from_seq]
        return [SeqRange(max(claim.from_seq, from_seq), min(claim.to_seq, to_seq)) for claim in overlapping]

    def acking(self, seq: int) -> tuple[list[SeqRange], list[Claim]]:
        """What an ack up to `seq` covers, and the claims below it that it leaves alone.

        The claim that holds `seq` is the asker's. A claim wholly below is another delivery, whose consumer may have
        died: only its own ack, or an ack by whoever is handed it next, ends it.
        """
        ranges: list[SeqRange] = []
        spared: list[Claim] = []
        at = max(self.committed, 0) + 1
        for claim in self.claims:
            if claim.to_seq >= seq:
                break
            spared.append(claim)
            if claim.from_seq > at:
                ranges.append(SeqRange(at, claim.from_seq - 1))
            at = max(at, claim.to_seq + 1)
        if at <= seq:
            ranges.append(SeqRange(at, seq))
        return ranges, spared

    # --- what the log says ---

    def claim(self, op: GroupClaimed) -> None:
        self._end_claims(op.from_seq, op.to_seq)
        insort(self.claims, Claim(op.from_seq, op.to_seq, op.deadline))

    def ack(self, op: GroupAcked) -> None:
        for seqs in op.ranges:
            self._end_claims(*seqs)
            self._note_acked(seqs)
        committed = max(self.committed, 0)
        done = 0
        for seqs in self.acked:
            if seqs.from_seq > committed + 1:
                break
            committed = max(committed, seqs.to_seq)
            done += 1
        del self.acked[:done]
        self.committed = committed

    def _note_acked(self, seqs: SeqRange) -> None:
        """Add a range, joined with those that it overlaps or touches."""
        acked = self.acked
        start = stop = bisect_left(acked, seqs.from_seq - 1, key=_to_seq)
        first, last = seqs
        while stop < len(acked) and acked[stop].from_seq <= last + 1:
            first, last = min(first, acked[stop].from_seq), max(last, acked[stop].to_seq)
            stop += 1
        acked[start:stop] = [SeqRange(first, last)]

    def _end_claims(self, from_seq: int, to_seq: int) -> None:
        """No claim covers these seqs any more; what a claim covers besides them, it keeps."""
        claims = self.claims
        start = stop = bisect_left(claims, from_seq, key=_to_seq)
        kept: list[Claim] = []
        while stop < len(claims) and claims[stop].from_seq <= to_seq:
            claim = claims[stop]
            if claim.from_seq < from_seq:
                kept.append(claim._replace(to_seq=from_seq - 1))
            if claim.to_seq > to_seq:
                kept.append(claim._replace(from_seq=to_seq + 1))
            stop += 1
        claims[start:stop] = kept


def fold(groups: dict[str, Group], op: GroupOp) -> None:
    """Change the groups of a topic as the log says."""
    match op:
        case GroupReset():
            if op.committed == FORGOTTEN:
                groups.pop(op.group, None)
            else:
                groups[op.group] = Group(op.committed)
        case GroupClaimed():
            groups.setdefault(op.group, Group()).claim(op)
        case GroupAcked():
            groups.setdefault(op.group, Group()).ack(op)


def picture(groups: dict[str, Group]) -> list[GroupImage]:
    """Copies: the group goes on changing while its image waits to be written."""
    return [GroupImage(name, group.committed, group.claims[:], group.acked[:]) for name, group in groups.items()]


def restore(images: list[GroupImage]) -> dict[str, Group]:
    groups: dict[str, Group] = {}
    for image in images:
        group = groups[image.name] = Group(image.committed)
        group.claims, group.acked = image.claims, image.acked
    return groups
