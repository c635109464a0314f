"""Live reading: topics that move are shown to everyone who follows them, in frames rendered once and shared.

    publish ─▶ waiter of the feed ─▶ touch ─▶ end of the tick: run ─┬─▶ a round: each trail of the feed looks once
                                                                    └─▶ readers with a backlog take a turn each
A reader keeps a position in the log and nothing else: what it has not taken yet is in the log. Rounds and turns are cut
into slices of time, so a topic with very many readers delays neither writers nor other topics; what is appended
meanwhile makes the next frames larger, not more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Protocol
from weakref import WeakValueDictionary

import msgspec

from topics.engine.core.engine import Engine
from topics.engine.log.reading import Diff, View, read
from topics.engine.log.retention import Tombstone
from topics.engine.log.topic import Topic
from topics.engine.log.waiters import Waiter
from topics.model.clock import Clock

# Of choosing and rendering; sending it takes about as long again.
SLICE_MS = 1.5
LOOKS_PER_CLOCK = 32
SHARED_BYTES_MAX = 4 * 1024 * 1024
_encode_string = msgspec.json.Encoder().encode


class Lens:
    """How a reader wants its frames; equal wishes get the same object, so frames are found by identity."""

    __slots__ = ("__weakref__", "bytes_max", "limit", "marks", "strong", "unfiltered", "view")

    def __init__(self, view: View, limit: int, bytes_max: int, *, strong: bool, unfiltered: Lens | None) -> None:
        self.view = view
        self.limit = limit
        self.bytes_max = bytes_max
        self.strong = strong
        # The same without a node filter, and what a record looks like that the filter may be about.
        self.unfiltered = unfiltered
        self.marks = [b'"$node":' + _encode_string(node) for node in view.nodes]


class Frame:
    """What comes next behind a position: perhaps a gap, perhaps records, and where that leads to.

    `rendered` keeps what a protocol made of it, for the next reader at the same position.
    """

    __slots__ = ("count", "from_seq", "head_seq", "records", "rendered", "to_seq", "tombstone", "topic")

    def __init__(self, topic: Topic, diff: Diff | None, seq: int, head_seq: int, *, lines: bool = False) -> None:
        self.topic = topic
        self.head_seq = head_seq
        self.rendered: dict[object, bytes] = {}
        # Behind the gap, if there is one; recreated: the gap ends at the head, but nothing live is skipped.
        self.from_seq = self.to_seq = seq
        self.tombstone: Tombstone | None = None
        self.records = b""
        self.count = 0
        if diff is None:
            return
        self.to_seq = diff.next_from_seq
        self.count = diff.count
        self.records = diff.lines() if lines else diff.records()
        self.tombstone = diff.tombstone
        if self.tombstone is not None:
            recreated = self.tombstone.reason == "recreated"
            self.from_seq = diff.earliest_seq - 1 if recreated else self.tombstone.gap_to

    @property
    def reaches_head(self) -> bool:
        return self.to_seq >= self.head_seq


class LiveReader(Protocol):
    """A connection that follows topics."""

    def look(self, trail: Trail) -> None:
        """The topic of this trail has moved."""
        ...

    def take_turn(self) -> bool:
        """Send a bounded part of the backlog; whether to come again."""
        ...


class Trail:
    """One reader's position in one topic."""

    __slots__ = ("feed", "followed", "fresh", "lens", "live", "name", "reader", "seq")

    def __init__(self, name: str, seq: int, lens: Lens, reader: LiveReader, feed: Feed) -> None:
        self.name = name
        self.seq = seq
        self.lens = lens
        self.reader = reader
        self.feed = feed
        self.followed = True
        # The reader was told that it has reached the head, and has not fallen behind since.
        self.live = False
        # Nothing was read yet since the reader came (back): a gap now means that it came too late.
        self.fresh = True


