"""Ranges of seqs, and how they are divided among tasks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from pyspark.sql.datasource import InputPartition

from topics_spark.options import PARTITIONS_MAX

# Each range is a request of about a millisecond, and a task costs as much as a hundred of them.
RANGES_MAX: Final = 500


class Range(NamedTuple):
    """The records of one epoch of a topic with `from_seq < seq <= to_seq`."""

    topic: str
    epoch: int
    from_seq: int
    to_seq: int

    @property
    def seqs(self) -> int:
        return max(0, self.to_seq - self.from_seq)


@dataclass
class Share(InputPartition):
    """The ranges of one task, in order."""

    ranges: tuple[Range, ...]


class FilePart(NamedTuple):
    """A `topics.engine.scan.Part`, which only the reader of files needs to know."""

    part: Any
    nodes: tuple[str, ...]


@dataclass
class FileShare(InputPartition):
    """What one task reads from files."""

    parts: tuple[FilePart, ...]


def shares(ranges: Iterable[Range], partitions_min: int, records_max: int) -> list[InputPartition]:
    """Equal shares: as many as asked for, or more so that none exceeds `records_max` seqs, or RANGES_MAX topics."""
    ranges = [each for each in ranges if each.seqs]
    return [
        Share(tuple(share[first : first + RANGES_MAX]))
        for share in dealt(ranges, share_seqs(ranges, partitions_min, records_max))
        for first in range(0, len(share), RANGES_MAX)
    ]


def share_seqs(ranges: Iterable[Range], partitions_min: int, records_max: int) -> int:
    """The number of seqs in a share."""
    total = sum(each.seqs for each in ranges)
    count = min(max(partitions_min, -(-total // records_max)), total, PARTITIONS_MAX)
    return -(-total // max(1, count))


def dealt(ranges: Iterable[Range], share_seqs: int) -> Iterator[list[Range]]:
    share: list[Range] = []
    room = share_seqs
    for each in ranges:
        from_seq = each.from_seq
        while from_seq < each.to_seq:
            to_seq = min(each.to_seq, from_seq + room)
            share.append(each._replace(from_seq=from_seq, to_seq=to_seq))
            room -= to_seq - from_seq
            from_seq = to_seq
            if not room:
                yield share
                share, room = [], share_seqs
    if share:
        yield share
