"""Live delivery as one part of the server: creates what watch, WebSocket, work streams and bulk reads share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from topics.api.admission import Pressure
from topics.api.lifecycle import Lifecycle
from topics.api.live.follow_requests import FollowRequests
from topics.api.live.heartbeats import Heartbeats
from topics.api.live.sse import EventStreams, StreamSlots
from topics.api.live.topic_stream import TopicStreams
from topics.api.live.watch import Watch
from topics.api.live.watch_session import Sessions
from topics.api.live.ws import Sockets
from topics.api.metrics import Usage
from topics.api.routes import Route
from topics.api.v0.export import STALL_S_MAX, Exports
from topics.engine.core.waiting.cold_reader import PatientReader
from topics.engine.core.waiting.deadlines import Deadlines
from topics.engine.core.waiting.runner import Runner
from topics.engine.live.feeds import LiveFeeds
from topics.engine.log.on_disk.cold import Reader
from topics.http.budget import MemoryBudget
from topics.http.content_coding import InThread
from topics.http.loop.slices import Slices
from topics.model.clock import Clock
from topics.model.settings import Settings

GOODBYE_S_MAX = 2.0


class Delivery:
    """Everything that follows topics, over the feeds of the store."""

    def __init__(
        self,
        live: LiveFeeds,
        settings: Settings,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        *,
        pressure: Pressure,
        usage: Usage,
        lifecycle: Lifecycle,
        deadlines: Deadlines,
        reader: Reader,
        runner: Runner,
        wake: Callable[[], None],
        in_thread: InThread,
        slices: Slices,
        budget: MemoryBudget,
    ) -> None:
        heartbeats = Heartbeats(loop, settings.slow_consumer_timeout_ms / 1000, loop.time)
        slots = StreamSlots(settings, usage)
        self.streams = EventStreams(slots, heartbeats, clock)
        follow_requests = FollowRequests(live, settings)
        sessions = Sessions(settings.max_watch_sessions, settings.session_ttl_ms, usage, loop.time)
        # A follower has no request that could be answered with 503 and repeated.
        patient = PatientReader(reader, deadlines)
        self._watch = Watch(live, patient, self.streams, sessions, follow_requests, settings)
        self._topic_streams = TopicStreams(live, patient, self.streams, lifecycle, deadlines, settings)
        self._sockets = Sockets(
            live, patient, heartbeats, slots, follow_requests, pressure, runner, loop, wake, settings, slices, budget
        )
        self._exports = Exports(live, reader, slots, pressure, Heartbeats(loop, STALL_S_MAX, loop.time), in_thread)
        live.is_shed = self._sockets.is_shed
        heartbeats.on_turn.append(lambda: live.weigh(pressed=pressure.floor is not None))

    def routes(self) -> list[Route]:
        return [
            *self._watch.routes(),
            *self._topic_streams.routes(),
            *self._sockets.routes(),
            *self._exports.routes(),
        ]

    def drain(self) -> None:
        """The server is shutting down: every reader is informed."""
        self._watch.drain()
        self._topic_streams.drain()
        self._sockets.drain()

    async def drained(self) -> None:
        await self._sockets.drained(GOODBYE_S_MAX)
