"""Primitives of the asynchronous half: sleeping, waiting, background tasks; `sync/wire/primitives.py` mirrors them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from topics.client.errors import Timeout

if TYPE_CHECKING:
    import ssl

    import httpx2
    from websockets.asyncio.client import ClientConnection as WebSocket

Condition = asyncio.Condition
Event = asyncio.Event
Lock = asyncio.Lock


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


def open_http(
    timeout: httpx2.Timeout,
    limits: httpx2.Limits,
    transport: httpx2.AsyncBaseTransport | None,
    verify: ssl.SSLContext | bool,
) -> httpx2.AsyncClient:
    import httpx2

    headers = {"Accept-Encoding": "identity"}
    return httpx2.AsyncClient(
        timeout=timeout,
        limits=limits,
        headers=headers,
        transport=transport,
        trust_env=False,
        verify=verify,
        follow_redirects=False,
    )


async def cut(response: httpx2.Response) -> None:
    """Abort a reply that another task is waiting for."""
    await response.aclose()


async def open_socket(
    url: str, headers: dict[str, str], seconds: float, message_bytes_max: int, tls: ssl.SSLContext | None
) -> WebSocket:
    from websockets.asyncio.client import connect

    return await connect(
        url,
        additional_headers=headers,
        open_timeout=seconds,
        close_timeout=2,
        max_size=message_bytes_max,
        ssl=(tls or True) if url.startswith("wss:") else None,
        compression=None,
        proxy=None,
    )


async def receive(socket: WebSocket, seconds: float | None) -> str | bytes:
    """The next message; TimeoutError if there is none in time."""
    async with asyncio.timeout(seconds):
        return await socket.recv()


async def wait(condition: Condition, seconds: float | None) -> None:
    """Wait until the condition is notified or the time is up; the caller holds it."""
    try:
        async with asyncio.timeout(seconds):
            await condition.wait()
    except TimeoutError:
        pass


async def wait_event(event: Event, seconds: float | None) -> None:
    """Wait until it is set; raises Timeout if that takes longer."""
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        raise Timeout(f"not done within {seconds:g} s") from None


class Runner:
    """A function that runs in the background until it ends."""

    def __init__(self, work: Callable[[], Awaitable[None]]) -> None:
        self._task = asyncio.ensure_future(work())

    async def join(self) -> None:
        await asyncio.wait([self._task])
