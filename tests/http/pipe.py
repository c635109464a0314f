"""A connection without a socket: the transport is a list of bytes, and the test calls what the loop would call."""

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import Any

from tests.http.wire import Clock
from topics.http.limits import HttpLimits
from topics.http.refusal import render_error
from topics.http.request import Request
from topics.http.service import Service


class Pipe(asyncio.Transport):
    """A transport that takes everything and remembers whether anyone wants to read."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = self.paused = False

    def write(self, data: Any) -> None:
        self.written += data

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self.protocol = protocol

    def write_eof(self) -> None: ...

    def writelines(self, list_of_data: Any) -> None:
        for data in list_of_data:
            self.write(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = True


def answer(request: Request) -> None:
    request.reply(200, b"{}")


def service_of(
    limits: HttpLimits,
    clock: Callable[[], float] | None = None,
    handle: Callable[[Request], None] = answer,
    work_clock: Callable[[], float] = perf_counter,
) -> Service:
    return Service(
        handle,
        loop=asyncio.get_running_loop(),
        limits=limits,
        clock=clock or Clock(),
        render_error=render_error,
        on_bug=lambda *_: "",
        on_head=None,
        work_clock=work_clock,
    )
