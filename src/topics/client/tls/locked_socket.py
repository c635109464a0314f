"""A TLS socket that one thread may read while another one writes, as the synchronous WebSocket does.

Until Python 3.13 the ssl module lets two threads into OpenSSL with the same connection, and now and then one of them
never gets its bytes. Here only one is inside at a time, and none of them waits there.
"""

from __future__ import annotations

import select
import ssl
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class LockedSocket(ssl.SSLSocket):
    """From the end of the handshake on, its descriptor does not block; the time limit is kept here."""

    _lock: threading.Lock | None = None
    _limit_s: float | None = None

    def do_handshake(self, block: bool = False) -> None:
        super().do_handshake(block)
        self._limit_s = self.gettimeout()
        super().settimeout(0)
        self._lock = threading.Lock()

    def settimeout(self, value: float | None, /) -> None:
        if self._lock is None:
            super().settimeout(value)
        else:
            self._limit_s = value

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        return self._patiently(lambda: super(LockedSocket, self).recv(buflen, flags))

    def send(self, data: Any, flags: int = 0) -> int:
        return self._patiently(lambda: super(LockedSocket, self).send(data, flags))

    def _patiently(self, step: Callable[[], T]) -> T:
        assert self._lock is not None, "there is no handshake yet"
        deadline_s = None if self._limit_s is None else time.monotonic() + self._limit_s
        while True:
            with self._lock:
                try:
                    return step()
                except (ssl.SSLWantReadError, BlockingIOError):
                    wanted = select.POLLIN
                except ssl.SSLWantWriteError:
                    wanted = select.POLLOUT
            waiting = select.poll()
            waiting.register(self, wanted)
            left_s = None if deadline_s is None else deadline_s - time.monotonic()
            if (left_s is not None and left_s <= 0) or not waiting.poll(None if left_s is None else left_s * 1000):
                raise TimeoutError("timed out")


def with_locked_sockets(context: ssl.SSLContext | None) -> ssl.SSLContext:
    """The context, or the usual one, with sockets of this kind."""
    context = context or ssl.create_default_context()
    context.sslsocket_class = LockedSocket
    return context
