"""Bulk reads: a range of a topic as lines of JSON, slice by slice, and the fields of its last line."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from topics.engine.log.block import Block
from topics.engine.log.reading import Diff, View, read
from topics.engine.log.retention import Tombstone
from topics.engine.log.topic import Topic

SLICE_BYTES = 256 * 1024
NO_LIMIT = 2**63
_encode = msgspec.json.Encoder().encode


class BulkRead:
    """The end is fixed at the start, so a growing topic does not prolong the read."""

    __slots__ = ("_count", "_expire", "_load", "_slice_bytes", "_to_seq", "_view", "seq", "topic")

    def __init__(
        self,
        topic: Topic,
        view: View,
        from_seq: int,
        to_seq: int,
        load: Callable[[Block], None],
        expire: Callable[[Topic], None],
        slice_bytes: int = SLICE_BYTES,
    ) -> None:
        self.topic = topic
        self.seq = from_seq
        self._view = view
        self._to_seq = min(to_seq, topic.head_seq)
        self._load = load
        self._expire = expire
        self._slice_bytes = slice_bytes
        self._count = 0

    def read(self) -> Diff | None:
        """The next slice; None at the end. May raise ColdMiss, and DamagedData where the log cannot be read."""
        if self.is_over:
            return None
        if self.topic.config.ttl_ms:
            self._expire(self.topic)
        return read(self.topic, self.seq, self._view, NO_LIMIT, self._slice_bytes, self._load, self._to_seq)

    @property
    def is_over(self) -> bool:
        return self._to_seq <= self.seq <= self.topic.head_seq

    def lines(self, diff: Diff) -> bytes | bytearray | memoryview:
        """The slice as lines; reading continues after it."""
        parts = diff.parts
        gap = self.advance(diff)
        if gap is not None:
            parts = [b'{"tombstone":%b}\n' % gap, *parts]
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def advance(self, diff: Diff) -> bytes | None:
        """Reading continues after this slice; the fields of the gap before it, if there is one."""
        self._count += diff.count
        self.seq = diff.next_from_seq
        return None if diff.tombstone is None else _encode(self._within(diff.tombstone).as_dict())

    def end(self) -> bytes:
        """The fields of the last line: the whole range was read."""
        topic = self.topic
        return _encode(
            {
                "next_from_seq": self.seq,
                "head_seq": topic.head_seq,
                "earliest_seq": topic.earliest_seq,
                "epoch": topic.epoch,
                "records": self._count,
            }
        )

    def _within(self, tombstone: Tombstone) -> Tombstone:
        """Only the requested part of a gap: the rest is reported to the readers of that range."""
        if tombstone.reason == "recreated" or tombstone.gap_to <= self._to_seq:
            return tombstone
        missed = min(tombstone.missed_estimate, self._to_seq - tombstone.gap_from + 1)
        return tombstone._replace(gap_to=self._to_seq, missed_estimate=missed)
