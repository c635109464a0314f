"""A connection that follows topics: it moves along their logs as fast as its client reads, whatever its protocol.

look (a topic moved) ─┬─ client keeps up ─▶ one frame ─▶ at the head: live
                      └─ more than a frame ─▶ behind ─▶ a turn per tick ─▶ at the head: caught up, live
client does not keep up ─▶ nothing is read or rendered until it does
"""

from __future__ import annotations

from topics.engine.live.trails import Frame, Lens, Live, Trail
from topics.engine.log.on_disk.cold import ColdMiss, Reader
from topics.engine.log.retention import Tombstone
from topics.engine.log.topic import Topic
from topics.model.errors import TopicsError

# A frame this large makes a look at what the connection has not sent yet worth its time.
LARGE_FRAME_BYTES = 8 * 1024
# Reasons that tell how something was lost; a reader that was not there is told that it came too late instead.
LOST_BY_RETENTION = frozenset(("cap", "ttl", "mixed"))


class Follower:
    """The part that SSE and WebSocket share. A protocol says how to write, and whether there is room."""

    __slots__ = ("_behind", "_blocked", "_live", "_reader", "_waits_for_cold", "trails")

    def __init__(self, live: Live, reader: Reader) -> None:
        self._live = live
        self._reader = reader
        self.trails: dict[str, Trail] = {}
        # Trails with more than was sent.
        self._behind: dict[Trail, None] = {}
        # The client does not keep up, as the protocol says.
        self._blocked = False
        self._waits_for_cold = False

    # --- what a protocol gives ---

    @property
    def _has_room(self) -> bool:
        raise NotImplementedError

    def _write_records(self, trail: Trail, frame: Frame) -> int:
        """Send the frame; its size in bytes. The trail is at the end of the frame already."""
        raise NotImplementedError

    def _write_tombstone(self, trail: Trail, tombstone: Tombstone, reason: str) -> None:
        raise NotImplementedError

    def _write_caught_up(self, trail: Trail, head_seq: int) -> None:
        raise NotImplementedError

    def _write_gone(self, trail: Trail) -> None:
        raise NotImplementedError

    def _write_paced(self, trail: Trail) -> None:
        raise NotImplementedError

    def _write_unreadable(self, trail: Trail, error: TopicsError) -> None:
        raise NotImplementedError

    # --- coming and going ---

    def follow(self, topic: Topic, seq: int, lens: Lens) -> Trail:
        """Start behind `seq`; `catch_up` makes the first look."""
        trail = self._live.follow(topic, seq, lens, self)
        self.trails[trail.name] = trail
        self._behind[trail] = None
        return trail

    def unfollow(self, trail: Trail) -> None:
        self._live.leave(trail)
        self._behind.pop(trail, None)
        if self.trails.get(trail.name) is trail:
            del self.trails[trail.name]

    def unfollow_all(self) -> None:
        for trail in self.trails.values():
            self._live.leave(trail)
        self.trails.clear()
        self._behind.clear()
        self._live.unqueue(self)

    def catch_up(self) -> None:
        """Go on with the backlog, in turns with everyone else."""
        if self._behind and not self._blocked and not self._waits_for_cold:
            self._live.queue(self)

    def stall(self) -> None:
        self._blocked = True

    def resume(self, *, was_long: bool) -> None:
        """The client keeps up again. What its topics gained meanwhile is backlog; what they lost after a long time is
        the client's own loss."""
        self._blocked = False
        for trail in self.trails.values():
            feed = trail.feed
            if feed.gone or trail.seq != feed.head_for(trail.lens):
                trail.live = False
                self._behind[trail] = None
            if was_long:
                trail.fresh = True
        self.catch_up()

    # --- moving on ---

    def look(self, trail: Trail) -> None:
        if self._blocked or self._waits_for_cold:
            return
        if self._behind:
            self._behind[trail] = None
            self._live.queue(self)
            return
        self._step(trail)
        if self._behind and not self._waits_for_cold:
            self._live.queue(self)

    def take_turn(self) -> bool:
        behind = self._behind
        while behind and not self._waits_for_cold:
            if not self._has_room:
                return not self._blocked
            trail = next(iter(behind))
            del behind[trail]
            if self._step(trail):
                return True
        return False

    def _step(self, trail: Trail) -> bool:
        """At most one frame of records; the trail is behind again if there is more.

        Whether a long stretch of the log held nothing for this reader: looking at it was work enough for a turn.
        """
        feed = trail.feed
        if feed.gone:
            self._end(trail)
            return False
        if feed.paced:
            self._write_paced(trail)
            return False
        try:
            frame = feed.frame_after(trail.seq, trail.lens)
        except ColdMiss as miss:
            self._behind[trail] = None
            self._waits_for_cold = True
            self._reader.fetch(miss, lambda error: self._cold_arrived(trail, error))
            return False
        except TopicsError as error:
            self._give_up(trail, error)
            return False
        size = 0
        if frame.tombstone is not None:
            trail.seq = frame.from_seq
            reason = frame.tombstone.reason
            too_old = trail.fresh and reason in LOST_BY_RETENTION
            self._write_tombstone(trail, frame.tombstone, "from_seq_too_old" if too_old else reason)
        trail.fresh = False
        trail.seq = frame.to_seq
        if frame.count:
            size = self._write_records(trail, frame)
        if not frame.reaches_head:
            trail.live = False
            self._behind[trail] = None
        elif not trail.live:
            trail.live = True
            self._write_caught_up(trail, frame.head_seq)
        if size > LARGE_FRAME_BYTES and not self._has_room:
            # The next frame, of whatever topic, waits for its turn.
            self._behind[trail] = None
        return not frame.count and not frame.reaches_head

    def _end(self, trail: Trail) -> None:
        """The topic is deleted: the last thing that is heard of it."""
        self._write_gone(trail)
        self.unfollow(trail)

    def _give_up(self, trail: Trail, error: TopicsError) -> None:
        """The log of this topic cannot be read here; the others go on."""
        self._write_unreadable(trail, error)
        self.unfollow(trail)

    def _cold_arrived(self, trail: Trail, error: TopicsError | None) -> None:
        self._waits_for_cold = False
        if error is not None and trail.followed:
            self._give_up(trail, error)
        self.catch_up()
