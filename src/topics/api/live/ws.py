"""WebSocket: the handshake, and the commands on the engine."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence

from msgspec import Raw
from websockets.frames import CloseCode
from websockets.http11 import Request as Handshake
from websockets.server import ServerProtocol
from websockets.typing import Subprotocol

from topics.api.admission import Pressure
from topics.api.auth import BEARER_PROTOCOL, Scope
from topics.api.call import Call
from topics.api.live.follow_requests import FollowRequests
from topics.api.live.heartbeats import Heartbeats
from topics.api.live.sse import StreamSlots
from topics.api.live.ws_commands import (
    NO_ID,
    Command,
    PublishCommand,
    acknowledged,
    broken,
    decode_command,
    encode,
    failed,
    ping_decoder,
    publish_decoder,
    reply,
    subscribe_decoder,
    subscribed,
    unsubscribe_decoder,
)
from topics.api.live.ws_connection import WsConnection
from topics.api.routes import QueryField, Route
from topics.api.schema import WatchedTopic
from topics.engine.core.engine import Engine
from topics.engine.core.pending import Busy, PendingChange
from topics.engine.core.waiting.runner import Runner, Steps, before_verb
from topics.engine.live.feeds import LiveFeeds
from topics.engine.log.on_disk.cold import ColdMiss, Reader
from topics.engine.log.topic import Topic
from topics.http.budget import MemoryBudget
from topics.http.loop.slices import Slices
from topics.http.request import Request
from topics.model.errors import InvalidRequest, Throttled, TopicNotFound, TopicsError
from topics.model.requests.batch import Draft, check_batch
from topics.model.requests.config import resolve
from topics.model.requests.large_bodies import decode_large
from topics.model.requests.records import decode_body
from topics.model.settings import Settings

log = logging.getLogger("topics.api")
# The library logs every connection that opens and closes.
quiet_log = logging.getLogger("topics.api.websocket")
quiet_log.setLevel(logging.WARNING)

MESSAGE_BYTES_MAX = 16 * 1024 * 1024
# A larger publish is decoded, drafted and decided in turns of their own, like the body of a request.
TURN_MESSAGE_BYTES = 128 * 1024
# A larger message needs a share of the memory for large bodies, and must be complete in time.
LARGE_MESSAGE_BYTES = 1024 * 1024
MESSAGE_S_MAX = 120.0
HANDSHAKE_HEADERS = (b"host", b"upgrade", b"connection", b"origin")
GOING_AWAY = 1001
PACED_RETRY_MS = 1_500


# Why a command has to wait.
Cause = Busy | ColdMiss | Throttled
# A large publish, prepared.
Drafted = tuple[PublishCommand, Draft]


class _Waiting:
    """The owner of a command that waits: the first one of its connection."""

    __slots__ = ("_connection", "_request_id")

    def __init__(self, connection: WsConnection, request_id: Raw) -> None:
        self._connection = connection
        self._request_id = request_id

    @property
    def wanted(self) -> bool:
        return not self._connection.gone

    def done(self, result: None) -> None:
        del result
        self._connection.first_is_done()

    def failed(self, error: Exception) -> None:
        if isinstance(error, TopicsError):
            self._connection.send(failed(self._request_id, error))
        else:
            self._connection.send(broken(self._request_id, _log_bug(error)))
        self._connection.first_is_done()

    def cancelled(self) -> None: ...


class Sockets:
    """All open WebSockets, and what they share."""

    def __init__(
        self,
        live: LiveFeeds,
        reader: Reader,
        heartbeats: Heartbeats,
        slots: StreamSlots,
        follow_requests: FollowRequests,
        pressure: Pressure,
        runner: Runner,
        loop: asyncio.AbstractEventLoop,
        wake: Callable[[], None],
        settings: Settings,
        slices: Slices,
        budget: MemoryBudget,
    ) -> None:
        self.live = live
        self.reader = reader
        self.heartbeats = heartbeats
        self.grace_s = settings.buffer_grace_ms / 1000
        self._engine: Engine = live.engine
        self._slots = slots
        self._follow_requests = follow_requests
        self._pressure = pressure
        self._runner = runner
        self._loop = loop
        self._wake = wake
        self.slices = slices
        self._settings = settings
        self._budget = budget
        self._message_bytes_max = min(MESSAGE_BYTES_MAX, settings.max_body_bytes)
        # Connections with memory for a large message or waiting for it, and when the message began.
        self._receiving: dict[WsConnection, float] = {}
        heartbeats.on_turn.append(self._end_slow_messages)
        self._open: dict[WsConnection, None] = {}
        self._empty: asyncio.Event | None = None

    def routes(self) -> list[Route]:
        offered = "May carry the key: topics.bearer.<base64url of the key>."
        return [
            Route(
                method="GET",
                path="/v0/ws",
                handler=self.open,
                summary="A WebSocket to subscribe and publish.",
                headers=(QueryField("Sec-WebSocket-Protocol", str, offered),),
                replies={101: str},
                errors=("throttled",),
                key_in_subprotocol=True,
                long_lived=True,
            )
        ]

    # --- opening and closing ---

    def open(self, call: Call) -> None:
        request = call.request
        if request.upgrade_to != "websocket":
            raise InvalidRequest("this is a WebSocket: connect with Upgrade: websocket", field="upgrade")
        protocol = WsProtocol(extensions=None, max_size=self._message_bytes_max, logger=quiet_log)
        response = _shake_hands(protocol, request)
        self._slots.acquire(call.principal)
        call.end()
        request.upgrade(WsConnection(self, call.principal, protocol), response)

    def opened(self, connection: WsConnection) -> None:
        self._open[connection] = None
        self.heartbeats.add(connection)

    def closed(self, connection: WsConnection) -> None:
        self._open.pop(connection, None)
        self.heartbeats.discard(connection)
        self.release(connection)
        self._slots.release(connection.principal)
        if self._empty is not None and not self._open:
            self._empty.set()

    def drain(self) -> None:
        for connection in list(self._open):
            connection.close(GOING_AWAY, "the server is shutting down")

    async def drained(self, grace_s: float) -> None:
        """Every client has closed, or had the time to."""
        if self._open:
            self._empty = asyncio.Event()
            try:
                async with asyncio.timeout(grace_s):
                    await self._empty.wait()
            except TimeoutError:
                for connection in list(self._open):
                    connection.abort()

    def later(self, callback: Callable[[], None]) -> None:
        self._loop.call_soon(callback)

    # --- memory for large messages ---

    def reserve(self, connection: WsConnection, message_bytes: int, *, is_last: bool) -> bool:
        """Count an unfinished message as a large body; False if it must wait for memory."""
        if connection in self._receiving or message_bytes <= LARGE_MESSAGE_BYTES:
            return True
        self._receiving[connection] = self.heartbeats.now_s
        most_bytes = self._message_bytes_max
        size_bytes = min(message_bytes, most_bytes) if is_last else most_bytes
        connection.memory = self._budget.reserve(size_bytes, lambda: self.later(connection.go_on_reading))
        return connection.memory.granted

    def release(self, connection: WsConnection) -> None:
        """The message is processed."""
        if self._receiving.pop(connection, None) is not None and connection.memory is not None:
            connection.memory.release()
            connection.memory = None

    def _end_slow_messages(self) -> None:
        for connection, since_s in list(self._receiving.items()):
            if connection.has_memory and self.heartbeats.now_s - since_s > MESSAGE_S_MAX:
                connection.close(CloseCode.POLICY_VIOLATION, "the message took too long")
                self.release(connection)

    # --- commands ---

    def run(self, connection: WsConnection, message: bytes) -> bool:
        """Execute a command; False if it has to wait: then it continues as a task, and commands after it wait."""
        request_id = NO_ID
        try:
            command = decode_command(message)
            request_id = command.request_id
            if command.op == "publish" and len(message) > TURN_MESSAGE_BYTES:
                connection.principal.check_scopes(Scope.WRITE)
                cause = None
            else:
                cause = self._try(connection, command, message, None)
                if cause is None:
                    return True
        except TopicsError as error:
            connection.send(failed(request_id, error))
            return True
        except Exception as bug:  # noqa: BLE001 - a bug is answered, the connection lives on
            connection.send(broken(request_id, _log_bug(bug)))
            return True
        self._runner.start(self._go_on(connection, command, message, cause), _Waiting(connection, request_id))
        return False

    def _go_on(self, connection: WsConnection, command: Command, message: bytes, cause: Cause | None) -> Steps[None]:
        """Prepare a large publish between other work; run the command when the reason for waiting has passed."""
        yield None
        decoded: Drafted | None = None
        if cause is None:
            publish = yield from decode_large(publish_decoder, message, self._settings)
            decoded = publish, (yield from self._engine.drafting(publish, metas_checked=True))
            cause = self._try(connection, command, message, decoded)
        while cause is not None:
            if isinstance(cause, Busy):
                yield from before_verb(cause.change)
            elif isinstance(cause, ColdMiss):
                yield cause
            else:
                yield from self._runner.pause(int(cause.detail["retry_after_ms"]))
            cause = self._try(connection, command, message, decoded)

    def _try(self, connection: WsConnection, command: Command, message: bytes, decoded: Drafted | None) -> Cause | None:
        """Execute a command; why it has to wait, if it has to."""
        try:
            self._carry_out(connection, command, message, decoded)
        except (Busy, ColdMiss) as cause:
            return cause
        except Throttled as error:
            if not self._may_wait(decoded, message, error):
                raise
            return error
        return None

    def _carry_out(self, connection: WsConnection, command: Command, message: bytes, decoded: Drafted | None) -> None:
        request_id = command.request_id
        match command.op:
            case "publish":
                publish, draft = decoded or (decode_body(publish_decoder, message), None)
                self._publish(connection, request_id, publish, draft)
            case "subscribe":
                self._subscribe(connection, request_id, message)
            case "unsubscribe":
                self._unsubscribe(connection, request_id, message)
            case "ping":
                decode_body(ping_decoder, message)
                connection.send(reply("pong", request_id))
            case other:
                raise InvalidRequest(
                    f"op is {other!r:.64}; it may be subscribe, unsubscribe, publish or ping", field="op"
                )

    def _may_wait(self, decoded: Drafted | None, message: bytes, error: Throttled) -> bool:
        """Pressure passes; a writer that opted out of refusals waits for that, and later commands with it."""
        if "retry_after_ms" not in error.detail:
            return False
        try:
            publish = decode_body(publish_decoder, message) if decoded is None else decoded[0]
            return bool(publish.disable_backpressure)
        except TopicsError:
            return False

    def _publish(self, connection: WsConnection, request_id: Raw, command: PublishCommand, draft: Draft | None) -> None:
        principal = connection.principal
        principal.check_scopes(Scope.WRITE)
        if command.config is not None:
            principal.check_scopes(Scope.ADMIN)
        principal.check_name(command.topic, "topic")
        if command.config is not None and command.config.dead_letter is not None:
            resolve(command.config, command.topic)
            principal.check_name(command.config.dead_letter, "dead_letter")
        if not principal.sees_all_names and any(record.group is not None for record in command.records):
            check_batch(command, self._engine.settings, metas_checked=draft is not None)
            principal.check_notified(command.records)
        if self._pressure.floor is not None and self.is_shed(self._engine.state.by_name.get(command.topic)):
            raise self._pressure.refusal()
        change = self._engine.append(command.topic, command, draft=draft)
        connection.unacked += 1
        self._wake()
        change.answer(_acknowledging(connection, request_id, command))

    def is_shed(self, topic: Topic | None) -> bool:
        """Whether the server is under so much pressure that this topic has to wait."""
        floor = self._pressure.floor
        if floor is None:
            return False
        return (self._engine.effective_priority(topic) if topic is not None else 0) < floor

    def _subscribe(self, connection: WsConnection, request_id: Raw, message: bytes) -> None:
        principal = connection.principal
        principal.check_scopes(Scope.READ)
        self._follow_requests.check_size(message)
        command = decode_body(subscribe_decoder, message)
        starts = command.starts()
        self._follow_requests.check_count(len(starts))
        self._follow_requests.check_count(len(connection.subscriptions.keys() | starts.keys()))
        options = self._follow_requests.frame_options(command)
        fields = {name: f"topics.{name}" if name in (command.topics or ()) else "topic" for name in starts}
        for name, field in fields.items():
            principal.check_name(name, field)
        chosen: list[tuple[Topic, int]] = []
        shown: dict[str, WatchedTopic] = {}
        for name, start in starts.items():
            topic = self._follow_requests.find(name, fields[name])
            if topic is None:
                if command.lenient:
                    continue
                raise TopicNotFound(name)
            seq = self._follow_requests.start_of(topic, start)
            chosen.append((topic, seq))
            shown[name] = self._follow_requests.describe(topic, seq)
        connection.send(subscribed(request_id, shown))
        for topic, seq in chosen:
            earlier = connection.subscriptions.get(topic.name)
            if earlier is not None:
                connection.unfollow(earlier)
            connection.follow(topic, seq, options)
        connection.catch_up()

    def _unsubscribe(self, connection: WsConnection, request_id: Raw, message: bytes) -> None:
        connection.principal.check_scopes(Scope.READ)
        for name in decode_body(unsubscribe_decoder, message).names():
            subscription = connection.subscriptions.get(name)
            if subscription is not None:
                connection.unfollow(subscription)
            connection.send(reply("unsubscribed", request_id, topic=name))

    def paced_message(self, name: str) -> bytes:
        message = "watch throttled under CPU pressure"
        return encode(
            {"op": "error", "code": "throttled", "message": message, "retry_after_ms": PACED_RETRY_MS, "topics": [name]}
        )


def _acknowledging(
    connection: WsConnection, request_id: Raw, command: PublishCommand
) -> Callable[[PendingChange], None]:
    def published(change: PendingChange) -> None:
        if change.error is not None:
            connection.acknowledge(failed(request_id, change.error))
        else:
            connection.acknowledge(acknowledged(request_id, command, change))

    return published


def _shake_hands(protocol: ServerProtocol, request: Request) -> list[tuple[bytes, bytes]]:
    """The headers that accept the WebSocket. The library checks the request as if it had read it itself."""
    lines = [
        b"%b: %b\r\n" % (name, value)
        for name, value in request.headers
        if name in HANDSHAKE_HEADERS or name.startswith(b"sec-websocket-")
    ]
    protocol.receive_data(b"GET %b HTTP/1.1\r\n%b\r\n" % (b"/v0/ws", b"".join(lines)))
    handshake = protocol.events_received()[0]
    assert isinstance(handshake, Handshake)
    response = protocol.accept(handshake)
    if response.status_code != 101:
        raise InvalidRequest((response.body or b"").decode().strip(), field="upgrade")
    protocol.send_response(response)
    protocol.data_to_send()
    return [
        (name.encode(), value.encode())
        for name, value in response.headers.raw_items()
        if name.lower().startswith("sec-websocket-")
    ]


class WsProtocol(ServerProtocol):
    """The protocol of one connection, with our choice of a subprotocol."""

    def select_subprotocol(self, subprotocols: Sequence[Subprotocol]) -> Subprotocol | None:
        """A browser expects one of its offers in the reply: the first that is not its key, if there is one."""
        plain = [name for name in subprotocols if not name.startswith(BEARER_PROTOCOL)]
        return next(iter(plain or subprotocols), None)


def _log_bug(bug: Exception) -> str:
    """The line that an operator looks for when a client reports a trace id."""
    trace_id = secrets.token_hex(8)
    log.error("bug %s in a command of a WebSocket", trace_id, exc_info=bug)
    return trace_id
