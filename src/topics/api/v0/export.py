"""Bulk read: a range of a topic as lines of JSON in one reply, as fast as the client reads, taking turns with others.

    GET …/export ─▶ first slice (404, 500 are still possible) ─▶ a slice per tick while there is room ─▶ end line
                                                                └─ topic gone, damage, client stalls: cut, no end line

A slice has the records that `diff` would return, as lines. The end is fixed at the start: a growing topic does not
prolong it.
"""

from __future__ import annotations

import logging

from topics.api.admission import Pressure
from topics.api.auth import Principal, Scope
from topics.api.call import Call
from topics.api.live.heartbeats import Heartbeats
from topics.api.live.sse import BUFFERED_BYTES_MAX, StreamSlots
from topics.api.routes import QueryField, Route
from topics.engine.live.feeds import LiveFeeds, Subscription
from topics.engine.log.bulk import BulkRead
from topics.engine.log.on_disk.cold import ColdMiss, Reader
from topics.engine.log.reading import Diff, View
from topics.engine.log.topic import Topic
from topics.http.content_coding import GZIPPED, VARY, GzipReplyStream, InThread, accepts_gzip
from topics.http.request import ReplyStream
from topics.model.errors import InvalidRequest, TopicNotFound, TopicsError
from topics.model.names import check_topic_name
from topics.model.requests.records import check_u64

log = logging.getLogger("topics.api")

NDJSON = b"application/x-ndjson"
# A client may compute between two reads: only a slice waits for it, not a backlog.
STALL_S_MAX = 300.0
_NO_STORE = (b"Cache-Control", b"no-store")


class Exports:
    """Opens bulk reads. They count as streams, and take turns with readers that catch up."""

    def __init__(
        self,
        live: LiveFeeds,
        reader: Reader,
        slots: StreamSlots,
        pressure: Pressure,
        stalls: Heartbeats,
        in_thread: InThread,
    ) -> None:
        self.live = live
        self.reader = reader
        self.slots = slots
        self.stalls = stalls
        self._pressure = pressure
        self._in_thread = in_thread

    def routes(self) -> list[Route]:
        return [
            Route(
                method="GET",
                path="/v0/topics/{topic}/export",
                handler=self.export,
                summary="All records of a range, one line of JSON each; the last line confirms that it is complete.",
                scopes=Scope.READ,
                query=(
                    QueryField("from_seq", int, "The cursor: records after it.", 0),
                    QueryField("to_seq", int, "The last seq to export; at most the head at the start."),
                    QueryField("from_ts", int, "Start at the first record at or after this time, in ms."),
                    QueryField("node", str, "Leave out records of this node; may be repeated."),
                    QueryField("include_tags", bool, "Whether $tag is included.", default=False),
                    QueryField("include_meta", bool, "Whether meta is included; by default, if data is."),
                    QueryField("include_data", bool, "Whether data is included.", default=True),
                ),
                replies={200: str},
                media_type=NDJSON.decode(),
                errors=("topic_not_found", "throttled"),
            )
        ]

    def export(self, call: Call) -> None:
        engine = self.live.engine
        topic = engine.state.by_name.get(call.name)
        if topic is None:
            check_topic_name(call.name)
            raise TopicNotFound(call.name)
        if self._pressure.floor is not None and self._pressure.sheds(call, engine.effective_priority(topic)):
            raise self._pressure.refusal()
        view, (from_seq, to_seq) = self._view(call, topic), self._range(call, topic)
        export = Export(self, BulkRead(topic, view, from_seq, to_seq, engine.state.cold.load, self.live.expire))
        first = export.read()
        topic.last_read_ts = self.live.now_ms()
        self.slots.acquire(call.principal)
        call.end()
        export.start(self._open(call), call.principal, first)

    def _view(self, call: Call, topic: Topic) -> View:
        nodes = frozenset(value for name, value in call.request.query_pairs() if name == "node")
        data = call.flag("include_data", True)
        return View(
            nodes if topic.config.dedupe_node else frozenset(),
            tags=call.flag("include_tags", False),
            meta=call.flag("include_meta", data),
            data=data,
            lines=True,
        )

    def _range(self, call: Call, topic: Topic) -> tuple[int, int]:
        """The cursor to start after, and the last seq."""
        from_seq = check_u64(_whole(call, "from_seq", 0), "from_seq")
        if call.text("from_ts") is not None:
            from_seq = max(from_seq, self.live.engine.seq_before(topic, _whole(call, "from_ts", 0)))
        return from_seq, _whole(call, "to_seq", topic.head_seq)

    def _open(self, call: Call) -> ReplyStream:
        request = call.request
        packed = accepts_gzip(request.header(b"accept-encoding"))
        headers = (_NO_STORE, GZIPPED, VARY) if packed else (_NO_STORE, VARY)
        stream = request.stream(headers=headers, content_type=NDJSON)
        return GzipReplyStream(stream, self._in_thread) if packed else stream


