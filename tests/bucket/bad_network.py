"""A network between servers and an S3 server: it delays requests and answers, loses, repeats and refuses them.

    server ── request ─▶ proxy ── as fate wants it ─▶ S3 server
                          │  lost: never sent             cut: sent, the answer is dropped
                          │  late: sent when the sender has given up       twice: sent again, the second answer counts
                          ▼  refused: 503, never sent     slow: sent, or answered, after a while

A whole request is read before anything is done with it; its bytes are not changed, so its signature holds.
"""

from __future__ import annotations

import contextlib
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from typing import BinaryIO

import pytest

from tests.patience import PATIENCE_S

FATES = ("lost", "cut", "late", "twice", "refused", "slow", "slow answer")
SLOW_S_MAX, LATE_S_MAX = 0.3, 2.0
REFUSAL = b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
NO_BODY = (204, 304)


class BadNetwork:
    """One address of the S3 server. `share` of all requests meet a fate; while it is `away` nothing gets through."""

    def __init__(self, port: int, seed: int = 0) -> None:
        self._target = ("127.0.0.1", port)
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.share = 0.0
        self.away = False
        self.fates: Counter[str] = Counter()
        self.requests = 0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._open)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def lead_to(self, s3: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
        """Set the environment of the S3 server, with this address of it."""
        for name, value in {**s3, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}.items():
            monkeypatch.setenv(name, value)

    # --- threads ---

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self._open.add(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """A connection, until a request is lost: whoever sent it then sees that it ends."""
        with connection, connection.makefile("rb") as requests, contextlib.suppress(OSError, EOFError):
            while True:
                request = message(requests, is_request=True)
                reply = self._meet(request)
                if reply is None:
                    break
                connection.sendall(reply)
        with self._lock:
            self._open.discard(connection)

    def _meet(self, request: bytes) -> bytes | None:
        with self._lock:
            self.requests += 1
            fate = self._random.choice(FATES) if self._random.random() < self.share else ""
            seconds = self._random.random()
            if self.away:
                fate = "lost"
            self.fates[fate] += 1
        if fate == "lost":
            return None
        if fate == "refused":
            return b"HTTP/1.1 503 Slow Down\r\nContent-Length: %d\r\n\r\n%b" % (len(REFUSAL), REFUSAL)
        if fate == "late":
            late = threading.Timer(LATE_S_MAX * seconds, self._forget, (request,))
            late.daemon = True
            late.start()
            return None
        if fate == "slow":
            time.sleep(SLOW_S_MAX * seconds)
        reply = self._forward(request)
        if fate == "twice":
            reply = self._forward(request)
        if fate == "slow answer":
            time.sleep(SLOW_S_MAX * seconds)
        return None if fate == "cut" else reply

    def _forward(self, request: bytes) -> bytes:
        with socket.create_connection(self._target, PATIENCE_S) as upstream, upstream.makefile("rb") as replies:
            upstream.sendall(request)
            return message(replies, is_request=False, of_head=request.startswith(b"HEAD "))

    def _forget(self, request: bytes) -> None:
        with contextlib.suppress(OSError, EOFError):
            self._forward(request)


def message(stream: BinaryIO, *, is_request: bool, of_head: bool = False) -> bytes:
    """A request or an answer, byte for byte; raises EOFError where it ends early."""
    lines = [_line(stream)]
    while lines[-1] != b"\r\n":
        lines.append(_line(stream))
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines[1:-1])}
    head = b"".join(lines)
    if of_head or (not is_request and int(lines[0].split()[1]) in NO_BODY):
        return head
    if b"chunked" in fields.get(b"transfer-encoding", b""):
        return head + b"".join(_chunks(stream))
    return head + _exactly(stream, int(fields.get(b"content-length", b"0")))


def _line(stream: BinaryIO) -> bytes:
    line = stream.readline()
    if not line.endswith(b"\n"):
        raise EOFError
    return line


def _exactly(stream: BinaryIO, length: int) -> bytes:
    data = stream.read(length)
    if len(data) != length:
        raise EOFError
    return data


def _chunks(stream: BinaryIO) -> Iterator[bytes]:
    while True:
        size = _line(stream)
        yield size
        yield _exactly(stream, int(size.split(b";")[0], 16) + 2)
        if not int(size.split(b";")[0], 16):
            return


@contextlib.contextmanager
def bad_network(port: int, seed: int = 0) -> Iterator[BadNetwork]:
    network = BadNetwork(port, seed)
    try:
        yield network
    finally:
        network.close()
