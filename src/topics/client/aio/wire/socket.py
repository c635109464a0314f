"""A WebSocket: commands with replies, and events; both continue after a lost connection.

A caller that waits reads frames for all callers: a reply goes to the caller that waits for it, an event to the inbox.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count
from types import TracebackType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from topics.client.aio.wire import primitives
from topics.client.aio.wire.transport import AsyncTransport
from topics.client.answers import failure_of, log_warnings
from topics.client.commands import ReplyFrame, command, error_in, frame_of, publish_command
from topics.client.errors import BadAnswer, Closed, ConnectionFailed, NotPrimary, Timeout, TopicNotFound, TopicsError
from topics.client.live import LiveEvent, Starts, TopicDeleted, Watched, event_of, position_after, starts_of
from topics.client.retrying import Retrying, is_tls_refusal
from topics.client.values import Appended, JobGroup, Outgoing, Outgoings

if TYPE_CHECKING:
    from topics.client.aio.wire.primitives import WebSocket

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
INBOX_EVENTS_MAX = 10_000
_appended = msgspec.json.Decoder(Appended)


class AsyncSocket:
    """`publish` and `subscribe`, then iterate to get events. Several tasks may use it at once.

    A lost connection is reopened, at the server that is primary then: subscriptions continue after the last event that
    was returned, and publishes without a reply are sent again under the same idempotency key.
    """

    def __init__(self, transport: AsyncTransport, reconnect_s_max: float) -> None:
        self._transport = transport
        self._reconnect_s_max = reconnect_s_max
        self._closed = False
        self._numbers = count(1)
        # per connection
        self._socket: WebSocket | None = None
        self._url = ""
        self.connections = 0
        # since a server replied that it is not the primary
        self._seeking: Retrying | None = None
        # across connections: commands without a reply, replies, events, and the positions of subscriptions
        self._pending: dict[str, str] = {}
        self._answers: dict[str, tuple[ReplyFrame, str | bytes] | TopicsError] = {}
        self._inbox: deque[LiveEvent] = deque()
        self._asked: dict[str, dict[str, Any]] = {}
        self._wishes: dict[str, dict[str, Any]] = {}
        # by topic: the position after the last event received, and after the last event returned
        self._arrived: dict[str, int] = {}
        self.positions: dict[str, int] = {}
        # commands that were sent over this connection
        self._sending = primitives.Lock()
        self._sent: set[str] = set()
        # one caller reads at a time, and notifies the others
        self._news = primitives.Condition()
        self._reading = False

    # --- commands ---

    async def publish(
        self,
        topic: str,
        data: Any,
        *,
        tag: str | None = None,
        node: str | None = None,
        meta: Mapping[str, Any] | None = None,
        delay_ms: int = 0,
        unique_key: str | None = None,
        job_priority: int = 0,
        group: JobGroup | None = None,
        create: bool = True,
    ) -> Appended:
        record = Outgoing(data, tag, node, meta, delay_ms, unique_key, job_priority=job_priority, group=group)
        return await self.publish_many(topic, [record], create=create)

    async def publish_many(
        self,
        topic: str,
        records: Outgoings,
        *,
        node: str | None = None,
        idempotency_key: str | None = None,
        create: bool = True,
        config: Mapping[str, Any] | None = None,
        return_seqs: bool = True,
    ) -> Appended:
        """Append all of them or none; the reply comes when they are as durable as the topic requires."""
        request_id = self._next_id()
        text = publish_command(
            request_id,
            topic,
            records,
            node=node or self._transport.options.node,
            idempotency_key=idempotency_key or uuid4().hex,
            create=None if create else False,
            config=config,
            return_seqs=None if return_seqs else False,
        )
        _, answer = await self._ask(request_id, text)
        try:
            appended = _appended.decode(answer)
        except msgspec.DecodeError as error:
            raise BadAnswer(f"the reply to a publish cannot be read: {error}") from None
        log_warnings(appended)
        return appended

    async def subscribe(
        self,
        topics: Starts,
        *,
        tail: bool = False,
        node: str | list[str] | None = None,
        limit: int | None = None,
        max_batch_bytes: int | None = None,
        include_tags: bool = True,
        include_meta: bool | None = None,
        include_data: bool = True,
        consistency: str | None = None,
        lenient: bool = False,
    ) -> dict[str, Watched]:
        """Follow topics, named as in `watch`. Returns the position of each."""
        request = {
            "node": node,
            "limit": limit,
            "max_batch_bytes": max_batch_bytes,
            "include_tags": include_tags,
            "include_meta": include_meta,
            "include_data": include_data,
            "consistency": consistency,
        }
        request_id = self._next_id()
        starts = starts_of(topics, tail=tail)
        text = command("subscribe", request_id, topics=starts, lenient=lenient or None, **request)
        self._asked[request_id] = request
        try:
            frame, _ = await self._ask(request_id, text)
        finally:
            del self._asked[request_id]
        return frame.topics if isinstance(frame.topics, dict) else {}

    async def unsubscribe(self, *topics: str) -> None:
        request_id = self._next_id()
        for name in topics:
            self._forget(name)
            self.positions.pop(name, None)
        await self._ask(request_id, command("unsubscribe", request_id, topics=list(topics)))

    async def ping(self) -> None:
        """Send a ping and wait for the reply."""
        request_id = self._next_id()
        await self._ask(request_id, command("ping", request_id))

    def _next_id(self) -> str:
        return str(next(self._numbers))

    async def _ask(self, request_id: str, text: str) -> tuple[ReplyFrame, str | bytes]:
        """Send a command, and wait for its reply."""
        seconds = self._transport.options.timeout_s
        self._pending[request_id] = text
        try:
            await self._send(request_id, text)
            if not await self._until(lambda: request_id in self._answers, time.monotonic() + seconds):
                raise Timeout(f"the WebSocket gave no reply within {seconds:g} s")
            answer = self._answers[request_id]
        finally:
            self._pending.pop(request_id, None)
            self._answers.pop(request_id, None)
        if isinstance(answer, TopicsError):
            raise answer
        return answer

    # --- events ---

    def __aiter__(self) -> AsyncSocket:
        return self

    async def __anext__(self) -> LiveEvent:
        event = await self.receive()
        if event is None:
            raise StopAsyncIteration
        return event

    async def receive(self, timeout_s: float | None = None) -> LiveEvent | None:
        """The next event; None if there was none in time, or the socket was closed."""
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            if not await self._until(lambda: bool(self._inbox), deadline_s):
                return None
        except Closed:
            return None
        event = self._inbox.popleft()
        position = position_after(event)
        if position is not None and event.topic in self.positions:
            self.positions[event.topic] = position
        return event

    # --- frames ---

    async def _until(self, arrived: Callable[[], bool], deadline_s: float | None) -> bool:
        """Read, or let another caller read, until the reply is here; False: not in time."""
        while True:
            async with self._news:
                while self._reading and not arrived() and _left(deadline_s) != 0:
                    await primitives.wait(self._news, _left(deadline_s))
                if arrived():
                    return True
                if _left(deadline_s) == 0:
                    return False
                if self._closed:
                    raise Closed("this socket was closed")
                self._reading = True
            try:
                await self._read(_left(deadline_s))
            finally:
                async with self._news:
                    self._reading = False
                    self._news.notify_all()

    async def _read(self, seconds: float | None) -> None:
        """Read and store one message; reconnect if the connection is lost."""
        import websockets

        if len(self._inbox) >= INBOX_EVENTS_MAX:
            message = f"{INBOX_EVENTS_MAX} events wait to be read: iterate, or publish over another socket"
            raise TopicsError(message, code="inbox_full")
        lost: TopicsError | None = None
        try:
            if self._socket is not None:
                self._file(await primitives.receive(self._socket, seconds))
                self._seeking = None
                return
        except TimeoutError:
            return
        except NotPrimary as error:
            lost = self._transport.servers.failed(self._url, error)
        except (websockets.ConnectionClosed, OSError) as error:
            lost = ConnectionFailed(f"the WebSocket broke: {error}")
        await self._lose()
        if not self._closed:
            await self._resume(lost)

    def _file(self, message: str | bytes) -> None:
        frame = frame_of(message)
        if frame.request_id is not None:
            error = error_in(frame) if frame.op == "error" else None
            if isinstance(error, NotPrimary) and self._transport.servers.others:
                raise error
            if frame.request_id in self._pending:
                self._answers[frame.request_id] = error or (frame, message)
            if frame.op == "subscribed" and isinstance(frame.topics, dict):
                request = self._asked.get(frame.request_id, {})
                for name, topic in frame.topics.items():
                    self._wishes[name] = request
                    self._arrived[name] = self.positions[name] = topic.from_seq
            return
        event = event_of(frame.op, message)
        if event is None:
            return
        self._inbox.append(event)
        if isinstance(event, TopicDeleted):
            self._forget(event.topic)
        elif event.topic in self._wishes and (position := position_after(event)) is not None:
            self._arrived[event.topic] = position

    def _forget(self, name: str) -> None:
        self._wishes.pop(name, None)
        self._arrived.pop(name, None)

    async def _send(self, request_id: str, text: str) -> None:
        """Send once per connection. Without a connection, the caller that reads opens it and sends what is pending."""
        import websockets

        if self._closed:
            raise Closed("this socket was closed")
        async with self._sending:
            if self._socket is None or request_id in self._sent:
                return
            self._sent.add(request_id)
            try:
                await self._socket.send(text)
            except (websockets.ConnectionClosed, OSError):
                # The caller that reads notices it as well, and sends the command again.
                return

    # --- connections ---

    async def _resume(self, error: TopicsError | None) -> None:
        """Connect: at once the first time, after a pause if that failed or a connection was lost."""
        import websockets

        servers = self._transport.servers
        retrying = self._transport.reconnecting(self._reconnect_s_max)
        if isinstance(error, NotPrimary):
            # It accepts connections, so that one has been opened says nothing.
            retrying = self._seeking = self._seeking or retrying
        while not self._closed:
            if error is not None:
                await self._transport.pause(retrying, error)
            url = self._url = servers.current
            try:
                await self._connect(url)
                return
            except NotPrimary as refused:
                error = refused
            except websockets.InvalidStatus as refused:
                answer = refused.response
                headers = {name.lower(): value for name, value in answer.headers.raw_items()}
                error = failure_of(answer.status_code, headers, bytes(answer.body or b""), f"GET {url}/v0/ws")
            except (OSError, websockets.WebSocketException) as failed:
                detail = {"unsent": True, "tls": True} if is_tls_refusal(failed) else {"unsent": True}
                error = ConnectionFailed(f"cannot open a WebSocket to {url}: {failed}", detail=detail)
            servers.failed(url, error)

    async def _connect(self, url: str) -> None:
        """Open, subscribe again, and send commands that have no reply yet."""
        options = self._transport.options
        headers = {} if options.key is None else {"Authorization": f"Bearer {options.key}"}
        address = "ws" + url.removeprefix("http") + "/v0/ws"
        tls = options.tls.context()
        socket = await primitives.open_socket(address, headers, options.timeout_s, MESSAGE_BYTES_MAX, tls)
        assert socket.response is not None, "it is open"
        if (failure := self._transport.servers.judged(url, socket.response.headers, None)) is not None:
            await socket.close()
            raise failure
        self.connections += 1
        try:
            await self._subscribe_again(socket)
        except TopicsError:
            await socket.close()
            raise
        async with self._sending:
            self._sent.clear()
            self._socket = socket
        for request_id, text in list(self._pending.items()):
            await self._send(request_id, text)

    async def _subscribe_again(self, socket: WebSocket) -> None:
        for name, request in list(self._wishes.items()):
            request_id = self._next_id()
            starts = {name: {"from_seq": self._arrived[name]}}
            await socket.send(command("subscribe", request_id, topics=starts, lenient=True, **request))
            frame = await self._answer_on(socket, request_id)
            if not (isinstance(frame.topics, dict) and name in frame.topics):
                self._forget(name)
                self._inbox.append(TopicDeleted(topic=name))

    async def _answer_on(self, socket: WebSocket, request_id: str) -> ReplyFrame:
        """The reply to a subscription on a new connection; events of others may come before it."""
        while True:
            message = await primitives.receive(socket, self._transport.options.timeout_s)
            frame = frame_of(message)
            if frame.request_id != request_id:
                self._file(message)
            elif frame.op == "error" and not isinstance(error_in(frame), TopicNotFound):
                raise error_in(frame)
            else:
                return frame

    async def _lose(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()

    async def close(self) -> None:
        self._closed = True
        await self._lose()
        async with self._news:
            self._news.notify_all()

    async def __aenter__(self) -> AsyncSocket:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _left(deadline_s: float | None) -> float | None:
    return None if deadline_s is None else max(0.0, deadline_s - time.monotonic())
