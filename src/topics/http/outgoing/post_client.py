"""A client for POST over HTTP/1.1: few connections that are kept open, every answer bounded in bytes and in time.

    post ─▶ an idle connection to the same place, or: resolve ─▶ judge each address ─▶ connect to one that passed
         ─▶ write ─▶ llhttp: status, Retry-After, the beginning of the body ─▶ Answer

What is judged is the address that is connected to: the name is resolved once for a connection, and what is connected to
is an address. Redirects are answers like any other.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple, cast

import httptools

ANSWER_BYTES_MAX: Final = 64 * 1024
HEAD_BYTES_MAX: Final = 32 * 1024
KEPT_BYTES: Final = 256
# Connections that wait for the next request: to one place, to all; and for how long.
IDLE_MAX, IDLE_ALL_MAX, IDLE_S_MAX = 32, 64, 30.0
# How long one address of a host may take to connect while there are others.
CONNECT_S_MAX = 3.0

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]


class Place(NamedTuple):
    """Where a connection leads."""

    tls: bool
    host: str
    port: int


class Answer(NamedTuple):
    status: int
    retry_after: str
    # the first bytes of the body
    start: bytes


class NotSent(Exception):
    """No answer, and why: the address is refused, nobody listens, the answer is not HTTP."""


class _Stale(Exception):
    """A connection that was kept open was closed by its server before the answer began."""


class Connection(asyncio.Protocol):
    """One connection; one request at a time. Also the callbacks of its parser."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.idle_since_s = 0.0
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._answered: asyncio.Future[Answer] | None = None
        self._used = False
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._received = 0
        # the status is known; the answer says where it ends, other than by the end of its connection
        self._in_body = self._sized = False
        # the answer is whole; another request may follow on the connection
        self._complete = self._keeps = False
        self._retry_after = ""
        self._start = bytearray()

    @property
    def reusable(self) -> bool:
        return not self._closed and self._transport is not None and not self._transport.is_closing()

    async def exchange(self, request: bytes) -> Answer:
        if not self.reusable or self._transport is None:
            raise _Stale
        self._begin()
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            return await self._answered
        finally:
            self._answered = None
            self._used = True
            if not self._keeps:
                self.close()

    def close(self) -> None:
        self._closed = True
        if self._transport is not None:
            self._transport.abort()

    # --- the transport ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._answered is None or self._answered.done():
            # Nothing was asked: such a server is not one to keep.
            self.close()
            return
        self._received += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(NotSent(f"the answer is not HTTP: {error}"))
            return
        if not self._answered.done() and self._received > (ANSWER_BYTES_MAX if self._in_body else HEAD_BYTES_MAX):
            if self._in_body:
                # The status is what counts; the rest is not read.
                self._answer()
            else:
                self._fail(NotSent(f"the headers of the answer are longer than {HEAD_BYTES_MAX} bytes"))

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        if exc is None and self._in_body and not self._sized:
            self._answer()
        elif self._used and not self._received:
            self._fail(_Stale())
        elif self._in_body and not self._complete:
            self._fail(NotSent("the connection was closed in the middle of the answer"))
        else:
            self._fail(NotSent(f"the connection was closed before the answer{'' if exc is None else f': {exc}'}"))

    # --- the parser ---

    def on_message_begin(self) -> None:
        self._sized = False
        if self._complete:
            # More than was asked for would be taken for the answer to the next request.
            self._keeps = False

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name == b"retry-after":
            self._retry_after = value[:64].decode("latin-1")
        elif name in (b"content-length", b"transfer-encoding"):
            self._sized = True

    def on_headers_complete(self) -> None:
        # 1xx is followed by the answer itself.
        self._in_body = self._parser.get_status_code() >= 200

    def on_body(self, body: bytes) -> None:
        if len(self._start) < KEPT_BYTES:
            self._start += body[: KEPT_BYTES - len(self._start)]

    def on_message_complete(self) -> None:
        if self._in_body and not self._complete:
            self._complete = True
            self._keeps = self._parser.should_keep_alive()
            self._answer()

    def _answer(self) -> None:
        if self._answered is not None and not self._answered.done():
            answer = Answer(self._parser.get_status_code(), self._retry_after, bytes(self._start))
            self._answered.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(error)
        self.close()


