"""Event streams: opening one (Accept, caps, headers), its heartbeat, and the end of a client that stops reading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from topics.api.auth import Principal
from topics.api.call import Call
from topics.api.live.heartbeats import Heartbeats
from topics.api.metrics import Usage
from topics.http.request import Bytes, ReplyStream, Request
from topics.model.clock import Clock
from topics.model.errors import NotAcceptable, Throttled
from topics.model.settings import Settings

RETRY = b"retry: 2000\n\n"
HEADERS = ((b"Cache-Control", b"no-store"), (b"X-Accel-Buffering", b"no"))
KEEP_ALIVE = (b"Connection", b"keep-alive")
HEARTBEAT_MS_MIN, HEARTBEAT_MS_MAX = 1_000, 60_000
# Unsent bytes of one connection above which nothing more is rendered for it.
BUFFERED_BYTES_MAX = 64 * 1024

_encode = msgspec.json.Encoder().encode


class StreamSlots:
    """How many long-lived connections are open, in total and per principal."""

    def __init__(self, settings: Settings, usage: Usage) -> None:
        self._max = settings.max_sse_connections
        self._max_per_key = settings.max_sse_connections_per_key
        self._usage = usage

    def acquire(self, principal: Principal) -> None:
        """Take a slot; each `acquire` needs one `release`. Without keys there is no limit per principal."""
        if self._max and self._usage.sse_connections >= self._max:
            raise _full("max_sse_connections", self._max)
        if principal.number and self._max_per_key and principal.streams >= self._max_per_key:
            raise _full("max_sse_connections_per_key", self._max_per_key)
        self._usage.sse_connections += 1
        principal.streams += 1

    def release(self, principal: Principal) -> None:
        self._usage.sse_connections -= 1
        principal.streams -= 1


def _full(limit: str, maximum: int) -> Throttled:
    return Throttled(f"{maximum} streams are open already, and no more are allowed", limit=limit, max=maximum)


class EventStreams:
    """Opens event streams; every one is counted, has heartbeats and ends in the same way."""

    def __init__(self, slots: StreamSlots, heartbeats: Heartbeats, clock: Clock) -> None:
        self.slots = slots
        self.heartbeats = heartbeats
        self.clock = clock

    def open(self, call: Call, heartbeat_ms: int, principal: Principal | None = None) -> EventStream:
        """Reply to the call with a stream that counts for `key` (the caller's, if not given)."""
        principal = principal or call.principal
        self.slots.acquire(principal)
        call.end()
        request = call.request
        headers = (*HEADERS, KEEP_ALIVE) if request.http_version == "1.1" and request.keep_alive else HEADERS
        stream = EventStream(self, principal, request.stream(headers=headers), clamp_heartbeat(heartbeat_ms))
        stream.write(RETRY)
        if stream.closed:
            stream.detach()
        return stream


class EventStream:
    """One open stream. Writes are whole frames; `on_room` and `on_close` tell its owner the state of the client."""

    __slots__ = (
        "_http",
        "_principal",
        "_streams",
        "interval_s",
        "on_beat",
        "on_close",
        "on_room",
        "on_stall",
        "sent_s",
        "stalled_s",
    )

    def __init__(self, streams: EventStreams, principal: Principal, http: ReplyStream, heartbeat_ms: int) -> None:
        self._streams = streams
        self._principal = principal
        self._http = http
        self.interval_s = heartbeat_ms / 1000
        self.sent_s = 0.0
        self.stalled_s = 0.0
        # The client does not keep up; or it does again, with the seconds that it did not.
        self.on_stall: Callable[[], None] | None = None
        self.on_room: Callable[[float], None] | None = None
        # Called before each heartbeat.
        self.on_beat: Callable[[], None] | None = None
        # Called once, however the stream ends, unless its owner closed it.
        self.on_close: Callable[[], None] | None = None
        http.on_pause = self._paused
        http.on_resume = self._resumed
        http.on_close = self._client_gone
        streams.heartbeats.add(self)

    @property
    def closed(self) -> bool:
        return self._http.closed

    @property
    def paused(self) -> bool:
        return self._http.paused

    @property
    def has_room(self) -> bool:
        return not self._http.paused and self._http.buffered_bytes <= BUFFERED_BYTES_MAX

    def write(self, frames: Bytes) -> None:
        self.sent_s = self._streams.heartbeats.now_s
        self._http.write(frames)

    def fail(self, code: int, message: str, **more: Any) -> None:
        """Send the client the reason, then end."""
        self.write(error_frame(code, message, **more))
        self.close()

    def close(self) -> None:
        """End the stream from this side; `on_close` is not called."""
        self.on_close = None
        if not self._http.closed:
            self._http.close()
            self.detach()

    # --- called by the client's connection and by the heartbeats ---

    def beat(self) -> None:
        if self.on_beat is not None:
            self.on_beat()
        self._http.write(b": hb %d\n\n" % self._streams.clock.now_ms())

    def give_up(self) -> None:
        on_close = self.on_close
        self.fail(408, "the client reads too slowly; reconnect to continue from its last event")
        if on_close is not None:
            on_close()

    def _paused(self) -> None:
        self._streams.heartbeats.paused(self)
        if self.on_stall is not None:
            self.on_stall()

    def _resumed(self) -> None:
        paused_s = self._streams.heartbeats.resumed(self)
        if self.on_room is not None:
            self.on_room(paused_s)

    def _client_gone(self) -> None:
        self.detach()
        on_close, self.on_close = self.on_close, None
        if on_close is not None:
            on_close()

    def detach(self) -> None:
        """Break every cycle and release the slot."""
        self._streams.heartbeats.discard(self)
        self._streams.slots.release(self._principal)
        self.on_room = self.on_stall = self.on_beat = None
        self._http.on_pause = self._http.on_resume = self._http.on_close = None


def error_frame(code: int, message: str, **more: Any) -> bytes:
    """An error event with a status code as in HTTP; it carries no id, so it moves no cursor."""
    return b"event: error\ndata: %b\n\n" % _encode({"code": code, "error": message, **more})


def clamp_heartbeat(heartbeat_ms: int) -> int:
    return max(HEARTBEAT_MS_MIN, min(HEARTBEAT_MS_MAX, heartbeat_ms))


def check_accepts_events(request: Request) -> None:
    """The client must name the type: a web page that makes a browser request an image or a document cannot."""
    for choice in b",".join(request.header_values(b"accept")).lower().split(b","):
        media_type, *parameters = [part.strip() for part in choice.split(b";")]
        if media_type == b"text/event-stream" and not any(map(_is_zero, parameters)):
            return
    raise NotAcceptable("this is an event stream: send the header Accept: text/event-stream")


def _is_zero(parameter: bytes) -> bool:
    name, _, value = parameter.partition(b"=")
    return name.strip() == b"q" and value.strip().strip(b"0.") == b""
