"""NATS JetStream, built with Go: publishing and a work queue with its own client, which `nats bench` uses as well."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from bench.contestants.contestant import (
    BATCH,
    CONNECTIONS,
    JOBS,
    JOBS_CLAIM,
    PAYLOAD,
    RECOVERED,
    Missing,
    Sample,
    end,
    free_port,
    log_line,
    running,
)
from bench.load.trees import CACHE

SERVER = "github.com/nats-io/nats-server/v2@latest"
LOAD = Path(__file__).parent / "nats_load"
BIN = CACHE / "go"
BUILD_S_MAX = 600
RUN_S_MAX = 90.0
SINGLES = 40_000
BATCHED = 320_000
BATCHED_SYNCED = 3_200
LATENCIES = 10_000
LATENCIES_SYNCED = 500
UNITS_S = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}


def seconds_of(duration: str) -> float:
    """`1m2.5s` or `340ms`, as Go writes a duration."""
    return sum(float(value) * UNITS_S[unit] for value, unit in re.findall(r"([\d.]+)(ms|µs|ns|h|m|s)", duration))


class Nats:
    name = "NATS JetStream"
    promise = "by default: `write(2)` has returned, synced every 2 minutes; `sync_interval: always`: synced"
    kind = "bar"

    def prepare(self, root: Path) -> None:
        if not (BIN / "nats-server").exists():
            built("nats-server", ["install", SERVER], root)
        built("its load", ["build", "-o", str(BIN / "nats_load"), "."], LOAD)
        done = subprocess.run(
            [BIN / "nats-server", "--version"], capture_output=True, text=True, check=True, timeout=30
        )
        self.name = f"NATS JetStream {done.stdout.split()[-1].lstrip('v')}"

    @contextlib.contextmanager
    def _serving(self, root: Path, sync: str, log: str = "log") -> Iterator[tuple[int, subprocess.Popen[bytes]]]:
        port = free_port()
        directory = root / sync
        directory.mkdir(exist_ok=True)
        settings = {"store_dir": str(directory), **({"sync_interval": sync} if sync == "always" else {})}
        (directory / "conf").write_text(json.dumps({"host": "127.0.0.1", "port": port, "jetstream": settings}))
        command = [BIN / "nats-server", "-c", directory / "conf"]
        with running(command, directory / log, port) as process:
            yield port, process

    def measure(self, root: Path) -> Iterator[Sample]:
        with self._serving(root, "default") as (port, _):
            load(port, "publish", SINGLES // 4)
            yield "append 1, 16", load(port, "publish", SINGLES)["per_s"]
            yield "append 100", load(port, "publish", BATCHED, batch=BATCH)["per_s"]
            yield "append 1, 1, p50", load(port, "publish", LATENCIES, 1)["p50_ms"]
            yield "watch 1", load(port, "watch", 1_000, 1)["p50_ms"]
            yield "queue", load(port, "queue", JOBS, batch=JOBS_CLAIM)["per_s"]
        with self._serving(root, "always") as (port, _):
            yield "append 100, fsync", load(port, "publish", BATCHED_SYNCED, batch=BATCH)["per_s"]
            yield "append 1, 1, fsync, p50", load(port, "publish", LATENCIES_SYNCED, 1)["p50_ms"]
        yield "recovery", self._recovery_s(root / "recovery")

    def _recovery_s(self, root: Path) -> float:
        root.mkdir()
        with self._serving(root, "default") as (port, process):
            load(port, "publish", RECOVERED, batch=1_000)
            end(process, signal.SIGKILL)
        with self._serving(root, "default", "log-again"):
            line = log_line(root / "default" / "log-again", "Restored ")
        found = re.search(r"Restored ([\d,]+) messages for stream .* in (\S+)", line)
        if not found or int(found[1].replace(",", "")) < RECOVERED - CONNECTIONS * 1_000:
            raise RuntimeError(f"not all messages are there: {line}")
        return seconds_of(found[2])


def built(what: str, arguments: list[str], directory: Path) -> None:
    """Built with Go into the cache of the bench; an existing program is used as it is."""
    go = shutil.which("go")
    if go is None:
        raise Missing(f"Go, to build {what}")
    BIN.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(
        [go, *arguments],
        cwd=directory,
        env={**os.environ, "GOBIN": str(BIN)},
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_S_MAX,
    )
    if done.returncode:
        raise Missing(f"{what}, which go {arguments[0]} does not build: {done.stderr[-500:]}")


def load(port: int, work: str, count: int, connections: int = CONNECTIONS, batch: int = 1) -> dict[str, float]:
    options = {"work": work, "count": count, "connections": connections, "batch": batch, "payload": PAYLOAD}
    command = [
        str(BIN / "nats_load"),
        f"-url=nats://127.0.0.1:{port}",
        *(f"-{key}={value}" for key, value in options.items()),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=RUN_S_MAX)
    if done.returncode:
        raise RuntimeError(f"NATS {work}: {done.stderr[-500:]}")
    return json.loads(done.stdout)
