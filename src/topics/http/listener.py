"""The listening socket and its connections: start, tick hook, drain."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Callable
from typing import cast

from topics.http.budget import MemoryBudget
from topics.http.http1.connection import Http1Connection
from topics.http.limits import HttpLimits
from topics.http.loop.pace import Pace
from topics.http.loop.slices import Slices
from topics.http.loop.watchdog import Watchdog
from topics.http.refusal import Refusal
from topics.http.refusal import render_error as plain_error
from topics.http.request import Request
from topics.http.service import Handle, OnBug, OnReply, RenderError, Service, log_bug
from topics.http.tls.certificate import Tls
from topics.http.tls.connection import TlsConnection


class Listener:
    """Serves HTTP/1.0, 1.1 and 2 on one port and calls `handle` for each request.

    HTTP/2 is recognised by its first bytes: by prior knowledge, or because TLS has negotiated it.
    """

    def __init__(
        self,
        handle: Handle,
        *,
        loop: asyncio.AbstractEventLoop,
        limits: HttpLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
        render_error: RenderError = plain_error,
        on_bug: OnBug = log_bug,
        on_head: Handle | None = None,
        on_reply: OnReply | None = None,
        tls: Tls | None = None,
    ) -> None:
        self._service = Service(
            handle,
            loop=loop,
            limits=limits or HttpLimits(),
            clock=clock,
            render_error=render_error,
            on_bug=on_bug,
            on_head=on_head,
            on_reply=on_reply,
        )
        self._server: asyncio.Server | None = None
        # None: connections are plain
        self.tls = tls

    @property
    def port(self) -> int:
        """The bound port, also if port 0 was requested."""
        assert self._server is not None
        return cast("int", self._server.sockets[0].getsockname()[1])

    @property
    def connections_open(self) -> int:
        return len(self._service.connections)

    @property
    def slices(self) -> Slices:
        """Where protocols of upgraded connections run their long work."""
        return self._service.slices

    @property
    def watchdog(self) -> Watchdog:
        """Measures work of the loop that is not a request, too."""
        return self._service.watchdog

    @property
    def pace(self) -> Pace:
        """Which iterations are for long work."""
        return self._service.pace

    @property
    def budget(self) -> MemoryBudget:
        """Memory for large bodies and messages that are not yet complete."""
        return self._service.budget

    @property
    def connections_max(self) -> int:
        return self._service.limits.connections_max

    @property
    def connections_refused_total(self) -> int:
        return self._service.refused_total

    @property
    def handled(self) -> tuple[int, float]:
        """Requests that a handler has seen since the start, and the seconds that handlers took for them."""
        return self._service.handled_total, self._service.handled_s

    async def start(self, host: str, port: int, backlog: int = 1024) -> None:
        """Bind and accept; OSError if the address is not available. uvloop sets TCP_NODELAY on every connection."""
        service = self._service
        self._server = await service.loop.create_server(
            self._protocol_factory(), host, port, backlog=backlog, family=socket.AF_UNSPEC
        )
        service.connections.start()

    def _protocol_factory(self) -> Callable[[], asyncio.Protocol]:
        service, tls = self._service, self.tls

        def plain() -> asyncio.Protocol:
            return Http1Connection(service)

        return plain if tls is None else lambda: TlsConnection(service, tls, plain)

    def accept(self, request: Request) -> None:
        """Handle a request that did not come from a socket."""
        self._service.tick.arm()
        self._service.run_handler(request)

    def on_tick_end(self, callback: Callable[[], None]) -> None:
        """Call back once at the end of each loop iteration with requests or replies in it, before replies are sent."""
        self._service.tick.on_end(callback)

    def wake(self) -> None:
        """Run the end of a tick although no request came."""
        self._service.tick.arm()

    def end_tick(self) -> None:
        """Send now what would be sent at the end of this iteration."""
        self._service.tick.end_now()

    def in_thread(self, work: Callable[[], bytes], done: Callable[[bytes | Refusal], None]) -> None:
        """Run gzip work off the loop and return to it."""
        self._service.in_thread(work, done)

    async def drain(self, grace_s: float) -> None:
        """Stop accepting, let unfinished requests finish, then close; after the grace period the rest is aborted."""
        service = self._service
        service.draining = True
        if self._server is not None:
            self._server.close()
        empty = asyncio.Event()
        service.on_empty = empty.set
        for connection in service.connections:
            connection.drain()
        try:
            async with asyncio.timeout(grace_s):
                while self.connections_open:
                    empty.clear()
                    await empty.wait()
        except TimeoutError:
            pass
        self.close()

    def close(self) -> None:
        """Abort everything at once."""
        if self._server is not None:
            self._server.close()
        for connection in self._service.connections:
            connection.abort()
        self._service.stop()
