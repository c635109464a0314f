"""Bulk read: a range of a topic as lines of JSON in one reply, as fast as the client reads, taking turns with others.

    GET …/export ─▶ first slice (404, 500 are still possible) ─▶ a slice per tick while there is room ─▶ end line
                                                                └─ topic gone, damage, client stalls: cut, no end line

A slice has the records that `diff` would return, as lines. The end is fixed at the start: a growing topic does not
prolong it. As an Arrow stream, a slice is the records' own bytes, and a thread makes columns of them.
"""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Sequence
from functools import cache, partial
from typing import TYPE_CHECKING

from topics.api.admission import Pressure
from topics.api.auth import Principal, Scope
from topics.api.call import Call
from topics.api.live.heartbeats import Heartbeats
from topics.api.live.sse import BUFFERED_BYTES_MAX, StreamSlots
from topics.api.routes import QueryField, Route
from topics.engine.live.feeds import LiveFeeds, Subscription
from topics.engine.log.bulk import BulkRead
from topics.engine.log.on_disk.cold import ColdMiss, Reader
from topics.engine.log.reading import Diff, FrozenRun, View
from topics.engine.log.topic import Topic
from topics.http.content_coding import GZIPPED, VARY, GzipReplyStream, InThread, accepts_gzip
from topics.http.refusal import Refusal
from topics.http.request import ReplyStream, Request
from topics.model.errors import InvalidRequest, NotAcceptable, TopicNotFound, TopicsError
from topics.model.extras import install_command
from topics.model.names import check_topic_name
from topics.model.requests.records import check_u64

if TYPE_CHECKING:
    from topics.engine.log.arrow_stream import ArrowWriter

log = logging.getLogger("topics.api")

NDJSON = b"application/x-ndjson"
ARROW = b"application/vnd.apache.arrow.stream"
# Making a batch costs the same for few rows as for many; more than this would hold up the thread, which gzip uses, too.
ARROW_SLICE_BYTES = 1024 * 1024
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
        self.in_thread = in_thread
        self._pressure = pressure

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
                other_forms={ARROW.decode(): bytes},
                errors=("topic_not_found", "throttled", "not_acceptable"),
            )
        ]

    def export(self, call: Call) -> None:
        arrow = chooses_arrow(call.request)
        engine = self.live.engine
        topic = engine.state.by_name.get(call.name)
        if topic is None:
            check_topic_name(call.name)
            raise TopicNotFound(call.name)
        if self._pressure.floor is not None and self._pressure.sheds(call, engine.effective_priority(topic)):
            raise self._pressure.refusal()
        view, (from_seq, to_seq) = self._view(call, topic), self._range(call, topic)
        load, expire = engine.state.cold.load, self.live.expire
        export: Export
        if arrow:
            view = view._replace(runs=[])
            export = ArrowExport(self, BulkRead(topic, view, from_seq, to_seq, load, expire, ARROW_SLICE_BYTES), view)
        else:
            export = Export(self, BulkRead(topic, view, from_seq, to_seq, load, expire))
        first = export.read()
        topic.last_read_ts = self.live.now_ms()
        self.slots.acquire(call.principal)
        call.end()
        export.start(self._open(call, ARROW if arrow else NDJSON), call.principal, first)

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

    def _open(self, call: Call, content_type: bytes) -> ReplyStream:
        request = call.request
        packed = accepts_gzip(request.header(b"accept-encoding"))
        headers = (_NO_STORE, GZIPPED, VARY) if packed else (_NO_STORE, VARY)
        stream = request.stream(headers=headers, content_type=content_type)
        return GzipReplyStream(stream, self.in_thread) if packed else stream


def chooses_arrow(request: Request) -> bool:
    """Whether the client asks for Arrow by name; lines if it accepts them, too, and this server has no Arrow."""
    accepted = b",".join(request.header_values(b"accept")).lower()
    if ARROW not in accepted:
        return False
    if has_arrow():
        return True
    if NDJSON in accepted or b"*/*" in accepted:
        return False
    raise NotAcceptable(
        f"this server cannot send Arrow: install pyarrow beside it ({install_command('arrow')}), or accept "
        "application/x-ndjson"
    )


@cache
def has_arrow() -> bool:
    """It is imported by the first use, on the thread."""
    return importlib.util.find_spec("pyarrow") is not None


class Export:
    """One running export."""

    __slots__ = (
        "_bulk",
        "_exports",
        "_principal",
        "_stream",
        "_waits",
        "interval_s",
        "sent_s",
        "stalled_s",
    )

    def __init__(self, exports: Exports, bulk: BulkRead) -> None:
        self._exports = exports
        self._bulk = bulk
        self._stream: ReplyStream | None = None
        self._principal: Principal | None = None
        self._waits = False
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
        if stream is None or stream.paused or self._waits:
            return False
        if stream.buffered_bytes > BUFFERED_BYTES_MAX:
            return True
        if self._exports.live.engine.state.by_id.get(self._bulk.topic.id) is not self._bulk.topic:
            self._cut("the topic was deleted")
            return False
        try:
            diff = self.read()
        except ColdMiss as miss:
            self._waits = True
            self._exports.reader.fetch(miss, self._arrived)
            return False
        except TopicsError as error:
            self._cut(error.message)
            return False
        self._write(diff)
        return True

    def _arrived(self, error: TopicsError | None) -> None:
        self._waits = False
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


class ArrowExport(Export):
    """As an Arrow stream: one slice at a time is with the thread."""

    __slots__ = ("_runs", "_wants", "_writer")

    def __init__(self, exports: Exports, bulk: BulkRead, view: View) -> None:
        super().__init__(exports, bulk)
        assert view.runs is not None
        self._runs = view.runs
        chosen = (("tag", view.tags), ("meta", view.meta), ("data", view.data))
        self._wants = frozenset(("seq", "ts", "node", *(name for name, wanted in chosen if wanted)))
        self._writer: ArrowWriter | None = None

    def _write(self, diff: Diff | None) -> None:
        bulk = self._bulk
        gap = None if diff is None else bulk.advance(diff)
        end = bulk.end() if diff is None or bulk.is_over else None
        runs = self._runs[:]
        self._runs.clear()
        self._waits = True
        self._exports.in_thread(partial(self._encode, runs, gap, end), partial(self._encoded, last=end is not None))

    def _encode(self, runs: Sequence[FrozenRun], gap: bytes | None, end: bytes | None) -> bytes:
        """On the thread; no bytes if that failed."""
        topic = self._bulk.topic
        try:
            if self._writer is None:
                from topics.engine.log.arrow_stream import ArrowWriter

                self._writer = ArrowWriter(self._wants, {"topic": topic.name, "epoch": str(topic.epoch)})
            return self._writer.slice(runs, gap, end)
        except Exception:
            log.exception("an export of %s cannot be written as Arrow", topic.name)
            return b""

    def _encoded(self, result: bytes | Refusal, *, last: bool) -> None:
        assert not isinstance(result, Refusal), "an export is never refused here"
        self._waits = False
        stream = self._stream
        if stream is None:
            return
        if not result:
            self._cut("Arrow failed")
            return
        stream.write(result)
        if last:
            self._detach()
            stream.close()
        else:
            self._exports.live.queue(self)


def _whole(call: Call, name: str, default: int) -> int:
    value = call.integer(name, default)
    if value < 0:
        raise InvalidRequest(f"{name} must not be negative", field=name)
    return value
