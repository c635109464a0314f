"""Watch: a session that names topics and positions, and the event stream that advances along them."""

from __future__ import annotations

from topics.api.auth import Scope
from topics.api.call import Call
from topics.api.live.follow_requests import FollowRequests
from topics.api.live.following import Follower
from topics.api.live.sse import EventStream, EventStreams, check_accepts_events, error_frame
from topics.api.live.watch_session import Position, Session, Sessions
from topics.api.replies import encode, performance
from topics.api.routes import QueryField, Route
from topics.api.schema import WatchedTopic, WatchReply
from topics.engine.live.feeds import Frame, LiveFeeds, Subscription
from topics.engine.log.on_disk.cold import Reader
from topics.engine.log.retention import Tombstone
from topics.engine.log.topic import Topic
from topics.model.cursors import RESTARTS, CursorWriter, positions_of, single_id
from topics.model.errors import InvalidRequest, TopicNotFound, TopicsError
from topics.model.requests.watch import StartRequest, WatchRequest
from topics.model.settings import Settings

EVENT_STREAM = b"text/event-stream; charset=utf-8"
SUPERSEDED, GOING_DOWN, UNREADABLE = 409, 503, 500
PACED_RETRY_MS = 1_500


class Watch:
    """The two routes, and every open stream."""

    def __init__(
        self,
        live: LiveFeeds,
        reader: Reader,
        streams: EventStreams,
        sessions: Sessions,
        follow_requests: FollowRequests,
        settings: Settings,
    ) -> None:
        self.live = live
        self.reader = reader
        self.sessions = sessions
        self.grace_s = settings.buffer_grace_ms / 1000
        self._streams = streams
        self._follow_requests = follow_requests
        self._ttl_ms = settings.session_ttl_ms
        self._open: dict[WatchStream, None] = {}

    def routes(self) -> list[Route]:
        return [
            Route(
                method="POST",
                path="/v0/watch",
                changes=False,
                handler=self.create,
                summary="Create a watch session for topics, each with a start.",
                scopes=Scope.READ,
                body=WatchRequest,
                check_body=self._follow_requests.check_size,
                checks_slot=True,
                query=(QueryField("lenient", bool, "Leave out absent topics instead of replying 404.", default=False),),
                replies={200: WatchReply},
                errors=("topic_not_found", "throttled"),
            ),
            Route(
                method="GET",
                path="/v0/watch/{wid}",
                handler=self.open,
                summary="The event stream of a watch session.",
                scopes=Scope.READ,
                query=(QueryField("token", str, "The key, for browsers that cannot send it in a header."),),
                headers=(QueryField("Last-Event-ID", str, "Continue after this id of the session's last stream."),),
                replies={200: str},
                errors=("not_acceptable", "throttled"),
                key_in_query=True,
                long_lived=True,
                media_type="text/event-stream",
            ),
        ]

    # --- the session ---

    def create(self, call: Call) -> None:
        params: WatchRequest = call.params
        lenient = call.flag("lenient", False)
        wanted = params.topics
        cursor = {} if params.cursor is None else positions_of(params.cursor, wanted or {})
        cursor.pop(RESTARTS, None)
        if wanted is None:
            wanted = dict.fromkeys(cursor)
        self._follow_requests.check_count(len(wanted))
        options = self._follow_requests.frame_options(params)
        for name in wanted:
            call.principal.check_name(name, f"topics.{name}")
        positions: dict[str, Position] = {}
        shown: dict[str, WatchedTopic] = {}
        for name, start in wanted.items():
            topic = self._follow_requests.find(name, f"topics.{name}")
            if topic is None:
                if lenient:
                    continue
                raise TopicNotFound(name)
            seq = cursor.get(name)
            if seq is None:
                seq = self._follow_requests.start_of(topic, start or StartRequest())
            positions[name] = Position(seq, topic.epoch)
            shown[name] = self._follow_requests.describe(topic, seq)
        call.check_slot()
        self.sessions.check_room()
        session = Session(call.principal, options, params.heartbeat_ms, positions)
        self.sessions.add(session)
        reply = WatchReply(
            wid=session.wid,
            stream_url=f"/v0/watch/{session.wid}",
            session_ttl_ms=self._ttl_ms,
            topics=shown,
            performance=performance(call),
        )
        call.reply(200, encode(reply))

    # --- its stream ---

    def open(self, call: Call) -> None:
        session = self.sessions.find(call.name, call.principal)
        check_accepts_events(call.request)
        if call.request.method == "HEAD":
            call.reply(200, b"", content_type=EVENT_STREAM)
            return
        if session.stream is not None:
            session.stream.end(SUPERSEDED, "another stream was opened for this session")
        try:
            stream = WatchStream(self, session, self._streams.open(call, session.heartbeat_ms, session.principal))
        except TopicsError:
            self.sessions.rest(session)
            raise
        last_id = call.request.header(b"last-event-id")
        if last_id:
            rewind(session, last_id)
        self.sessions.in_use(session)
        session.stream = stream
        self._open[stream] = None
        stream.start(self.live.engine.state.by_name)

    def closed(self, stream: WatchStream) -> None:
        """The stream has ended; its session waits for the next one."""
        self._open.pop(stream, None)
        session = stream.session
        if session.stream is stream:
            session.stream = None
            self.sessions.rest(session)

    def drain(self) -> None:
        """The server is shutting down: every stream ends now, and its client reconnects with its cursor."""
        for stream in list(self._open):
            stream.end(GOING_DOWN, "the server is shutting down")


