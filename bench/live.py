"""Live delivery: from a write to its watchers, many watchers, a backlog to one, and the cost of a quiet connection."""

import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import cast

import uvloop

from tests.serving import Client, ServerProcess, serving

SEQ = re.compile(rb'"\$seq":(\d+)')
EVENTS = "Accept: text/event-stream\r\n"
BATCH = 2_000
WRITERS = 16


class Watcher(asyncio.Protocol):
    """Counts records as they arrive, without parsing frames."""

    def __init__(self, path: str, arrived: "Arrivals") -> None:
        self._path = path
        self._arrived = arrived
        self.transport: asyncio.Transport | None = None
        self.records = 0
        self.live = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.transport.write(f"GET {self._path} HTTP/1.1\r\nHost: localhost\r\n{EVENTS}\r\n".encode())

    def data_received(self, data: bytes) -> None:
        count = data.count(b'"$seq":')
        if count:
            self.records += count
            self._arrived.add(count)
        elif not self.live and b"event: caught-up" in data:
            self.live = True
            self._arrived.joined()


class Arrivals:
    """What all watchers have received so far, and when."""

    def __init__(self) -> None:
        self.records = 0
        self.times_s: list[float] = []
        self.watchers = 0
        self._wanted: tuple[int, asyncio.Event] | None = None

    def add(self, count: int) -> None:
        self.records += count
        self.times_s.append(time.perf_counter())
        self._check()

    def joined(self) -> None:
        self.watchers += 1
        self._check()

    def _check(self) -> None:
        if self._wanted is not None and self.records + self.watchers >= self._wanted[0]:
            self._wanted[1].set()

    async def reach(self, total: int, within_s: float = 60.0) -> None:
        """Wait until this many watchers are connected and this many records have come, in total."""
        event = asyncio.Event()
        self._wanted = (total, event)
        self._check()
        await asyncio.wait_for(event.wait(), within_s)