class Export:
    """One running export."""

    __slots__ = (
        "_bulk",
        "_exports",
        "_principal",
        "_stream",
        "_waits_for_cold",
        "interval_s",
        "sent_s",
        "stalled_s",
    )

    def __init__(self, exports: Exports, bulk: BulkRead) -> None:
        self._exports = exports
        self._bulk = bulk
        self._stream: ReplyStream | None = None
        self._principal: Principal | None = None
        self._waits_for_cold = False
        # for the heartbeats, which only check for stalls here
        self.interval_s = 3_600.0
        self.sent_s = self.stalled_s = 0.0

    # --- reading ---

    def read(self) -> Diff | None:
        """The next slice; None at the end. May raise ColdMiss, and DamagedData where the log cannot be read."""
        return self._bulk.read()

    def _write(self, diff: Diff | None) -> None:
        stream, bulk = self._stream, self._bulk
        assert stream is not None
        if diff is not None:
            stream.write(bulk.lines(diff))
            if not bulk.is_over:
                return
        stream.write(b'{"end":%b}\n' % bulk.end())
        self._detach()
        stream.close()

    # --- opening and closing ---

    def start(self, stream: ReplyStream, principal: Principal, first: Diff | None) -> None:
        self._stream = stream
        self._principal = principal
        stream.on_pause = lambda: self._exports.stalls.paused(self)
        stream.on_resume = self._resumed
        stream.on_close = self._detach
        self._exports.stalls.add(self)
        if stream.closed:
            self._detach()
            return
        self._exports.live.queue(self)
        self._write(first)

    def _detach(self) -> None:
        """Release the slot and break every cycle; nothing more is written."""
        stream, principal, self._stream, self._principal = self._stream, self._principal, None, None
        if stream is None or principal is None:
            return
        self._exports.stalls.discard(self)
        self._exports.live.unqueue(self)
        self._exports.slots.release(principal)
        stream.on_pause = stream.on_resume = stream.on_close = None

    def _cut(self, reason: str) -> None:
        """End without an end line, so that the export is not mistaken for complete; a new request gets the error."""
        stream = self._stream
        log.warning("an export of %s is cut after seq %d: %s", self._bulk.topic.name, self._bulk.seq, reason)
        self._detach()
        if stream is not None:
            stream.abort()

    # --- turns ---

    def look(self, subscription: Subscription) -> None:
        raise AssertionError("an export has no subscription", subscription)

    def take_turn(self) -> bool:
        stream = self._stream
        if stream is None or stream.paused or self._waits_for_cold:
            return False
        if stream.buffered_bytes > BUFFERED_BYTES_MAX:
            return True
        if self._exports.live.engine.state.by_id.get(self._bulk.topic.id) is not self._bulk.topic:
            self._cut("the topic was deleted")
            return False
        try:
            diff = self.read()
        except ColdMiss as miss:
            self._waits_for_cold = True
            self._exports.reader.fetch(miss, self._arrived)
            return False
        except TopicsError as error:
            self._cut(error.message)
            return False
        self._write(diff)
        return True

    def _arrived(self, error: TopicsError | None) -> None:
        self._waits_for_cold = False
        if error is not None:
            self._cut(error.message)
        elif self._stream is not None:
            self._exports.live.queue(self)

    def _resumed(self) -> None:
        self._exports.stalls.resumed(self)
        self._exports.live.queue(self)

    # --- called by the heartbeats ---

    def beat(self) -> None:
        """A silent export is the client's doing: it has not read what it was sent."""

    def give_up(self) -> None:
        self._cut("the client has not read for too long")


def _whole(call: Call, name: str, default: int) -> int:
    value = call.integer(name, default)
    if value < 0:
        raise InvalidRequest(f"{name} must not be negative", field=name)
    return value
