"""An S3 server that is of no use: it ignores the conditions of writes, or allows none."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

# Which condition is ignored, or that nothing may be written.
Fault = Literal["If-None-Match", "If-Match", "read only"]


@contextlib.contextmanager
def careless_s3(fault: Fault) -> Iterator[int]:
    """The port; as much of S3 as a start asks for until it is refused."""
    objects: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            data = self.rfile.read(int(self.headers["Content-Length"]))
            found = objects.get(self.path)
            if fault == "read only":
                return self._answer(403, b"<Error><Code>AccessDenied</Code></Error>")
            if found is not None and self.headers["If-None-Match"] and fault != "If-None-Match":
                return self._answer(412)
            if self.headers["If-Match"] and fault != "If-Match" and self.headers["If-Match"] != etag(found):
                return self._answer(412)
            objects[self.path] = data
            return self._answer(200, data=data)

        def do_GET(self) -> None:
            data = objects.get(self.path)
            self._answer(404 if data is None else 200, data or b"", data=data)

        def _answer(self, status: int, body: bytes = b"", *, data: bytes | None = None) -> None:
            self.send_response(status)
            if data is not None:
                self.send_header("ETag", etag(data))
                self.send_header("Last-Modified", "Thu, 19 Nov 2026 12:00:00 GMT")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Nobody reads it."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


def etag(data: bytes | None) -> str:
    return "none" if data is None else f'"{data.hex()}"'
