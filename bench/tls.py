"""What TLS costs: the server's processor time per request and per new connection, plain and encrypted in turn."""

from __future__ import annotations

import contextlib
import http.client
import ssl
from collections.abc import Callable
from pathlib import Path

from bench.load import wrk
from bench.load.directories import on_disk
from bench.report.figures import spread, table
from tests.certificates import Authority
from tests.serving import ServerProcess, serving
from topics.client import Client

KEY = "bench-key"
ROUNDS = 5
SECONDS = 1
HANDSHAKES = 200
PAYLOAD = {"id": 12345, "kind": "resize", "url": "s3://bucket/a.png", "w": 256}
CALLS: tuple[tuple[str, str, object], ...] = (
    ("append 1 record", "/v0/topics/one", {"records": [{"data": PAYLOAD}]}),
    ("append 100 records", "/v0/topics/many", {"records": [{"data": PAYLOAD}] * 100}),
    ("diff of 1 record", "/v0/topics/read/diff", {"limit": 1}),
    ("diff of 100 records", "/v0/topics/read/diff", {"limit": 100}),
)


def requests(server: ServerProcess, path: str, body: object, *, tls: bool) -> float:
    """µs per request, on 16 connections that are kept."""
    before_s = wrk.cpu_s(server.process.pid)
    done = wrk.static(wrk.Aim(server.port, KEY, tls), path, body, 16, SECONDS)
    return (wrk.cpu_s(server.process.pid) - before_s) * 1e6 / done.requests


def connections(server: ServerProcess, connect: Callable[[], http.client.HTTPConnection]) -> float:
    """µs per connection that sends one request."""
    before_s = wrk.cpu_s(server.process.pid)
    for _ in range(HANDSHAKES):
        with contextlib.closing(connect()) as connection:
            connection.request("GET", "/v0/health")
            connection.getresponse().read()
    return (wrk.cpu_s(server.process.pid) - before_s) * 1e6 / HANDSHAKES


def measure(plain: ServerProcess, secured: ServerProcess, context: ssl.SSLContext) -> dict[str, list[list[float]]]:
    """Samples of both servers by row; the first round warms up."""
    rows: dict[str, list[list[float]]] = {}
    for number in range(ROUNDS + 1):
        for name, path, body in CALLS:
            pair = [requests(plain, path, body, tls=False), requests(secured, path, body, tls=True)]
            rows.setdefault(name, []).append(pair)
        pair = [
            connections(plain, lambda: http.client.HTTPConnection("localhost", plain.port)),
            connections(secured, lambda: http.client.HTTPSConnection("localhost", secured.port, context=context)),
        ]
        rows.setdefault("new connection, 1 request", []).append(pair)
        if not number:
            rows.clear()
    return rows


def main() -> None:
    with on_disk() as root:
        authority = Authority(Path(root))
        files = authority.pair()
        settings = {"tls_cert": files.certificate, "tls_key": files.key}
        with (
            serving(Path(root) / "plain", api_keys=KEY) as plain,
            serving(Path(root) / "tls", api_keys=KEY, **settings) as secured,
        ):
            context = authority.trusting()
            filled(f"http://localhost:{plain.port}", None)
            filled(f"https://localhost:{secured.port}", str(authority.file))
            rows = measure(plain, secured, context)
    lines: list[list[str]] = []
    for name, pairs in rows.items():
        before, after = (spread([pair[side] for pair in pairs]) for side in (0, 1))
        lines.append([name, before.shown("µs"), after.shown("µs"), f"{after.median - before.median:+.1f} µs"])
    print(table(["call", "plain", "TLS 1.3", "difference"], lines))


def filled(url: str, ca_file: str | None) -> None:
    """1,000 records to read."""
    with Client(url, KEY, ca_file=ca_file) as client:
        client.append_many("read", [PAYLOAD] * 1000)
