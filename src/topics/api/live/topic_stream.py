"""The event stream of one topic for a plain EventSource: the server keeps no session, the id is the position.

    retry: 2000                                     the start, for a reader that reconnects before its first record
    id: 41                                      ◀─┘
    id: 42
    data: {"$seq":42,"$ts":…,"data":…}          one unnamed event per record

An id is `seq`, or `seq~epoch` if the topic is not the first of its name.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from topics.api.auth import Principal, Scope
from topics.api.call import Call
from topics.api.errors import status_of
from topics.api.lifecycle import Lifecycle
from topics.api.live.following import Follower
from topics.api.live.sse import RETRY, EventStream, EventStreams, check_accepts_events, error_frame
from topics.api.live.stream_tokens import StreamReader
from topics.api.live.watch import EVENT_STREAM, GOING_DOWN, UNREADABLE, gap_data, gone_data, paced_frame
from topics.api.routes import QueryField, Route
from topics.engine.core.engine import Engine
from topics.engine.core.waiting.deadlines import Deadline, Deadlines
from topics.engine.live.feeds import Frame, FrameOptions, LiveFeeds, Subscription
from topics.engine.log.on_disk.cold import Reader
from topics.engine.log.reading import View
from topics.engine.log.retention import Tombstone
from topics.engine.log.topic import Topic
from topics.model.errors import InvalidRequest, TopicNotFound, TopicsError
from topics.model.names import check_topic_name
from topics.model.requests.batch import utf8_bytes
from topics.model.requests.config import U64_MAX
from topics.model.requests.records import DIFF_LIMIT_DEFAULT, node_set
from topics.model.requests.watch import FRAME_BYTES_DEFAULT, HEARTBEAT_MS_DEFAULT
from topics.model.settings import Settings

PATH = "/v0/topics/{topic}/stream"
UNAUTHORIZED = 401
STARTS = ("from_seq", "tail", "from_ts")
_ID = re.compile(r"([0-9]{1,20})(?:~([0-9]{1,20}))?", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,20}", re.ASCII)
_LINE = re.compile(rb'\{"\$seq":([0-9]+)(.*)\n')


class Place(NamedTuple):
    """A position that a client gives back; an id without an epoch belongs to the first topic of its name."""

    seq: int
    epoch: int | None


class Start(NamedTuple):
    """The start in the query: at most one of them is given."""

    place: Place | None
    tail: bool
    from_ts: int | None


class TopicStreams:
    """The route, and every open stream."""

    def __init__(
        self,
        live: LiveFeeds,
        reader: Reader,
        streams: EventStreams,
        lifecycle: Lifecycle,
        deadlines: Deadlines,
        settings: Settings,
    ) -> None:
        self.live = live
        self.reader = reader
        self.deadlines = deadlines
        self.grace_s = settings.buffer_grace_ms / 1000
        self._streams = streams
        self._lifecycle = lifecycle
        self._settings = settings
        self._open: dict[TopicStream, None] = {}

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path=PATH,
                handler=self.open,
                summary="Records of one topic as events, for a plain EventSource.",
                scopes=Scope.READ,
                query=(
                    QueryField("from_seq", str, "Start after this seq, or after this id. 0: at the earliest record."),
                    QueryField("tail", bool, "Start with the next record.", default=False),
                    QueryField("from_ts", int, "Start with the first record at or after this time, in ms."),
                    QueryField("tag", str, "Only records with this tag."),
                    QueryField("node", str, "Leave out records of this node; may be repeated."),
                    QueryField("token", str, "A stream token, or the key."),
                ),
                headers=(QueryField("Last-Event-ID", str, "Continue after this id. Takes precedence over the query."),),
                replies={200: str},
                errors=("topic_not_found", "not_acceptable", "throttled"),
                always=True,
                key_in_query=True,
                takes_stream_token=True,
                long_lived=True,
                media_type="text/event-stream",
            )
        ]

    def open(self, call: Call) -> None:
        if not self._lifecycle.serving:
            come_again(call, self._lifecycle)
            return
        call.check_query()
        start = read_start(call)
        last_id = call.headers.get(b"last-event-id")
        if last_id:
            start = Start(read_place(last_id.decode("latin-1"), "Last-Event-ID"), tail=False, from_ts=None)
        options = self._frame_options(call)
        engine = self.live.engine
        topic = engine.state.by_name.get(call.name)
        if topic is None:
            check_topic_name(call.name, "topic")
            raise TopicNotFound(call.name)
        check_accepts_events(call.request)
        seq, lost = start_of(engine, topic, start, from_id=bool(last_id))
        if call.request.method == "HEAD":
            call.reply(200, b"", content_type=EVENT_STREAM)
            return
        owner: Principal = call.principal
        lasts_ms = None
        if isinstance(owner, StreamReader):
            lasts_ms = owner.lasts_ms()
            owner = owner.owner
        stream = TopicStream(self, self._streams.open(call, HEARTBEAT_MS_DEFAULT, owner), topic)
        self._open[stream] = None
        if lasts_ms is not None:
            stream.end_after(lasts_ms)
        stream.start(seq, options, lost)

    def _frame_options(self, call: Call) -> FrameOptions:
        settings = self._settings
        tag = call.text("tag")
        if tag is not None and utf8_bytes(tag, "tag") > settings.max_tag_bytes:
            raise InvalidRequest(
                f"tag must be at most {settings.max_tag_bytes} bytes", field="tag", max=settings.max_tag_bytes
            )
        nodes = node_set(
            [value for name, value in call.request.query_pairs() if name == "node"], settings.max_node_bytes
        )
        view = View(nodes, lines=True, tag=None if tag is None else tag.encode())
        return self.live.frame_options(
            view, min(DIFF_LIMIT_DEFAULT, settings.max_limit), FRAME_BYTES_DEFAULT, strong=False
        )

    def closed(self, stream: TopicStream) -> None:
        self._open.pop(stream, None)

    def drain(self) -> None:
        """The server is shutting down: every stream ends now, and its client reconnects with its id."""
        for stream in list(self._open):
            stream.end(GOING_DOWN, "the server is shutting down")


def route_before_ready(lifecycle: Lifecycle) -> Route:
    """The same path while the log is replayed."""

    def wait(call: Call) -> None:
        come_again(call, lifecycle)

    return Route(
        method="GET",
        path=PATH,
        handler=wait,
        summary="Not ready yet.",
        scopes=Scope.READ,
        always=True,
        key_in_query=True,
        takes_stream_token=True,
    )


def come_again(call: Call, lifecycle: Lifecycle) -> None:
    """An EventSource gives up for good after a 503; a stream that ends makes it reconnect."""
    check_accepts_events(call.request)
    refusal = lifecycle.refusal()
    call.reply(200, RETRY + error_frame(status_of(refusal.code), refusal.message), content_type=EVENT_STREAM)


def read_start(call: Call) -> Start:
    """The start in the query. Two starts, or one twice, are refused: they would lose or repeat records."""
    given = [(name, value) for name, value in call.request.query_pairs() if name in STARTS]
    tail = call.flag("tail", False)
    starts = [(name, value) for name, value in given if name != "tail" or tail]
    if len(starts) > 1:
        names = " and ".join(name for name, _ in starts)
        raise InvalidRequest(f"give one start, not {names}", field=starts[1][0])
    name, value = starts[0] if starts else ("from_seq", "0")
    if name == "from_ts":
        if _NUMBER.fullmatch(value) is None:
            raise InvalidRequest("from_ts must be a time in ms since 1970", field="from_ts")
        return Start(None, tail=False, from_ts=int(value))
    return Start(None if tail else read_place(value, "from_seq"), tail=tail, from_ts=None)


def read_place(text: str, field: str) -> Place:
    found = _ID.fullmatch(text)
    if found is None or int(found[1]) > U64_MAX:
        raise InvalidRequest(f"{field} must be a seq or an id of this stream, like 42 or 42~7", field=field)
    return Place(int(found[1]), None if found[2] is None else int(found[2]))


def start_of(engine: Engine, topic: Topic, start: Start, *, from_id: bool) -> tuple[int, Place | None]:
    """The seq after which reading starts, and the position in an earlier topic of this name that is lost.

    May raise ColdMiss.
    """
    if start.tail:
        return topic.head_seq, None
    if start.from_ts is not None:
        return engine.seq_before(topic, start.from_ts), None
    assert start.place is not None
    seq, epoch = start.place
    elsewhere = topic.recreated and from_id if epoch is None else epoch != topic.epoch
    if not elsewhere:
        return seq, None
    return topic.earliest_seq - 1, start.place if seq else None


class TopicStream(Follower):
    """One open stream."""

    __slots__ = ("_deadline", "_epoch", "_events", "_id_seq", "_paced", "_streams", "_topic")

    def __init__(self, streams: TopicStreams, events: EventStream, topic: Topic) -> None:
        super().__init__(streams.live, streams.reader)
        self._streams = streams
        self._events = events
        self._topic = topic
        self._epoch = b"~%d" % topic.epoch if topic.recreated else b""
        # The client's last id; -1: that of some record.
        self._id_seq = -1
        # Pacing of the topic was reported to the client.
        self._paced = False
        self._deadline: Deadline | None = None
        events.on_stall = self.stall
        events.on_room = self._on_room
        events.on_close = self._detach
        events.on_beat = self._move_id

    def start(self, seq: int, options: FrameOptions, lost: Place | None) -> None:
        if self._events.closed:
            self._detach()
            return
        topic = self._topic
        subscription = self.follow(topic, seq, options)
        if lost is not None:
            # The id that the client sent holds until the client has the tombstone.
            self._events.write(b"id: %b\n\n" % show_place(lost))
            head = topic.head_seq
            self._write_tombstone(
                subscription, Tombstone(1, head, "recreated", head, topic.earliest_seq, head), "recreated"
            )
        else:
            self._move_id()
        self.catch_up()

    def end_after(self, lasts_ms: int) -> None:
        """The token that the stream was opened with expires then."""
        self._deadline = self._streams.deadlines.add(lasts_ms, self._token_expired)

    def _token_expired(self) -> None:
        self._deadline = None
        self.end(UNAUTHORIZED, "the stream token has expired: open the stream with a new one")

    def end(self, code: int, message: str) -> None:
        """The server ends the stream."""
        self._detach()
        self._events.fail(code, message)

    def _detach(self) -> None:
        if self._deadline is not None:
            self._streams.deadlines.remove(self._deadline)
            self._deadline = None
        self.unfollow_all()
        self._streams.closed(self)

    # --- the client ---

    @property
    def _has_room(self) -> bool:
        return self._events.has_room

    def _on_room(self, paused_s: float) -> None:
        self.resume(was_long=paused_s > self._streams.grace_s)

    # --- frames ---

    def _move_id(self) -> None:
        """Records that were left out move the position as well: a client that reconnects need not skip them again."""
        for subscription in self.subscriptions.values():
            if subscription.seq != self._id_seq:
                self._id_seq = subscription.seq
                self._events.write(b"id: %d%b\n\n" % (subscription.seq, self._epoch))

    def _write(self, subscription: Subscription, event: bytes, data: bytes) -> None:
        self._id_seq = subscription.seq
        self._events.write(b"id: %d%b\nevent: %b\ndata: %b\n\n" % (subscription.seq, self._epoch, event, data))

    def _write_records(self, subscription: Subscription, frame: Frame) -> int:
        del subscription
        events = frame.rendered.get(TopicStream)
        if events is None:
            shown = rb'id: \1%b\ndata: {"$seq":\1\2\n\n' % self._epoch
            events = frame.rendered[TopicStream] = _LINE.sub(shown, frame.records)
        self._id_seq = -1
        self._paced = False
        self._events.write(events)
        return len(events)

    def _write_tombstone(self, subscription: Subscription, tombstone: Tombstone, reason: str) -> None:
        self._write(subscription, b"tombstone", gap_data(subscription.name, tombstone, reason))

    def _write_caught_up(self, subscription: Subscription, head_seq: int) -> None:
        """Live and backlog look the same here."""

    def _write_gone(self, subscription: Subscription) -> None:
        self._write(subscription, b"topic-deleted", gone_data(subscription.name, subscription.feed.topic.head_seq))

    def _end(self, subscription: Subscription) -> None:
        """The stream has ended: a client that connects again gets 404, or the new topic of this name."""
        super()._end(subscription)
        self._detach()
        self._events.close()

    def _write_paced(self, subscription: Subscription) -> None:
        if not self._paced:
            self._paced = True
            self._events.write(paced_frame(subscription.name))

    def _give_up(self, subscription: Subscription, error: TopicsError) -> None:
        del subscription
        self.end(UNREADABLE, error.message)


def show_place(place: Place) -> bytes:
    return b"%d" % place.seq if place.epoch is None else b"%d~%d" % (place.seq, place.epoch)
