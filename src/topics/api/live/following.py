"""A connection that follows topics: it advances along their logs as fast as its client reads, in any protocol.

look (a topic changed) ─┬─ client keeps up ─▶ one frame ─▶ at the head: live
                        └─ more than a frame ─▶ behind ─▶ a turn per tick ─▶ at the head: caught up, live
client does not keep up ─▶ nothing is read or rendered until it does
"""

from __future__ import annotations

from mypy_extensions import mypyc_attr

from topics.engine.live.feeds import Frame, FrameOptions, LiveFeeds, Subscription
from topics.engine.log.on_disk.cold import ColdMiss, Reader
from topics.engine.log.retention import Tombstone
from topics.engine.log.topic import Topic
from topics.model.errors import TopicsError

# After a frame this large it is worth checking how much the connection has not sent yet.
LARGE_FRAME_BYTES = 8 * 1024
# Losses by retention; a reader that was not connected when they happened gets `from_seq_too_old` instead.
LOST_BY_RETENTION = frozenset(("cap", "ttl", "mixed"))


@mypyc_attr(allow_interpreted_subclasses=True)
class Follower:
    """The part that SSE and WebSocket share. A protocol defines how to write, and whether there is room."""

    __slots__ = ("_behind", "_blocked", "_live", "_reader", "_waits_for_cold", "subscriptions")

    def __init__(self, live: LiveFeeds, reader: Reader) -> None:
        self._live = live
        self._reader = reader
        self.subscriptions: dict[str, Subscription] = {}
        # Subscriptions with more records than were sent.
        self._behind: dict[Subscription, None] = {}
        # The client does not keep up, according to the protocol.
        self._blocked = False
        self._waits_for_cold = False

    # --- implemented by a protocol ---

    @property
    def _has_room(self) -> bool:
        raise NotImplementedError

    def _write_records(self, subscription: Subscription, frame: Frame) -> int:
        """Send the frame; its size in bytes. The subscription is at the end of the frame already."""
        raise NotImplementedError

    def _write_tombstone(self, subscription: Subscription, tombstone: Tombstone, reason: str) -> None:
        raise NotImplementedError

    def _write_caught_up(self, subscription: Subscription, head_seq: int) -> None:
        raise NotImplementedError

    def _write_gone(self, subscription: Subscription) -> None:
        raise NotImplementedError

    def _write_paced(self, subscription: Subscription) -> None:
        raise NotImplementedError

    def _write_unreadable(self, subscription: Subscription, error: TopicsError) -> None:
        raise NotImplementedError

    # --- subscribing ---

    def follow(self, topic: Topic, seq: int, options: FrameOptions) -> Subscription:
        """Start after `seq`; `catch_up` makes the first look."""
        subscription = self._live.follow(topic, seq, options, self)
        self.subscriptions[subscription.name] = subscription
        self._behind[subscription] = None
        return subscription

    def unfollow(self, subscription: Subscription) -> None:
        self._live.unfollow(subscription)
        self._behind.pop(subscription, None)
        if self.subscriptions.get(subscription.name) is subscription:
            del self.subscriptions[subscription.name]

    def unfollow_all(self) -> None:
        for subscription in self.subscriptions.values():
            self._live.unfollow(subscription)
        self.subscriptions.clear()
        self._behind.clear()
        self._live.unqueue(self)

    def catch_up(self) -> None:
        """Continue with the backlog, in turn with other readers."""
        if self._behind and not self._blocked and not self._waits_for_cold:
            self._live.queue(self)

    def stall(self) -> None:
        self._blocked = True

    def resume(self, *, was_long: bool) -> None:
        """The client keeps up again. What was appended meanwhile is backlog; after a long stall, what retention removed
        meanwhile counts as the client's own loss."""
        self._blocked = False
        for subscription in self.subscriptions.values():
            feed = subscription.feed
            if feed.gone or subscription.seq != feed.head_for(subscription.options):
                subscription.caught_up = False
                self._behind[subscription] = None
            if was_long:
                subscription.fresh = True
        self.catch_up()

    # --- advancing ---

    def look(self, subscription: Subscription) -> None:
        if self._blocked or self._waits_for_cold:
            return
        if self._behind:
            self._behind[subscription] = None
            self._live.queue(self)
            return
        self._step(subscription)
        if self._behind and not self._waits_for_cold:
            self._live.queue(self)

    def take_turn(self) -> bool:
        behind = self._behind
        while behind and not self._waits_for_cold:
            if not self._has_room:
                return not self._blocked
            subscription = next(iter(behind))
            del behind[subscription]
            if self._step(subscription):
                return True
        return False

    def _step(self, subscription: Subscription) -> bool:
        """At most one frame of records; the subscription is behind again if there is more.

        Returns whether a long part of the log held nothing for this reader: searching it was work enough for a turn.
        """
        feed = subscription.feed
        if feed.gone:
            self._end(subscription)
            return False
        if feed.paced:
            self._write_paced(subscription)
            return False
        try:
            frame = feed.frame_after(subscription.seq, subscription.options)
        except ColdMiss as miss:
            self._behind[subscription] = None
            self._waits_for_cold = True
            self._reader.fetch(miss, lambda error: self._cold_arrived(subscription, error))
            return False
        except TopicsError as error:
            self._give_up(subscription, error)
            return False
        size = 0
        if frame.tombstone is not None:
            subscription.seq = frame.from_seq
            reason = frame.tombstone.reason
            too_old = subscription.fresh and reason in LOST_BY_RETENTION
            self._write_tombstone(subscription, frame.tombstone, "from_seq_too_old" if too_old else reason)
        subscription.fresh = False
        subscription.seq = frame.to_seq
        if frame.count:
            self._live.engine.state.read_total += frame.count
            size = self._write_records(subscription, frame)
        if not frame.reaches_head:
            subscription.caught_up = False
            self._behind[subscription] = None
        elif not subscription.caught_up:
            subscription.caught_up = True
            self._write_caught_up(subscription, frame.head_seq)
        if size > LARGE_FRAME_BYTES and not self._has_room:
            # The next frame, of any topic, waits for its turn.
            self._behind[subscription] = None
        return not frame.count and not frame.reaches_head

    def _end(self, subscription: Subscription) -> None:
        """The topic is deleted: the last event of this subscription."""
        self._write_gone(subscription)
        self.unfollow(subscription)

    def _give_up(self, subscription: Subscription, error: TopicsError) -> None:
        """The log of this topic cannot be read at this position; the others continue."""
        self._write_unreadable(subscription, error)
        self.unfollow(subscription)

    def _cold_arrived(self, subscription: Subscription, error: TopicsError | None) -> None:
        self._waits_for_cold = False
        if error is not None and subscription.followed:
            self._give_up(subscription, error)
        self.catch_up()
