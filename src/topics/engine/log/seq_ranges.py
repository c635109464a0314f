"""Ranges of seqs that are disjoint, ascending, and never touch: what is done out of order, in little space."""

from __future__ import annotations

from bisect import bisect_left
from operator import attrgetter
from typing import NamedTuple

_to_seq = attrgetter("to_seq")


class SeqRange(NamedTuple):
    """Seqs from … to, both included."""

    from_seq: int
    to_seq: int


def add_range(ranges: list[SeqRange], seqs: SeqRange) -> None:
    """Add a range, joined with those that it overlaps or touches."""
    start = stop = bisect_left(ranges, seqs.from_seq - 1, key=_to_seq)
    first, last = seqs
    while stop < len(ranges) and ranges[stop].from_seq <= last + 1:
        first, last = min(first, ranges[stop].from_seq), max(last, ranges[stop].to_seq)
        stop += 1
    ranges[start:stop] = [SeqRange(first, last)]


def take_from(ranges: list[SeqRange], done_seq: int) -> int:
    """Remove the ranges that continue `done_seq` without a gap, or lie below it; up to where everything is done."""
    done = 0
    for seqs in ranges:
        if seqs.from_seq > done_seq + 1:
            break
        done_seq = max(done_seq, seqs.to_seq)
        done += 1
    del ranges[:done]
    return done_seq


def holds(ranges: list[SeqRange], seq: int) -> bool:
    index = bisect_left(ranges, seq, key=_to_seq)
    return index < len(ranges) and ranges[index].from_seq <= seq
