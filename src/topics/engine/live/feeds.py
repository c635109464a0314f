"""Live reading: what is appended to a topic reaches all its followers, in frames rendered once and shared.

    publish ─▶ waiter of the feed ─▶ touch ─▶ end of the tick: run ─┬─▶ a round: each subscription of the feed, once
                                                                    └─▶ readers with a backlog take a turn each
A subscription has a position in the log and no queue: what was not sent yet is in the log. Rounds and turns run in
slices of time, so a topic with many readers delays neither writers nor other topics. Records that are appended
meanwhile make the next frames larger, not more numerous.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import NamedTuple, Protocol
from weakref import WeakValueDictionary

import msgspec
from mypy_extensions import mypyc_attr

from topics.engine.core.engine import Engine
from topics.engine.log.reading import Diff, View, read
from topics.engine.log.retention import Tombstone
from topics.engine.log.topic import Topic
from topics.engine.log.waiters import Waiter
from topics.model.clock import Clock

# Time for choosing and rendering; sending takes about as long again.
SLICE_MS = 1.5
LOOKS_PER_CLOCK = 32
SHARED_BYTES_MAX = 4 * 1024 * 1024
_encode_string = msgspec.json.Encoder().encode


@mypyc_attr(native_class=False)  # native ones have no weak references
class FrameOptions:
    """How a reader wants its frames. Equal options are one object, so that frames are found by identity."""

    __slots__ = ("__weakref__", "bytes_max", "limit", "marks", "strong", "unfiltered", "view")

    def __init__(
        self, view: View, limit: int, bytes_max: int, *, strong: bool, unfiltered: FrameOptions | None
    ) -> None:
        self.view = view
        self.limit = limit
        self.bytes_max = bytes_max
        self.strong = strong
        # The same options without a node filter; the bytes by which a record that the filter may drop is recognised.
        self.unfiltered = unfiltered
        self.marks = [b'"$node":' + _encode_string(node) for node in view.nodes]


class Frame:
    """What comes after a position: perhaps a gap, perhaps records, and the position after them.

    `rendered` keeps the bytes of each protocol for the next reader at the same position.
    """

    __slots__ = ("count", "from_seq", "head_seq", "records", "rendered", "to_seq", "tombstone", "topic")

    def __init__(self, topic: Topic, diff: Diff | None, seq: int, head_seq: int, *, lines: bool = False) -> None:
        self.topic = topic
        self.head_seq = head_seq
        self.rendered: dict[object, bytes] = {}
        # The position after the gap, if there is one. Recreated: the gap ends at the head, but skips no live record.
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

    def look(self, subscription: Subscription) -> None:
        """The topic of this subscription has moved."""
        ...

    def take_turn(self) -> bool:
        """Send a bounded part of the backlog. Returns whether there is more to send."""
        ...


class Subscription:
    """One reader's position in one topic."""

    __slots__ = ("caught_up", "feed", "followed", "fresh", "name", "options", "reader", "seq")

    def __init__(self, name: str, seq: int, options: FrameOptions, reader: LiveReader, feed: Feed) -> None:
        self.name = name
        self.seq = seq
        self.options = options
        self.reader = reader
        self.feed = feed
        self.followed = True
        # The reader was notified that it has reached the head, and no backlog has built up since.
        self.caught_up = False
        # Nothing was read since the reader connected: a gap now means that it connected too late.
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
        "strong_subscriptions",
        "subscriptions",
        "topic",
        "waiter",
    )

    def __init__(self, live: LiveFeeds, topic: Topic) -> None:
        self._live = live
        self.topic = topic
        self.subscriptions: dict[Subscription, None] = {}
        self.waiter: Waiter | None = None
        self.gone = False
        # the running round
        self.in_round = False
        self.again = False
        # not shown for now: other topics have priority
        self.paced = False
        # for readers that want only durable records
        self.strong_subscriptions = 0
        self.durable_seq = 0
        # frames that are valid for this state of the topic
        self._stamp: tuple[int, int, int, int] | None = None
        self._shared: dict[tuple[int, FrameOptions], Frame] = {}
        self._shared_bytes = 0
        self._expired_ms = 0

    def head_for(self, options: FrameOptions) -> int:
        return min(self.durable_seq, self.topic.head_seq) if options.strong else self.topic.head_seq

    def frame_after(self, seq: int, options: FrameOptions) -> Frame:
        """May raise ColdMiss, and DamagedData if the records cannot be read."""
        topic = self.topic
        if not self.in_round:
            # A backlog. A round counts as one read, at its end.
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
        frame = self._shared.get((seq, options))
        if frame is None:
            frame = self._unfiltered(seq, options) if options.marks else None
            frame = frame or self._render(seq, options)
            if len(self.subscriptions) > 1:
                self._shared[seq, options] = frame
                self._shared_bytes += len(frame.records)
                self._live.sharing.add(self)
        return frame

    def forget_frames(self) -> None:
        self._shared.clear()
        self._shared_bytes = 0

    def _unfiltered(self, seq: int, options: FrameOptions) -> Frame | None:
        """The frame of readers without a filter, if the filter drops nothing from it. That is the usual case: each
        reader has its own node, and a record comes from one of them."""
        assert options.unfiltered is not None
        frame = self.frame_after(seq, options.unfiltered)
        return None if any(mark in frame.records for mark in options.marks) else frame

    def _render(self, seq: int, options: FrameOptions) -> Frame:
        topic = self.topic
        head_seq = self.head_for(options)
        if head_seq <= seq <= topic.head_seq:
            return Frame(topic, None, seq, max(head_seq, seq))
        view = options.view
        if view.nodes and not topic.config.dedupe_node:
            view = view._replace(nodes=frozenset[str]())
        diff = read(topic, seq, view, options.limit, options.bytes_max, self._live.engine.state.cold.load, head_seq)
        return Frame(topic, diff, seq, head_seq, lines=view.lines)


