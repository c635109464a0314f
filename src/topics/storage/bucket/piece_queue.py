"""The synced log that waits for the bucket: what the next piece has, and when it is due.

    offer ─▶ | span | span | ─▶ take: neighbours in one file, up to `piece_bytes` ─▶ done: it is in the bucket
                                     │                                           └─▶ put_back: it could not be read
                                     └─▶ leave: the rest of what is too long for one piece

A piece is due when its oldest byte has waited for the interval, or as soon as there are enough bytes. While a change
waits for the bucket (`want`), the interval is a tenth, counted from the piece before: the first one after a pause is
due at once, and what is written while a piece is on its way shares the next one. One piece is on its way at a time, so
the time that the bucket takes for it bounds their number as well.

The time is passed in. Two threads use this, under a lock of theirs.
"""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

from topics.storage.wal.wal import LogSpan

# While changes wait for the bucket, pieces leave this many times as often.
WANTED_SHARES = 10


class _Waiting(NamedTuple):
    span: LogSpan
    since_s: float


class PieceQueue:
    """Parts of the log in order, without gaps, and the piece that is on its way."""

    def __init__(self, interval_s: float, piece_bytes: int) -> None:
        self._interval_s, self._piece_bytes = interval_s, piece_bytes
        self._spans: deque[_Waiting] = deque()
        self._bytes = 0
        self._offered_to = self._taken_to = 0
        # Of the changes that wait and are in no piece yet, the last one ends here, and none ends before `_wanted_from`.
        self._wanted_from = self._wanted_to = 0
        self._on_its_way: _Waiting | None = None
        self._taken_s = -math.inf

    def __bool__(self) -> bool:
        return bool(self._spans)

    @property
    def since_s(self) -> float | None:
        """Since when the oldest byte waits that is not known to be in the bucket."""
        if self._on_its_way is not None:
            return self._on_its_way.since_s
        return self._spans[0].since_s if self._spans else None

    def offer(self, span: LogSpan, since_s: float) -> None:
        """What follows the last span in the log; its oldest byte waits since then."""
        last = self._spans[-1] if self._spans else None
        if last is not None and self._are_one_piece(last.span, span):
            self._spans[-1] = last._replace(span=last.span._replace(to_position=span.to_position))
        else:
            self._spans.append(_Waiting(span, since_s))
        self._bytes += span.to_position - span.from_position
        self._offered_to = span.to_position

    def want(self, position: int) -> None:
        """A change that ends here waits until it is in the bucket."""
        if position > self._wanted_to:
            if self._wanted_to <= self._taken_to:
                self._wanted_from = position
            self._wanted_to = position

    def due_s(self) -> float:
        """When the next piece is to be taken; `inf`: nothing waits."""
        if not self._spans:
            return math.inf
        if self._bytes >= self._piece_bytes:
            return -math.inf
        due_s = self._spans[0].since_s + self._interval_s
        if self._wanted_to > self._taken_to and self._wanted_from <= self._offered_to:
            due_s = min(due_s, self._taken_s + self._interval_s / WANTED_SHARES)
        return due_s

    def take(self, now_s: float) -> LogSpan | None:
        """The next piece, which is on its way from now on; None: nothing waits."""
        if not self._spans:
            return None
        span, since_s = self._spans.popleft()
        while self._spans and self._are_one_piece(span, self._spans[0].span):
            span = span._replace(to_position=self._spans.popleft().span.to_position)
        self._bytes -= span.to_position - span.from_position
        self._on_its_way, self._taken_s = _Waiting(span, since_s), now_s
        # A change whose sync is under way is worth waiting for: it comes within milliseconds.
        self._taken_to, self._wanted_from = span.to_position, self._wanted_to
        return span

    def done(self) -> None:
        """What was taken is in the bucket, or is given up."""
        self._on_its_way = None

    def put_back(self) -> None:
        """What was taken is taken again: a piece that is left out would be a hole in the copy."""
        taken = self._on_its_way
        assert taken is not None
        self._on_its_way = None
        self._spans.appendleft(taken)
        self._bytes += taken.span.to_position - taken.span.from_position
        self._taken_to, self._wanted_from = taken.span.from_position, 0

    def leave(self, position: int) -> None:
        """Only what ends here is on its way; the rest of what was taken is taken next."""
        taken = self._on_its_way
        assert taken is not None
        rest = taken._replace(span=taken.span._replace(from_position=position))
        self._on_its_way = taken._replace(span=taken.span._replace(to_position=position))
        self._spans.appendleft(rest)
        self._bytes += rest.span.to_position - position
        self._taken_to, self._wanted_from = position, 0

    def clear(self) -> None:
        """Nothing of it is sent any more; what is offered next may begin anywhere."""
        self._spans.clear()
        self._bytes = 0
        self._taken_to, self._wanted_from = -1, 0

    def _are_one_piece(self, first: LogSpan, second: LogSpan) -> bool:
        return (
            first.path == second.path
            and first.to_position == second.from_position
            and second.to_position - first.from_position <= self._piece_bytes
        )
