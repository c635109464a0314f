"""One connection that sends prepared requests: a load driver must cost less than what it measures."""

from __future__ import annotations

import json
import re
import socket

LENGTH = re.compile(rb"Content-Length: (\d+)", re.IGNORECASE)


class Wire:
    """A blocking connection; `take` reads once, `answer` until a body is complete."""

    def __init__(self, port: int, bearer: str = "") -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._bearer = f"Authorization: Bearer {bearer}\r\n" if bearer else ""
        self._received = b""

    def send(self, path: str, request: object) -> None:
        self.socket.sendall(self.bytes_of(path, request))

    def bytes_of(self, path: str, request: object) -> bytes:
        body = json.dumps(request)
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\n{self._bearer}Content-Type: application/json\r\n"
        return f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode()

    def take(self) -> bytes | None:
        """The body of a reply, as soon as it is complete."""
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionResetError("the server has closed the connection")
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        if not found:
            return None
        assert head.startswith(b"HTTP/1.1 20"), (head, rest)
        length_found = LENGTH.search(head)
        assert length_found, head
        length = int(length_found[1])
        if len(rest) < length:
            return None
        self._received = rest[length:]
        return rest[:length]

    def answer(self) -> bytes:
        while True:
            body = self.take()
            if body is not None:
                return body

    def close(self) -> None:
        self.socket.close()
