"""A small HTTP/1.1 client over the simulated network: one connection at a time, one request at a time, no retries.

The network may also be a real one (`tests/real_run`): a client needs a clock, and connections that send and receive.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any, Protocol

from tests.simulation.history import Call
from tests.simulation.network import ConnectionLost

USUAL_TIMEOUT_S = 8.0
AGE = b"topics-age-ms"


class Watch(Protocol):
    """The time, and a way to let some pass."""

    @property
    def now_s(self) -> float: ...
    def sleep(self, seconds: float) -> None: ...


class Line(Protocol):
    """One end of a connection: b"" is its end; ConnectionLost, or TimeoutError."""

    def send(self, data: bytes) -> None: ...
    def receive(self, timeout_s: float) -> bytes: ...
    def close(self) -> None: ...


class Connecting(Protocol):
    """What a client needs of a network. `place` is where it leads to, if there are several servers."""

    @property
    def scheduler(self) -> Watch: ...
    @property
    def place(self) -> str: ...
    def connect(self) -> Line: ...
    def moves_on(self, call: Call) -> bool:
        """Told what became of a call: whether the next one goes to another server."""
        ...


class Unanswered(Exception):
    """No complete answer came: the request has been carried out, or will be, or not."""


class HttpClient:
    """Used by one fiber."""

    def __init__(self, network: Connecting) -> None:
        self._network = network
        self._connection: Line | None = None
        self._received = b""
        # Connections on which a request was sent a second time.
        self._doubles: list[Line] = []

    def call(self, call: Call, method: str, path: str, body: object, timeout_s: float = USUAL_TIMEOUT_S) -> None:
        """Send a request and note its answer; Unanswered if there is none."""
        scheduler = self._network.scheduler
        until_s = scheduler.now_s + timeout_s
        call.server = self._network.place
        try:
            if self._connection is None:
                self._connection, self._received = self._network.connect(), b""
                self._opened()
            # From here on it may arrive, whatever is heard of it.
            call.sent = True
            call.status, content, call.aged = self._exchange(method, path, body, until_s)
        except (ConnectionLost, TimeoutError) as error:
            call.status = 0
            self.close()
            self._network.moves_on(call)
            raise Unanswered from error
        finally:
            call.ended_s = scheduler.now_s
        call.answer = json.loads(content) if content else {}
        if self._network.moves_on(call):
            self.close()

    def send_double(self, method: str, path: str, body: object) -> None:
        """Send a request on a connection of its own too, as a proxy that tries again; its answer is not read."""
        while self._doubles:
            self._doubles.pop().close()
        with contextlib.suppress(ConnectionLost):
            self._doubles.append(self._network.connect())
            self._doubles[-1].send(request_bytes(method, path, body))

    def open_stream(self, path: str) -> Line:
        """Send a request whose answer has no end; the caller reads it."""
        self.close()
        connection = self._network.connect()
        connection.send(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\nConnection: close\r\n\r\n".encode()
        )
        return connection

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        while self._doubles:
            self._doubles.pop().close()

    def _opened(self) -> None:
        """The connection is new."""

    def _exchange(self, method: str, path: str, body: object, until_s: float) -> tuple[int, bytes, bool]:
        """Send a request; its status and content, and whether it comes from a standby."""
        self._send(request_bytes(method, path, body))
        head = self._read_to(b"\r\n\r\n", until_s)
        status = int(head[9:12])
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        length = int(headers.get(b"content-length", b"0"))
        while len(self._received) < length:
            self._received += self._more(until_s)
        content, self._received = self._received[:length], self._received[length:]
        if headers.get(b"connection") == b"close":
            self.close()
        return status, content, AGE in headers

    def _read_to(self, end: bytes, until_s: float) -> bytes:
        while end not in self._received:
            self._received += self._more(until_s)
        head, _, self._received = self._received.partition(end)
        return head

    def _send(self, data: bytes) -> None:
        assert self._connection is not None
        if data:
            self._connection.send(data)

    def _more(self, until_s: float) -> bytes:
        assert self._connection is not None
        data = self._connection.receive(max(0.0, until_s - self._network.scheduler.now_s))
        if not data:
            raise ConnectionLost("end of stream")
        return data


def request_bytes(method: str, path: str, body: object) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def read_events(connection: Line, timeout_s: float) -> Any:
    """The events of an event stream, as (name, id, data), until it ends; a chunked answer of this server."""
    received, text = b"", b""
    while b"\r\n\r\n" not in received:
        received += _more(connection, timeout_s)
    head, _, received = received.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise ConnectionLost("no stream")
    while True:
        while True:
            size, found, rest = received.partition(b"\r\n")
            if found and len(rest) >= int(size, 16) + 2:
                break
            received += _more(connection, timeout_s)
        length = int(size, 16)
        if not length:
            return
        text += rest[:length]
        received = rest[length + 2 :]
        *events, text = text.split(b"\n\n")
        for event in events:
            yield _parsed(event)


def _more(connection: Line, timeout_s: float) -> bytes:
    data = connection.receive(timeout_s)
    if not data:
        raise ConnectionLost("end of stream")
    return data


def _parsed(event: bytes) -> tuple[str, str, str]:
    name, ident, data = "message", "", ""
    for line in event.decode().split("\n"):
        key, _, value = line.partition(":")
        match key:
            case "event":
                name = value.strip()
            case "id":
                ident = value.strip()
            case "data":
                data += value.strip()
    return name, ident, data