def rewind(session: Session, last_id: bytes) -> None:
    """An id that is not valid here shows nothing about the client: the session's own positions hold."""
    try:
        session.rewind(positions_of(last_id.decode("ascii"), session.positions))
    except (InvalidRequest, UnicodeDecodeError):
        pass


class WatchStream(Follower):
    """A session's stream while it is open."""

    __slots__ = ("_events", "_grace_s", "_ids", "_paced", "_watch", "session")

    def __init__(self, watch: Watch, session: Session, events: EventStream) -> None:
        super().__init__(watch.live, watch.reader)
        self._watch = watch
        self._events = events
        self._grace_s = watch.grace_s
        self.session = session
        self._ids: CursorWriter | None = None
        # Topics whose pacing was reported to the client.
        self._paced: set[str] | None = None
        events.on_stall = self.stall
        events.on_room = self._on_room
        events.on_close = self._on_close

    def start(self, topics: dict[str, Topic]) -> None:
        positions = self.session.positions
        if len(positions) > 1 or self.session.restarts:
            self._number_ids()
        for name, position in positions.items():
            topic = topics.get(name)
            if topic is None:
                self._write(name, b"topic-deleted", position.seq, gone_data(name, position.head_seq))
                continue
            if topic.epoch != position.epoch:
                self._start_again(topic, position)
            self.follow(topic, position.seq, self.session.options)
        self.catch_up()

    def _start_again(self, topic: Topic, position: Position) -> None:
        """A new topic has the name: the session's position in the old one does not apply to it."""
        earliest, head = topic.earliest_seq, topic.head_seq
        position.epoch = topic.epoch
        if position.seq:
            position.seq = earliest - 1
            self._restart(position)
            tombstone = Tombstone(1, head, "recreated", head, earliest, head)
            self._write(topic.name, b"tombstone", position.seq, gap_data(topic.name, tombstone, tombstone.reason))

    def _restart(self, position: Position) -> None:
        self.session.restart(position)
        self._number_ids()

    def _number_ids(self) -> None:
        """From here on, ids belong to this session, and are not shared by all at the same position."""
        seqs = {name: position.seq for name, position in self.session.positions.items()}
        seqs |= {name: subscription.seq for name, subscription in self.subscriptions.items()}
        self._ids = CursorWriter(seqs, self.session.restarts)

    def end(self, code: int, message: str) -> None:
        """The server ends the stream."""
        self._detach()
        self._events.fail(code, message)

    def _detach(self) -> None:
        for name, subscription in self.subscriptions.items():
            position = self.session.positions[name]
            position.seq = subscription.seq
            position.head_seq = subscription.feed.topic.head_seq
        self.unfollow_all()
        self._watch.closed(self)

    # --- the client ---

    @property
    def _has_room(self) -> bool:
        return self._events.has_room

    def _on_room(self, paused_s: float) -> None:
        self.resume(was_long=paused_s > self._grace_s)

    def _on_close(self) -> None:
        self._detach()

    # --- frames ---

    def _write(self, name: str, event: bytes, seq: int, data: bytes) -> None:
        frame_id = single_id(name, seq) if self._ids is None else self._ids.id_at(name, seq)
        self._events.write(b"id: %b\nevent: %b\ndata: %b\n\n" % (frame_id, event, data))

    def _write_records(self, subscription: Subscription, frame: Frame) -> int:
        shared = frame.rendered
        if self._paced:
            self._paced.discard(subscription.name)
        if self._ids is None:
            whole = shared.get(WatchStream)
            if whole is None:
                frame_id = single_id(subscription.name, frame.to_seq)
                whole = shared[WatchStream] = b"id: %b\n%b" % (frame_id, record_event(frame))
        else:
            event = shared.get(record_event)
            if event is None:
                event = shared[record_event] = record_event(frame)
            whole = b"id: %b\n%b" % (self._ids.id_at(subscription.name, frame.to_seq), event)
        self._events.write(whole)
        return len(whole)

    def _write_tombstone(self, subscription: Subscription, tombstone: Tombstone, reason: str) -> None:
        # A position beyond the head is found at the first look: a session of one topic has sent no id before.
        if reason == "recreated" and self._ids is not None:
            self._restart(self.session.positions[subscription.name])
        self._write(subscription.name, b"tombstone", subscription.seq, gap_data(subscription.name, tombstone, reason))

    def _write_caught_up(self, subscription: Subscription, head_seq: int) -> None:
        data = b'{"topic":"%b","head_seq":%d}' % (subscription.name.encode(), head_seq)
        self._write(subscription.name, b"caught-up", subscription.seq, data)

    def _write_gone(self, subscription: Subscription) -> None:
        head_seq = subscription.feed.topic.head_seq
        position = self.session.positions[subscription.name]
        position.seq, position.head_seq = subscription.seq, head_seq
        self._write(subscription.name, b"topic-deleted", subscription.seq, gone_data(subscription.name, head_seq))

    def _write_paced(self, subscription: Subscription) -> None:
        if self._paced is None:
            self._paced = set()
        if subscription.name not in self._paced:
            self._paced.add(subscription.name)
            self._events.write(paced_frame(subscription.name))

    def _write_unreadable(self, subscription: Subscription, error: TopicsError) -> None:
        self.session.positions[subscription.name].seq = subscription.seq
        self._events.write(error_frame(UNREADABLE, error.message, topics=[subscription.name]))


def record_event(frame: Frame) -> bytes:
    """The frame without its id. A line break can only be between the tokens of a payload, where a space is the same."""
    records = frame.records
    if b"\n" in records or b"\r" in records:
        records = records.replace(b"\n", b" ").replace(b"\r", b" ")
    return b'event: record\ndata: {"topic":"%b","records":[%b],"from_seq":%d,"to_seq":%d,"head_seq":%d}\n\n' % (
        frame.topic.name.encode(),
        records,
        frame.from_seq,
        frame.to_seq,
        frame.head_seq,
    )


def paced_frame(name: str) -> bytes:
    return error_frame(429, "watch throttled under CPU pressure", retry_after_ms=PACED_RETRY_MS, topics=[name])


def gap_data(name: str, tombstone: Tombstone, reason: str) -> bytes:
    return encode({"topic": name, **tombstone.as_dict(), "reason": reason})


def gone_data(name: str, head_seq: int) -> bytes:
    return encode({"topic": name, "head_seq": head_seq, "reason": "deleted"})
