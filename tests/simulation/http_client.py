"""A small HTTP/1.1 client over the simulated network: one connection at a time, one request at a time, no retries."""

from __future__ import annotations

import json
from typing import Any

from tests.simulation.history import Call
from tests.simulation.network import ClientSide, ConnectionLost, Network

USUAL_TIMEOUT_S = 8.0


class Unanswered(Exception):
    """No complete answer came: the request has been carried out, or will be, or not."""


class HttpClient:
    """Used by one fiber."""

    def __init__(self, network: Network) -> None:
        self._network = network
        self._connection: ClientSide | None = None
        self._received = b""

    def call(self, call: Call, method: str, path: str, body: object, timeout_s: float = USUAL_TIMEOUT_S) -> None:
        """Send a request and note its answer; Unanswered if there is none."""
        scheduler = self._network.scheduler
        until_s = scheduler.now_s + timeout_s
        try:
            if self._connection is None:
                self._connection, self._received = self._network.connect(), b""
            # From here on it may arrive, whatever is heard of it.
            call.sent = True
            self._connection.send(request_bytes(method, path, body))
            call.status, content = self._answer(until_s)
        except (ConnectionLost, TimeoutError) as error:
            self.close()
            raise Unanswered from error
        finally:
            call.ended_s = scheduler.now_s
        call.answer = json.loads(content) if content else {}

    def open_stream(self, path: str) -> ClientSide:
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

    def _answer(self, until_s: float) -> tuple[int, bytes]:
        head = self._read_to(b"\r\n\r\n", until_s)
        status = int(head[9:12])
        headers = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if line)
        length = int(headers.get(b"content-length", b"0"))
        while len(self._received) < length:
            self._read(until_s)
        content, self._received = self._received[:length], self._received[length:]
        if headers.get(b"connection") == b"close":
            self.close()
        return status, content

    def _read_to(self, end: bytes, until_s: float) -> bytes:
        while end not in self._received:
            self._read(until_s)
        head, _, self._received = self._received.partition(end)
        return head

    def _read(self, until_s: float) -> None:
        assert self._connection is not None
        data = self._connection.receive(max(0.0, until_s - self._network.scheduler.now_s))
        if not data:
            raise ConnectionLost("end of stream")
        self._received += data


def request_bytes(method: str, path: str, body: object) -> bytes:
    content = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def read_events(connection: ClientSide, timeout_s: float) -> Any:
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


def _more(connection: ClientSide, timeout_s: float) -> bytes:
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
