"""A proxy on loopback that counts the HTTP/1.1 requests of one client: what an object store would charge for."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator

# The start line of a request with a signature: a body of ours does not look like this.
STARTS = re.compile(rb"(GET|PUT|POST|HEAD|DELETE) \S+ HTTP/1\.1\r\n")


class CountingProxy:
    """Passes every byte on to a port of this machine. `counts` has the requests by their methods."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.counts: Counter[str] = Counter()
        self._connections: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._begin(self._accept)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def close(self) -> None:
        for connection in (self._listener, *self._connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for connection in (self._listener, *self._connections):
            connection.close()

    def _begin(self, run: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=run, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.create_connection(("127.0.0.1", self._target_port))
                self._connections += (client, server)
                self._begin(self._pass_on, client, server, True)
                self._begin(self._pass_on, server, client, False)

    def _pass_on(self, source: socket.socket, sink: socket.socket, counted: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if counted:
                    self.counts.update(found.decode() for found in STARTS.findall(data))
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)


@contextlib.contextmanager
def counting_proxy(target_port: int) -> Iterator[CountingProxy]:
    proxy = CountingProxy(target_port)
    try:
        yield proxy
    finally:
        proxy.close()
