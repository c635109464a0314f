"""What a line about a request costs: processor time of the server, by what is logged, in alternating rounds."""

from __future__ import annotations

import contextlib
from pathlib import Path

from bench.load import wrk
from bench.load.directories import on_disk
from bench.report.figures import spread, table
from tests.serving import ServerProcess

KEY = "bench-key"
ROUNDS = 5
SECONDS = 1
CONNECTIONS = 16
READ_BYTES = 1 << 20
PAYLOAD = {"id": 12345, "kind": "resize", "url": "s3://bucket/a.png", "w": 256}
CALLS: tuple[tuple[str, str, object], ...] = (
    ("append 1 record", "/v0/topics/one", {"records": [{"data": PAYLOAD}]}),
    ("diff of 1 record", "/v0/topics/read/diff", {"limit": 1}),
)
ID = {"X-Request-Id": "order-17"}
# What is logged: settings of the server, headers of each request.
VARIANTS: dict[str, tuple[dict[str, object], dict[str, str]]] = {
    "off": ({}, {}),
    "off, the client sends an id": ({}, ID),
    "slow requests only": ({"slow_request_ms": 1_000}, {}),
    "one of 100, JSON": ({"access_log": 1, "access_log_sample": 100, "log_format": "json"}, {}),
    "all, text": ({"access_log": 1, "log_format": "text"}, {}),
    "all, JSON": ({"access_log": 1, "log_format": "json"}, {}),
    "all, JSON, the client sends an id": ({"access_log": 1, "log_format": "json"}, ID),
}


class LoggingServer(ServerProcess):
    """Its log is read as a service manager reads it, from a pipe, and only the start of it is kept."""

    def _read_log(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._news:
                self.lines.append(line.decode().rstrip("\n"))
                self._news.notify_all()
            if b"ready: " in line:
                break
        while self.process.stderr.read(READ_BYTES):
            pass
        with self._news:
            self._news.notify_all()


def cost_us(server: ServerProcess, path: str, body: object, headers: dict[str, str]) -> float:
    """Of one request, on connections that are kept."""
    before_s = wrk.cpu_s(server.process.pid)
    done = wrk.static(wrk.Aim(server.port, KEY), path, body, CONNECTIONS, SECONDS, headers=headers)
    if done.errors:
        raise wrk.WrkFailed(f"{done.errors} requests failed")
    return (wrk.cpu_s(server.process.pid) - before_s) * 1e6 / done.requests


def main() -> None:
    samples: dict[tuple[str, str], list[float]] = {}
    with on_disk() as root, contextlib.ExitStack() as stack:
        servers: dict[str, ServerProcess] = {}
        for number, (variant, (settings, _)) in enumerate(VARIANTS.items()):
            servers[variant] = LoggingServer(Path(root) / str(number), api_keys=KEY, **settings)
            stack.callback(servers[variant].kill)
            servers[variant].ready().client(KEY).append("read", *[PAYLOAD] * 1000)
        for round_number in range(ROUNDS + 1):
            for name, path, body in CALLS:
                for variant, (_, headers) in VARIANTS.items():
                    cost = cost_us(servers[variant], path, body, headers)
                    # the first round warms up
                    if round_number:
                        samples.setdefault((variant, name), []).append(cost)
    lines: list[list[str]] = []
    for variant in VARIANTS:
        line = [variant]
        for name, _, _ in CALLS:
            found, plain = spread(samples[variant, name]), spread(samples["off", name])
            line += [found.shown("µs"), f"{found.median - plain.median:+.1f} µs"]
        lines.append(line)
    print(table(["log of requests", *(title for name, _, _ in CALLS for title in (name, "more"))], lines))
