"""Redis Streams: XADD by redis-benchmark, XREAD BLOCK for a watcher, and the time of a start with a full log."""

from __future__ import annotations

import contextlib
import re
import shutil
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench.contestants.contestant import (
    BATCH,
    CONNECTIONS,
    PAYLOAD,
    RECOVERED,
    Missing,
    Sample,
    end,
    free_port,
    log_line,
    running,
)
from bench.contestants.watching import WARM_UP, WRITES

SINGLES = 60_000
BATCHED = 500_000
LATENCIES = 10_000
LATENCIES_SYNCED = 1_000
RUN_S_MAX = 60.0


class Benchmark(NamedTuple):
    """The measurements of redis-benchmark."""

    per_s: float
    p50_ms: float


def command(*words: str) -> bytes:
    """A command in the protocol of Redis."""
    parts = [f"*{len(words)}\r\n", *(f"${len(word.encode())}\r\n{word}\r\n" for word in words)]
    return "".join(parts).encode()


class RedisStreams:
    name = "Redis Streams"
    promise = "`everysec`: `write(2)` has returned, synced every second; `always`: synced"
    kind = "bar"

    def prepare(self, root: Path) -> None:  # noqa: ARG002 - nothing to keep
        for program in ("redis-server", "redis-benchmark"):
            if shutil.which(program) is None:
                raise Missing(f"{program} (Debian: apt install redis-server)")
        done = subprocess.run(["redis-server", "--version"], capture_output=True, text=True, check=True, timeout=30)
        found = re.search(r"v=(\S+)", done.stdout)
        self.name = f"Redis {found[1]} Streams" if found else self.name

    @contextlib.contextmanager
    def _serving(self, root: Path, fsync: str) -> Iterator[int]:
        port = free_port()
        directory = root / fsync
        directory.mkdir(exist_ok=True)
        with running(server_command(port, directory, fsync), directory / "log", port):
            yield port

    def measure(self, root: Path) -> Iterator[Sample]:
        with self._serving(root, "everysec") as port:
            xadd(port, SINGLES // 4, CONNECTIONS)
            yield "append 1, 16", xadd(port, SINGLES, CONNECTIONS).per_s
            yield "append 100", xadd(port, BATCHED, CONNECTIONS, BATCH).per_s
            yield "append 1, 1, p50", xadd(port, LATENCIES, 1).p50_ms
            yield "watch 1", blocked_ms(port)
        with self._serving(root, "always") as port:
            yield "append 100, fsync", xadd(port, BATCHED, CONNECTIONS, BATCH).per_s
            yield "append 1, 1, fsync, p50", xadd(port, LATENCIES_SYNCED, 1).p50_ms
        yield "recovery", self._recovery_s(root)

    def _recovery_s(self, root: Path) -> float:
        directory = root / "recovery"
        directory.mkdir()
        port = free_port()
        with running(server_command(port, directory, "everysec"), directory / "log", port) as process:
            xadd(port, RECOVERED, CONNECTIONS, BATCH)
            end(process, signal.SIGKILL)
        log = directory / "log-again"
        with running(server_command(port, directory, "everysec"), log, port):
            line = log_line(log, "DB loaded from append only file")
        found = re.search(r"([\d.]+) seconds", line)
        assert found, line
        return float(found[1])


def server_command(port: int, directory: Path, fsync: str) -> list[str]:
    options = ["--appendonly", "yes", "--appendfsync", fsync, "--save", "", "--auto-aof-rewrite-percentage", "0"]
    return ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", str(directory), *options]


def xadd(port: int, count: int, connections: int, pipelined: int = 1) -> Benchmark:
    load = ["redis-benchmark", "-p", str(port), "-c", str(connections), "-P", str(pipelined), "-n", str(count), "--csv"]
    words = [*load, "XADD", "stream", "*", "data", PAYLOAD]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=RUN_S_MAX)
    # The text of the test may contain anything; the figures are the last seven fields.
    rps, _, _, p50_ms, *_ = re.findall(r'"([\d.]+)"', done.stdout.splitlines()[-1])[-7:]
    return Benchmark(float(rps), float(p50_ms))


def blocked_ms(port: int) -> float:
    """p50 of milliseconds from sending an XADD to its delivery to a client that waits in XREAD BLOCK."""
    add, read = (
        command("XADD", "watched", "*", "data", PAYLOAD),
        command("XREAD", "BLOCK", "30000", "STREAMS", "watched", "$"),
    )
    with (
        socket.create_connection(("127.0.0.1", port), timeout=30) as reader,
        socket.create_connection(("127.0.0.1", port), timeout=30) as writer,
    ):
        for each in (reader, writer):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        took_ms: list[float] = []
        for _ in range(WARM_UP + WRITES):
            reader.sendall(read)
            # The reply comes after the previous command was read: the reader waits by now.
            writer.sendall(command("PING"))
            writer.recv(64)
            started_s = time.perf_counter()
            writer.sendall(add)
            reader.recv(1 << 16)
            took_ms.append((time.perf_counter() - started_s) * 1000)
            writer.recv(1 << 12)
        return statistics.median(took_ms[WARM_UP:])
