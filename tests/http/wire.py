"""A server on a loop of its own thread and a client of plain sockets: the tests speak bytes to it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import queue
import socket
import sys
import termios
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httptools
import uvloop

from tests.patience import PATIENCE_S
from topics.http.limits import HttpLimits
from topics.http.listener import Listener
from topics.http.request import Request
from topics.http.service import Service

T = TypeVar("T")


class Clock:
    """Time that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Reply:
    """A response as read off the socket."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    interim: list[int] = field(default_factory=list)

    @property
    def error_code(self) -> str:
        return json.loads(self.body)["error"]["code"]


class _ReplyReader:
    """Callbacks of the response parser."""

    def __init__(self) -> None:
        self.reply = Reply()
        self.complete = False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.reply.headers[name.decode().lower()] = value.decode()

    def on_body(self, data: bytes) -> None:
        self.reply.body += data

    def on_message_complete(self) -> None:
        self.complete = True


class Client:
    """One connection; replies are read one at a time."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self.received = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def request(self, data: bytes) -> Reply:
        self.send(data)
        return self.read_reply()

    def read_until(self, marker: bytes) -> bytes:
        while marker not in self.received:
            self._receive()
        end = self.received.index(marker) + len(marker)
        found, self.received = self.received[:end], self.received[end:]
        return found

    def read_reply(self, head_only: bool = False) -> Reply:
        """The next reply, with the interim ones before it."""
        interim: list[int] = []
        while True:
            head = self.read_until(b"\r\n\r\n")
            status = int(head.split(b" ", 2)[1])
            if status != 100:
                break
            interim.append(status)
        reader = _ReplyReader()
        parser = httptools.HttpResponseParser(reader)
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            assert status == 101
        length = int(reader.reply.headers.get("content-length", "0"))
        if head_only or status == 101:
            pass
        elif reader.reply.headers.get("transfer-encoding") == "chunked":
            while not reader.complete:
                parser.feed_data(self._take(1))
        else:
            reader.reply.body = self._take(length)
        reader.reply.status = status
        reader.reply.interim = interim
        return reader.reply

    def read_to_end(self) -> bytes:
        """Everything until the server closes; a reset counts as an end."""
        try:
            while True:
                self._receive()
        except EOFError:
            rest, self.received = self.received, b""
            return rest

    def is_closed_by_server(self) -> bool:
        return self.read_to_end() == b""

    def undelivered_bytes(self) -> int:
        """What the kernel of the other side has not yet confirmed."""
        if self.socket.fileno() < 0:
            return 0
        return int.from_bytes(fcntl.ioctl(self.socket, termios.TIOCOUTQ, bytes(4)), sys.byteorder)

    def reset(self) -> None:
        """Vanish without a goodbye."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def close(self) -> None:
        self.socket.close()

    def _take(self, count: int) -> bytes:
        while len(self.received) < count:
            self._receive()
        found, self.received = self.received[:count], self.received[count:]
        return found

    def _receive(self) -> None:
        try:
            data = self.socket.recv(1 << 20)
        except ConnectionError:
            data = b""
        if not data:
            raise EOFError
        self.received += data


def expire_all(service: Service) -> None:
    """What the listener's timer does to an eighth of the connections at a time."""
    service.connections.now_s = service.connections._clock()
    for connection in service.connections:
        connection.expire(service.connections.now_s)


class Server:
    """A listener under test; `run` executes on its loop, `settle` waits until it has read all that was sent."""

    def __init__(self, handle: Callable[[Request], None], **options: Any) -> None:
        self.clock = Clock()
        self.requests: queue.Queue[Request] = queue.Queue()
        self._clients: list[Client] = []
        self._handle = handle
        self._options = options
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self.listener: Listener

    def start(self) -> None:
        self._thread.start()
        self.wait(self._start)

    def stop(self) -> None:
        self.run(self.listener.close)
        for _ in range(8):
            self.run(lambda: None)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    def run(self, work: Callable[[], T]) -> T:
        """Call on the loop."""

        async def awaited() -> T:
            return work()

        return self.wait(awaited)

    def wait(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Await on the loop."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(PATIENCE_S)

    def settle(self) -> None:
        """Once the kernel has taken over all bytes sent before, a few turns of the loop read them: each turn polls."""
        self._clients = [client for client in self._clients if client.socket.fileno() >= 0]
        # A server that does not read leaves bytes with the client: no byte less for so long, and over many turns.
        left_bytes, since_s, turns = -1, 0.0, 0
        while still_bytes := sum(client.undelivered_bytes() for client in self._clients):
            if still_bytes != left_bytes:
                left_bytes, since_s, turns = still_bytes, time.monotonic(), 0
            elif time.monotonic() - since_s > 0.5 and turns > 100:
                break
            turns += 1
            self.run(lambda: None)
        for _ in range(8):
            self.run(lambda: None)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that is bound to happen."""
        give_up_s = time.monotonic() + PATIENCE_S
        while not self.run(condition):
            assert time.monotonic() < give_up_s, "it never happened"

    def connect(self) -> Client:
        client = Client(self.listener.port)
        self._clients.append(client)
        return client

    @property
    def connections_open(self) -> int:
        return self.run(lambda: self.listener.connections_open)

    def pass_time(self, seconds: float) -> None:
        """Let the clock jump and ask every connection for its time limits."""
        self.settle()
        self.clock.now_s += seconds
        self.run(lambda: expire_all(self.listener._service))

    def next_request(self) -> Request:
        """The next request that reached the handler."""
        return self.requests.get(timeout=PATIENCE_S)

    async def _start(self) -> None:
        def handle(request: Request) -> None:
            self.requests.put(request)
            self._handle(request)

        self.listener = Listener(handle, loop=self._loop, clock=self.clock, **self._options)
        await self.listener.start("127.0.0.1", 0)


@contextmanager
def serving(handle: Callable[[Request], None], limits: HttpLimits | None = None, **options: Any) -> Iterator[Server]:
    server = Server(handle, limits=limits, **options)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def echo(request: Request) -> None:
    """Answers with what it was asked, so that a test can see what arrived."""
    request.reply(200, b"|".join([request.method.encode(), *[s.encode() for s in request.path_segments], request.body]))


def park(request: Request) -> None:
    """Leaves the answer to the test."""


def post(body: bytes, *lines: bytes, path: bytes = b"/x") -> bytes:
    head = b"\r\n".join([b"POST %b HTTP/1.1" % path, b"Host: a", b"Content-Length: %d" % len(body), *lines])
    return head + b"\r\n\r\n" + body


def get(path: bytes = b"/x", *lines: bytes) -> bytes:
    return b"\r\n".join([b"GET %b HTTP/1.1" % path, b"Host: a", *lines]) + b"\r\n\r\n"


def chunked(*chunks: bytes, lines: tuple[bytes, ...] = ()) -> bytes:
    head = b"\r\n".join([b"POST /x HTTP/1.1", b"Host: a", b"Transfer-Encoding: chunked", *lines]) + b"\r\n\r\n"
    return head + b"".join([b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in (*chunks, b"")])
