"""Which records of a topic belong to what: labels of runs of seqs, and how many live records of each label are left.

Records with the same label mostly come in a row, so they are kept as spans of seqs, three numbers each, whatever their
count. A label is any number.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from mypy_extensions import mypyc_attr

if TYPE_CHECKING:
    from topics.engine.log.block import Block
    from topics.engine.log.topic import Topic

# With more spans than this, and more than records, each new record causes a few spans to be checked.
SPANS_MIN = 1_024
SPANS_PER_SWEEP = 256


@mypyc_attr(allow_interpreted_subclasses=True)
class SeqSpans:
    """Seqs are added in ascending order."""

    __slots__ = ("_firsts", "_labels", "_lasts", "_swept", "_total", "left")

    def __init__(self) -> None:
        self._firsts = array("Q")
        self._lasts = array("Q")
        self._labels = array("Q")
        # live records by label, and in all
        self.left: dict[int, int] = {}
        self._total = 0
        self._swept = 0

    def add(self, label: int, first_seq: int, count: int) -> None:
        self._count(label, count)
        if self._labels and self._labels[-1] == label and self._lasts[-1] == first_seq - 1:
            self._lasts[-1] += count
            return
        self._firsts.append(first_seq)
        self._lasts.append(first_seq + count - 1)
        self._labels.append(label)

    def _count(self, label: int, count: int) -> None:
        self.left[label] = self.left.get(label, 0) + count
        self._total += count

    def take(self, block: Block, start: int, stop: int) -> list[tuple[int, int]]:
        """The live records start … stop − 1 of a block are about to die: labels, and how many of each."""
        found = list(self._among(block, start, stop))
        for label, died in found:
            self._count(label, -died)
            if not self.left[label]:
                del self.left[label]
        return found

    def _among(self, block: Block, start: int, stop: int) -> Iterator[tuple[int, int]]:
        """Labelled records among the live records start … stop − 1: the label, and how many."""
        for first, end in block.alive_runs(start, stop):
            last_seq = block.seq_at(end - 1)
            at = bisect_left(self._lasts, block.seq_at(first))
            while at < len(self._firsts) and self._firsts[at] <= last_seq:
                begin = max(first, block.number_after(self._firsts[at] - 1))
                yield self._labels[at], min(end, block.number_after(self._lasts[at])) - begin
                at += 1

    def tidy(self, topic: Topic) -> None:
        """Remove empty spans, a few at a time, while most spans are empty."""
        spans = len(self._firsts)
        if spans <= SPANS_MIN + 2 * self._total:
            return
        start = self._swept if self._swept < spans else 0
        stop = min(spans, start + SPANS_PER_SWEEP)
        kept = [at for at in range(start, stop) if topic.live_within(self._firsts[at], self._lasts[at])]
        for column in (self._firsts, self._lasts, self._labels):
            column[start:stop] = array("Q", [column[at] for at in kept])
        self._swept = start + len(kept)

    # --- in a snapshot ---

    def encode(self) -> bytes:
        return b"".join(column.tobytes() for column in (self._firsts, self._lasts, self._labels))

    def restore(self, data: bytes, blocks: list[Block]) -> None:
        """Those of the spans that are in the blocks."""
        numbers = array("Q", data)
        spans = len(numbers) // 3
        self._firsts, self._lasts, self._labels = numbers[:spans], numbers[spans : 2 * spans], numbers[2 * spans :]
        for block in blocks:
            for label, found in self._among(block, 0, block.count):
                self._count(label, found)
