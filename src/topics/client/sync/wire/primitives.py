"""Primitives of the synchronous half: sleeping, waiting, background threads; `aio/wire/primitives.py` mirrors them."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from topics.client.errors import Timeout

if TYPE_CHECKING:
    import ssl

    import httpx2
    from websockets.sync.client import ClientConnection as WebSocket

Condition = threading.Condition
Event = threading.Event
Lock = threading.Lock


def sleep(seconds: float) -> None:
    time.sleep(seconds)


def open_http(
    timeout: httpx2.Timeout,
    limits: httpx2.Limits,
    transport: httpx2.BaseTransport | None,
    verify: ssl.SSLContext | bool,
) -> httpx2.Client:
    import httpx2

    headers = {"Accept-Encoding": "identity"}
    return httpx2.Client(
        timeout=timeout,
        limits=limits,
        headers=headers,
        transport=transport,
        trust_env=False,
        verify=verify,
        follow_redirects=False,
    )


def cut(response: httpx2.Response) -> None:
    """Break an answer that another thread is waiting for; closing it is left to that thread."""
    stream = response.extensions.get("network_stream")
    connection = None if stream is None else stream.get_extra_info("socket")
    if connection is not None:
        with contextlib.suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)


def open_socket(
    url: str, headers: dict[str, str], seconds: float, message_bytes_max: int, tls: ssl.SSLContext | None
) -> WebSocket:
    from websockets.sync.client import connect

    secured: ssl.SSLContext | None = None
    if url.startswith("wss:"):
        from topics.client.tls.locked_socket import with_locked_sockets

        secured = with_locked_sockets(tls)
    # Entered by hand: it is closed wherever the reading ends, which no block could span.
    return connect(
        url,
        additional_headers=headers,
        open_timeout=seconds,
        close_timeout=2,
        max_size=message_bytes_max,
        ssl=secured,
        compression=None,
        proxy=None,
    ).__enter__()


def receive(socket: WebSocket, seconds: float | None) -> str | bytes:
    """The next message; TimeoutError if there is none in time."""
    return socket.recv(seconds)


def wait(condition: Condition, seconds: float | None) -> None:
    """Until the condition is notified or the time is over; the caller holds it."""
    condition.wait(seconds)


def wait_event(event: Event, seconds: float | None) -> None:
    """Until it is set; raises Timeout if that takes longer."""
    if not event.wait(seconds):
        raise Timeout(f"not done within {seconds:g} s")


class Runner:
    """Something that runs beside the caller until it ends by itself."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=work, name="topics-client", daemon=True)
        self._thread.start()

    def join(self) -> None:
        self._thread.join()