class Followers(NamedTuple):
    shown: list[tuple[int, bool]]
    total: int


class LiveFeeds:
    """All feeds, and the order in which readers are served. `wake` asks for a tick; `run` is called at its end."""

    def __init__(self, engine: Engine, clock: Clock, wake: Callable[[], None]) -> None:
        self.engine = engine
        self._wake = wake
        self._clock = clock
        self._feeds: dict[Topic, Feed] = {}
        self._options: WeakValueDictionary[tuple[View, int, int, bool], FrameOptions] = WeakValueDictionary()
        # Feeds that keep frames for the next reader at the same position.
        self.sharing: set[Feed] = set()
        # work for the next slices
        self._rounds: deque[tuple[Feed, Iterator[Subscription]]] = deque()
        self._backlogged: dict[LiveReader, None] = {}
        # Which topics wait while the server is under pressure; paced feeds wait for the next `weigh`.
        self.is_shed: Callable[[Topic], bool] = _none_shed
        self._paced: dict[Feed, None] = {}

    def now_ms(self) -> int:
        return self._clock.now_ms()

    def expire(self, topic: Topic) -> None:
        state = self.engine.state
        state.expire(topic, self._clock.now_ms(), state.cold.load)

    def frame_options(self, view: View, limit: int, bytes_max: int, *, strong: bool) -> FrameOptions:
        key = (view, limit, bytes_max, strong)
        options = self._options.get(key)
        if options is None:
            unfiltered = None
            if view.nodes:
                unfiltered = self.frame_options(view._replace(nodes=frozenset[str]()), limit, bytes_max, strong=strong)
            options = self._options[key] = FrameOptions(view, limit, bytes_max, strong=strong, unfiltered=unfiltered)
        return options

    def followers(self, topic: Topic, limit: int) -> Followers:
        """Who follows a topic: where each of the first ones is, and whether it is held back."""
        feed = self._feeds.get(topic)
        if feed is None:
            return Followers([], 0)
        shown = [(subscription.seq, feed.paced) for subscription in islice(feed.subscriptions, limit)]
        return Followers(shown, len(feed.subscriptions))

    # --- subscribing ---

    def follow(self, topic: Topic, seq: int, options: FrameOptions, reader: LiveReader) -> Subscription:
        """A subscription that starts after `seq`. The reader makes the first look itself."""
        feed = self._feeds.get(topic)
        if feed is None:
            feed = self._feeds[topic] = Feed(self, topic)
            feed.waiter = self.engine.waiters.add(topic, lambda: self._touch(feed))
        if self.is_shed(topic):
            self._pace(feed)
        subscription = Subscription(topic.name, seq, options, reader, feed)
        feed.subscriptions[subscription] = None
        if options.strong:
            feed.strong_subscriptions += 1
            self._note_head(feed)
        return subscription

    def unfollow(self, subscription: Subscription) -> None:
        if not subscription.followed:
            return
        subscription.followed = False
        feed = subscription.feed
        feed.subscriptions.pop(subscription, None)
        feed.strong_subscriptions -= subscription.options.strong
        if not feed.subscriptions:
            self._feeds.pop(feed.topic, None)
            self._paced.pop(feed, None)
            if feed.waiter is not None:
                self.engine.waiters.remove(feed.waiter)
                feed.waiter = None

    # --- movement ---

    def _touch(self, feed: Feed) -> None:
        if self.engine.state.by_id.get(feed.topic.id) is not feed.topic:
            feed.gone = True
            # A new topic of the same name gets a feed of its own.
            self._feeds.pop(feed.topic, None)
        elif self.is_shed(feed.topic):
            self._pace(feed)
        if feed.strong_subscriptions:
            self._note_head(feed)
        self._start_round(feed)

    def _note_head(self, feed: Feed) -> None:
        """Strong readers see the current head as soon as it is as durable as its topic requires."""
        topic = feed.topic
        head_seq = topic.head_seq

        def durable() -> None:
            if head_seq > feed.durable_seq:
                feed.durable_seq = head_seq
                if feed.subscriptions:
                    self._start_round(feed)

        if topic.config.durability == "disk":
            self.engine.commit_log.when_synced(durable)
        else:
            feed.durable_seq = head_seq

    def _pace(self, feed: Feed) -> None:
        feed.paced = True
        self._paced[feed] = None

    def weigh(self, *, pressed: bool) -> None:
        """Called regularly: release shared frames, hold back topics that are shed, resume those that no longer are."""
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
            self._rounds.append((feed, iter(tuple(feed.subscriptions))))
        self._wake()

    def queue(self, reader: LiveReader) -> None:
        """The reader has a backlog and room for it."""
        self._backlogged[reader] = None
        self._wake()

    def unqueue(self, reader: LiveReader) -> None:
        self._backlogged.pop(reader, None)

    # --- the end of a tick ---

    def run(self) -> None:
        """Run rounds, then serve backlogs. After a slice of time the rest waits for the next tick."""
        if not self._rounds and not self._backlogged:
            return
        end_ms = self._clock.monotonic_ms() + SLICE_MS
        if self._run_rounds(end_ms):
            self._run_turns(end_ms)
        if self._rounds or self._backlogged:
            self._wake()

    def _run_rounds(self, end_ms: float) -> bool:
        """Returns whether all rounds are done."""
        rounds, left = self._rounds, LOOKS_PER_CLOCK
        while rounds:
            feed, subscriptions = rounds[0]
            for subscription in subscriptions:
                if subscription.followed:
                    subscription.reader.look(subscription)
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
        """One turn for each reader with a backlog, the longest waiting first."""
        for reader in list(self._backlogged):
            if self._backlogged.pop(reader, True) is None and reader.take_turn():
                self._backlogged[reader] = None
            if self._clock.monotonic_ms() > end_ms:
                return


def _none_shed(topic: Topic) -> bool:
    del topic
    return False