class Writer:
    """Appends over a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def connect(cls, port: int) -> "Writer":
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def append(self, topic: str) -> None:
        self.send(topic)
        await self.acknowledged()

    def send(self, topic: str) -> None:
        body = b'{"records":[{"data":{"n":1,"text":"a line of an ordinary length"}}]}'
        head = f"POST /v0/topics/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        self._writer.write(head.encode() + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    async def acknowledged(self) -> None:
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"Content-Length: (\d+)", answer)[1])  # pyright: ignore[reportOptionalSubscript]
        await self._reader.readexactly(length)


def sessions(client: Client, topic: str, count: int) -> Iterator[str]:
    for _ in range(count):
        yield client.post("/v0/watch", {"topics": {topic: {"tail": True}}, "heartbeat_ms": 60_000}).json["stream_url"]


async def join(port: int, paths: list[str], arrivals: Arrivals) -> list[Watcher]:
    loop = asyncio.get_running_loop()
    watchers: list[Watcher] = []
    for path in paths:
        _, watcher = await loop.create_connection(lambda path=path: Watcher(path, arrivals), "127.0.0.1", port)
        watchers.append(watcher)
    await arrivals.reach(len(watchers))
    return watchers


async def latency(port: int, client: Client, count: int, writes: int) -> tuple[float, float, float]:
    """p50 and p99 in ms over all deliveries of single writes, one at a time; p50 of the last delivery."""
    arrivals = Arrivals()
    client.append(f"fan-{count}", 0)
    watchers = await join(port, list(sessions(client, f"fan-{count}", count)), arrivals)
    writer = await Writer.connect(port)
    took_ms: list[float] = []
    last_ms: list[float] = []
    for number in range(1, writes + 1):
        arrivals.times_s.clear()
        started_s = time.perf_counter()
        await writer.append(f"fan-{count}")
        await arrivals.reach(count + count * number)
        took_ms += [(arrived_s - started_s) * 1000 for arrived_s in arrivals.times_s]
        last_ms.append((arrivals.times_s[-1] - started_s) * 1000)
    close(watchers)
    return median(took_ms), quantiles(took_ms, n=100)[98], median(last_ms)


def write_steadily(port: int, topic: str, writes: int, every_s: float) -> None:
    """A write every `every_s`, whether or not the previous ones are acknowledged; a few connections take turns."""

    async def write() -> None:
        writers = [await Writer.connect(port) for _ in range(WRITERS)]
        due_s = time.perf_counter()
        for number in range(writes):
            writers[number % WRITERS].send(topic)
            due_s += every_s
            await asyncio.sleep(max(0.0, due_s - time.perf_counter()))
        for number in range(writes):
            await writers[number % WRITERS].acknowledged()

    uvloop.run(write())


async def load(port: int, client: Client, count: int, writes: int, every_s: float) -> tuple[float, int]:
    """Records delivered per second while another process writes every `every_s`, and how many were lost."""
    arrivals = Arrivals()
    client.append("load", 0)
    watchers = await join(port, list(sessions(client, "load", count)), arrivals)
    steps = f"from bench.live import write_steadily; write_steadily({port}, 'load', {writes}, {every_s})"
    process = subprocess.Popen([sys.executable, "-c", steps])  # noqa: ASYNC220
    await arrivals.reach(count + 1)
    started_s = time.perf_counter()
    await arrivals.reach(count + count * writes)
    took_s = time.perf_counter() - started_s
    process.wait()
    lost = count * writes - sum(watcher.records for watcher in watchers)
    close(watchers)
    return count * writes / took_s, lost


def close(watchers: list[Watcher]) -> None:
    for watcher in watchers:
        assert watcher.transport is not None
        watcher.transport.abort()


def backlog(server: ServerProcess, client: Client, records: int) -> float:
    """Records per second of a long backlog to one client."""
    payload = [{"data": {"n": number, "text": "a line of an ordinary length"}} for number in range(BATCH)]
    for _ in range(records // BATCH):
        client.post("/v0/topics/backlog?return_seqs=false", {"records": payload})
    path = client.post("/v0/watch", {"topics": {"backlog": {}}, "limit": 1000}).json["stream_url"]
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
        started_s = time.perf_counter()
        raw.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{EVENTS}\r\n".encode())
        buffer = bytearray(4 << 20)
        seen, kept = 0, b""
        while seen < records:
            size = raw.recv_into(buffer)
            data = kept + buffer[:size]
            seen += data.count(b'"$seq":')
            kept = bytes(data[-6:])
        return records / (time.perf_counter() - started_s)


def rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def quiet(server: ServerProcess, client: Client, count: int) -> tuple[float, float, float]:
    """Bytes of the server per quiet stream; p50 of a write to another topic without and with them, in ms."""
    arrivals = Arrivals()
    client.append("quiet", 0)
    client.append("busy", 0)
    writer = await Writer.connect(server.port)

    async def write_ms() -> float:
        took: list[float] = []
        for _ in range(500):
            started_s = time.perf_counter()
            await writer.append("busy")
            took.append((time.perf_counter() - started_s) * 1000)
        return median(took)

    alone_ms = await write_ms()
    before = rss_bytes(server.process.pid)
    watchers = await join(server.port, list(sessions(client, "quiet", count)), arrivals)
    cost = (rss_bytes(server.process.pid) - before) / count
    beside_ms = await write_ms()
    close(watchers)
    return cost, alone_ms, beside_ms


def run_one(name: str, root: Path) -> dict[str, object]:
    with serving(root / name, max_sse_connections=20_000, max_watch_sessions=20_000) as server:
        client = server.client()
        match name:
            case "backlog":
                return {"records/s": round(backlog(server, client, 1_000_000))}
            case "quiet":
                cost, alone_ms, beside_ms = uvloop.run(quiet(server, client, 10_000))
                return {"bytes each": round(cost), "write p50 alone ms": alone_ms, "write p50 beside ms": beside_ms}
            case "load":
                rate, lost = uvloop.run(load(server.port, client, 1_000, 1_000, 0.005))
                return {"records/s": round(rate), "lost": lost}
            case _:
                count = int(name)
                p50, p99, last = uvloop.run(latency(server.port, client, count, 500 if count < 1_000 else 100))
                return {"p50 ms": p50, "p99 ms": p99, "p50 of the last watcher ms": last}


ROWS = {
    "1": "write → deliver, 1 watcher",
    "100": "write → deliver, 100 watchers",
    "1000": "write → deliver, 1,000 watchers",
    "load": "1,000 watchers, a write every 5 ms",
    "backlog": "backlog of 1,000,000 records to one client",
    "quiet": "10,000 quiet streams",
}


def main(names: list[str] | None = None) -> None:
    print("| work | measured |\n| --- | --- |")
    with tempfile.TemporaryDirectory() as root:
        for name in names or list(ROWS):
            figures = run_one(name, Path(root))
            shown = json.dumps(
                {key: round(value, 3) if isinstance(value, float) else value for key, value in figures.items()}
            )
            print(f"| {ROWS[name]} | {shown.strip('{}')} |", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
