"""Many topics over one stream, which reconnects and continues at the caller's position."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any

import msgspec

from topics.client.aio.wire.transport import AsyncStream, AsyncTransport
from topics.client.errors import BadAnswer, ConnectionFailed, NotFound, ShuttingDown, TopicsError
from topics.client.live import (
    LiveEvent,
    StreamFault,
    TopicDeleted,
    TopicFailed,
    event_of,
    fault_decoder,
    position_after,
    session_decoder,
)
from topics.client.request import Request, body_of
from topics.client.retrying import Retrying
from topics.client.sse import EventParser

SLACK_S = 5.0


class AsyncWatch:
    """Iterate to get events; each has a `topic` and `records` (empty unless it is an Arrived).

    `cursor` is the position after the last event that was returned: passed to a later `watch` of the same topics, it
    continues there. `positions` has the same by topic. When the connection breaks or the server restarts, the stream is
    reopened without loss or duplicates; it stops reconnecting after `reconnect_s_max`. The iteration ends when all
    topics have been deleted, or with `close`, which may be called from another task.
    """

    def __init__(
        self,
        transport: AsyncTransport,
        starts: dict[str, dict[str, Any]],
        params: Mapping[str, Any],
        *,
        lenient: bool,
        cursor: str | None,
        heartbeat_ms: int,
        reconnect_s_max: float,
    ) -> None:
        self._transport = transport
        self._params = {**params, "heartbeat_ms": heartbeat_ms}
        self._path = "/v0/watch?lenient=true" if lenient else "/v0/watch"
        self._silence_s_max = 2 * heartbeat_ms / 1000 + SLACK_S
        self._reconnect_s_max = reconnect_s_max
        self._retrying: Retrying | None = None
        self._closed = False
        # per session: where each topic starts; a new session must not skip what `tail` has seen
        self._starts = starts
        self._stream_url: str | None = None
        # per stream
        self._stream: AsyncStream | None = None
        self._pieces: AsyncIterator[bytes] | None = None
        self._parser = EventParser()
        self._events: deque[tuple[LiveEvent, str | None]] = deque()
        # positions of the caller
        self.cursor = cursor
        self.positions: dict[str, int] = {}
        # how often a stream was opened
        self.connections = 0

    def __aiter__(self) -> AsyncWatch:
        return self

    async def __anext__(self) -> LiveEvent:
        while not self._closed:
            if self._events:
                return self._hand_out(*self._events.popleft())
            if not self._starts:
                break
            try:
                await self._receive()
            except TopicsError as error:
                await self._recover(error)
        await self.close()
        raise StopAsyncIteration

    def _hand_out(self, event: LiveEvent, cursor: str | None) -> LiveEvent:
        if cursor is not None:
            self.cursor = cursor
        position = position_after(event)
        if position is not None:
            self.positions[event.topic] = position
        if isinstance(event, TopicDeleted):
            self._starts.pop(event.topic, None)
            self.positions.pop(event.topic, None)
        return event

    # --- the stream ---

    async def _receive(self) -> None:
        """Wait for the next piece; opens a stream if there is none."""
        if self._pieces is None:
            await self._open()
        assert self._pieces is not None
        async for piece in self._pieces:
            self._retrying = None
            for event in self._parser.feed(piece):
                if event.name == "error":
                    self._blame(event.data)
                elif (found := event_of(event.name, event.data)) is not None:
                    self._events.append((found, event.id))
            return
        raise ConnectionFailed("the server ended the stream")

    async def _open(self) -> None:
        if self._stream_url is None:
            await self._begin()
        assert self._stream_url is not None
        headers = {} if self.cursor is None else {"Last-Event-ID": self.cursor}
        stream = self._stream = await self._transport.open(
            self._stream_url, accept="text/event-stream", read_s=self._silence_s_max, headers=headers
        )
        self._parser = EventParser()
        self._pieces = stream.pieces()
        self.connections += 1

    async def _begin(self) -> None:
        """A new session: the server drops sessions when it restarts, or when they are idle for long."""
        body = body_of(**self._params, topics=self._starts, cursor=self.cursor)
        session = await self._transport.call(
            Request(method="POST", path=self._path, decoder=session_decoder, body=body, safe=True)
        )
        self._stream_url = session.stream_url
        self._starts = {name: {"from_seq": topic.from_seq} for name, topic in session.topics.items()}
        for name, topic in session.topics.items():
            self.positions.setdefault(name, topic.from_seq)

    def _blame(self, data: bytes) -> None:
        """An error frame: about some topics, or the end of the stream."""
        try:
            fault: StreamFault = fault_decoder.decode(data)
        except msgspec.DecodeError as error:
            raise BadAnswer(f"an error frame of the stream cannot be read: {error}") from None
        match fault.code:
            case 429:
                return
            case 500:
                for name in fault.topics:
                    self._events.append((TopicFailed(topic=name, code=500, message=fault.error), None))
            case 409 | 410:
                self._stream_url = None
                raise ConnectionFailed(f"the server closed the stream: {fault.error}")
            case 503:
                raise ShuttingDown(fault.error, status=503)
            case _:
                raise ConnectionFailed(f"the server ended the stream: {fault.error}")

    async def _recover(self, error: TopicsError) -> None:
        """Continue with a new stream, or raise an error that a retry cannot fix."""
        await self._lose()
        if self._closed:
            return
        self._retrying = self._retrying or self._transport.reconnecting(self._reconnect_s_max)
        if isinstance(error, NotFound) and self._stream_url is not None:
            self._stream_url = None
            return
        await self._transport.pause(self._retrying, error)

    async def _lose(self) -> None:
        self._pieces = None
        if self._stream is not None:
            await self._stream.close()

    async def close(self) -> None:
        self._closed = True
        await self._lose()

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