class Feed:
    """One topic as its readers see it."""

    __slots__ = (
        "_expired_ms",
        "_live",
        "_shared",
        "_shared_bytes",
        "_stamp",
        "again",
        "durable_seq",
        "gone",
        "in_round",
        "paced",
        "strong_trails",
        "topic",
        "trails",
        "waiter",
    )

    def __init__(self, live: Live, topic: Topic) -> None:
        self._live = live
        self.topic = topic
        self.trails: dict[Trail, None] = {}
        self.waiter: Waiter | None = None
        self.gone = False
        # the running round
        self.in_round = False
        self.again = False
        # not shown for now, because other topics matter more
        self.paced = False
        # for those who want only what is durable
        self.strong_trails = 0
        self.durable_seq = 0
        # frames of this state of the topic
        self._stamp: tuple[int, int, int, int] | None = None
        self._shared: dict[tuple[int, Lens], Frame] = {}
        self._shared_bytes = 0
        self._expired_ms = 0

    def head_for(self, lens: Lens) -> int:
        return min(self.durable_seq, self.topic.head_seq) if lens.strong else self.topic.head_seq

    def frame_after(self, seq: int, lens: Lens) -> Frame:
        """May raise ColdMiss, and DamagedData where the log cannot be read."""
        topic = self.topic
        if not self.in_round:
            # A backlog; what a round shows counts as one read at its end.
            topic.last_read_ts = self._live.now_ms()
        if topic.config.ttl_ms:
            now_ms = self._live.now_ms()
            if now_ms != self._expired_ms:
                self._live.expire(topic)
                self._expired_ms = now_ms
        stamp = topic.head_seq, topic.count, topic.evict_floor, self.durable_seq
        if stamp != self._stamp or self._shared_bytes > SHARED_BYTES_MAX:
            self._stamp = stamp
            self.forget_frames()
        frame = self._shared.get((seq, lens))
        if frame is None:
            frame = self._unfiltered(seq, lens) if lens.marks else None
            frame = frame or self._render(seq, lens)
            if len(self.trails) > 1:
                self._shared[seq, lens] = frame
                self._shared_bytes += len(frame.records)
                self._live.sharing.add(self)
        return frame

    def forget_frames(self) -> None:
        self._shared.clear()
        self._shared_bytes = 0

    def _unfiltered(self, seq: int, lens: Lens) -> Frame | None:
        """The frame of readers without a filter, if it holds nothing to leave out: usually readers have a node each,
        and a record is of one of them."""
        assert lens.unfiltered is not None
        frame = self.frame_after(seq, lens.unfiltered)
        return None if any(mark in frame.records for mark in lens.marks) else frame

    def _render(self, seq: int, lens: Lens) -> Frame:
        topic = self.topic
        head_seq = self.head_for(lens)
        if head_seq <= seq <= topic.head_seq:
            return Frame(topic, None, seq, max(head_seq, seq))
        view = lens.view
        if view.nodes and not topic.config.dedupe_node:
            view = view._replace(nodes=frozenset[str]())
        diff = read(topic, seq, view, lens.limit, lens.bytes_max, self._live.engine.state.cold.load, head_seq)
        return Frame(topic, diff, seq, head_seq, lines=view.lines)


