"""A router's state: source, destination, cursor, and what forwarding has to remember: evidence and hops.

A destination has at most one router, so the durable part (cursor, counter, evidence) belongs to the destination: the
op that adds copies also moves the cursor, and the destination's image in a snapshot has both.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import TYPE_CHECKING

import msgspec

from topics.engine.log.copying import Origin
from topics.model.errors import TopicsError
from topics.model.requests.routers import RouterConfig

if TYPE_CHECKING:
    from topics.engine.core.pending import PendingChange
    from topics.engine.log.topic import Topic

HOPS_MAX = 8
HOP_SPANS_MAX = 1_024


class Router:
    """Changed only by `apply`, except for the forwarder's fields."""

    __slots__ = (
        "backoff_ms",
        "config",
        "cursor",
        "dest",
        "forwarded_total",
        "inflight",
        "last_error",
        "match",
        "name",
        "source",
    )

    def __init__(self, name: str, source: Topic, dest: Topic, config: RouterConfig) -> None:
        self.name = name
        self.source = source
        self.dest = dest
        self.config = config
        self.match = config.match()
        # The last seq of the source that has been processed.
        self.cursor = 0
        self.forwarded_total = 0
        # the forwarder's: a pending mark, a pending change of the router, why it does not continue
        self.inflight: PendingChange | None = None
        self.last_error: TopicsError | None = None
        self.backoff_ms = 0.0

    @property
    def lag(self) -> int:
        """Seqs of the source that are not processed yet; 0 if no record is left, as after a crash that skips seqs."""
        source = self.source
        if source.block_after(self.cursor) == len(source.blocks):
            return 0
        return max(0, source.head_seq - self.cursor)

    @property
    def origin(self) -> Origin:
        return Origin(self.name, self.source.name, self.source.id, self.source.epoch)

    def image(self) -> RouterImage:
        return RouterImage(self.name, self.source.id, self.config, self.cursor, self.forwarded_total)


class RouterImage(msgspec.Struct, array_like=True):
    """A router in the image of its destination."""

    name: str
    source_id: int
    config: RouterConfig
    cursor: int
    forwarded_total: int


class EvidenceImage(msgspec.Struct, array_like=True):
    origin: tuple[str, str, int, int]
    spans: bytes


class Evidence:
    """Which seqs of a source became which seqs here, as spans (source seq, dest seq, count) in ascending order.

    The engine's own record of its stamps: what a client writes into a meta does not count. Adjacent spans are joined,
    so that a destination without other writers needs a single one.
    """

    __slots__ = ("counts", "dest_seqs", "source_seqs")

    def __init__(self) -> None:
        self.source_seqs = array("Q")
        self.dest_seqs = array("Q")
        self.counts = array("Q")

    def add(self, source_seq: int, dest_seq: int, count: int) -> None:
        if self.counts:
            last = self.counts[-1]
            if (self.source_seqs[-1] + last, self.dest_seqs[-1] + last) == (source_seq, dest_seq):
                self.counts[-1] += count
                return
            if source_seq < self.source_seqs[-1] + last:
                self._replace(source_seq, dest_seq, count)
                return
        self.source_seqs.append(source_seq)
        self.dest_seqs.append(dest_seq)
        self.counts.append(count)

    def _replace(self, source_seq: int, dest_seq: int, count: int) -> None:
        """Some records are copied again because their earlier copies are gone: only the newer copies count."""
        spans: list[tuple[int, int, int]] = [(source_seq, dest_seq, count)]
        end = source_seq + count
        for first, seq, length in self._spans():
            if first < source_seq:
                spans.append((first, seq, min(length, source_seq - first)))
            if first + length > end:
                skipped = max(0, end - first)
                spans.append((first + skipped, seq + skipped, length - skipped))
        self._set(sorted(spans))

    def _spans(self) -> zip[tuple[int, int, int]]:
        return zip(self.source_seqs, self.dest_seqs, self.counts, strict=True)

    def _set(self, spans: list[tuple[int, int, int]]) -> None:
        self.source_seqs, self.dest_seqs, self.counts = (
            array("Q", [span[column] for span in spans]) for column in range(3)
        )

    def dest_seq(self, source_seq: int) -> int | None:
        """The seq of this record's copy, if it was copied."""
        at = bisect_right(self.source_seqs, source_seq) - 1
        if at < 0 or source_seq >= self.source_seqs[at] + self.counts[at]:
            return None
        return self.dest_seqs[at] + source_seq - self.source_seqs[at]

    @property
    def last_source_seq(self) -> int:
        return self.source_seqs[-1] + self.counts[-1] - 1 if self.counts else 0

    def prune(self, earliest_seq: int) -> None:
        """Forget spans of records that are gone."""
        if any(seq + count <= earliest_seq for _, seq, count in self._spans()):
            self._set([span for span in self._spans() if span[1] + span[2] > earliest_seq])

    def encode(self) -> bytes:
        return self.source_seqs.tobytes() + self.dest_seqs.tobytes() + self.counts.tobytes()

    @classmethod
    def decode(cls, data: bytes) -> Evidence:
        evidence = cls()
        third = len(data) // 3
        evidence.source_seqs = array("Q", data[:third])
        evidence.dest_seqs = array("Q", data[third : 2 * third])
        evidence.counts = array("Q", data[2 * third :])
        return evidence


class Hops:
    """How many routers that may close a cycle the copies in a topic have passed; in memory only.

    Spans (first seq, last seq, hops) in ascending order; records in none of them have passed none.
    """

    __slots__ = ("_spans",)

    def __init__(self) -> None:
        self._spans: list[tuple[int, int, int]] = []

    def add(self, first_seq: int, last_seq: int, hops: int) -> None:
        if self._spans and self._spans[-1][1] == first_seq - 1 and self._spans[-1][2] == hops:
            self._spans[-1] = self._spans[-1][0], last_seq, hops
        else:
            self._spans.append((first_seq, last_seq, hops))
        if len(self._spans) > HOP_SPANS_MAX:
            del self._spans[: HOP_SPANS_MAX // 2]

    def at(self, seq: int) -> tuple[int, int]:
        """The hops of the record with this seq, and the last seq up to which they are the same (2⁶⁴: all)."""
        at = bisect_right(self._spans, (seq, 2**64, 0)) - 1
        if at >= 0 and seq <= self._spans[at][1]:
            return self._spans[at][2], self._spans[at][1]
        return 0, self._spans[at + 1][0] - 1 if at + 1 < len(self._spans) else 2**64

    def forget_up_to(self, seq: int) -> None:
        while self._spans and self._spans[0][1] <= seq:
            del self._spans[0]
