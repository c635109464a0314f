"""One WebSocket: commands come in and are answered in order, new records of its topics go out.

socket ─▶ slices ─▶ ServerProtocol (websockets) ─▶ inbox ─▶ command ─┬─▶ reply
                                                           └─ has to wait: a task; those after it wait, too
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

from websockets.frames import CloseCode, Opcode
from websockets.frames import Frame as WireFrame
from websockets.protocol import State
from websockets.server import ServerProtocol

from topics.api.auth import Principal
from topics.api.live.following import Follower
from topics.api.live.ws_commands import encode
from topics.api.live.ws_frames import WsFrameScanner
from topics.engine.live.feeds import Frame, Subscription
from topics.engine.log.retention import Tombstone
from topics.http.budget import Reservation
from topics.model.errors import TopicsError

if TYPE_CHECKING:
    from topics.api.live.ws import Sockets

PING_INTERVAL_S = 20.0
BUFFERED_BYTES_MAX = 64 * 1024
# Waiting commands and unacknowledged publishes above which nothing more is read.
INBOX_MAX, UNACKED_MAX = 64, 256


class WsConnection(Follower, asyncio.Protocol):
    """Owns the transport from the handshake on."""

    __slots__ = (
        "_asked",
        "_closing",
        "_feeding",
        "_held",
        "_inbox",
        "_paced",
        "_parts",
        "_read_paused",
        "_scanner",
        "_sockets",
        "_transport",
        "_unfed",
        "_unfed_at",
        "_waits_for_memory",
        "_ws",
        "gone",
        "interval_s",
        "memory",
        "principal",
        "sent_s",
        "stalled_s",
        "unacked",
    )

    # from the moment the transport is there
    _transport: asyncio.Transport

    def __init__(self, sockets: Sockets, principal: Principal, protocol: ServerProtocol) -> None:
        super().__init__(sockets.live, sockets.reader)
        self._sockets = sockets
        self._ws = protocol
        self.principal = principal
        # receiving: bytes not yet parsed and how far that is, whether a slice of it is due, memory for a large message
        self._scanner = WsFrameScanner(sockets.heartbeats.now_s)
        self._unfed = b""
        self._unfed_at = 0
        self._feeding = False
        self._waits_for_memory = False
        self.memory: Reservation | None = None
        self.gone = False
        self._parts: list[bytes] = []
        self._inbox: deque[bytes] = deque()
        self._held = False
        self._read_paused = False
        self.unacked = 0
        # sending
        self._paced: set[str] | None = None
        # state: a ping is unanswered, the closing handshake has begun
        self.interval_s = PING_INTERVAL_S
        self.sent_s = 0.0
        self.stalled_s = 0.0
        self._asked = False
        self._closing = False

    # --- called by the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._sockets.opened(self)

    def data_received(self, data: bytes) -> None:
        self._asked = False
        self._scanner.limit.refill(self._sockets.heartbeats.now_s)
        self._unfed = self._unfed[self._unfed_at :] + data
        self._unfed_at = 0
        if not self._feeding and self._feed():
            self._sockets.slices.add(self._feed)

    def _feed(self) -> bool:
        """Parse a slice of the received bytes; returns whether the next one can follow."""
        scanner, start = self._scanner, self._unfed_at
        self._feeding = True
        self._unfed_at = scanner.scan(self._unfed, start)
        if scanner.limit.allowance < 0:
            self._ws.fail(CloseCode.POLICY_VIOLATION, "too many control frames or small fragments")
        else:
            self._ws.receive_data(self._unfed[start : self._unfed_at])
        if scanner.limit.allowance < 0 or self._unfed_at == len(self._unfed):
            self._unfed, self._unfed_at = b"", 0
        self._take_events()
        self._waits_for_memory = not self._sockets.reserve(self, scanner.message_bytes, is_last=scanner.is_last)
        self._work()
        self._feeding = bool(self._unfed) and not self._crowded
        self._update_reading()
        return self._feeding

    def eof_received(self) -> bool:
        self._ws.receive_eof()
        self._take_events()
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (asyncio names it)
        self._closing = self.gone = True
        self._inbox.clear()
        self._unfed, self._unfed_at = b"", 0
        self.unfollow_all()
        self._sockets.closed(self)
        # The library's parser references its protocol, which references the parser.
        self._ws.parser.close()

    def pause_writing(self) -> None:
        self.stall()
        self._sockets.heartbeats.paused(self)
        self._update_reading()

    def resume_writing(self) -> None:
        paused_s = self._sockets.heartbeats.resumed(self)
        self.resume(was_long=paused_s > self._sockets.grace_s)
        self._work()

    # --- messages in ---

    def _take_events(self) -> None:
        for event in self._ws.events_received():
            if isinstance(event, WireFrame):
                self._take_frame(event)
        self._send_out()

    def _take_frame(self, frame: WireFrame) -> None:
        if frame.opcode is Opcode.BINARY:
            self._ws.fail(CloseCode.UNSUPPORTED_DATA, "commands are text messages")
        elif frame.opcode in (Opcode.TEXT, Opcode.CONT):
            self._parts.append(bytes(frame.data))
            if frame.fin:
                message = b"".join(self._parts)
                self._parts.clear()
                self._take_message(message)
        elif frame.opcode is Opcode.CLOSE:
            self._closing = True
            self._inbox.clear()

    def _take_message(self, message: bytes) -> None:
        try:
            if not message.isascii():
                str(message, "utf-8")
        except UnicodeDecodeError:
            self._ws.fail(CloseCode.INVALID_DATA, "a text message must be UTF-8")
            return
        if not self._closing:
            self._inbox.append(message)

    def _work(self) -> None:
        """Run commands in order, as far as none has to wait."""
        while self._inbox and not self._held and not self._closing and not self._blocked:
            if self.unacked >= UNACKED_MAX:
                break
            if self._sockets.run(self, self._inbox[0]):
                self._inbox.popleft()
            else:
                self._held = True
        if self.has_memory and not self._inbox and not self._scanner.message_bytes:
            self._sockets.release(self)
        self._update_reading()

    @property
    def has_memory(self) -> bool:
        """Memory was reserved for a large message and granted."""
        return self.memory is not None and self.memory.granted

    def go_on_reading(self) -> None:
        """There is memory for the message now."""
        self._waits_for_memory = False
        self._update_reading()

    def first_is_done(self) -> None:
        """The first command, which had to wait, has its reply."""
        if self._inbox:
            self._inbox.popleft()
        self._held = False
        self._work()

    def acknowledge(self, frame: bytes) -> None:
        self.unacked -= 1
        self.send(frame)
        if self._read_paused:
            self._sockets.later(self._work)

    @property
    def _crowded(self) -> bool:
        return len(self._inbox) >= INBOX_MAX or self.unacked >= UNACKED_MAX or self._blocked or self._waits_for_memory

    def _update_reading(self) -> None:
        """Parse received bytes while there is room for the messages; read when all of it is parsed."""
        crowded = self._crowded
        if self._unfed and not crowded and not self._feeding:
            self._feeding = True
            self._sockets.slices.add(self._feed)
        pause = crowded or bool(self._unfed)
        if pause == self._read_paused or self._closing:
            return
        self._read_paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # --- frames out ---

    def send(self, text: bytes) -> None:
        self._write(WireFrame(Opcode.TEXT, text).serialize(mask=False))

    def _write(self, data: bytes) -> None:
        if not self._closing:
            self.sent_s = self._sockets.heartbeats.now_s
            self._transport.write(data)

    def _send_out(self) -> None:
        """What the protocol sends by itself: pongs, closing; an empty piece means the end."""
        for data in self._ws.data_to_send():
            if data:
                self._transport.write(data)
            else:
                self._transport.close()
        if self._ws.state is not State.OPEN:
            self._closing = True

    @property
    def _has_room(self) -> bool:
        return not self._blocked and self._transport.get_write_buffer_size() <= BUFFERED_BYTES_MAX

    def _write_records(self, subscription: Subscription, frame: Frame) -> int:
        if self._paced:
            self._paced.discard(subscription.name)
        wire = frame.rendered.get(WsConnection)
        if wire is None:
            wire = frame.rendered[WsConnection] = WireFrame(Opcode.TEXT, record_message(frame)).serialize(mask=False)
        self._write(wire)
        return len(wire)

    def _write_tombstone(self, subscription: Subscription, tombstone: Tombstone, reason: str) -> None:
        self.send(encode({"op": "tombstone", "topic": subscription.name, **tombstone.as_dict(), "reason": reason}))

    def _write_caught_up(self, subscription: Subscription, head_seq: int) -> None:
        self.send(b'{"op":"caught_up","topic":"%b","head_seq":%d}' % (subscription.name.encode(), head_seq))

    def _write_gone(self, subscription: Subscription) -> None:
        head_seq = subscription.feed.topic.head_seq
        self.send(
            encode({"op": "topic_deleted", "topic": subscription.name, "head_seq": head_seq, "reason": "deleted"})
        )

    def _write_paced(self, subscription: Subscription) -> None:
        if self._paced is None:
            self._paced = set()
        if subscription.name not in self._paced:
            self._paced.add(subscription.name)
            self.send(self._sockets.paced_message(subscription.name))

    def _write_unreadable(self, subscription: Subscription, error: TopicsError) -> None:
        self.send(encode({"op": "error", "code": error.code, "message": error.message, "topics": [subscription.name]}))

    # --- liveness and closing ---

    def beat(self) -> None:
        """Idle: ping the client. It had a whole interval to answer the previous ping."""
        if self._closing:
            self._transport.abort()
        elif self._asked:
            self.close(CloseCode.INTERNAL_ERROR, "no answer to a ping")
        else:
            self._asked = True
            self._ws.send_ping(b"")
            self._send_out()

    def give_up(self) -> None:
        """The client does not read. The last message reaches it if it reads within the same time again."""
        if self._closing:
            self._transport.abort()
            return
        message = "the client reads too slowly; subscribe again from where it stopped"
        self.send(encode({"op": "error", "code": "throttled", "message": message}))
        self.close(CloseCode.TRY_AGAIN_LATER, "the client reads too slowly")
        self._sockets.heartbeats.paused(self)

    def close(self, code: int, reason: str) -> None:
        """Begin the closing handshake."""
        if self._ws.state is State.OPEN:
            self._ws.send_close(code, reason)
            self._send_out()
        self.unfollow_all()

    def abort(self) -> None:
        self._transport.abort()


def record_message(frame: Frame) -> bytes:
    return b'{"op":"record","topic":"%b","from_seq":%d,"to_seq":%d,"head_seq":%d,"records":[%b]}' % (
        frame.topic.name.encode(),
        frame.from_seq,
        frame.to_seq,
        frame.head_seq,
        frame.records,
    )
