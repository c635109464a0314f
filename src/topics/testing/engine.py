"""The whole server without a process, a port or an event loop of its own: a call runs it until the reply is there.

    client verb ─▶ Transport ─▶ Engine.begin ─▶ Api ─▶ handler ─▶ engine, log, files      all of it the real thing
                       ▲                                             │
                       └──────────── Engine.wait ◀── Exchange ◀──────┘

Time stands still unless the clock is moved. A call that waits (a claim with `wait_ms`, a long poll, a stream) and that
nothing else can end moves the clock to the next event instead of sleeping.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import httpx2

from topics.api.auth import authenticator_of
from topics.client import AsyncClient, Client
from topics.http.request import Header, Request
from topics.model.clock import Clock, ManualClock
from topics.model.settings import Settings
from topics.server import Server
from topics.storage.disk import Disk
from topics.testing.exchange import Exchange, request_of
from topics.testing.loop import HandLoop
from topics.testing.transport import AsyncInlineTransport, InlineTransport

# A loopback name, which a server without keys requires; it is never resolved.
URL = "http://localhost"
# After this many moves of the clock since the last request, the wait will certainly never end.
JUMPS_MAX = 2_000
# Turns that other tasks of a program get before a waiting call moves the clock.
QUIET_TURNS = 20
POLL_S = 0.001


class Stuck(AssertionError):
    """A call waits for something that nothing can bring about."""


class Engine:
    """Open with `topics.testing.engine`. Its clients have every verb except those of the WebSocket."""

    def __init__(
        self, path: str | None = None, *, settings: Settings | None = None, clock: Clock | None = None
    ) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="topics-testing-") if path is None else None
        self.path = path or (self._directory.name if self._directory else "")
        self.clock = clock or ManualClock()
        self._settings = dataclasses.replace(settings or Settings(), data_dir=self.path)
        # The thread that holds it runs the loop; threads that wait in real time are notified when something changes.
        self._moved = threading.Condition(threading.RLock())
        self._calls = 0
        self._jumps = 0
        self._closed = False
        self._exchanges: set[Exchange] = set()
        self._clients: list[Client] = []
        self._loop, self._server = self._opened()

    def _opened(self) -> tuple[HandLoop, Server]:
        loop = HandLoop(self.clock)
        server = Server(self._settings, authenticator_of(self._settings), loop, Disk(), clock=self.clock)
        for _ in server.store.opening():
            pass
        server.take_requests()
        return loop, server

    # --- for tests ---

    def client(
        self,
        key: str | None = None,
        *,
        node: str | None = None,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
    ) -> Client:
        """A client whose calls end in this engine, without retries; closed with the engine."""
        client = Client(
            URL,
            key,
            node=node,
            user=user,
            password=password,
            token=token,
            retries_max=0,
            transport=InlineTransport(self),
        )
        self._clients.append(client)
        return client

    def async_client(self, key: str | None = None, *, node: str | None = None) -> AsyncClient:
        """The same for programs with an event loop; must be closed in that loop."""
        return AsyncClient(URL, key, node=node, retries_max=0, transport=AsyncInlineTransport(self))

    def advance(self, ms: int) -> None:
        """Move the clock and run what is due: leases expire, delays end, records expire."""
        if not isinstance(self.clock, ManualClock):
            raise TypeError("only a ManualClock can be moved; this engine was given another clock")
        with self._moved:
            self._come_to_rest()
            self.clock.advance(ms)
            self._server.store.step()
            self._come_to_rest()
            self._moved.notify_all()

    def restart(self) -> None:
        """Stop and start on the same directory: streams break, leases are lost unless they are durable."""
        with self._moved:
            self._break_exchanges()
            self._server.put_away()
            self._loop, self._server = self._opened()

    def close(self) -> None:
        for client in self._clients:
            client.close()
        with self._moved:
            if self._closed:
                return
            self._closed = True
            self._break_exchanges()
            self._server.put_away()
            self._moved.notify_all()
        if self._directory is not None:
            self._directory.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- for transports ---

    def begin(self, method: str, target: bytes, headers: list[Header], body: bytes) -> tuple[Exchange, Request]:
        """Start a request."""
        with self._moved:
            if self._closed:
                raise httpx2.ConnectError("the engine is closed")
            self._come_to_rest()
            exchange = Exchange(self._loop.call_soon)
            request = request_of(exchange, method, target, headers, body)
            self._exchanges.add(exchange)
            self._calls += 1
            self._jumps = 0
            self._server.accept(request)
            self._run()
            self._moved.notify_all()
        return exchange, request

    def wait(self, exchange: Exchange, done: Callable[[], bool], timeout_s: float | None) -> None:
        """Run until `done`, in the caller's thread."""
        deadline_s = None if timeout_s is None else self._loop.time() + timeout_s
        with self._moved:
            while not self._settled(exchange, done, deadline_s):
                if not self._jump(deadline_s):
                    self._moved.wait(POLL_S)

    async def wait_async(self, exchange: Exchange, done: Callable[[], bool], timeout_s: float | None) -> None:
        """The same; other tasks of the caller's loop run first."""
        deadline_s = None if timeout_s is None else self._loop.time() + timeout_s
        quiet, calls = 0, self._calls
        while True:
            with self._moved:
                if self._settled(exchange, done, deadline_s):
                    return
                if self._calls != calls:
                    quiet, calls = 0, self._calls
                if quiet == QUIET_TURNS and self._jump(deadline_s):
                    continue
            quiet = min(QUIET_TURNS, quiet + 1)
            await asyncio.sleep(0 if isinstance(self.clock, ManualClock) else POLL_S)

    def disconnect(self, exchange: Exchange, request: Request) -> None:
        """The caller has the reply, or does not want the rest of it."""
        with self._moved:
            self._exchanges.discard(exchange)
            if not exchange.ended:
                exchange.disconnect(request)
                self._run()

    def _run(self) -> None:
        """Run everything that needs no thread; routers do not pause here, as they would under load."""
        self._loop.run()
        store = self._server.store
        # A change submitted outside of a tick waits for the next tick, which may never come here.
        while store.turn() == 0.0 or store.forwarder.pending:
            self._loop.run()
        self._loop.run()

    def _come_to_rest(self) -> None:
        """Run until everything that was started is done, including work in the store's threads."""
        self._run()
        while self._threads_are_busy():
            self._loop.wait_for_news()
            self._run()

    def _settled(self, exchange: Exchange, done: Callable[[], bool], deadline_s: float | None) -> bool:
        """Whether the reply is there, once everything that can run has run."""
        self._run()
        while not done() and not exchange.aborted and self._threads_are_busy():
            self._loop.wait_for_news()
            self._run()
        if exchange.aborted:
            raise httpx2.ReadError("the engine was closed or restarted, or has ended this stream")
        if done():
            self._moved.notify_all()
            return True
        if deadline_s is not None and self._loop.time() >= deadline_s:
            raise httpx2.ReadTimeout("no reply in time")
        return False

    def _threads_are_busy(self) -> bool:
        store = self._server.store
        awaited = store.commit_log.depth > 0 or store.syncer.sync_awaited
        return awaited or store.worker.pending > 0 or self._loop.away > 0

    def _jump(self, deadline_s: float | None) -> bool:
        """Move the clock to the next event; False if the clock moves by itself."""
        if not isinstance(self.clock, ManualClock):
            return False
        next_s = self._loop.next_s()
        moments = [moment for moment in (next_s, deadline_s) if moment is not None]
        self._jumps += 1
        if not moments or self._jumps > JUMPS_MAX:
            raise Stuck("this call waits for something that nothing can bring about, however far the clock moves")
        # At least one step: events may be fractions of a millisecond apart.
        self.clock.advance(max(1, int((min(moments) - self._loop.time()) * 1000)))
        return True

    def _break_exchanges(self) -> None:
        for exchange in self._exchanges:
            exchange.aborted = not exchange.ended
        self._exchanges.clear()


def engine(path: str | None = None, *, settings: Settings | None = None, clock: Clock | None = None) -> Engine:
    """An engine for one test, in a temporary directory unless a `path` is given.

    The clock stands still and is moved with `advance`; use `clock=SystemClock()` for tests with threads that wait.
    """
    return Engine(path, settings=settings, clock=clock)