class PostClient:
    """`allows` judges a host and the address that it led to; `resolve` gives the addresses of a host and port."""

    def __init__(self, allows: Callable[[str, str], bool], resolve: Resolve | None = None) -> None:
        self._allows = allows
        self._resolve = resolve or _resolve
        self._idle: dict[Place, deque[Connection]] = {}
        self._idle_count = 0
        self._lookups: dict[tuple[str, int], asyncio.Future[Sequence[str]]] = {}
        self._tls: asyncio.Future[ssl.SSLContext] | None = None

    async def post(self, place: Place, request: bytes, timeout_s: float) -> Answer:
        """Send a whole request. Raises NotSent; a timeout counts from here to the end of the answer."""
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    kept = self._take(place)
                    connection = kept or await self._connect(place, timeout_s)
                    try:
                        return await self._exchange(connection, request)
                    except _Stale:
                        if kept is None:
                            raise NotSent("the connection was closed before the answer") from None
        except TimeoutError:
            raise NotSent(f"no answer within {timeout_s:g} s") from None

    async def _exchange(self, connection: Connection, request: bytes) -> Answer:
        try:
            answer = await connection.exchange(request)
        except BaseException:
            connection.close()
            raise
        self._keep(connection)
        return answer

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()
        self._idle_count = 0
        for lookup in list(self._lookups.values()):
            lookup.cancel()

    # --- connections that are kept ---

    def _take(self, place: Place) -> Connection | None:
        connections = self._idle.get(place)
        oldest_s = asyncio.get_running_loop().time() - IDLE_S_MAX
        while connections:
            connection = connections.pop()
            self._idle_count -= 1
            if connection.reusable and connection.idle_since_s > oldest_s:
                return connection
            connection.close()
        self._idle.pop(place, None)
        return None

    def _keep(self, connection: Connection) -> None:
        if not connection.reusable:
            return
        connections = self._idle.setdefault(connection.place, deque())
        connection.idle_since_s = asyncio.get_running_loop().time()
        connections.append(connection)
        self._idle_count += 1
        if len(connections) > IDLE_MAX:
            self._drop_oldest(connection.place)
        elif self._idle_count > IDLE_ALL_MAX:
            self._drop_oldest(next(iter(self._idle)))

    def _drop_oldest(self, place: Place) -> None:
        connections = self._idle[place]
        connections.popleft().close()
        self._idle_count -= 1
        if not connections:
            del self._idle[place]

    # --- connecting ---

    async def _connect(self, place: Place, timeout_s: float) -> Connection:
        try:
            addresses = await self._addresses(place.host, place.port)
        except OSError as error:
            raise NotSent(f"{place.host} was not found: {error.strerror or error}") from None
        allowed = [address for address in addresses if self._allows(place.host, address)]
        if not allowed:
            found = ", ".join(list(addresses)[:4]) or "no address"
            raise NotSent(
                f"address refused: {place.host} is {found}, which is not public; see the setting webhooks_allow"
            )
        context = await self._context() if place.tls else None
        loop, failure = asyncio.get_running_loop(), ""
        for number, address in enumerate(allowed, 1):
            try:
                # The last one may take all the time that is left.
                async with asyncio.timeout(
                    min(CONNECT_S_MAX, timeout_s / len(allowed)) if number < len(allowed) else None
                ):
                    _, connection = await loop.create_connection(
                        lambda: Connection(place),
                        address,
                        place.port,
                        ssl=context,
                        server_hostname=place.host if context is not None else None,
                    )
            except (OSError, ssl.CertificateError) as error:
                failure = str(error) or type(error).__name__
            else:
                return connection
        raise NotSent(f"{place.host} could not be reached: {failure}")

    async def _addresses(self, host: str, port: int) -> Sequence[str]:
        """One lookup at a time for a host: it cannot be ended, and few threads serve all of them."""
        key = host, port
        lookup = self._lookups.get(key)
        if lookup is None:
            lookup = self._lookups[key] = asyncio.ensure_future(self._resolve(host, port))
            lookup.add_done_callback(lambda done: self._looked_up(key, done))
        return await asyncio.shield(lookup)

    def _looked_up(self, key: tuple[str, int], lookup: asyncio.Future[Sequence[str]]) -> None:
        del self._lookups[key]
        if not lookup.cancelled():
            # Seen, even if everybody who waited for it has left.
            lookup.exception()

    async def _context(self) -> ssl.SSLContext:
        """Made once, and off the loop: it reads the certificates of the system. After a failure, made again."""
        if self._tls is None or (self._tls.done() and (self._tls.cancelled() or self._tls.exception() is not None)):
            self._tls = asyncio.get_running_loop().run_in_executor(None, ssl.create_default_context)
        return await asyncio.shield(self._tls)


async def _resolve(host: str, port: int) -> Sequence[str]:
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]
