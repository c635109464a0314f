"""The server over HTTP with keys on, driven by wrk on the same machine: appends, diffs, and 10,000 idle connections."""

import json
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from tests.serving import ServerProcess, serving

KEY = "bench-key"
SECONDS = 5
IDLE_CONNECTIONS = 10_000
PAYLOAD = {"id": 12345, "kind": "resize", "url": "s3://bucket/a.png", "w": 256}

SCRIPT = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer {key}"
wrk.body = [==[{body}]==]
done = function(summary, latency, requests)
  io.write(string.format('RESULT {{"requests":%d,"us":%d,"p50_us":%d,"p99_us":%d,"errors":%d}}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    summary.errors.status + summary.errors.read + summary.errors.write + summary.errors.timeout))
end
"""


class Run(NamedTuple):
    """What wrk measured."""

    per_s: float
    p50_ms: float
    p99_ms: float
    errors: int


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
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(SCRIPT.format(key=KEY, body=json.dumps(body)))
        script.flush()
        url = f"http://127.0.0.1:{server.port}{path}"
        command = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "-s", script.name, url]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(r"RESULT (.*)", done.stdout)
    assert found, done.stdout
    result = json.loads(found[1])
    per_s = result["requests"] * 1e6 / result["us"]
    return Run(per_s, result["p50_us"] / 1000, result["p99_us"] / 1000, result["errors"])


def show(what: str, connections: int, records: int, run: Run) -> None:
    rate = f"{run.per_s:,.0f} requests/s" + (f", {run.per_s * records:,.0f} records/s" if records > 1 else "")
    failed = f", {run.errors} errors" if run.errors else ""
    print(f"| {what} | {connections} | {rate} | {run.p50_ms:.2f} ms | {run.p99_ms:.2f} ms{failed} |", flush=True)


def resident_bytes(server: ServerProcess) -> int:
    pages = int(Path(f"/proc/{server.process.pid}/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def idle(server: ServerProcess) -> None:
    """The same appends beside many connections that do nothing."""
    before = resident_bytes(server)
    connections = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(IDLE_CONNECTIONS)]
    server.client(KEY).get("/v0/health")
    each = (resident_bytes(server) - before) / IDLE_CONNECTIONS
    row = ROWS[0]
    show(f"{row.what}, beside {IDLE_CONNECTIONS:,} idle connections", 16, 1, wrk(server, row.path, row.body, 16))
    print(f"\nAn idle connection costs {each / 1024:.1f} KB.")
    for connection in connections:
        connection.close()


def redis(fsync: str, batches: int = 5_000) -> float:
    """Records per second that Redis Streams take by pipelines of 100, from 16 connections."""
    port = "6398"
    with tempfile.TemporaryDirectory() as directory:
        options = ["--port", port, "--dir", directory, "--appendonly", "yes", "--appendfsync", fsync, "--save", ""]
        server = subprocess.Popen(["redis-server", *options], stdout=subprocess.DEVNULL)
        try:
            while subprocess.run(["redis-cli", "-p", port, "ping"], capture_output=True, check=False).returncode:
                time.sleep(0.05)
            load = ["redis-benchmark", "-p", port, "-c", "16", "-P", "100", "-n", str(100 * batches), "--csv"]
            command = [*load, "XADD", "stream", "*", "data", json.dumps(PAYLOAD)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
        finally:
            server.terminate()
            server.wait()
    return float(done.stdout.splitlines()[-1].split('","')[1].strip('"'))


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
    if shutil.which("redis-server"):
        for fsync in ("everysec", "always"):
            print(f"Redis `XADD` pipelined by 100, `appendfsync {fsync}`: {redis(fsync):,.0f} records/s", flush=True)


if __name__ == "__main__":
    main()
