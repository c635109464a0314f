"""The server over HTTP with keys on, driven by wrk on the same machine: appends, diffs, and 10,000 idle connections."""

import resource
import shutil
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from bench.load.wrk import Aim, Run, static
from tests.serving import ServerProcess, serving

KEY = "bench-key"
SECONDS = 5
IDLE_CONNECTIONS = 10_000
PAYLOAD = {"id": 12345, "kind": "resize", "url": "s3://bucket/a.png", "w": 256}


class Row(NamedTuple):
    what: str
    path: str
    body: Any
    connections: int
    records: int


ROWS = (
    Row("append, 1 record a request", "/v0/topics/one", {"records": [{"data": PAYLOAD}]}, 16, 1),
    Row("append, 1 record a request", "/v0/topics/one", {"records": [{"data": PAYLOAD}]}, 1, 1),
    Row("append, 100 records a request", "/v0/topics/many", {"records": [{"data": PAYLOAD}] * 100}, 16, 100),
    Row("append, 100 records, class fsync", "/v0/topics/synced", {"records": [{"data": PAYLOAD}] * 100}, 16, 100),
    Row("diff of 1,000 records", "/v0/topics/read/diff", {"limit": 1000, "max_batch_bytes": 8 << 20}, 1, 1000),
)


def wrk(server: ServerProcess, path: str, body: Any, connections: int, seconds: int = SECONDS) -> Run:
    return static(Aim(server.port, KEY), path, body, connections, seconds)


def show(what: str, connections: int, records: int, run: Run) -> None:
    rate = f"{run.per_s:,.0f} requests/s" + (f", {run.per_s * records:,.0f} records/s" if records > 1 else "")
    failed = f", {run.errors} errors" if run.errors else ""
    print(f"| {what} | {connections} | {rate} | {run.p50_ms:.2f} ms | {run.p99_ms:.2f} ms{failed} |", flush=True)


def resident_bytes(server: ServerProcess) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def idle(server: ServerProcess) -> None:
    """The same appends with many idle connections open."""
    before = resident_bytes(server)
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(IDLE_CONNECTIONS)]
    server.client(KEY).get("/v0/health")
    each = (resident_bytes(server) - before) / IDLE_CONNECTIONS
    row = ROWS[0]
    show(f"{row.what}, beside {IDLE_CONNECTIONS:,} idle connections", 16, 1, wrk(server, row.path, row.body, 16))
    print(f"\nAn idle connection costs {each / 1024:.1f} KB.")
    for connection in connections:
        connection.close()


def main() -> None:
    if shutil.which("wrk") is None:
        sys.exit("bench http needs wrk (Debian: apt install wrk)")
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 2 * IDLE_CONNECTIONS + 1000), hard))
    print("| work over HTTP, keys on, class disk | connections | rate | p50 | p99 |")
    print("| --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as directory, serving(Path(directory), api_keys=KEY) as server:
        client = server.client(KEY)
        client.put("/v0/topics/synced", {"durability": "fsync"})
        client.append("read", *[PAYLOAD] * 1000)
        for row in ROWS:
            wrk(server, row.path, row.body, row.connections, seconds=1)
            show(row.what, row.connections, row.records, wrk(server, row.path, row.body, row.connections))
        idle(server)


if __name__ == "__main__":
    main()
