"""Connections whose clients have left: closed a few per iteration of the loop, because thousands may leave at once.

end of input, end of input, … ─▶ line ─▶ next iteration: the first 64 ─▶ next iteration: the first 64 ─▶ …
"""

from __future__ import annotations

import asyncio
import select
from collections import deque

# Closing one takes about 15 µs, in this iteration and the next; noticing that it has ended, 4 µs.
CLOSED_PER_TURN = 64


def has_left(transport: asyncio.BaseTransport) -> bool:
    """Whether the client has closed its side of a connection that is not being read, where no end of input is seen."""
    socket = transport.get_extra_info("socket")
    if socket is None or transport.is_closing():
        return False
    poll = select.poll()
    poll.register(socket.fileno(), select.POLLRDHUP)
    return bool(poll.poll(0))


class Closing:
    """The line of connections to close, oldest first."""

    __slots__ = ("_line", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._line: deque[asyncio.BaseTransport] = deque()

    def add(self, transport: asyncio.BaseTransport) -> None:
        if not self._line:
            self._loop.call_soon(self._run)
        self._line.append(transport)

    def _run(self) -> None:
        line = self._line
        for _ in range(min(CLOSED_PER_TURN, len(line))):
            line.popleft().close()
        if line:
            self._loop.call_soon(self._run)
