"""Following many topics in one iteration, like a watch over HTTP."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Literal

import msgspec

from topics.api.live.follow_requests import FollowRequests
from topics.api.live.following import Follower
from topics.client.live import Arrived as ClientArrived
from topics.client.live import CaughtUp, LiveEvent, Starts, TopicDeleted, TopicFailed, position_after, starts_of
from topics.embedded.host import Host
from topics.embedded.requests import request_of
from topics.embedded.values import Record, Tombstone
from topics.engine.live.feeds import Frame, Subscription
from topics.engine.log import retention
from topics.model.cursors import RESTARTS, CursorWriter, positions_of
from topics.model.errors import TopicNotFound, TopicsError
from topics.model.requests.nesting import decode_deep
from topics.model.requests.watch import StartRequest, WatchRequest

# Events that wait for the reader; the others stay in the log until there is room.
EVENTS_MAX = 16
HEARTBEAT_MS = 15_000
RECONNECT_S_MAX = 600.0
UNREADABLE = 500
_records = msgspec.json.Decoder(list[Record])


class Arrived(ClientArrived, kw_only=True):
    """Records of one topic, oldest first; `head_seq` − `to_seq` more are available."""

    records: list[Record]  # pyright: ignore[reportIncompatibleVariableOverride]


class Watch:
    """Iterate to get events; each has a `topic` and `records` (empty unless it is an Arrived).

    `cursor` is the position after the last event that was returned: passed to a later `watch` of the same topics, it
    continues there. `positions` has the same by topic. The iteration ends when all topics have been deleted, with
    `close`, which may be called from another thread, or when the database closes.
    """

    def __init__(self, host: Host, request: WatchRequest, *, lenient: bool) -> None:
        self._host = host
        self._request = request
        self._lenient = lenient
        self._closed = False
        self._reader: _Reader | None = None
        # positions of the caller
        self.cursor = request.cursor
        self.positions: dict[str, int] = {}
        # how often it was opened: there is no connection to lose and open again
        self.connections = 0

    def __iter__(self) -> Watch:
        return self

    def __next__(self) -> LiveEvent:
        if self._reader is None and not self._closed:
            self._reader = self._host.look(self._begin)
        reader = self._reader
        if reader is not None:
            event = reader.take(lambda: self._closed)
            if event is not None:
                return self._hand_out(event)
        self.close()
        raise StopIteration

    def _begin(self) -> _Reader:
        """Where each topic starts; the reader follows it from there."""
        host, request = self._host, self._request
        follow_requests = FollowRequests(host.live, host.settings)
        wanted = request.topics
        cursor = {} if request.cursor is None else positions_of(request.cursor, wanted or {})
        cursor.pop(RESTARTS, None)
        if not wanted:
            wanted = dict[str, StartRequest | None](dict.fromkeys(cursor))
        follow_requests.check_count(len(wanted))
        options = follow_requests.frame_options(request)
        starts: list[tuple[Any, int]] = []
        for name, start in wanted.items():
            topic = follow_requests.find(name, f"topics.{name}")
            if topic is not None:
                seq = cursor.get(name)
                starts.append((topic, follow_requests.start_of(topic, start or StartRequest()) if seq is None else seq))
            elif not self._lenient:
                raise TopicNotFound(name)
        reader = _Reader(host)
        for topic, seq in starts:
            reader.follow(topic, seq, options)
            self.positions[topic.name] = seq
        reader.catch_up()
        self.connections = 1
        return reader

    def _hand_out(self, event: LiveEvent) -> LiveEvent:
        position = position_after(event)
        if position is not None:
            self.positions[event.topic] = position
        if isinstance(event, TopicDeleted):
            self.positions.pop(event.topic, None)
        if self.positions:
            name, seq = next(iter(self.positions.items()))
            self.cursor = CursorWriter(self.positions, 0).id_at(name, seq).decode()
        return event

    def close(self) -> None:
        host = self._host
        with host.lock:
            self._closed = True
            if self._reader is not None:
                self._reader.unfollow_all()
            host.moved.notify_all()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Reader(Follower):
    """Events of the topics, a few ahead of the caller. Everything except `take` is called with the lock held."""

    __slots__ = ("_events", "_host")

    def __init__(self, host: Host) -> None:
        super().__init__(host.live, host.reader)
        self._host = host
        self._events: deque[LiveEvent | tuple[Frame, str]] = deque()

    def take(self, is_closed: Any) -> LiveEvent | None:
        """The next event, as soon as there is one; None at the end."""
        host = self._host
        host.wait_until(lambda: bool(self._events) or not self.subscriptions or is_closed())
        with host.lock:
            if not self._events or is_closed() or host.closed:
                return None
            event = self._events.popleft()
            if len(self._events) < EVENTS_MAX // 2:
                self.catch_up()
        if not isinstance(event, tuple):
            return event
        frame, name = event
        return Arrived(
            topic=name,
            records=decode_deep(_records.decode, b"[%b]" % frame.records),
            from_seq=frame.from_seq,
            to_seq=frame.to_seq,
            head_seq=frame.head_seq,
        )

    def _put(self, event: LiveEvent | tuple[Frame, str]) -> None:
        self._events.append(event)
        self._host.moved.notify_all()

    # --- what a follower needs from its protocol ---

    @property
    def _has_room(self) -> bool:
        return len(self._events) < EVENTS_MAX

    def _write_records(self, subscription: Subscription, frame: Frame) -> int:
        self._put((frame, subscription.name))
        return len(frame.records)

    def _write_tombstone(self, subscription: Subscription, tombstone: retention.Tombstone, reason: str) -> None:
        fields: Mapping[str, Any] = {**tombstone.as_dict(), "reason": reason}
        self._put(Tombstone(topic=subscription.name, **fields))

    def _write_caught_up(self, subscription: Subscription, head_seq: int) -> None:
        self._put(CaughtUp(topic=subscription.name, head_seq=head_seq))

    def _write_gone(self, subscription: Subscription) -> None:
        self._put(TopicDeleted(topic=subscription.name, head_seq=subscription.feed.topic.head_seq))

    def _write_paced(self, subscription: Subscription) -> None:
        raise AssertionError("an embedded database holds nothing back", subscription)

    def _write_unreadable(self, subscription: Subscription, error: TopicsError) -> None:
        self._put(TopicFailed(topic=subscription.name, code=UNREADABLE, message=error.message))


class Streaming:
    _host: Host

    def watch(
        self,
        topics: Starts,
        *,
        tail: bool = False,
        cursor: str | None = None,
        node: str | list[str] | None = None,
        limit: int | None = None,
        max_batch_bytes: int | None = None,
        include_tags: bool = True,
        include_meta: bool | None = None,
        include_data: bool = True,
        consistency: Literal["eventual", "strong"] | None = None,
        lenient: bool = False,
        heartbeat_ms: int = HEARTBEAT_MS,
        reconnect_s_max: float = RECONNECT_S_MAX,
    ) -> Watch:
        """Follow topics: names, or a map from a name to a seq, `"tail"` or `{"from_ts": ms}`; see Watch.

        Names alone start at the beginning, or at the end with `tail`. `cursor` is that of an earlier watch. `lenient`
        skips topics that do not exist. `node` leaves out records of these nodes. `heartbeat_ms` and `reconnect_s_max`
        have no effect, because there is no connection.
        """
        del heartbeat_ms, reconnect_s_max
        request = request_of(
            WatchRequest,
            topics=starts_of(topics, tail=tail),
            cursor=cursor,
            node=node,
            limit=limit,
            max_batch_bytes=max_batch_bytes,
            include_tags=include_tags,
            include_meta=include_meta,
            include_data=include_data,
            consistency=consistency,
        )
        return Watch(self._host, request, lenient=lenient)
