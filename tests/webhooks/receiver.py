"""A receiver of webhooks: a server on a real socket that notes what comes and answers as the test wants."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from tests.patience import PATIENCE_S


class Received(NamedTuple):
    headers: dict[str, str]
    body: bytes
    path: str

    @property
    def id(self) -> str:
        return self.headers["webhook-id"]

    @property
    def record(self) -> Any:
        return json.loads(self.body)

    @property
    def seq(self) -> int:
        return self.record["$seq"]


class Reply(NamedTuple):
    status: int = 200
    headers: tuple[tuple[str, str], ...] = ()
    body: bytes = b""
    # sent instead of a reply, before the connection is closed
    raw: bytes | None = None


OK = Reply()
Answering = Callable[[Received], Reply]


class Receiver:
    """`answering` decides; it runs in the thread of the connection, and may wait there."""

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.received: list[Received] = []
        self.answering: Answering = lambda _: OK
        self.connections = 0
        self._news = threading.Condition()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self._server.daemon_threads = True
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_address[1]
        self.url = f"http{'s' if tls is not None else ''}://127.0.0.1:{self.port}/hook"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def note(self, received: Received) -> Reply:
        with self._news:
            self.received.append(received)
            self._news.notify_all()
        return self.answering(received)

    def wait_for(self, count: int) -> list[Received]:
        """Until that many requests have come."""
        return self.wait_until(lambda: len(self.received) >= count)

    def wait_until(self, reached: Callable[[], bool]) -> list[Received]:
        with self._news:
            assert self._news.wait_for(reached, PATIENCE_S), [each.body[:80] for each in self.received[-5:]]
            return list(self.received)

    @property
    def seqs(self) -> list[int]:
        return [each.seq for each in self.received]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def handler_of(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            receiver.connections += 1
            super().setup()

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with contextlib.suppress(OSError):
                self._answer(receiver.note(Received(headers, body, self.path)))

        def _answer(self, reply: Reply) -> None:
            if reply.raw is not None:
                self.wfile.write(reply.raw)
                self.close_connection = True
                return
            self.send_response(reply.status)
            for name, value in reply.headers:
                self.send_header(name, value)
            self.send_header("content-length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, format: str, *args: Any) -> None: ...

    return Handler


@contextlib.contextmanager
def receiving(tls: ssl.SSLContext | None = None) -> Iterator[Receiver]:
    receiver = Receiver(tls)
    try:
        yield receiver
    finally:
        receiver.close()


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