class Live:
    """All feeds, and whose turn it is. `wake` asks for a tick; `run` is called at its end."""

    def __init__(self, engine: Engine, clock: Clock, wake: Callable[[], None]) -> None:
        self.engine = engine
        self._wake = wake
        self._clock = clock
        self._feeds: dict[Topic, Feed] = {}
        self._lenses: WeakValueDictionary[tuple[View, int, int, bool], Lens] = WeakValueDictionary()
        # Feeds that keep frames for the next reader at the same position.
        self.sharing: set[Feed] = set()
        # work for the next slices
        self._rounds: deque[tuple[Feed, Iterator[Trail]]] = deque()
        self._behind: dict[LiveReader, None] = {}
        # Which topics have to wait while the server is under pressure; paced feeds wait for the next `weigh`.
        self.is_shed: Callable[[Topic], bool] = _nobody
        self._paced: dict[Feed, None] = {}

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def expire(self, topic: Topic) -> None:
        state = self.engine.state
        state.expire(topic, self._clock.now_ms(), state.cold.load)

    def lens(self, view: View, limit: int, bytes_max: int, *, strong: bool) -> Lens:
        key = (view, limit, bytes_max, strong)
        lens = self._lenses.get(key)
        if lens is None:
            unfiltered = None
            if view.nodes:
                unfiltered = self.lens(view._replace(nodes=frozenset[str]()), limit, bytes_max, strong=strong)
            lens = self._lenses[key] = Lens(view, limit, bytes_max, strong=strong, unfiltered=unfiltered)
        return lens

    # --- coming and going ---

    def follow(self, topic: Topic, seq: int, lens: Lens, reader: LiveReader) -> Trail:
        """A trail that starts behind `seq`; the reader looks by itself for the first time."""
        feed = self._feeds.get(topic)
        if feed is None:
            feed = self._feeds[topic] = Feed(self, topic)
            feed.waiter = self.engine.waiters.add(topic, lambda: self._touch(feed))
        if self.is_shed(topic):
            self._pace(feed)
        trail = Trail(topic.name, seq, lens, reader, feed)
        feed.trails[trail] = None
        if lens.strong:
            feed.strong_trails += 1
            self._note_head(feed)
        return trail

    def leave(self, trail: Trail) -> None:
        if not trail.followed:
            return
        trail.followed = False
        feed = trail.feed
        feed.trails.pop(trail, None)
        feed.strong_trails -= trail.lens.strong
        if not feed.trails:
            self._feeds.pop(feed.topic, None)
            self._paced.pop(feed, None)
            if feed.waiter is not None:
                self.engine.waiters.remove(feed.waiter)
                feed.waiter = None

    # --- movement ---

    def _touch(self, feed: Feed) -> None:
        if self.engine.state.by_id.get(feed.topic.id) is not feed.topic:
            feed.gone = True
            # A topic of the same name may come; it is another feed.
            self._feeds.pop(feed.topic, None)
        elif self.is_shed(feed.topic):
            self._pace(feed)
        if feed.strong_trails:
            self._note_head(feed)
        self._start_round(feed)

    def _note_head(self, feed: Feed) -> None:
        """What is published now may be shown to strong readers as soon as its class's promise holds."""
        topic = feed.topic
        head_seq = topic.head_seq

        def durable() -> None:
            if head_seq > feed.durable_seq:
                feed.durable_seq = head_seq
                if feed.trails:
                    self._start_round(feed)

        if topic.config.durability == "disk":
            self.engine.commit_log.when_synced(durable)
        else:
            feed.durable_seq = head_seq

    def _pace(self, feed: Feed) -> None:
        feed.paced = True
        self._paced[feed] = None

    def weigh(self, *, pressed: bool) -> None:
        """Now and then: let go of frames that all have seen, hold back what has to wait, show what no longer has to."""
        for feed in self.sharing:
            feed.forget_frames()
        self.sharing.clear()
        if pressed:
            for feed in self._feeds.values():
                if not feed.paced and self.is_shed(feed.topic):
                    self._pace(feed)
        for feed in list(self._paced):
            if not self.is_shed(feed.topic):
                del self._paced[feed]
                feed.paced = False
                self._start_round(feed)

    def _start_round(self, feed: Feed) -> None:
        if feed.in_round:
            feed.again = True
        else:
            feed.in_round = True
            self._rounds.append((feed, iter(tuple(feed.trails))))
        self._wake()

    def queue(self, reader: LiveReader) -> None:
        """The reader has a backlog and room for it."""
        self._behind[reader] = None
        self._wake()

    def unqueue(self, reader: LiveReader) -> None:
        self._behind.pop(reader, None)

    # --- the end of a tick ---

    def run(self) -> None:
        """Show what moved, then serve backlogs; after a slice of time the rest waits for the next tick."""
        if not self._rounds and not self._behind:
            return
        end_ms = self._clock.monotonic_ms() + SLICE_MS
        if self._run_rounds(end_ms):
            self._run_turns(end_ms)
        if self._rounds or self._behind:
            self._wake()

    def _run_rounds(self, end_ms: float) -> bool:
        """Whether all rounds are through."""
        rounds, left = self._rounds, LOOKS_PER_CLOCK
        while rounds:
            feed, trails = rounds[0]
            for trail in trails:
                if trail.followed:
                    trail.reader.look(trail)
                left -= 1
                if not left:
                    if self._clock.monotonic_ms() > end_ms:
                        return False
                    left = LOOKS_PER_CLOCK
            rounds.popleft()
            feed.topic.last_read_ts = self._clock.now_ms()
            feed.in_round = False
            if feed.again:
                feed.again = False
                self._start_round(feed)
        return True

    def _run_turns(self, end_ms: float) -> None:
        """One turn for everyone who is behind, oldest first."""
        for reader in list(self._behind):
            if self._behind.pop(reader, True) is None and reader.take_turn():
                self._behind[reader] = None
            if self._clock.monotonic_ms() > end_ms:
                return


def _nobody(topic: Topic) -> bool:
    del topic
    return False
