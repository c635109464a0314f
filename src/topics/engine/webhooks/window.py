"""The records of a webhook that were looked at and are not done: which may be sent next, in which order.

                 lane "a":  17 (sending) ◀ 21 ◀ 30          a record waits for those before it in its lane
    not done ──▶ lane "b":  18 (failed, until 12:00:05)
                 no lane:   19, 20                          nothing to wait for

It knows records by seq and tag; no clock, no payloads, no engine.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Hashable, Iterator

from topics.model.webhooks.webhook_config import Order


class OpenRecord:
    """A record that is not done. `lane`: what it shares with records that must not overtake it; None: nothing."""

    __slots__ = ("attempts", "lane", "next_ms", "sending", "seq")

    def __init__(self, seq: int, lane: Hashable | None, attempts: int, next_ms: int) -> None:
        self.seq = seq
        self.lane = lane
        self.attempts = attempts
        self.next_ms = next_ms
        self.sending = False


class Window:
    def __init__(self, order: Order) -> None:
        self._order = order
        # by seq, ascending
        self._open: dict[int, OpenRecord] = {}
        # those with others after them; the first of a lane may be sent
        self._lanes: dict[Hashable, deque[OpenRecord]] = {}
        # heaps of what may be sent: now, by seq; later, by time
        self._ready: list[int] = []
        self._resting: list[tuple[int, int]] = []

    def __len__(self) -> int:
        return len(self._open)

    def seqs(self) -> Iterator[int]:
        """Of what is not done, ascending."""
        return iter(self._open)

    @property
    def ready(self) -> int:
        """Records that may be sent now."""
        return len(self._ready)

    @property
    def lowest_seq(self) -> int | None:
        """The first record that is not done."""
        return next(iter(self._open), None)

    @property
    def next_ms(self) -> int | None:
        """When the next record that failed may be tried again, if none may be sent now."""
        return None if self._ready or not self._resting else self._resting[0][0]

    def add(self, seq: int, tag: bytes | None, attempts: int = 0, next_ms: int = 0) -> None:
        """The next record; its seq is above all others'."""
        lane: Hashable | None = None
        if self._order == "topic":
            lane = ""
        elif self._order == "tag":
            lane = tag
        entry = self._open[seq] = OpenRecord(seq, lane, attempts, next_ms)
        if lane is not None:
            waiting = self._lanes.setdefault(lane, deque())
            waiting.append(entry)
            if len(waiting) > 1:
                return
        self._place(entry)

    def take(self, now_ms: int) -> OpenRecord | None:
        """The next record to send; the caller says `done` or `rest` when it knows what became of it."""
        while self._resting and self._resting[0][0] <= now_ms:
            heapq.heappush(self._ready, heapq.heappop(self._resting)[1])
        if not self._ready:
            return None
        entry = self._open[heapq.heappop(self._ready)]
        entry.sending = True
        return entry

    def done(self, entry: OpenRecord) -> None:
        """Delivered or given up: the next one of its lane may go."""
        del self._open[entry.seq]
        if entry.lane is not None:
            waiting = self._lanes[entry.lane]
            waiting.popleft()
            if waiting:
                self._place(waiting[0])
            else:
                del self._lanes[entry.lane]

    def rest(self, entry: OpenRecord, next_ms: int) -> None:
        """It failed: it may be sent again at this time."""
        entry.sending = False
        entry.next_ms = next_ms
        self._place(entry)

    def _place(self, entry: OpenRecord) -> None:
        if entry.next_ms:
            heapq.heappush(self._resting, (entry.next_ms, entry.seq))
        else:
            heapq.heappush(self._ready, entry.seq)
