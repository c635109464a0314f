"""Transports of httpx2 that pass requests to an engine in the same process."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, cast

import httpx2

from topics.http.request import Request
from topics.testing.exchange import Exchange

if TYPE_CHECKING:
    from topics.testing.engine import Engine


class InlineTransport(httpx2.BaseTransport):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        body = request.read()
        exchange, asked = self._engine.begin(request.method, request.url.raw_path, list(request.headers.raw), body)
        timeout_s = read_timeout_s(request)
        self._engine.wait(exchange, lambda: exchange.status > 0, timeout_s)
        answer = _Answer(self._engine, exchange, asked, timeout_s)
        return httpx2.Response(exchange.status, headers=exchange.headers, stream=answer, request=request)


class AsyncInlineTransport(httpx2.AsyncBaseTransport):
    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        body = await request.aread()
        exchange, asked = self._engine.begin(request.method, request.url.raw_path, list(request.headers.raw), body)
        timeout_s = read_timeout_s(request)
        try:
            await self._engine.wait_async(exchange, lambda: exchange.status > 0, timeout_s)
        except BaseException:
            self._engine.disconnect(exchange, asked)
            raise
        answer = _AsyncAnswer(self._engine, exchange, asked, timeout_s)
        return httpx2.Response(exchange.status, headers=exchange.headers, stream=answer, request=request)


class _Answer(httpx2.SyncByteStream):
    def __init__(self, engine: Engine, exchange: Exchange, request: Request, timeout_s: float | None) -> None:
        self._engine = engine
        self._exchange = exchange
        self._request = request
        self._timeout_s = timeout_s

    def __iter__(self) -> Iterator[bytes]:
        exchange = self._exchange
        while True:
            if exchange.pieces:
                yield exchange.take()
            elif exchange.ended:
                return
            else:
                self._engine.wait(exchange, lambda: exchange.has_news, self._timeout_s)

    def close(self) -> None:
        self._engine.disconnect(self._exchange, self._request)


class _AsyncAnswer(httpx2.AsyncByteStream):
    def __init__(self, engine: Engine, exchange: Exchange, request: Request, timeout_s: float | None) -> None:
        self._engine = engine
        self._exchange = exchange
        self._request = request
        self._timeout_s = timeout_s

    async def __aiter__(self) -> AsyncIterator[bytes]:
        exchange = self._exchange
        while True:
            if exchange.pieces:
                yield exchange.take()
            elif exchange.ended:
                return
            else:
                await self._engine.wait_async(exchange, lambda: exchange.has_news, self._timeout_s)

    async def aclose(self) -> None:
        self._engine.disconnect(self._exchange, self._request)


def read_timeout_s(request: httpx2.Request) -> float | None:
    timeout = cast("dict[str, float | None]", request.extensions.get("timeout", {}))
    return timeout.get("read")
