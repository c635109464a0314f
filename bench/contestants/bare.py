"""The limit of the design: uvloop and httptools alone, replying with as many bytes; a write with fdatasync alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import httptools
import uvloop

from bench.contestants.contestant import Sample, free_port, running
from bench.contestants.replies import Replies
from bench.contestants.watching import delivery_ms
from bench.load import wrk
from bench.report.page import ROOT

SYNCS = 500
APPENDED = b"a record of about as many bytes as the log has for one append" * 3


class Connection(asyncio.Protocol):
    """Parses requests and replies to each with the same bytes; a GET becomes a stream that every POST is pushed to."""

    def __init__(self, reply: bytes, stream_head: bytes, frame: bytes, streams: set[asyncio.Transport]) -> None:
        self._reply = reply
        self._stream_head = stream_head
        self._frame = frame
        self._streams = streams
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._streams.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_complete(self) -> None:
        if self._parser.get_method() == b"GET":
            self._streams.add(self._transport)
            self._transport.write(self._stream_head)
            return
        for stream in self._streams:
            stream.write(self._frame)
        self._transport.write(self._reply)


async def serve(port: int, directory: Path) -> None:
    reply, head, frame = ((directory / name).read_bytes() for name in ("reply", "head", "frame"))
    streams: set[asyncio.Transport] = set()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(reply, head, frame, streams), "127.0.0.1", port)
    await server.serve_forever()


class Bare:
    """No log, no state, no routing: the cost of the event loop and the parser alone."""

    name = "bare uvloop + httptools"
    promise = "nothing: it parses a request and answers as many bytes"
    kind = "limit"

    def __init__(self, replies: Replies) -> None:
        self._replies = replies

    def prepare(self, root: Path) -> None:
        """Nothing to prepare."""

    def measure(self, root: Path) -> Iterator[Sample]:
        replies = self._replies
        (root / "reply").write_bytes(replies.reply)
        (root / "head").write_bytes(replies.stream_head)
        (root / "frame").write_bytes(replies.frame)
        port = free_port()
        command = [sys.executable, "-m", "bench.contestants.bare", str(port), str(root)]
        with running(command, root / "log", port, env={**os.environ, "PYTHONPATH": str(ROOT)}):
            aim = wrk.Aim(port)
            yield "append 1, 16", wrk.static(aim, "/v0/topics/one", replies.body).per_s
            yield "append 1, 1, p50", wrk.static(aim, "/v0/topics/one", replies.body, 1).p50_ms
            asked = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
            yield "watch 1", delivery_ms(port, asked, replies.stream_head[-4:], replies.request, replies.frame[-12:])


class RawSync:
    """The time that a disk takes for a single record, without any program around it."""

    name = "raw write + fdatasync"
    promise = "synced"
    kind = "limit"

    def prepare(self, root: Path) -> None:
        """Nothing to prepare."""

    def measure(self, root: Path) -> Iterator[Sample]:
        took_ms: list[float] = []
        with (root / "file").open("wb", buffering=0) as file:
            # As a log does: space is allocated beforehand, so that a sync writes data only.
            os.posix_fallocate(file.fileno(), 0, SYNCS * len(APPENDED))
            os.fsync(file.fileno())
            for _ in range(SYNCS):
                started_s = time.perf_counter()
                file.write(APPENDED)
                os.fdatasync(file.fileno())
                took_ms.append((time.perf_counter() - started_s) * 1000)
        yield "append 1, 1, fsync, p50", statistics.median(took_ms)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        uvloop.run(serve(int(sys.argv[1]), Path(sys.argv[2])))
