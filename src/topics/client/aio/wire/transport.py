"""A server and its standbys, over kept-alive connections: requests with retries, replies read as they arrive."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, TypeVar

from topics.client.aio.wire import primitives
from topics.client.answers import failure_of, value_of
from topics.client.errors import (
    WAY_OUT,
    Closed,
    ConnectionFailed,
    InvalidRequest,
    NotPrimary,
    NotReplicated,
    Timeout,
    TopicsError,
    Unauthorized,
)
from topics.client.request import JSON, Options, PageReply, QueryValue, Request, with_query
from topics.client.retrying import NO_TLS, Retrying, is_tls_refusal
from topics.client.servers import Servers
from topics.client.tokens import Tokens
from topics.model.tracing import TRACEPARENT, Tracer

if TYPE_CHECKING:
    import httpx2
    import msgspec

T = TypeVar("T")
P = TypeVar("P", bound=PageReply)
# A stream that breaks is reopened as long as its time lasts.
ATTEMPTS_MAX = 1_000_000
CONNECT_S_MAX = 10.0
# With several servers: a machine that is gone does not answer, and another one may.
CONNECT_ONE_OF_SEVERAL_S_MAX = 3.0
# Shorter absences are usually a restart, which need not be logged.
TELL_AFTER_S = 1.0
_log = logging.getLogger("topics.client")


class AsyncTransport:
    def __init__(self, options: Options, tokens: Tokens, transport: httpx2.AsyncBaseTransport | None = None) -> None:
        import httpx2

        # It logs every request at INFO. A level that the program has set itself is kept.
        http_log = logging.getLogger("httpx2")
        if http_log.level == logging.NOTSET:
            http_log.setLevel(logging.WARNING)
        self.options = options
        self.servers = Servers(options.urls)
        self.tokens = tokens
        self.closed = False
        self.tracer = Tracer("client") if options.tracing else None
        # Requests do not go over the network.
        self.plugged = transport is not None
        limits = httpx2.Limits(max_connections=options.connections_max, max_keepalive_connections=20)
        secure = any(url.startswith("https:") for url in options.urls)
        # Making a TLS context takes longer than many requests; redirects are not followed, so plain stays plain.
        verify = (options.tls.context() or True) if secure else False
        for url in options.urls:
            try:
                httpx2.URL(url)
            except httpx2.InvalidURL as error:
                raise InvalidRequest(f"{url!r} is not a URL: {error}", field="url") from None
        self._http = primitives.open_http(self._timeout(0), limits, transport, verify)
        # These errors have certainly changed nothing.
        self._unsent = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout)
        self._timeouts = httpx2.TimeoutException
        self._failures = (httpx2.TransportError, httpx2.StreamError, httpx2.InvalidURL)

    async def close(self) -> None:
        self.closed = True
        await self._http.aclose()

    # --- requests ---

    async def call(self, request: Request[T]) -> T:
        """Send, and retry where that is safe, until there is a reply or the limits are reached."""
        if self.tracer is None:
            return await self._call(request)
        path = request.path.partition("?")[0]
        with self.tracer.span(f"topics {request.method}", "CLIENT", **{"url.path": path}):
            return await self._call(request)

    async def _call(self, request: Request[T]) -> T:
        retrying = self.retrying(safe=request.safe)
        renewed = False
        while True:
            try:
                return await self.attempt(request)
            except Unauthorized as error:
                if renewed or not request.by_token or not self.tokens.renewable:
                    raise
                renewed = True
                await self.renew(error)
            except TopicsError as error:
                await self.pause(retrying, error)

    def appending(self, name: str) -> AbstractContextManager[str | None]:
        """A span for an append; its value is what the records carry to their handlers, None without tracing."""
        return nullcontext() if self.tracer is None else self.tracer.producing(f"append {name}")

    async def pages(
        self, path: str, query: Mapping[str, QueryValue], decoder: msgspec.json.Decoder[P]
    ) -> AsyncIterator[P]:
        """A list that the server returns in pages, each fetched when needed."""
        cursor: str | None = None
        while True:
            where = with_query(path, {**query, "cursor": cursor})
            page = await self.call(Request(method="GET", path=where, decoder=decoder, safe=True))
            yield page
            cursor = page.next_cursor
            if cursor is None:
                return

    def retrying(self, *, safe: bool) -> Retrying:
        return self._retrying(safe, self.options.retries_max, self.options.retry_s_max)

    def reconnecting(self, reconnect_s_max: float) -> Retrying:
        """The attempts to go on with a stream, which has no limit but time."""
        return self._retrying(True, ATTEMPTS_MAX, reconnect_s_max)

    def _retrying(self, safe: bool, retries_max: int, retry_s_max: float) -> Retrying:
        return Retrying(
            safe=safe,
            now_s=time.monotonic(),
            retries_max=retries_max,
            retry_s_max=retry_s_max,
            others=self.servers.others,
        )

    async def pause(self, retrying: Retrying, error: TopicsError) -> None:
        """Wait for the next attempt, or raise the error if there is none."""
        pause_s = retrying.pause_s(error, time.monotonic(), unsent=bool(error.detail.get("unsent")))
        if pause_s is None or self.closed:
            raise error
        away = isinstance(error, ConnectionFailed | NotPrimary) and retrying.paused_s >= TELL_AFTER_S
        # The server itself has waited for its bucket, for 10 s.
        if (away or isinstance(error, NotReplicated)) and not retrying.warned:
            retrying.warned = True
            said = error.message.removesuffix(f"; {WAY_OUT}")
            if isinstance(error, NotPrimary):
                said = f"no primary at {self.options.url} yet: {said}"
            _log.warning("%s; trying again for up to %g s", said, self.options.retry_s_max)
        await primitives.sleep(pause_s)

    async def attempt(self, request: Request[T]) -> T:
        """Send once."""
        if request.by_token and self.tokens.access is None and self.tokens.renewable:
            await self.renew(None)
        url = request.at or self.servers.current
        where = f"{request.method} {url}{request.path}"
        response = await self._send(self._built(url, request), url, where)
        try:
            body = await response.aread()
        except self._failures as error:
            raise self.lost(error, url, where) from error
        status, headers = response.status_code, response.headers
        failure = failure_of(status, headers, body, where) if status >= 300 else None
        if request.at is None:
            failure = self.servers.judged(url, headers, failure)
        if failure is not None:
            raise failure
        return value_of(request.decoder, status, headers.get("content-type", ""), body, where)

    def _built(self, url: str, request: Request[T]) -> httpx2.Request:
        headers = dict(JSON) if request.body is not None else {}
        bearer = self.tokens.access if request.by_token else self.options.key
        if bearer is not None:
            headers["Authorization"] = f"Bearer {bearer}"
        traceparent = None if self.tracer is None else self.tracer.traceparent()
        if traceparent is not None:
            headers[TRACEPARENT] = traceparent
        timeout = self._timeout(request.wait_ms / 1000)
        return self._http.build_request(
            request.method, url + request.path, content=request.body, headers=headers, timeout=timeout
        )

    def _timeout(self, longer_s: float) -> httpx2.Timeout:
        import httpx2

        seconds = self.options.timeout_s
        connect_s_max = CONNECT_ONE_OF_SEVERAL_S_MAX if self.servers.others else CONNECT_S_MAX
        return httpx2.Timeout(seconds, connect=min(seconds, connect_s_max), read=seconds + longer_s)

    async def _send(self, built: httpx2.Request, url: str, where: str) -> httpx2.Response:
        if self.closed:
            raise Closed("this client was closed")
        try:
            return await self._http.send(built, stream=True)
        except self._failures as error:
            raise self.lost(error, url, where) from error

    def lost(self, error: Exception, url: str, where: str) -> TopicsError:
        """The exception for a failed connection."""
        return self.servers.failed(url, self._connection_failure(error, url, where))

    def _connection_failure(self, error: Exception, url: str, where: str) -> TopicsError:
        unsent = isinstance(error, self._unsent)
        reason = str(error) or type(error).__name__
        detail = {"reason": reason, "unsent": unsent}
        if isinstance(error, self._timeouts) and not unsent:
            return Timeout(f"{where}: no reply within {self.options.timeout_s:g} s", detail=detail)
        if unsent:
            message = f"cannot reach {url}: {reason}"
            if is_tls_refusal(error):
                return ConnectionFailed(f"{message}; {NO_TLS}", detail={**detail, "tls": True})
            return ConnectionFailed(f"{message}; {WAY_OUT}", detail=detail)
        return ConnectionFailed(f"{where}: the connection broke: {reason}", detail=detail)

    # --- tokens of the consumer groups ---

    async def renew(self, refused: Unauthorized | None) -> None:
        """Get new tokens: with the refresh token if there is one, otherwise with user and password."""
        for request in self.tokens.renewals(after_refusal=refused is not None):
            try:
                self.tokens.take(await self.call(request))
                return
            except Unauthorized as error:
                refused = error
        if refused is not None:
            raise refused

    # --- streams ---

    async def read(self, path: str, *, accept: str) -> bytes:
        """A whole reply that is not JSON."""
        retrying = self.retrying(safe=True)
        while True:
            try:
                stream = await self.open(path, accept=accept)
                return await stream.rest()
            except TopicsError as error:
                await self.pause(retrying, error)

    async def open(
        self,
        path: str,
        *,
        accept: str,
        read_s: float | None = None,
        headers: dict[str, str] | None = None,
        by_token: bool = False,
    ) -> AsyncStream:
        """A reply that is read piece by piece; it fails after `read_s` of silence."""
        url = self.servers.current
        where = f"GET {url}{path}"
        sent = {"Accept": accept, **(headers or {})}
        bearer = self.tokens.access if by_token else self.options.key
        if bearer is not None:
            sent["Authorization"] = f"Bearer {bearer}"
        timeout = self._timeout(max(0.0, (read_s or 0.0) - self.options.timeout_s))
        built = self._http.build_request("GET", url + path, headers=sent, timeout=timeout)
        response = await self._send(built, url, where)
        stream = AsyncStream(response, self, url, where)
        if (failure := await stream.failure()) is not None:
            raise failure
        return stream

    @property
    def failures(self) -> tuple[type[Exception], ...]:
        return self._failures


class AsyncStream:
    """The pieces of one reply, in order; an early end is an exception."""

    def __init__(self, response: httpx2.Response, transport: AsyncTransport, url: str, where: str) -> None:
        self._response = response
        self._transport = transport
        self._url = url
        self._where = where
        self._waiting = False
        self.closed = False
        self.headers = response.headers

    async def failure(self) -> TopicsError | None:
        """The exception for a reply that is an error, or of a server that is not the one to ask."""
        status, headers = self._response.status_code, self._response.headers
        failure = failure_of(status, headers, await self.rest(), self._where) if status >= 300 else None
        failure = self._transport.servers.judged(self._url, headers, failure)
        if failure is not None:
            await self.close()
        return failure

    async def rest(self) -> bytes:
        """The whole reply at once."""
        try:
            return await self._response.aread()
        except self._transport.failures as error:
            raise self._transport.lost(error, self._url, self._where) from error

    async def pieces(self) -> AsyncIterator[bytes]:
        source = self._response.aiter_raw()
        while True:
            self._waiting = True
            try:
                piece = await anext(source)
            except StopAsyncIteration:
                return
            except self._transport.failures as error:
                raise self._transport.lost(error, self._url, self._where) from error
            finally:
                self._waiting = False
            yield piece

    async def close(self) -> None:
        """May be called while another task waits for a chunk: that task gets an error and closes the stream."""
        if self._waiting:
            await primitives.cut(self._response)
        elif not self.closed:
            self.closed = True
            await self._response.aclose()
