"""The time from a write to a reader that waits for it: one thread, two blocking sockets, nothing in between."""

from __future__ import annotations

import socket
import statistics
import time

WRITES = 1_000
WARM_UP = 100


def delivery_ms(port: int, stream_request: bytes, joined: bytes, write: bytes, delivered: bytes) -> float:
    """p50 of milliseconds from sending a write to the bytes that deliver it on the stream, one write at a time."""
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as stream,
        socket.create_connection(("127.0.0.1", port), timeout=30) as writer,
    ):
        writer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        stream.sendall(stream_request)
        _until(stream, joined)
        took_ms: list[float] = []
        for _ in range(WARM_UP + WRITES):
            started_s = time.perf_counter()
            writer.sendall(write)
            _until(stream, delivered)
            took_ms.append((time.perf_counter() - started_s) * 1000)
            if not writer.recv(1 << 16):
                raise ConnectionResetError("the writer's connection was closed")
        return statistics.median(took_ms[WARM_UP:])


def _until(stream: socket.socket, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        data = stream.recv(1 << 16)
        if not data:
            raise ConnectionResetError("the stream ended")
        seen = seen[-len(wanted) :] + data
